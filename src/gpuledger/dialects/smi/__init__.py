"""The smi dialect: the `nvidia_smi_*` families of nvidia_gpu_exporter.

In: a NodeState. Out: Families. Imports: model, dialects.settings and this package.
"""
