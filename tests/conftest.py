"""What holds for every test."""

from __future__ import annotations

import os

# Tests run side by side, and one machine has one set of books: who wants books names a directory.
os.environ["GPULEDGER_STATE_DIR"] = "none"
# Nor is there more than one usual place to be told to pause.
os.environ["GPULEDGER_CONTROL_SOCKET"] = "none"
# What is drawn for a terminal has the size of the test's own, not of the one that the tests were started in.
for size in ("COLUMNS", "LINES"):
    os.environ.pop(size, None)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A long text stands for itself by its length: pytest puts the names of tests into the environment."""
    if isinstance(val, str | bytes) and len(val) > 100:
        return f"{argname} of {len(val)}"
    return None
