"""One module per command of `gpuledger`: parses its flags, runs it, returns the exit code.

In: command-line arguments and the environment. Out: text on stdout, errors on stderr. May import everything.
"""
