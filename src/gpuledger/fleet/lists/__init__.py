"""Lists of nodes: flags, files, HTTP, DNS, Slurm and Kubernetes in, addresses of nodes out.
May import kubernetes, http, host and model.
"""
