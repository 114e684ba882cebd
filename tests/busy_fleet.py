"""A healthy, busy fleet: jobs come and go, exporters are replaced, a node is drained."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from alert_page import Series, recorded_series
from alert_targets import healthy_agent, healthy_operator

# Seconds between samples.
STEP = 240
# A GPU that is always busy, full, at its power limit and reserved by a fraction scheduler; MPS; jobs; MIG.
NODE = """
templates:
  h100: &h100
    model: NVIDIA H100 80GB HBM3
    architecture: Hopper
    memory: 81559MiB
    sm_count: 132
gpus:
  - <<: *h100
    processes:
      - {name: python3, load: 0.99, memory: 78GiB, pod: {namespace: ml, name: train-0, container: main}}
  - <<: *h100
    replicas: 2
    processes:
      - {type: mps-server, memory: 30MiB, age: 50h, unit: nvidia-mps.service}
      - {name: vllm, type: mps-client, memory: 9GiB, load: 0.4, pod: {namespace: llm, name: a, container: c}}
      - {name: vllm, type: mps-client, memory: 9GiB, load: 0.3, pod: {namespace: llm, name: b, container: c}}
  - <<: *h100
    processes:
      - name: python3
        load: 0.9
        memory: 20GiB
        every: 90m
        for: 75m
        pod: {namespace: ci, name: "job-{n}", container: main, known_after: 6s}
  - <<: *h100
    instances:
      - {gi: 2, ci: 0, profile: 3g.40gb, sm_count: 60, memory: 40448MiB}
      - {gi: 9, ci: 0, profile: 1g.10gb, sm_count: 16, memory: 9984MiB}
    processes:
      - {name: python3, gi: 2, memory: 39GiB, load: 0.85, pod: {namespace: ml, name: tune-0, container: main}}
      - name: ollama
        gi: 9
        memory: 9GiB
        load: 0.6
        busy: 7m
        quiet: 10m
        pod: {namespace: llm, name: assistant-0, container: ollama}
allocations:
  - gpu: 0
    pod: {namespace: kai-resource-reservation, name: gpu-reservation-1, container: resource-reservation}
faults:
  # A program's page fault, and a hot minute.
  - {kind: xid, gpu: 1, xid: 31, at: 1h, every: 5h}
  - {kind: throttle, gpu: 0, by: sw_thermal, at: 2h, for: 3m}
  - {kind: throttle, gpu: 0, by: sw_power_cap, at: 10m, for: 23h}
"""
# Families that no alert depends on.
_UNREAD = re.compile("state_seconds|watched|pcie|session")


def fleet_series(hours: int) -> Iterable[Series]:
    """The series of the fleet in this time, each once: two pods of an exporter can have the same."""
    merged: dict[str, Series] = {}
    for one in _scraped_series(hours * 3600 // STEP + 1):
        before = merged.get(str(one))
        if before is not None:
            old, new = before.values.split(), one.values.split()
            pairs = zip_longest(old, new, fillvalue="_")
            one = Series(one.name, one.labels, " ".join(b if b != "_" else a for a, b in pairs))
        merged[str(one)] = one
    return merged.values()


def _scraped_series(number: int) -> Iterator[Series]:
    """A node with a replaced exporter, a drained one, one of an earlier version; agent and operator."""
    exported = [one for one in recorded_series(NODE, STEP, number) if not _UNREAD.search(one.name)]
    node = [*exported, Series("up", {}, " ".join(["1"] * number))]
    third, half = number // 3, number // 2
    # The new pod has another address; both are scraped for eight minutes.
    yield from _scraped(node, "exchanged", "10.0.0.1:9400", "gpuledger-1", 0, half + 2)
    yield from _scraped(node, "exchanged", "10.0.0.2:9400", "gpuledger-2", half, number)
    # Drained for maintenance, and back later. The target fails for four minutes before it is removed.
    yield from _scraped(node, "drained", "10.0.0.3:9400", "gpuledger-3", 0, third, failing=1)
    yield from _scraped(node, "drained", "10.0.0.3:9400", "gpuledger-4", half, number)
    # A version without the families of faults, replaced by this one; both overlap on the same instance.
    old = [
        one
        for one in node
        if not any(word in one.name for word in ("throttled", "remap", "recovery", "price"))
    ]
    yield from _scraped(old, "updated", "n5", "gpuledger-5", 0, third + 2)
    yield from _scraped(node, "updated", "n5", "gpuledger-6", third, number)
    for kind, series in (("agent", healthy_agent(number, STEP)), ("operator", healthy_operator(number))):
        target = {"job": kind, "instance": f"{kind}-0"}
        for one in (Series("up", {}, f"1x{number}"), *series):
            yield Series(one.name, target | one.labels, one.values)


def _scraped(
    node: Iterable[Series], name: str, instance: str, pod: str, first: int, last: int, failing: int = 0
) -> Iterator[Series]:
    """The node's series while this pod is scraped; then it fails, and is a target no longer."""
    target = {"job": "gpuledger", "node": name, "instance": instance, "pod": pod, "namespace": "gpus"}
    for one in node:
        words = one.values.split()[first:last]
        if set(words) == {"stale"}:
            continue
        ends = ["0"] * failing if one.name == "up" else []
        # Labels of the exporter win, also empty ones: honor_labels.
        labels = {**{key: value for key, value in target.items() if key not in one.labels}, **one.labels}
        if labels.get("uuid"):
            labels["uuid"] = f"{labels['uuid']}-{name}"
        yield Series(one.name, labels, " ".join([*(["_"] * first), *words, *ends, "stale"]))
