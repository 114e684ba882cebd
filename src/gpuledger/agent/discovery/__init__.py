"""Turns selections and watched Kubernetes objects into the scrape targets of this shard.

It may import `agent.scrape` and `agent.relabel` (settings and rules), and `kubernetes`.
"""
