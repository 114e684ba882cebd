"""The kubelet's pod-resources socket or checkpoint in; device Allocations of pods out.

May import workloads.device_index, workloads.pods, host and model.
"""
