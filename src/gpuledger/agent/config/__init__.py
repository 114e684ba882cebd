"""Parses the agent's configuration file (YAML) into an AgentConfig: targets, selections and receivers.

It may import the other agent packages, which must not import it, except `agent` and `prometheus_engine`.
"""
