"""Merges flags, environment variables and YAML into the settings of each command.

In: texts of users. Out: parsed values by key. May import everything below `app`.
"""
