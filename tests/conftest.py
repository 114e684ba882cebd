"""Settings of every test run."""

from __future__ import annotations

import os

from hypothesis import settings

# The same examples in every run, so that a result depends on the tree alone: more of them would prove nothing
# new the next time. `make fuzz` draws fresh ones.
settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("fresh", print_blob=True, deadline=None, max_examples=300)
settings.load_profile(os.environ.get("GPULEDGER_HYPOTHESIS_PROFILE", "fixed"))

# Tests run in parallel, and a machine has one ledger: a test that needs a ledger names a directory.
os.environ["GPULEDGER_STATE_DIR"] = "none"
# A machine has one default control socket, too.
os.environ["GPULEDGER_CONTROL_SOCKET"] = "none"
# Terminal tests set their own size; the size of the terminal that runs pytest must not matter.
for size in ("COLUMNS", "LINES"):
    os.environ.pop(size, None)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a long parameter by its length: pytest puts test names into the environment, which is limited."""
    if isinstance(val, str | bytes) and len(val) > 100:
        return f"{argname} of {len(val)}"
    return None
