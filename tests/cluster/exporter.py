"""`gpuledger serve` with the real cluster, and with the test NVML library as its driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families as read_text

from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from running import Server, serving, wait_until

# Namespace, pod and container.
PodLabels = tuple[str, str, str]
NO_POD: PodLabels = ("", "", "")


class RunningExporter:
    """A running exporter, its metrics, and the state of its driver."""

    def __init__(self, server: Server, state: NvmlState) -> None:
        self.server = server
        self.state = state

    def set_processes(self, uuid: str, *pids: int) -> None:
        """Set the processes that the driver reports on one GPU."""
        gpu = next(gpu for gpu in self.state.gpus if gpu.uuid == uuid)
        gpu.processes = [NvmlProcess(pid, sm=50) for pid in pids]
        self.state.write()

    def samples(self, family: str) -> list[tuple[dict[str, str], float]]:
        families = read_text(self.server.get().text)
        samples = chain.from_iterable(item.samples for item in families)
        return [(dict(sample.labels), sample.value) for sample in samples if sample.name == family]

    def pod_labels(self, pid: int) -> set[PodLabels]:
        """Pod labels of all series of a process, on all its GPUs."""
        rows = [labels for labels, _ in self.samples("gpu_process_info") if labels["pid"] == str(pid)]
        return {(row["namespace"], row["pod"], row["container"]) for row in rows}

    def gpus_of(self, pid: int) -> set[str]:
        """UUIDs of the GPUs on which a process has series."""
        rows = [labels for labels, _ in self.samples("gpu_process_info") if labels["pid"] == str(pid)]
        return {self.state.gpus[int(row["gpu"])].uuid for row in rows}

    def pod_uids(self, pid: int) -> set[str]:
        rows = self.samples("my_gpu_process_active")
        return {labels["pod_uid"] for labels, _ in rows if labels["pid"] == str(pid)}

    def allocated_to(self, uuid: str) -> set[PodLabels]:
        """Pods that a GPU is allocated to, with or without processes."""
        rows = [labels for labels, _ in self.samples("gpuledger_device_owner_info") if labels["uuid"] == uuid]
        return {(row["namespace"], row["pod"], row["container"]) for row in rows}

    def device_state(self, uuid: str) -> str:
        rows = self.samples("gpuledger_device_state")
        (state,) = (row["state"] for row, value in rows if row["uuid"] == uuid and value == 1)
        return state

    def unresolved_processes(self) -> dict[str, float]:
        """Number of processes without a fully known owner, by reason."""
        return {
            row["reason"]: value for row, value in self.samples("gpuledger_unresolved_processes") if value
        }

    def wait_pod_labels(self, pid: int, *names: PodLabels) -> None:
        wait_until(lambda: self.pod_labels(pid) == set(names), f"process {pid} to have the labels {names}")

    def wait_allocated_to(self, uuid: str, *names: PodLabels) -> None:
        wait_until(lambda: self.allocated_to(uuid) == set(names), f"{uuid} to be allocated to {names}")

    def wait_state(self, uuid: str, state: str) -> None:
        wait_until(lambda: self.device_state(uuid) == state, f"{uuid} to be {state}")

    def wait_more_ticks(self, ticks: int = 5) -> None:
        """Wait for some more ticks, so that pending changes become visible."""
        (before,) = (value for _, value in self.samples("gpuledger_ticks_total"))
        self.server.wait_ticks(int(before) + ticks)

    def resident_bytes(self) -> int:
        """Resident memory of the exporter in bytes."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@contextmanager
def running_exporter(
    folder: Path, gpus: Sequence[str], *flags: str, inside: Sequence[str] = ()
) -> Iterator[RunningExporter]:
    """Run the exporter with these flags, on a machine with these GPUs. `inside` is the prefix of a command
    that runs in the namespaces of that machine.
    """
    state = NvmlState(folder / "nvml-state", [NvmlGpu(uuid=uuid) for uuid in gpus]).write()
    env = {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}
    arguments = ("--source", "nvml", "--interval", "200ms", *flags)
    with serving(*arguments, env=env, inside=inside) as server:
        server.wait_ticks(1)
        yield RunningExporter(server, state)
