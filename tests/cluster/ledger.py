"""`gpuledger serve` beside the real cluster, with the test NVML library as its driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families as read_text

from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from running import Server, serving, wait_until

Names = tuple[str, str, str]
NOBODY: Names = ("", "", "")


class Ledger:
    """What the program tells, and the driver that it asks."""

    def __init__(self, server: Server, state: NvmlState) -> None:
        self.server = server
        self.state = state

    def run(self, uuid: str, *pids: int) -> None:
        """From now on the driver reports these processes, and no others, on one GPU."""
        gpu = next(gpu for gpu in self.state.gpus if gpu.uuid == uuid)
        gpu.processes = [NvmlProcess(pid, sm=50) for pid in pids]
        self.state.write()

    def samples(self, family: str) -> list[tuple[dict[str, str], float]]:
        families = read_text(self.server.get().text)
        told = chain.from_iterable(one.samples for one in families)
        return [(dict(sample.labels), sample.value) for sample in told if sample.name == family]

    def names(self, pid: int) -> set[Names]:
        """(namespace, pod, container) of every series of a process, over all its GPUs."""
        rows = [labels for labels, _ in self.samples("gpu_process_info") if labels["pid"] == str(pid)]
        return {(row["namespace"], row["pod"], row["container"]) for row in rows}

    def gpus_of(self, pid: int) -> set[str]:
        """The UUIDs of the GPUs that a process has series on."""
        rows = [labels for labels, _ in self.samples("gpu_process_info") if labels["pid"] == str(pid)]
        return {self.state.gpus[int(row["gpu"])].uuid for row in rows}

    def pod_uid(self, pid: int) -> set[str]:
        rows = self.samples("my_gpu_process_active")
        return {labels["pod_uid"] for labels, _ in rows if labels["pid"] == str(pid)}

    def holders(self, uuid: str) -> set[Names]:
        """Who has been given a GPU, whether or not anything runs there."""
        rows = [labels for labels, _ in self.samples("gpuledger_device_owner_info") if labels["uuid"] == uuid]
        return {(row["namespace"], row["pod"], row["container"]) for row in rows}

    def device_state(self, uuid: str) -> str:
        rows = self.samples("gpuledger_device_state")
        (state,) = (row["state"] for row, value in rows if row["uuid"] == uuid and value == 1)
        return state

    def unresolved(self) -> dict[str, float]:
        """Processes without a full name, by the reason why."""
        return {
            row["reason"]: value for row, value in self.samples("gpuledger_unresolved_processes") if value
        }

    def wait_names(self, pid: int, *names: Names) -> None:
        wait_until(lambda: self.names(pid) == set(names), f"process {pid} to bear {names}")

    def wait_holders(self, uuid: str, *names: Names) -> None:
        wait_until(lambda: self.holders(uuid) == set(names), f"{uuid} to be held by {names}")

    def wait_state(self, uuid: str, state: str) -> None:
        wait_until(lambda: self.device_state(uuid) == state, f"{uuid} to be {state}")

    def rest(self, ticks: int = 5) -> None:
        """Let it see the world a few times more: what does not change now stands."""
        (before,) = (value for _, value in self.samples("gpuledger_ticks_total"))
        self.server.wait_ticks(int(before) + ticks)

    def resident(self) -> int:
        """Resident memory of the program, bytes."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@contextmanager
def ledger(folder: Path, gpus: Sequence[str], *flags: str) -> Iterator[Ledger]:
    """The program with `flags`, on a machine with these GPUs."""
    state = NvmlState(folder / "nvml-state", [NvmlGpu(uuid=uuid) for uuid in gpus]).write()
    env = {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}
    asked = ("--source", "nvml", "--interval", "200ms", "--kubernetes-enabled", "true", *flags)
    with serving(*asked, env=env) as server:
        server.wait_ticks(1)
        yield Ledger(server, state)
