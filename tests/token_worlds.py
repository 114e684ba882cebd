"""Clusters that serve models: counters of gpuledger and of inference servers, as OpenMetrics text.

Each cluster is one example with the label `cluster`. All counters stand still before and after the hour, so
that each amount is exact.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from running import Prometheus, create_blocks, free_port

HOUR, SCRAPE = 3600, 60
# The hour of the examples; counters exist from an hour before to half an hour after it.
BEGIN = int(time.time() // HOUR - 6) * HOUR
END = BEGIN + HOUR
FIRST, LAST = BEGIN - HOUR, END + HOUR // 2
Value = Callable[[int], float | None]


def linear(first: float, last: float, begins: int = BEGIN, ends: int = END) -> Value:
    """A counter that rises evenly from `begins` to `ends`, and exists before and after."""

    def value(at: int) -> float:
        return first + (last - first) * min(max(at - begins, 0), ends - begins) / (ends - begins)

    return value


def between(value: Value, begins: int, ends: int = LAST) -> Value:
    """The same, but it is exported only from `begins` to `ends`."""
    return lambda at: value(at) if begins <= at <= ends else None


def stepped(*steps: tuple[int, float]) -> Value:
    """A counter with these values from these times on; 0 before."""
    return lambda at: max((value for since, value in steps if since <= at), default=0.0)


def restarted(before: Value, after: Value, at: int) -> Value:
    """A counter that begins again at 0."""
    return lambda now: before(now) if now < at else after(now)


@dataclass
class ServingCluster:
    """The series of one cluster. GPUs are added with the first pod that has them."""

    name: str
    series: dict[str, list[tuple[Mapping[str, str], Value]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    gpus: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def pod(
        self,
        pod: str,
        joules: Mapping[str, float],
        *,
        seconds: Mapping[str, float] | None = None,
        held: float | None = None,
        method: str = "measured",
        namespace: str = "serving",
        labels: Mapping[str, str] | None = None,
        controller: str = "",
        since: int = FIRST,
    ) -> ServingCluster:
        """A pod with these joules of each GPU; `seconds` of GPU time, by default the whole hour."""
        owner = {"owner_kind": "pod", "namespace": namespace, "pod": pod, "container": "main"}
        # The counters of a new pod begin at 0.
        base, begins = (0.0, since) if since > FIRST else (7e5, BEGIN)
        for uuid, amount in joules.items():
            spent = (seconds or {}).get(uuid, float(HOUR))
            self.gpus[uuid] += amount
            self.seconds[uuid] += spent
            energy = {"uuid": uuid, "account": "process", "method": method, **owner}
            if amount:
                self.add(
                    "gpuledger_energy_joules_total",
                    energy,
                    between(linear(base, base + amount, begins), since),
                )
            account = {"uuid": uuid, "account": "owner", **owner}
            self.add(
                "gpuledger_gpu_seconds_total", account, between(linear(base, base + spent, begins), since)
            )
            there = {"uuid": uuid, **owner}
            self.add("gpuledger_owner_resident_seconds_total", there, between(linear(9, 9 + HOUR), since))
            if held is not None:
                self.add("gpuledger_owner_held_seconds_total", there, between(linear(3, 3 + held), since))
        facts = {
            "namespace": namespace,
            "pod": pod,
            "controller": controller,
            "controller_kind": "ReplicaSet",
        }
        if controller:
            self.add("gpuledger_pod_info", facts, lambda _: 1.0)
        for label, value in (labels or {}).items():
            named = {"namespace": namespace, "pod": pod, "label": label, "value": value}
            self.add("gpuledger_pod_label_info", named, lambda _: 1.0)
        return self

    def energy(
        self, pod: str, uuid: str, value: Value, method: str, namespace: str = "serving"
    ) -> ServingCluster:
        """More energy of a pod, by another method."""
        owner = {"owner_kind": "pod", "namespace": namespace, "pod": pod, "container": "main"}
        self.gpus[uuid] += (value(END) or 0) - (value(BEGIN) or 0)
        labels = {"uuid": uuid, "account": "process", "method": method, **owner}
        self.add("gpuledger_energy_joules_total", labels, value)
        return self

    def tokens(
        self,
        name: str,
        pod: str,
        value: Value,
        *,
        model: str | None = "m",
        port: int = 8000,
        job: str = "engines",
        namespace: str = "serving",
        up: bool = True,
        **labels: str,
    ) -> ServingCluster:
        """A counter of an inference server in a pod."""
        target = {"job": job, "instance": f"{pod}:{port}", "namespace": namespace, "pod": pod}
        named = {} if model is None else {"model_name": model}
        self.add(name, {**named, **labels, **target}, value, target={})
        if up and not any(target.items() <= labels.items() for labels, _ in self.series["up"]):
            self.add("up", target, lambda at: 1.0 if at >= FIRST else None, target={})
        return self

    def vllm(
        self, pod: str, given: float, made: float, *, cached: float = 0, requests: float = 0, **more: str
    ) -> ServingCluster:
        """A vLLM server: its counters exist from its start on."""
        for name, amount in (
            ("prompt_tokens", given),
            ("generation_tokens", made),
            ("prompt_tokens_cached", cached),
        ):
            self.tokens(f"vllm:{name}_total", pod, linear(100, 100 + amount), **more)  # type: ignore[arg-type]
        return self.tokens(
            "vllm:request_success_total",
            pod,
            linear(5, 5 + requests),
            finished_reason="stop",
            **more,  # type: ignore[arg-type]
        )

    def add(
        self, name: str, labels: Mapping[str, str], value: Value, target: Mapping[str, str] | None = None
    ) -> None:
        """A series; by default of gpuledger's target."""
        own = {"job": "gpuledger", "instance": "n1:9400", "node": "n1"} if target is None else target
        self.series[name].append(({**labels, **own, "cluster": self.name}, value))

    def finish(self) -> None:
        """Add the GPUs' own counters, which pods and idle time sum to."""
        for uuid, joules in self.gpus.items():
            self.add("gpuledger_device_energy_joules_total", {"uuid": uuid}, linear(2e8, 2e8 + joules))
            self.add("gpuledger_gpu_watched_seconds_total", {"uuid": uuid}, lambda at: float(at - FIRST + 9))
            spent, idle = self.seconds[uuid], {"uuid": uuid, "account": "idle"}
            busy = linear(0, spent)
            self.add("gpuledger_gpu_seconds_total", idle, lambda at, busy=busy: at - FIRST + 9 - busy(at))  # type: ignore[misc]
            self.add("gpuledger_device_info", {"uuid": uuid, "gpu": "0", "name": "H200"}, lambda _: 1.0)
        self.add("gpuledger_ticks_total", {}, lambda at: float(at - FIRST))
        self.add("gpuledger_books_info", {"basis": "allocation"}, lambda _: 1.0)


def openmetrics(clusters: Sequence[ServingCluster]) -> str:
    """All series, as `promtool tsdb create-blocks-from openmetrics` reads them."""
    lines: dict[str, list[str]] = defaultdict(list)
    for cluster in clusters:
        cluster.finish()
        for name, series in cluster.series.items():
            for labels, value in series:
                written = ",".join(f'{label}="{word}"' for label, word in labels.items())
                for at in range(FIRST, LAST + 1, SCRAPE):
                    sample = value(at)
                    if sample is not None:
                        lines[name].append(f"{name}{{{written}}} {sample!r} {at}")
    families = []
    for name, samples in lines.items():
        counter = name.endswith("_total")
        kind = "counter" if counter else "unknown"
        families.append("\n".join((f"# TYPE {name.removesuffix('_total')} {kind}", *samples)))
    return "\n".join((*families, "# EOF\n"))


@contextmanager
def stored(clusters: Sequence[ServingCluster], folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that has the samples of these clusters."""
    file = folder / "tokens.om"
    file.write_text(openmetrics(clusters))
    create_blocks(file, folder / "data")
    prometheus = Prometheus(folder, "global: {}\n", free_port())
    try:
        yield prometheus
    finally:
        prometheus.stop()
