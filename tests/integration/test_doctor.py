"""`gpuledger doctor` as a user runs it."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from nvml.library import NvmlGpu, NvmlInstance, NvmlProcess, NvmlState, build
from running import gpuledger, serving

# A free port, so that other programs do not affect the result.
FREE = ("--listen-address", "127.0.0.1:0")
NO_GPU = not any(Path("/dev").glob("nvidia*"))


@pytest.fixture
def nvml(tmp_path: Path) -> NvmlState:
    state = NvmlState(tmp_path / "state", [NvmlGpu(NvmlProcess(os.getpid())), NvmlGpu(mig=1)])
    state.gpus[1].instances = [NvmlInstance(0, 2)]
    return state.write()


def doctor(*arguments: str, state: NvmlState | None = None, **environment: str) -> CompletedProcess[str]:
    if state is not None:
        environment |= {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}
    return gpuledger("doctor", *FREE, *arguments, env={"NO_COLOR": "1", **environment})


def findings(done: CompletedProcess[str]) -> dict[str, dict[str, str]]:
    document = json.loads(done.stdout)
    assert document["summary"]["ok"] == (done.returncode == 0)
    return {finding["check"]: finding for finding in document["findings"]}


@pytest.mark.skipif(not NO_GPU, reason="this machine has a GPU")
def test_without_a_gpu_doctor_names_what_is_missing_and_the_remedy() -> None:
    done = doctor()
    assert done.returncode == 1
    assert done.stderr == ""
    assert "✗ fails    NVML library" in done.stdout
    assert "libnvidia-ml.so.1 not found" in done.stdout
    assert "remedy: install the NVIDIA driver" in done.stdout
    assert "gpuledger demo" in done.stdout
    assert done.stdout.count("because of: NVML library") == 1


@pytest.mark.skipif(not NO_GPU, reason="this machine has a GPU")
@pytest.mark.parametrize("source", ["auto", "nvml", "smi", "drm"])
def test_no_remedy_of_doctor_leads_back_to_doctor(source: str) -> None:
    done = doctor("--source", source, "--nvidia-smi-command", "no-nvidia-smi", "--format", "json")
    failures = [one for one in json.loads(done.stdout)["findings"] if one["verdict"] == "fails"]
    assert failures
    assert [one for one in failures if not one["remedy"] or "doctor" in one["remedy"]] == []


def test_the_driver_library_is_found_by_the_dynamic_loader(nvml: NvmlState) -> None:
    found = findings(doctor("--format", "json", state=nvml))
    assert found["driver.library"]["verdict"] == "works"
    assert found["driver.library"]["why"].startswith(str(build()))
    assert found["gpu.listed"]["why"].startswith("2 of 2 read (0: NVIDIA H100 80GB HBM3")
    assert found["gpu.mig"]["what"] == "MIG of GPU 1"
    assert "2_0 3g.40gb MIG-" in found["gpu.mig"]["why"]
    assert found["gpu.processes"]["why"] == "readable, 1 entries on GPUs 0-1"


def test_allocations_of_the_kubelet_are_compared_with_the_gpus_here(nvml: NvmlState, tmp_path: Path) -> None:
    nvml.gpus[0].uuid = "GPU-00000000-0000-0000-0000-000000000001"
    nvml.write()
    ids = {"0": [nvml.gpus[0].uuid, "GPU-of-another-machine"]}
    entry = {"PodUID": "u", "ContainerName": "main", "ResourceName": "nvidia.com/gpu", "DeviceIDs": ids}
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
    done = doctor(
        *("--kubernetes-enabled", "true", "--kubernetes-names", "none"),
        *("--pod-resources-socket", str(tmp_path / "none"), "--device-plugin-checkpoint", str(checkpoint)),
        *("--format", "json"),
        state=nvml,
    )
    reasons = [
        finding["why"]
        for finding in json.loads(done.stdout)["findings"]
        if finding["check"] == "kubernetes.devices"
    ]
    assert [reason.partition(":")[0] for reason in reasons] == [
        "1 are GPUs of this machine",
        "1 match no GPU here, parsed as uuid",
    ]


def test_a_hanging_driver_is_reported(nvml: NvmlState) -> None:
    nvml.hang = ("nvmlDeviceGetUUID",)
    nvml.write()
    done = doctor(state=nvml)
    assert done.returncode == 1
    assert "does not answer within 5 s (nvmlDeviceGetUUID)" in done.stdout


@pytest.mark.parametrize(
    ("code", "words"),
    [(9, "`modprobe nvidia`"), (18, "LIB_RM_VERSION_MISMATCH"), (4, "NO_PERMISSION"), (999, "daemon-reload")],
)
@pytest.mark.skipif(not NO_GPU, reason="the driver of this machine would be found")
def test_a_driver_error_is_reported_with_a_remedy(nvml: NvmlState, code: int, words: str) -> None:
    nvml.errors["nvmlInitWithFlags"] = code
    nvml.write()
    done = doctor(state=nvml)
    assert done.returncode == 1
    assert words in done.stdout


def test_the_simulator_has_faults_of_gpus_but_no_checks_of_a_driver() -> None:
    done = doctor("--source", "simulator:faulty-node")
    assert done.returncode == 0, done.stdout
    assert "it uses 4 of the 16 PCIe lanes" in done.stdout
    assert "no driver to check" in done.stdout
    assert "NVML" not in done.stdout


def test_a_port_in_use_is_a_failure_that_names_the_process() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = doctor("--source", "simulator", "--listen-address", address)
    assert done.returncode == 1
    assert f"in use by pid {os.getpid()}" in done.stdout


def test_the_port_of_a_running_gpuledger_is_not_a_failure() -> None:
    with serving("--source", "simulator") as server:
        done = doctor("--source", "simulator", "--listen-address", f"127.0.0.1:{server.port}")
    assert done.returncode == 0, done.stdout
    assert f"gpuledger is already listening here (pid {server.process.pid})" in done.stdout


def test_doctor_works_with_an_ascii_output() -> None:
    done = doctor("--source", "simulator", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("+ works    source")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--source", "simulator:none"), "none"),
        (("--fromat", "json"), "did you mean '--format'?"),
        (("--format", "xml"), "expected one of table, json"),
        (("now",), "doctor takes no argument 'now'"),
    ],
)
def test_doctor_rejects_the_input_that_serve_rejects(arguments: tuple[str, ...], line: str) -> None:
    done = doctor(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert line in done.stderr


def test_help_has_examples() -> None:
    text = doctor("--help").stdout
    for words in ("exit code: 1", "verdicts:", "kubectl exec POD -- gpuledger doctor", "--textfile-dir"):
        assert words in text
