"""Settings of every test run."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Generator, Iterator
from threading import Thread
from threading import enumerate as threads

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ("workers",)

# The same examples in every run, so that a result depends on the tree alone: more of them would prove nothing
# new the next time. `make fuzz` draws fresh ones.
# No result depends on the time that an example takes: another program may have the cores.
untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", untimed, derandomize=True, max_examples=30)
settings.register_profile("fresh", untimed, print_blob=True, max_examples=300)
settings.load_profile(os.environ.get("GPULEDGER_HYPOTHESIS_PROFILE", "fixed"))

# Tests run in parallel, and a machine has one ledger: a test that needs a ledger names a directory.
os.environ["GPULEDGER_STATE_DIR"] = "none"
# A machine has one default control socket, too.
os.environ["GPULEDGER_CONTROL_SOCKET"] = "none"
# Terminal tests set their own size; the size of the terminal that runs pytest must not matter.
for size in ("COLUMNS", "LINES"):
    os.environ.pop(size, None)
# Tests of other time zones set their own; that of the machine must not matter.
os.environ["TZ"] = "UTC"
time.tzset()

# The groups that take longest. They start first: a worker that began one late would still run when the others
# have finished.
LONGEST = ("three-days", "page", "page-live", "monitors", "fleet", "grafana", "stack-queries", "access")
# Unit tests that would keep one worker busy for long: they are distributed one by one, after all groups.
SPREAD = ("node/test_faults_driver.py", "node/test_faults_machine.py")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from the thousands of items, during and after their collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        # Each of its runs also walks what the fixtures of a module and hypothesis keep.
        gc.set_threshold(10_000)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Distribute unit tests by file, so that fixtures of a module run once; start with what takes longest."""

    def place(item: pytest.Item) -> int:
        _, unit, file = item.nodeid.partition("::")[0].rpartition("tests/unit/")
        if file in SPREAD:
            return len(LONGEST) + 1
        if unit:
            # Tests of the chart share its renderings.
            name = "deploy/chart" if file.startswith("deploy/test_chart_") else file.removesuffix(".py")
            item.add_marker(pytest.mark.group(name.replace("/test_", "/")))
        group = item.get_closest_marker("group")
        return LONGEST.index(group.args[0]) if group and group.args[0] in LONGEST else len(LONGEST)

    items.sort(key=place)


@pytest.fixture(autouse=True)
def usual_log() -> None:
    """An earlier test may have run a command in this process, which set the level and handler of the log."""
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    root.handlers[:] = [one for one in root.handlers if type(one) is not logging.StreamHandler]


@pytest.fixture(autouse=True)
def no_reader_left() -> Iterator[None]:
    """A test ends its threads that read owners and objects: one left behind would log into the next test."""
    before = set(threads())
    yield
    left = [thread for thread in threads() if thread.name.startswith("map ") and thread not in before]
    assert [name for name in map(ended_name, left) if name] == []


def ended_name(thread: Thread) -> str:
    """The name of a thread that does not end; nothing if it ends."""
    thread.join(60.0)
    return thread.name if thread.is_alive() else ""


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name a long parameter by its length: pytest puts test names into the environment, which is limited."""
    if isinstance(val, str | bytes) and len(val) > 100:
        return f"{argname} of {len(val)}"
    return None
