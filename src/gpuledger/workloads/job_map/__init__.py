"""Files of the job-mapping directory in; device Allocations of batch jobs out.

May import workloads.device_index, workloads.slurm.jobs, host and model.
"""
