"""Measures discovery latency and memory with a large cluster, on a real API server.

    sudo python benchmarks/discovery.py [--pods 5000] [--changes 50] [--write docs/agent-discovery.md]

Requirements are those of `make e2e`. Each change is a pod that gets its IP address. Latency is the time from
the API server's response (the change is in etcd) until the agent's status page shows the target, polled every
10 ms. Memory is that of the agent process, without pods and with those of a large cluster, of which one in a
hundred is an exporter. `--write` writes the table to a file.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from tables import create_parser, print_table

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

from cluster.agents import Agent, FakeExporters, Objects, agents  # noqa: E402  (after the path is set)
from cluster.control_plane import Client, ControlPlane, Json  # noqa: E402  (as above)
from running import wait_until  # noqa: E402  (as above)

MARKS = ("<!-- discovery: begin -->", "<!-- discovery: end -->")
MIB = 1 << 20
NAMESPACE = "bench"
LABELS = {"app.kubernetes.io/name": "dcgm-exporter"}
# Environment of a typical pod: it dominates the size of pod objects.
_ENVIRONMENT = [{"name": f"SETTING_{number}", "value": "x" * 80} for number in range(20)]


@dataclass
class Figures:
    """Latency of each change in seconds, and memory in MiB."""

    seen: list[float]
    empty: float
    full: float
    peak: float
    whole: float
    pods: int
    listing: float


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """Run an API server with the agent's ServiceAccount."""
    built = subprocess.run([ROOT / "tests/cluster/build.sh"], stdout=subprocess.PIPE, text=True, check=True)
    with tempfile.TemporaryDirectory(prefix="gpuledger-bench-") as place:
        folder, logs = Path(place) / "api", Path(place) / "logs"
        folder.mkdir()
        logs.mkdir()
        plane = ControlPlane(Path(built.stdout.strip()), folder, logs)
        try:
            plane.start()
            plane.create_namespace("gpuledger")
            plane.admin.apply(ROOT / "deploy/agent-rbac.yaml")
            yield plane
        finally:
            plane.stop()


def usual_pod(number: int) -> Json:
    """Return a typical application pod of a large cluster."""
    name = f"app-{number:05}"
    labels = {"app": f"app-{number % 200}", "pod-template-hash": f"{number % 200:010x}", "team": "a"}
    container = {"name": "main", "image": f"registry.example/team/app:{number % 200}", "env": _ENVIRONMENT}
    return {
        "metadata": {"name": name, "labels": LABELS if number % 100 == 0 else labels},
        "spec": {
            "nodeName": f"node-{number % 500}",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [{**container, "ports": [{"name": "metrics", "containerPort": 9400}]}],
        },
    }


def create_pods(plane: ControlPlane, pods: int) -> None:
    """Create the pods of a large cluster, running and with an IP address."""

    def create(numbers: range) -> None:
        client = Client(plane.url, plane.ca_file, "admin-token")
        path = f"api/v1/namespaces/{NAMESPACE}/pods"
        for number in numbers:
            made = usual_pod(number)
            client.call("POST", path, made)
            status = {"phase": "Running", "podIP": f"127.9.{number // 250}.{number % 250 + 1}"}
            client.call("PATCH", f"{path}/{made['metadata']['name']}/status", {"status": status})
        client.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(create, [range(start, pods, 4) for start in range(4)]))


def resident(agent: Agent) -> float:
    """Return the agent's resident memory in MiB."""
    return psutil.Process(agent.program.process.pid).memory_info().rss / MIB


def peak(agent: Agent) -> float:
    """Return the agent's peak resident memory in MiB."""
    status = Path(f"/proc/{agent.program.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


# A target with rules that read pod labels: the agent then keeps all pods.
READS_PODS = {
    "targetName": "services",
    "type": "ServiceMonitor",
    "selector": {"matchLabels": {"app": "x"}},
    "endpoints": [{"port": "metrics"}],
    "relabelConfigs": [{"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"}],
}


def changes(objects: Objects, agent: Agent, number: int, port: int) -> Iterator[float]:
    """Yield the latency of each change in seconds, one after the other."""
    for turn in range(number):
        name, ip = f"new-{turn}", f"127.8.0.{turn + 1}"
        objects.pod(NAMESPACE, name, "", LABELS, ports={"metrics": port}, phase="Pending")
        objects.status(NAMESPACE, name, phase="Running", podIP=ip, hostIP="10.0.0.1")
        began = time.monotonic()
        wait_until(lambda ip=ip: f"http://{ip}:{port}/" in agent.page(), ip)  # type: ignore[misc]  # a default
        yield time.monotonic() - began


def measure(pods: int, number: int) -> Figures:
    """Run all measurements once."""
    fake_exporters = FakeExporters()
    with (
        control_plane() as plane,
        tempfile.TemporaryDirectory() as folder,
        agents(plane, Path(folder)) as run,
    ):
        objects = Objects(plane.admin)
        objects.namespace(NAMESPACE)
        agent = run.start(run.file({}, fake_exporters.receiver))
        wait_until(agent.is_ready, "the agent")
        seen = list(changes(objects, agent, number, fake_exporters.port))
        objects.delete_all()
        wait_until(lambda: not agent.hosts(), "no targets")
        agent.program.stop()
        agent = run.start(run.file({"globalInterval": "1h"}, fake_exporters.receiver))
        wait_until(agent.is_ready, "the agent")
        empty = resident(agent)
        agent.program.stop()
        create_pods(plane, pods)
        agent = run.start(run.file({"globalInterval": "1h"}, fake_exporters.receiver))
        began = time.monotonic()
        wait_until(lambda: len(agent.hosts()) == -(-pods // 100), "all targets", 120)
        listed = time.monotonic() - began
        full, most = resident(agent), peak(agent)
        agent.program.stop()
        both = {"globalInterval": "1h", "autoTargets": True, "targets": [READS_PODS]}
        agent = run.start(run.file(both, fake_exporters.receiver))
        wait_until(lambda: len(agent.hosts()) == -(-pods // 100), "all targets", 120)
        whole = resident(agent)
        agent.program.stop()
    fake_exporters.close()
    return Figures(seen, empty, full, most, whole, pods, listed)


def table(found: Figures) -> Iterator[str]:
    """Yield the lines of the Markdown table."""
    number = len(found.seen)
    yield "| measurement | value |"
    yield "|---|---|"
    yield f"| pod change until it is a target, median of {number} | {median(found.seen):.2f} s |"
    yield f"| slowest of them | {max(found.seen):.2f} s |"
    yield f"| resident memory without pods | {found.empty:.1f} MiB |"
    yield f"| with {found.pods:,} pods, one in a hundred an exporter | {found.full:.1f} MiB |"
    yield f"| peak while they are listed | {found.peak:.1f} MiB |"
    yield f"| with a ServiceMonitor and rules that read pod labels | {found.whole:.1f} MiB |"
    yield f"| start until all {-(-found.pods // 100)} targets are discovered | {found.listing:.1f} s |"


def main() -> None:
    """Measure, print the table and, with --write, write it to a file."""
    flags = create_parser(__doc__)
    flags.add_argument("--pods", type=int, default=5000, help="pods of the large cluster")
    flags.add_argument("--changes", type=int, default=50, help="number of measured changes")
    given = flags.parse_args()
    print_table(table(measure(given.pods, given.changes)), given.write, MARKS)


if __name__ == "__main__":
    main()
