"""API server, log file names and the cgroup tree in; pods of this node and UUIDs of DRA devices out.

May import kubernetes, workloads.cgroup, host and model.
"""
