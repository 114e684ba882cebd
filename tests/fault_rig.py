"""A complete node on the test driver (source, ledger with a database, pages) that verifies each tick.

Three GPUs: one without faults (calm), one without MIG (whole), one with two MIG devices (mig). Their values
are constant, except for energy counters, which follow power. So each NodeState can be compared with the
truth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from ctypes import CDLL, c_void_p
from functools import cache
from pathlib import Path
from weakref import finalize

import pytest

from gpuledger.ledger.ledger import Ledger
from gpuledger.model.node_state import NodeState
from gpuledger.model.process import HostFacts
from gpuledger.model.quantities import ENERGY, MEMORY_RESERVED, MEMORY_USED, NVLINK_RATE, Quantity
from gpuledger.model.snapshot import Reading
from gpuledger.node.loop import Node
from gpuledger.sources import nvml
from gpuledger.sources.nvml.codes import GONE, NOTHING_YET, RELOADED, UNSUPPORTED, Code
from gpuledger.sources.nvml.queries import GPM_QUERIES, RATE_COUNTERS
from ledger_helpers import (
    SETTINGS,
    assert_books_balance,
    assert_exports_everything,
    close_file,
    exported_values,
    open_store,
    rows,
)
from nvml.library import NvmlAccount, NvmlGpu, NvmlInstance, NvmlProcess
from nvml.machine import ALL, FakeHost, Machine, pids

MILLIWATTS = 100_000
# Calls with a device handle as first argument; calls for event sets and samples have other handles.
DEVICE_CALLS = ("nvmlDevice", "nvmlGpmQuery", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet")
# Quantities that need two ticks.
LATER = frozenset({NVLINK_RATE, *(metric.quantity for metric in GPM_QUERIES)})
# Includes a code that is not in our table.
CODES = (*(code for code in Code if code), 77)
# Modules of `doctor`: they make no calls, but name some or begin their names.
DOCTOR_MODULES = {"checks.py", "gpu_checks.py", "probe.py"}
# Modules that only the dialect smi needs: tests/unit/sources/nvml/test_columns.py has their error codes.
COLUMN_MODULES = {"column_queries.py", "columns.py", "vgpus.py"}
# Functions that are only looked up, never called.
LOOKED_UP_ONLY = {"nvmlDeviceGetConfComputeMemSizeInfo", "nvmlDeviceGetRunningProcessDetailList"}
LISTS = ("Compute", "Graphics", "MPSCompute")


@cache
def _source(*without: str) -> str:
    folder = Path(nvml.__path__[0])
    return "".join(
        file.read_text()
        for file in sorted(folder.glob("*.py"))
        if file.name not in {*DOCTOR_MODULES, *COLUMN_MODULES, *without}
    )


@cache
def _named_codes(source: str) -> frozenset[Code]:
    return frozenset(Code[name] for name in re.findall(r"Code\.([A-Z_]+)", source)) - {Code.SUCCESS}


def named_codes() -> frozenset[Code]:
    """The error codes that the source names one by one; it knows the others by their sets alone."""
    return _named_codes(_source("codes.py"))


def alike_codes() -> list[list[int]]:
    """Sets of error codes that the source does not distinguish from each other."""
    alone = named_codes()
    others = set(CODES) - _named_codes(_source())
    groups = (*(group - alone for group in (UNSUPPORTED, NOTHING_YET, GONE, RELOADED)), others)
    return [sorted(group) for group in groups if group]


@cache
def source_calls() -> list[str]:
    """The driver's functions that the source calls."""
    found = set(re.findall(r'"(nvml[A-Z]\w+)"', _source())) - LOOKED_UP_ONLY
    lists = {f"nvmlDeviceGet{kind}RunningProcesses" for kind in LISTS}
    assert lists <= found
    return sorted(found - lists | {f"{call}_v3" for call in lists})


def codes_for(call: str) -> list[int]:
    """The codes of `codes_at` for this call."""
    return codes_at(source_calls().index(call))


def codes_at(place: int) -> list[int]:
    """The codes that the source names, and one of each set that it treats alike, another one at the next
    place.
    """
    return [*sorted(named_codes()), *(group[place % len(group)] for group in alike_codes())]


def create_gpus() -> list[NvmlGpu]:
    """Create new GPUs with their processes."""
    calm = NvmlGpu(NvmlProcess(10, sm=20), uuid="GPU-calm", power=MILLIWATTS, activity=20.0)
    whole = NvmlGpu(NvmlProcess(11, sm=20), uuid="GPU-whole", power=MILLIWATTS, activity=20.0)
    # The record starts after the process, ten seconds before the first tick.
    whole.accounts = [NvmlAccount(11, 992_000_000, running=True)]
    return [calm, whole, create_mig_gpu()]


def create_mig_gpu() -> NvmlGpu:
    """Create a GPU with two MIG devices and one process in each."""
    card = NvmlGpu(NvmlProcess(21, gi=1, ci=0), NvmlProcess(22, gi=2, ci=0), mig=1, power=MILLIWATTS)
    card.uuid, card.activity = "GPU-mig", 20.0
    card.instances = [NvmlInstance(0, gi=1, activity=20.0), NvmlInstance(1, gi=2, activity=20.0)]
    return card


class FaultyDriver:
    """The test library with faults.

    `answers` maps calls to return codes that are returned for all GPUs except the calm one, without calling
    the library. `before` is called before each call with its number since it was set.
    """

    def __init__(self, library: CDLL, without: Collection[str]) -> None:
        self._library = library
        self._without = without
        self.answers: dict[str, int] = {}
        self.called: set[str] = set()
        self.calm: int | None = None
        self.before: Callable[[int], None] | None = None
        self.number = 0

    def __getattr__(self, call: str) -> Callable[..., int]:
        if call in self._without:
            raise AttributeError(call)
        function: Callable[..., int] = getattr(self._library, call)
        if not call.startswith("nvml"):
            return function

        def call_with_faults(*arguments: object) -> int:
            if self.before is not None:
                self.number += 1
                self.before(self.number)
            if call in self.answers and not self._is_calm_gpu(call, arguments):
                self.called.add(call)
                return self.answers[call]
            return function(*arguments)

        return call_with_faults

    def _is_calm_gpu(self, call: str, arguments: tuple[object, ...]) -> bool:
        first = arguments[0] if arguments else None
        if isinstance(first, c_void_p):
            return call.startswith(DEVICE_CALLS) and first.value == self.calm
        return call.startswith("nvmlDeviceGetHandle") and first in (0, b"GPU-calm")


class SteadyHost(FakeHost):
    """Like procfs: a process's start is converted to unix time once, ten seconds before it is first seen."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[int, int | None], HostFacts] = {}

    def identify(self, pids: Collection[int], unix: float) -> Mapping[int, HostFacts]:
        found = super().identify(pids, unix)
        return {pid: self._known.setdefault((pid, facts.start.ticks), facts) for pid, facts in found.items()}


class FaultRig(Machine):
    """`run_tick()` advances a second and runs a tick; `settle()` runs ticks until everything is as before."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, without: Collection[str] = ()) -> None:
        super().__init__(folder, patch)
        self.host = SteadyHost()
        self.driver = FaultyDriver(self.library, without)
        self.library = self.driver  # type: ignore[assignment]  # stands in for it
        self.new_source(slow_interval=2.0, enable_accounting=True)
        self.state.gpus = create_gpus()
        self.folder = folder
        self.highest: dict[tuple[str, ...], int] = {}
        self.begin()
        for _ in range(4):
            self.run_tick()
        # The counter at its first observed change; energy before that is not booked.
        self.opening = 1_000_000 + MILLIWATTS
        assert self.last.health.healthy, self.last.health.status
        self.driver.calm = self.source.discovery.states[0].handle.value
        self.true_values = {uuid: self.static(reading) for uuid, reading in self.readings.items()}

    def begin(self) -> None:
        """Start the program with the existing ledger."""
        self.node_states: list[NodeState] = []
        self.before: dict[str, Reading] = {}
        self.store = open_store(self.folder, "boot", self.clock)
        finalize(self, close_file, self.store)
        self.ledger = Ledger(SETTINGS, self.store)
        self.node = Node(
            self.source,
            name=lambda seen: seen,
            post=self.ledger.post,
            publish=self.node_states.append,
            required_quantities=lambda: ALL,
            clock=self.clock,
            interval=1.0,
        )

    @property
    def last(self) -> NodeState:
        return self.node_states[-1]

    @property
    def readings(self) -> dict[str, Reading]:
        """Readings of the last tick by UUID; empty without a Snapshot."""
        seen = self.last.snapshot
        return {} if seen is None else {reading.device.uuid: reading for reading in seen.readings}

    def run_tick(self, seconds: float = 1.0) -> NodeState:
        """Run a tick and check invariants: no crash, a balanced ledger, no counter that decreases."""
        self.before = self.readings if self.node_states and self.source._library.started else {}
        self.clock.advance(seconds)
        if self.state.time is not None:
            self.state.time += seconds
        self.state.write()
        node_state = self.node.tick()
        assert "internal error" not in node_state.health.status, node_state.health.status
        assert_exports_everything(node_state.ledger.energy)
        for name, joules in exported_values(node_state.ledger).items():
            # A row that was absent for the retention starts again at 0.
            assert joules >= self.highest.get(name, 0) or joules == 0, name
            self.highest[name] = joules
        return node_state

    @staticmethod
    def static(reading: Reading) -> dict[Quantity, float]:
        """All values except energy, which increases."""
        return {quantity: value for quantity, value in reading.values.items() if quantity is not ENERGY}

    @property
    def counter(self) -> int:
        """Value of each GPU's energy counter, in millijoules."""
        assert self.state.time is not None
        return round(1_000_000 + MILLIWATTS * (self.state.time - 1_001.0))

    def assert_nothing_wrong(self, *uuids: str) -> None:
        """Assert that all values of the last tick are true, of all Devices or of these GPUs."""
        for uuid, reading in self.readings.items():
            if uuids and reading.device.gpu.uuid not in uuids:
                continue
            truth = self.true_values[uuid]
            wrong = {
                quantity.key: (value, truth.get(quantity))
                for quantity, value in self.static(reading).items()
                # The older memory call includes reserved memory in used memory.
                if value != truth.get(quantity)
                and not (quantity is MEMORY_USED and MEMORY_RESERVED not in reading.values)
                # Without GPM a rate is computed from counters, which stand still here.
                and not (quantity in RATE_COUNTERS and value == 0.0)
            }
            assert not wrong, (uuid, wrong)
            assert reading.get(ENERGY) in (None, self.counter)
            assert pids(reading) in (None, self.pids_of(reading)), uuid
            for process in reading.processes or ():
                # After a time without ticks the library has only samples of the last second.
                assert process.usage.sm is None or process.usage.sm <= 0.2001, (uuid, process.usage)

    def pids_of(self, reading: Reading) -> list[int]:
        """Return the pids that really run on the Device."""
        if reading.device.gpu.uuid == "GPU-calm":
            return [10]
        if reading.device.gpu.uuid == "GPU-whole":
            return [11]
        return {"1_0": [21], "2_0": [22]}.get(reading.device.instance, [])

    def find_unreported(self) -> list[str]:
        """Describe what the last tick does not report although the Device has it."""
        missing = [uuid for uuid in self.true_values if uuid not in self.readings]
        for uuid, reading in self.readings.items():
            before = self.before.get(uuid)
            later = frozenset() if before is not None and before.up else LATER
            if not reading.up:
                missing.append(f"{uuid} is down")
            elif reading.processes is None:
                missing.append(f"processes of {uuid}")
            missing += [
                f"{quantity.key} of {uuid}"
                for quantity in (
                    *self.true_values.get(uuid, ()),
                    *((ENERGY,) if uuid.startswith("GPU") else ()),
                )
                if not (quantity in reading.values or quantity in later)
                and reading.supported.get(quantity.key) is not False
            ]
        return missing

    @property
    def is_complete(self) -> bool:
        """Whether everything is reported and the node is healthy."""
        reported = {uuid: reading.values.keys() - {ENERGY} for uuid, reading in self.readings.items()}
        whole = [reading for reading in self.readings.values() if not reading.mig_enabled]
        return (
            self.last.health.healthy
            and not self.find_unreported()
            and all(one.usage.sm is not None for reading in whole for one in reading.processes or ())
            and reported == {uuid: truth.keys() for uuid, truth in self.true_values.items()}
        )

    def xids(self, ticks: int) -> list[tuple[str, int]]:
        """Return UUID and number of each Xid reported in the last `ticks` ticks."""
        seen = [
            node_state.snapshot for node_state in self.node_states[-ticks:] if node_state.snapshot is not None
        ]
        return [(event.gpu.uuid, event.xid) for snapshot in seen for event in snapshot.xids]

    def settle(self, most: int) -> int:
        """Run at most `most` ticks until everything is reported; return their number."""
        for ticks in range(1, most + 1):
            self.run_tick()
            if self.is_complete:
                return ticks
        lost = {
            uuid: [quantity.key for quantity in truth.keys() ^ self.static(self.readings[uuid]).keys()]
            for uuid, truth in self.true_values.items()
            if uuid in self.readings
        }
        raise AssertionError((self.last.health.status, self.find_unreported(), lost))

    def restart_driver(self) -> None:
        """Release the driver: the next tick starts it."""
        self.source.close()
        self.before = {}

    def end(self) -> int:
        """Stop, check that the ledger balances, and return the millijoules in it."""
        self.source.close()
        self.store.close()
        return assert_books_balance(self.store.file)

    def booked(self) -> dict[str, int]:
        """Return the millijoules booked by GPU; valid after `end`."""
        found = rows(self.store.file, "SELECT uuid, total FROM gpus")
        return {str(uuid): int(joules) for uuid, joules in found}  # type: ignore[call-overload]  # an integer

    def sessions(self) -> list[tuple[object, ...]]:
        """Return pid and end of each Session in the database."""
        query = "SELECT pid, ended FROM sessions JOIN usage USING (number) ORDER BY number"
        return rows(self.store.file, query)
