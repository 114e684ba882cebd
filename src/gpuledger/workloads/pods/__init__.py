"""API server, log file names and the cgroup tree in; pods of this node, DRA devices and claims out.

May import kubernetes, workloads.cgroup, host and model.
"""
