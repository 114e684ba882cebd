"""In: metrics pages of another exporter and of gpuledger, rules, dashboards. Out: changes, advice.

May import agent.scrape, dialects, host and model. Only `promql.py` imports the PromQL parser.
"""
