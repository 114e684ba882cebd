"""Cgroup tree, process environments and Slurm's files in; Slurm jobs with users and allocated GPUs out.

May import workloads.device_index, host and model.
"""
