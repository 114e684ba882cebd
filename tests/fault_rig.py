"""A whole node on the test's driver: source, ledger, books in a file, pages; and what is true of it.

Three GPUs: one that nothing ever happens to, one whole, one cut in two. What they tell does not change, but
for the energy counters, which follow power: every page can be held against what is true.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from ctypes import CDLL, c_void_p
from pathlib import Path

import pytest

from books_helpers import SETTINGS, assert_books_balance, assert_tells_everything, rows, told
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.store.retention import Limits
from gpuledger.ledger.store.store import Store
from gpuledger.model.node_state import NodeState
from gpuledger.model.process import HostFacts
from gpuledger.model.quantities import ENERGY, MEMORY_RESERVED, MEMORY_USED, NVLINK_RATE, Quantity
from gpuledger.model.snapshot import Reading
from gpuledger.node.loop import Node
from gpuledger.sources import nvml
from gpuledger.sources.nvml.codes import NAMES
from gpuledger.sources.nvml.fields import METRICS
from nvml.library import NvmlAccount, NvmlGpu, NvmlInstance, NvmlProcess
from nvml.machine import ALL, FakeHost, Machine, pids

MILLIWATTS = 100_000
# Calls whose first argument is a device; those of event sets and samples have other handles.
OF_A_DEVICE = ("nvmlDevice", "nvmlGpmQuery", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet")
# What takes two ticks.
LATER = frozenset({NVLINK_RATE, *(metric.quantity for metric in METRICS)})
# One that is newer than our table, too.
CODES = (*NAMES, 77)
# What `doctor` alone asks.
DOCTORS = {"checks.py", "gpu_checks.py", "gpu_health.py", "probe.py"}
# Only whether the library has them is asked.
SYMBOLS = {"nvmlDeviceGetConfComputeMemSizeInfo", "nvmlDeviceGetRunningProcessDetailList"}
LISTS = ("Compute", "Graphics", "MPSCompute")


def calls_of_the_source() -> list[str]:
    folder = Path(nvml.__path__[0])
    text = "".join(file.read_text() for file in sorted(folder.glob("*.py")) if file.name not in DOCTORS)
    found = set(re.findall(r'"(nvml[A-Z]\w+)"', text)) - SYMBOLS
    lists = {f"nvmlDeviceGet{kind}RunningProcesses" for kind in LISTS}
    assert lists <= found
    return sorted(found - lists | {f"{call}_v3" for call in lists})


def cards() -> list[NvmlGpu]:
    """Fresh ones, each with its processes."""
    calm = NvmlGpu(NvmlProcess(10, sm=20), uuid="GPU-calm", power=MILLIWATTS, activity=20.0)
    whole = NvmlGpu(NvmlProcess(11, sm=20), uuid="GPU-whole", power=MILLIWATTS, activity=20.0)
    # Begun after the process, ten seconds before the first tick.
    whole.accounts = [NvmlAccount(11, 992_000_000, running=True)]
    return [calm, whole, cut()]


def cut() -> NvmlGpu:
    """A card cut in two, a process in each half."""
    card = NvmlGpu(NvmlProcess(21, gi=1, ci=0), NvmlProcess(22, gi=2, ci=0), mig=1, power=MILLIWATTS)
    card.uuid, card.activity = "GPU-cut", 20.0
    card.instances = [NvmlInstance(0, gi=1, activity=20.0), NvmlInstance(1, gi=2, activity=20.0)]
    return card


class Driver:
    """The test's library, in whose calls things happen.

    `answers` are return codes by call, given without doing anything, to who asks of another Gpu than the calm
    one; `before` is called with the number of each call since it was set.
    """

    def __init__(self, library: CDLL, without: Collection[str]) -> None:
        self._library = library
        self._without = without
        self.answers: dict[str, int] = {}
        self.asked: set[str] = set()
        self.calm: int | None = None
        self.before: Callable[[int], None] | None = None
        self.number = 0

    def __getattr__(self, call: str) -> Callable[..., int]:
        if call in self._without:
            raise AttributeError(call)
        function: Callable[..., int] = getattr(self._library, call)
        if not call.startswith("nvml"):
            return function

        def made(*arguments: object) -> int:
            if self.before is not None:
                self.number += 1
                self.before(self.number)
            if call in self.answers and not self._is_of_calm(call, arguments):
                self.asked.add(call)
                return self.answers[call]
            return function(*arguments)

        return made

    def _is_of_calm(self, call: str, arguments: tuple[object, ...]) -> bool:
        first = arguments[0] if arguments else None
        if isinstance(first, c_void_p):
            return call.startswith(OF_A_DEVICE) and first.value == self.calm
        return call.startswith("nvmlDeviceGetHandle") and first in (0, b"GPU-calm")


class SteadyHost(FakeHost):
    """As procfs: when a process began is turned into unix time once, ten seconds before it is first seen."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[int, int | None], HostFacts] = {}

    def identify(self, pids: Collection[int], unix: float) -> Mapping[int, HostFacts]:
        found = super().identify(pids, unix)
        return {pid: self._known.setdefault((pid, facts.start.ticks), facts) for pid, facts in found.items()}


class FaultRig(Machine):
    """`page()` is a second and a tick; `settle()` ticks until all is as before, and counts."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, without: Collection[str] = ()) -> None:
        super().__init__(folder, patch)
        self.host = SteadyHost()
        self.driver = Driver(self.library, without)
        self.library = self.driver  # type: ignore[assignment]  # stands in for it
        self.new_source(slow_interval=2.0, enable_accounting=True)
        self.state.gpus = cards()
        self.folder = folder
        self.highest: dict[tuple[str, ...], int] = {}
        self.begin()
        for _ in range(4):
            self.page()
        # The first move that was seen: what was before it is none of the books' business.
        self.opening = 1_000_000 + MILLIWATTS
        assert self.last.health.healthy, self.last.health.status
        self.driver.calm = self.source._devices.states[0].handle.value
        self.truth = {uuid: self.static(reading) for uuid, reading in self.readings.items()}

    def begin(self) -> None:
        """Start the program, in the books of the last run."""
        self.pages: list[NodeState] = []
        self.before: dict[str, Reading] = {}
        self.store = Store(self.folder, "gpuledger", "boot", self.clock, Limits())
        self.ledger = Ledger(SETTINGS, self.store)
        self.node = Node(
            self.source,
            name=lambda seen: seen,
            post=self.ledger.post,
            publish=self.pages.append,
            wanted=lambda: ALL,
            clock=self.clock,
            interval=1.0,
        )

    @property
    def last(self) -> NodeState:
        return self.pages[-1]

    @property
    def readings(self) -> dict[str, Reading]:
        """Of the last page by uuid; none without a snapshot."""
        seen = self.last.snapshot
        return {} if seen is None else {reading.device.uuid: reading for reading in seen.readings}

    def page(self, seconds: float = 1.0) -> NodeState:
        """A tick, and what holds after any: no crash, books that add up, no counter that steps back."""
        self.before = self.readings if self.pages and self.source._library.started else {}
        self.clock.advance(seconds)
        if self.state.time is not None:
            self.state.time += seconds
        self.state.write()
        page = self.node.tick()
        assert "internal error" not in page.health.status, page.health.status
        assert_tells_everything(page.ledger.energy)
        for name, joules in told(page.ledger).items():
            # A row that was gone for the retention begins anew.
            assert joules >= self.highest.get(name, 0) or joules == 0, name
            self.highest[name] = joules
        return page

    @staticmethod
    def static(reading: Reading) -> dict[Quantity, float]:
        """What it tells but for energy, which goes on."""
        return {quantity: value for quantity, value in reading.values.items() if quantity is not ENERGY}

    @property
    def counter(self) -> int:
        """What the energy counter of each card stands at, in millijoules."""
        assert self.state.time is not None
        return round(1_000_000 + MILLIWATTS * (self.state.time - 1_001.0))

    def assert_nothing_wrong(self, *uuids: str) -> None:
        """What is told on the last page is true; of all Devices, or of these."""
        for uuid, reading in self.readings.items():
            if uuids and reading.device.gpu.uuid not in uuids:
                continue
            truth = self.truth[uuid]
            wrong = {
                quantity.key: (value, truth.get(quantity))
                for quantity, value in self.static(reading).items()
                # The older of two calls for memory counts what is reserved as used.
                if value != truth.get(quantity)
                and not (quantity is MEMORY_USED and MEMORY_RESERVED not in reading.values)
            }
            assert not wrong, (uuid, wrong)
            assert reading.get(ENERGY) in (None, self.counter)
            assert pids(reading) in (None, self.pids_of(reading)), uuid
            for process in reading.processes or ():
                # After a time without ticks the library has samples of its last second alone.
                assert process.usage.sm is None or process.usage.sm <= 0.2001, (uuid, process.usage)

    def pids_of(self, reading: Reading) -> list[int]:
        """Who is on the Device."""
        if reading.device.gpu.uuid == "GPU-calm":
            return [10]
        if reading.device.gpu.uuid == "GPU-whole":
            return [11]
        return {"1_0": [21], "2_0": [22]}.get(reading.device.instance, [])

    def lacks(self) -> list[str]:
        """What the last page does not tell that is so, in words, and does not say that the card lacks it."""
        missing = [uuid for uuid in self.truth if uuid not in self.readings]
        for uuid, reading in self.readings.items():
            before = self.before.get(uuid)
            later = frozenset() if before is not None and before.up else LATER
            if not reading.up:
                missing.append(f"{uuid} is down")
            elif reading.processes is None:
                missing.append(f"processes of {uuid}")
            missing += [
                f"{quantity.key} of {uuid}"
                for quantity in (*self.truth.get(uuid, ()), *((ENERGY,) if uuid.startswith("GPU") else ()))
                if not (quantity in reading.values or quantity in later)
                and reading.supported.get(quantity.key) is not False
            ]
        return missing

    @property
    def is_whole(self) -> bool:
        """Everything is told, and nobody complains."""
        told = {uuid: reading.values.keys() - {ENERGY} for uuid, reading in self.readings.items()}
        whole = [reading for reading in self.readings.values() if not reading.mig_enabled]
        return (
            self.last.health.healthy
            and not self.lacks()
            and all(one.usage.sm is not None for reading in whole for one in reading.processes or ())
            and told == {uuid: truth.keys() for uuid, truth in self.truth.items()}
        )

    def xids(self, ticks: int) -> list[tuple[str, int]]:
        """Uuid and number of each Xid that the last so many ticks told."""
        seen = [page.snapshot for page in self.pages[-ticks:] if page.snapshot is not None]
        return [(event.gpu.uuid, event.xid) for snapshot in seen for event in snapshot.xids]

    def settle(self, most: int) -> int:
        """Tick until the last page is whole; how many ticks it took, at most so many."""
        for ticks in range(1, most + 1):
            self.page()
            if self.is_whole:
                return ticks
        lost = {
            uuid: [quantity.key for quantity in truth.keys() ^ self.static(self.readings[uuid]).keys()]
            for uuid, truth in self.truth.items()
            if uuid in self.readings
        }
        raise AssertionError((self.last.health.status, self.lacks(), lost))

    def restart_driver(self) -> None:
        """Let the driver go: the next tick starts it."""
        self.source.close()
        self.before = {}

    def end(self) -> int:
        """Stop; what is in the file adds up. Answers the millijoules in it."""
        self.source.close()
        self.store.close()
        return assert_books_balance(self.store.file)

    def booked(self) -> dict[str, int]:
        """Millijoules booked since the books were opened, by Gpu; valid after `end`."""
        found = rows(self.store.file, "SELECT uuid, total FROM gpus")
        return {str(uuid): int(joules) for uuid, joules in found}  # type: ignore[call-overload]  # an integer

    def sessions(self) -> list[tuple[object, ...]]:
        """Pid and end of every Session in the file."""
        query = "SELECT pid, ended FROM sessions JOIN usage USING (number) ORDER BY number"
        return rows(self.store.file, query)
