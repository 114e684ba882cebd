"""Two sources of one machine as one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.model.devices import AMD, Gpu
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.quantities import Quantity
from gpuledger.model.snapshot import CollectorRun, Failure, MeterRules, Reading, Snapshot, SourceInfo
from gpuledger.sources.composite import CompositeSource


class ScriptedSource:
    """A source that returns a given Snapshot, or raises a given error."""

    has_local_pids = True

    def __init__(self, name: str, *gpus: Gpu, rules: MeterRules | None = None) -> None:
        self.info = SourceInfo(name, driver_version="1.2")
        self.gpus = gpus
        self.rules = rules or MeterRules()
        self.error: SourceUnavailable | None = None
        self.failed = False
        self.closed = 0
        self.indexes_from = 0
        self.load = ""

    def read(self, wanted: frozenset[Quantity]) -> Snapshot:
        if self.error is not None:
            raise self.error
        gpus = [replace(gpu, index=self.indexes_from + place) for place, gpu in enumerate(self.gpus)]
        return Snapshot(
            10.0,
            5.0,
            self.info,
            tuple(Reading(gpu, rules=self.rules) for gpu in gpus),
            failures=(Failure("readings", "X"),),
            collected=(CollectorRun("devices", 0.25), CollectorRun(self.info.name, 1.0)),
            invalid=1,
            devices_failed=self.failed,
            driver_load=self.load,
        )

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def nvidia() -> ScriptedSource:
    return ScriptedSource("nvml", Gpu("GPU-1", 0), Gpu("GPU-2", 1))


@pytest.fixture
def amd() -> ScriptedSource:
    return ScriptedSource(
        "drm", Gpu("GPU-a", 0, vendor=AMD), rules=MeterRules("", False, "engine_time", True)
    )


WANTED: frozenset[Quantity] = frozenset()


def indexes(snapshot: Snapshot) -> dict[str, int]:
    return {reading.device.uuid: reading.device.gpu.index for reading in snapshot.readings}


def test_gpus_of_both_are_in_one_snapshot_with_different_indexes(
    nvidia: ScriptedSource, amd: ScriptedSource
) -> None:
    found = CompositeSource(nvidia, amd).read(WANTED)
    assert indexes(found) == {"GPU-1": 0, "GPU-2": 1, "GPU-a": 2}
    assert (found.source.name, found.source.driver_version) == ("nvml+drm", "1.2")
    assert (found.invalid, len(found.failures), found.devices_failed) == (2, 2, False)
    assert [(run.name, run.seconds) for run in found.collected] == [
        ("devices", 0.5),
        ("nvml", 1.0),
        ("drm", 1.0),
    ]


def test_an_index_does_not_move_while_the_program_runs(nvidia: ScriptedSource, amd: ScriptedSource) -> None:
    source = CompositeSource(nvidia, amd)
    source.read(WANTED)
    nvidia.gpus = nvidia.gpus[:1]
    assert indexes(source.read(WANTED))["GPU-a"] == 2
    nvidia.error = SourceUnavailable("the driver is being installed; wait", "no_driver")
    assert indexes(source.read(WANTED)) == {"GPU-a": 2}


def test_gpus_on_the_bus_keep_their_indexes_before_their_driver_answers(
    nvidia: ScriptedSource, amd: ScriptedSource
) -> None:
    nvidia.error = SourceUnavailable("no driver; wait", "no_driver")
    source = CompositeSource(nvidia, amd, lambda: 2)
    assert indexes(source.read(WANTED)) == {"GPU-a": 2}
    nvidia.error = None
    assert indexes(source.read(WANTED)) == {"GPU-1": 0, "GPU-2": 1, "GPU-a": 2}


def test_one_source_that_cannot_be_read_does_not_cost_the_other(
    nvidia: ScriptedSource, amd: ScriptedSource, caplog: pytest.LogCaptureFixture
) -> None:
    source = CompositeSource(nvidia, amd)
    nvidia.error = SourceUnavailable("the driver hangs; reboot", "TIMEOUT")
    found = [source.read(WANTED) for _ in range(3)][-1]
    assert found.devices_failed
    assert found.failures[-1] == Failure("devices", "TIMEOUT", None, "nvml: the driver hangs; reboot")
    (reading,) = found.readings
    assert found.is_listed_completely(reading)
    # Said once.
    assert [record.getMessage() for record in caplog.records] == [
        "nvml cannot be read; GPUs of other makers are: the driver hangs; reboot"
    ]


def test_an_incomplete_list_holds_for_the_gpus_of_its_source(
    nvidia: ScriptedSource, amd: ScriptedSource
) -> None:
    nvidia.failed = True
    found = CompositeSource(nvidia, amd).read(WANTED)
    assert [found.is_listed_completely(reading) for reading in found.readings] == [False, False, True]
    nvidia.failed, amd.error = False, SourceUnavailable("gone", "no_gpu")
    found = CompositeSource(nvidia, amd).read(WANTED)
    assert found.devices_failed
    assert [found.is_listed_completely(reading) for reading in found.readings] == [True, True]


def test_a_driver_load_is_that_of_its_maker_s_gpus(nvidia: ScriptedSource, amd: ScriptedSource) -> None:
    nvidia.load = "12345"
    found = CompositeSource(nvidia, amd).read(WANTED)
    assert [found.driver_load_of(reading) for reading in found.readings] == ["12345", "12345", ""]


def test_if_neither_can_be_read_the_first_says_why(nvidia: ScriptedSource, amd: ScriptedSource) -> None:
    nvidia.error, amd.error = SourceUnavailable("first", "a"), SourceUnavailable("second", "b")
    with pytest.raises(SourceUnavailable, match="first"):
        CompositeSource(nvidia, amd).read(WANTED)


@pytest.mark.parametrize(
    ("names", "found"),
    [(("GPU-a",), {"GPU-a": 2}), (("1", "2"), {"GPU-2": 1, "GPU-a": 2}), (("0",), {"GPU-1": 0})],
)
def test_devices_are_selected_among_the_gpus_of_both(
    nvidia: ScriptedSource, amd: ScriptedSource, names: tuple[str, ...], found: dict[str, int]
) -> None:
    source = CompositeSource(nvidia, amd, devices=names)
    snapshot = source.read(WANTED)
    assert indexes(snapshot) == found
    assert not snapshot.devices_failed
    assert source.selection.omission.startswith("--devices leaves out GPU")
    assert "names" not in source.selection.omission


def test_a_name_of_no_gpu_is_said_once_for_both(
    nvidia: ScriptedSource, amd: ScriptedSource, caplog: pytest.LogCaptureFixture
) -> None:
    source = CompositeSource(nvidia, amd, devices=("GPU-1", "GPU-2", "GPU-a", "GPU-x"))
    for _ in range(3):
        source.read(WANTED)
    assert [record.getMessage() for record in caplog.records] == [
        "--devices names GPU-x, which no GPU has as index, UUID or PCI bus id; "
        "remove --devices to monitor all GPUs"
    ]


def test_closing_closes_both(nvidia: ScriptedSource, amd: ScriptedSource) -> None:
    CompositeSource(nvidia, amd).close()
    assert (nvidia.closed, amd.closed) == (1, 1)


def test_a_source_with_nothing_to_read_neither_fails_nor_hides_that_the_other_one_did(
    nvidia: ScriptedSource, amd: ScriptedSource, caplog: pytest.LogCaptureFixture
) -> None:
    amd.gpus = ()
    source = CompositeSource(nvidia, amd)
    assert not source.read(WANTED).devices_failed
    nvidia.error = SourceUnavailable("no driver", "driver_not_loaded")
    with pytest.raises(SourceUnavailable, match="no driver"):
        source.read(WANTED)
    assert not caplog.records
