"""The exporter of the chart on the real node: its driver (the test NVML library) and its metrics."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families as read_text

from cluster.control_plane import Json
from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from running import free_port, get, wait_until

GPU_LABEL = {"nvidia.com/gpu.present": "true"}
Row = tuple[dict[str, str], float]


class Driver:
    """The test NVML library and its state, in a folder that pods mount."""

    def __init__(self, folder: Path, uuids: tuple[str, ...]) -> None:
        folder.mkdir()
        self.state = NvmlState(folder / "nvml-state", [NvmlGpu(uuid=uuid) for uuid in uuids]).write()

    def set_processes(self, uuid: str, *pids: int) -> None:
        """Set the processes that the driver reports on one GPU."""
        gpu = next(gpu for gpu in self.state.gpus if gpu.uuid == uuid)
        gpu.processes = [NvmlProcess(pid, sm=50) for pid in pids]
        self.state.write()

    def values(self) -> Json:
        """Values that make the chart mount and use the library."""
        places = {"test-library": build().parent, "test-state": self.state.path.parent}
        return {
            "extraVolumes": [
                {"name": name, "hostPath": {"path": str(place)}} for name, place in places.items()
            ],
            "extraVolumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in places],
            "extraEnv": [
                {"name": "LD_LIBRARY_PATH", "value": "/test-library"},
                {"name": "TEST_NVML_STATE", "value": f"/test-state/{self.state.path.name}"},
            ],
        }


def node_values(image: str, driver: Driver) -> Json:
    """Values for the test node: the image exists only on the node, and pods use the host's network."""
    repository, _, tag = image.rpartition(":")
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "hostNetwork": True,
        "port": free_port(),
        "probes": {"readiness": {"periodSeconds": 1}},
        **driver.values(),
    }


class MetricsClient:
    """HTTP client of an exporter on a port of this machine."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str) -> httpx.Response:
        return get(f"{self.url}{path}")

    def rows(self, family: str, path: str = "/metrics") -> list[Row]:
        return rows(self.get(path).text, family)

    def wait_row(self, family: str, path: str = "/metrics", **labels: str) -> dict[str, str]:
        """Wait for a row with these labels, and return all its labels."""

        def found() -> dict[str, str] | None:
            for row, _ in self.rows(family, path):
                if labels.items() <= row.items():
                    return row
            return None

        return wait_until(found, f"{family} with {labels} at {self.url}{path}")


def rows(text: str, family: str) -> list[Row]:
    samples = chain.from_iterable(item.samples for item in read_text(text))
    return [(dict(sample.labels), sample.value) for sample in samples if sample.name == family]
