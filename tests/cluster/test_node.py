"""The test node: a real kubelet runs containers in real cgroups and allocates devices."""

from __future__ import annotations

from pathlib import Path

from cluster.node import GPUS, Node
from cluster.pods import Pods, container, pod
from gpuledger.workloads.cgroup import parse_cgroup


def test_a_container_gets_devices_and_its_cgroup_names_its_pod(node: Node, pods: Pods) -> None:
    pods.create(pod("train", container("main", gpus=2), node=node.name))
    running = pods.wait_running("train", "main")
    assert len(set(running.devices)) == 2
    assert set(running.devices) <= set(GPUS)
    found = parse_cgroup(Path(f"/proc/{running.pid}/cgroup").read_text())
    assert (found.kind, found.pod_uid, found.container_id) == ("pod", running.pod_uid, running.container_id)


def test_containers_survive_a_restart_of_the_kubelet_and_devices_are_advertised_again(
    node: Node, pods: Pods
) -> None:
    pods.create(pod("before", container("main", gpus=1), node=node.name))
    before = pods.wait_running("before", "main")
    with node.kubelet_stopped():
        pass
    pods.create(pod("after", container("main", gpus=7), node=node.name))
    after = pods.wait_running("after", "main")
    assert pods.wait_running("before", "main") == before
    assert not set(before.devices) & set(after.devices)
