"""Pages of another exporter and of gpuledger, rules and dashboards in; what would change, and advice out.

May import agent.scrape, dialects, host and model. Only `promql.py` imports the PromQL parser.
"""
