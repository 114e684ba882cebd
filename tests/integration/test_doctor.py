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

# A port that is free, so that what else runs here does not count.
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
    return gpuledger("doctor", *FREE, *arguments, env={"PYTHONUTF8": "1", "NO_COLOR": "1", **environment})


def findings(done: CompletedProcess[str]) -> dict[str, dict[str, str]]:
    told = json.loads(done.stdout)
    assert told["summary"]["ok"] == (done.returncode == 0)
    return {finding["check"]: finding for finding in told["findings"]}


@pytest.mark.skipif(not NO_GPU, reason="this machine has a GPU")
def test_without_a_gpu_it_says_what_is_missing_and_what_to_do() -> None:
    done = doctor()
    assert done.returncode == 1
    assert done.stderr == ""
    assert "✗ fails    NVML library" in done.stdout
    assert "libnvidia-ml.so.1 not found" in done.stdout
    assert "remedy: install the NVIDIA driver" in done.stdout
    assert "gpuledger serve --source simulator" in done.stdout
    assert done.stdout.count("because of: NVML library") == 1


def test_the_driver_is_found_as_every_program_finds_it(nvml: NvmlState) -> None:
    found = findings(doctor("--format", "json", state=nvml))
    assert found["driver.library"]["verdict"] == "works"
    assert found["driver.library"]["why"].startswith(str(build()))
    assert found["gpu.listed"]["why"].startswith("2 of 2 read (0: NVIDIA H100 80GB HBM3")
    assert found["gpu.mig"]["what"] == "MIG of GPU 1"
    assert "2_0 3g.40gb MIG-" in found["gpu.mig"]["why"]
    assert found["gpu.processes"]["why"] == "readable, 1 entries on GPUs 0-1"


def test_what_the_kubelet_handed_out_is_compared_with_the_gpus_that_are_here(
    nvml: NvmlState, tmp_path: Path
) -> None:
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
    told = [one["why"] for one in json.loads(done.stdout)["findings"] if one["check"] == "kubernetes.devices"]
    assert [one.partition(":")[0] for one in told] == [
        "1 are GPUs of this machine",
        "1 match no GPU here, read as uuid",
    ]


def test_a_driver_that_hangs_is_said_to_hang(nvml: NvmlState) -> None:
    nvml.hang = ("nvmlDeviceGetUUID",)
    nvml.write()
    done = doctor(state=nvml)
    assert done.returncode == 1
    assert "does not answer within 5 s (nvmlDeviceGetUUID)" in done.stdout


@pytest.mark.parametrize(
    ("code", "words"),
    [(9, "`modprobe nvidia`"), (18, "LIB_RM_VERSION_MISMATCH"), (4, "NO_PERMISSION"), (999, "daemon-reload")],
)
@pytest.mark.skipif(not NO_GPU, reason="this machine's own driver would be seen")
def test_a_driver_that_refuses_is_told_with_the_remedy(nvml: NvmlState, code: int, words: str) -> None:
    nvml.errors["nvmlInitWithFlags"] = code
    nvml.write()
    done = doctor(state=nvml)
    assert done.returncode == 1
    assert words in done.stdout


def test_the_simulator_has_nothing_of_a_driver_to_check() -> None:
    done = doctor("--source", "simulator")
    assert done.returncode == 0, done.stdout
    assert "nothing to check of a driver" in done.stdout
    assert "NVML" not in done.stdout


def test_a_taken_port_is_a_failure_that_names_who_has_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = doctor("--source", "simulator", "--listen-address", address)
    assert done.returncode == 1
    assert f"in use by pid {os.getpid()}" in done.stdout


def test_a_running_gpuledger_is_no_failure() -> None:
    with serving("--source", "simulator") as server:
        done = doctor("--source", "simulator", "--listen-address", f"127.0.0.1:{server.port}")
    assert done.returncode == 0, done.stdout
    assert f"gpuledger listens here already (pid {server.process.pid})" in done.stdout


def test_output_in_another_encoding_does_not_break_it() -> None:
    done = doctor("--source", "simulator", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("+ works    source")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--source", "simulator:none"), "none"),
        (("--fromat", "json"), "did you mean '--format'?"),
        (("--format", "xml"), "one of table, json is wanted"),
        (("now",), "doctor takes no 'now'"),
    ],
)
def test_what_serve_would_refuse_is_refused_alike(arguments: tuple[str, ...], line: str) -> None:
    done = doctor(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert line in done.stderr


def test_help_teaches_with_examples() -> None:
    text = doctor("--help").stdout
    for words in ("exit code: 1", "verdicts:", "kubectl exec POD -- gpuledger doctor", "--textfile-dir"):
        assert words in text
