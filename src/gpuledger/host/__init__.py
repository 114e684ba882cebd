"""Access to the machine: procfs, sysfs, users, files, YAML, clock, and the base classes of owner indexes.

In: paths and pids. Out: facts about processes and files. May import `model` only.
"""
