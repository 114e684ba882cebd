"""Scrapes targets and turns their pages into blocks of labeled, encoded samples.

It may import `agent.relabel`, `agent.deliver` (blocks, TLS and login settings), `exposition` and `http`.
"""
