"""The agent scrapes GPU exporters (targets) and sends their samples to remote-write receivers.

It may import `web`, `outputs` and the layers below, but not `node`, `operator`, `app`, `config` or `cli`.
"""
