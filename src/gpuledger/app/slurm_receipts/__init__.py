"""Receipts of Slurm jobs: read from all nodes of a job, merged, and written into the job's AdminComment.

In: rows of sacct, receipts of the nodes' API. Out: the summary that jobstats, reportseff and jobscope read.
"""
