"""Sources of an exporter: operator and chart accept what `--source` of the program accepts."""

from __future__ import annotations

import pytest

import chart
from gpuledger.host.procfs import RemoteHost
from gpuledger.model.errors import UsageError
from gpuledger.sources.settings import MACHINES, MADE_UP, SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.source_factory import open_source
from unit.operator.support import Json, gpu_monitor, only_object, parse_resource
from unit.sources.simulator.support import ManualClock

LIBRARY = "/usr/local/nvidia/lib64/libnvidia-ml.so.1"
SMI = "/usr/local/nvidia/bin/nvidia-smi"
# The driver's files that a source reads, which `gpuAccess.mode: host` mounts.
READ: dict[str, set[str]] = {
    "auto": {LIBRARY},
    "nvml": {LIBRARY},
    "smi": {LIBRARY, SMI},
    "drm": set(),
    "nvml+drm": {LIBRARY},
    "smi+drm": {LIBRARY, SMI},
    "simulator": set(),
    "simulator:": set(),
    "simulator:mixed-lab": set(),
    "simulator:/scenarios/own.yaml": set(),
    "replay:/recordings/night.jsonl": set(),
}
REFUSED = (
    *("", "amd", "nvidia", " nvml", "Simulator", "simulators", "replay", "replay:"),
    *("drm+nvml", "drm+smi", "nvml+smi", "nvml+drm+smi", "simulator+drm", "smi+", "+drm", "smi,drm"),
    *("auto:", "nvml:0", "drm:card0", "smi+drm:1"),
)
each_accepted = pytest.mark.parametrize("source", READ)
each_refused = pytest.mark.parametrize("source", REFUSED)


def refusal(source: str) -> str:
    """Why the program refuses the source; empty if only the file of the source is missing here."""
    try:
        open_source(SourceSettings(source=source), SmiSettings(), RemoteHost(), ManualClock()).close()
    except UsageError as error:
        return "" if "No such file" in str(error) else str(error)
    return ""


def monitor(source: str, mode: str = "env", accounting: bool = False) -> Json:
    exporter = {"source": source, "gpuAccess": {"mode": mode}, "accounting": accounting}
    return gpu_monitor({"exporter": exporter, "agent": {"enabled": False}})


def pods(source: str, mode: str = "env", accounting: bool = False) -> list[Json]:
    """The pods of operator and chart."""
    daemon_set = only_object("DaemonSet", monitor(source, mode, accounting))
    in_chart = chart.pod_spec(
        {"source": source, "gpuAccess": {"mode": mode}, "accounting": {"enable": accounting}}
    )
    return [daemon_set["spec"]["template"]["spec"], in_chart]


def mounts(pod: Json) -> list[Json]:
    (container,) = pod["containers"]
    return list(container["volumeMounts"])


def test_every_kind_of_source_of_the_program_is_in_the_table() -> None:
    assert {source.partition(":")[0] for source in READ} == {*MACHINES, *MADE_UP}


@each_accepted
def test_a_source_of_the_program_is_passed_to_it(source: str) -> None:
    assert refusal(source) == ""
    for pod in pods(source):
        words = [word for word in pod["containers"][0]["args"] if word.startswith("--source")]
        assert words == ([] if source == "auto" else [f"--source={source}"])


@each_accepted
def test_the_files_that_a_source_reads_are_mounted_from_the_host(source: str) -> None:
    for pod in pods(source, "host"):
        mounted = {one["mountPath"] for one in mounts(pod)}
        assert {path for path in mounted if path.startswith("/usr/local/nvidia/")} == READ[source]


@each_accepted
def test_only_a_source_that_reads_the_driver_enables_its_accounting(source: str) -> None:
    for pod in pods(source, accounting=True):
        begun = [container["name"] for container in pod.get("initContainers", [])]
        assert begun == ["enable-accounting"] * bool(READ[source])


@pytest.mark.parametrize("mode", ["env", "volume-list", "cdi", "host"])
def test_other_makers_need_nothing_of_nvidia(mode: str) -> None:
    for pod in pods("drm", mode):
        assert "nvidia" not in str([pod["containers"], pod["volumes"]]).lower()


@pytest.mark.parametrize("mode", ["env", "volume-list", "cdi", "host"])
@pytest.mark.parametrize("source", [kind for kind in MACHINES if "+" in kind])
def test_two_sources_have_the_access_of_each(source: str, mode: str) -> None:
    for part in source.split("+"):
        for both, one in zip(pods(source, mode), pods(part, mode), strict=True):
            assert [mount for mount in mounts(one) if mount not in mounts(both)] == []
            assert [volume for volume in one["volumes"] if volume not in both["volumes"]] == []
            assert both["hostPID"] == one["hostPID"]
            assert both["containers"][0]["securityContext"] == one["containers"][0]["securityContext"]


@each_refused
def test_what_the_program_refuses_is_refused_in_one_line(source: str) -> None:
    import helm_python

    assert refusal(source)
    assert [str(one) for one in parse_resource(monitor(source)).problems] == [
        "spec.exporter.source: expected auto, nvml, smi, drm, nvml+drm, smi+drm, simulator[:NAME|FILE] or "
        f"replay:FILE, not {source!r}"
    ]
    with pytest.raises(helm_python.HelmError) as caught:
        chart.files({"source": source})
    (line,) = (line for line in str(caught.value).splitlines() if "/source" in line)
    assert f"'{source}' does not match pattern" in line
