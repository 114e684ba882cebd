"""Names of pods from a real API server: many of them, watches that expire, permissions that are missing.

The pods are bound to nodes that no kubelet serves, so that the API server's side is all that moves; a real
process stands in the cgroup that a kubelet would have made for one of them.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.cgroups import Branch
from cluster.control_plane import ACCOUNT, ControlPlane, Json
from cluster.ledger import NOBODY, ledger
from cluster.node import GPUS
from cluster.pods import NAMESPACE, Pods, container, pod
from running import wait_until

MIB = 1 << 20


@pytest.fixture
def branch(folder: Path, request: pytest.FixtureRequest) -> Iterator[Branch]:
    made = Branch(f"{folder.name}-{hashlib.sha256(request.node.name.encode()).hexdigest()[:8]}")
    yield made
    made.remove()


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


class Paper:
    """Pods that exist in the API alone, and processes in the cgroups they would have."""

    def __init__(self, pods: Pods, branch: Branch, started: list[subprocess.Popen[bytes]]) -> None:
        self._pods = pods
        self._branch = branch
        self._started = started

    def create(self, name: str, node: str, **metadata: Any) -> Json:
        made = self._pods.create(pod(name, container("main"), node=node, **metadata))
        told = {"name": "main", "image": "", "imageID": "", "ready": True, "restartCount": 0}
        told |= {"containerID": f"containerd://{self.container_id(made)}", "state": {"running": {}}}
        self._pods.set_status(name, {"phase": "Running", "containerStatuses": [told]})
        return made

    def container_id(self, made: Json) -> str:
        return hashlib.sha256(made["metadata"]["uid"].encode()).hexdigest()

    def process(self, made: Json) -> int:
        """A process of its container."""
        started = subprocess.Popen(["sleep", "600"])
        self._started.append(started)
        path = f"kubepods/burstable/pod{made['metadata']['uid']}/{self.container_id(made)}"
        self._branch.put(started.pid, path)
        return started.pid


@pytest.fixture
def paper(pods: Pods, branch: Branch, processes: list[subprocess.Popen[bytes]]) -> Paper:
    return Paper(pods, branch, processes)


def nowhere(tmp_path: Path) -> tuple[str, ...]:
    """Flags of a machine without a kubelet."""
    return ("--pod-logs", str(tmp_path / "no-logs"))


def lists(control_plane: ControlPlane, node: str) -> list[Json]:
    asked = control_plane.audited(ACCOUNT)
    return [event for event in asked if event["verb"] == "list" and node in event["requestURI"]]


def is_expired(control_plane: ControlPlane, version: int) -> bool:
    """Whether a watch from this version is answered 410 Gone, as a status or as an event."""
    asked = {"watch": "1", "resourceVersion": str(version), "timeoutSeconds": "1"}
    answer = control_plane.admin.ask("GET", "api/v1/pods", **asked)
    return answer.status_code == 410 or '"code":410' in answer.text


def test_500_pods_on_a_node_are_all_known_and_cheap(
    control_plane: ControlPlane,
    paper: Paper,
    pods: Pods,
    api_flags: tuple[str, ...],
    tmp_path: Path,
) -> None:
    made = [paper.create(f"crowd-{number}", "crowded") for number in range(500)]
    chosen = {paper.process(made[number]): f"crowd-{number}" for number in (0, 249, 499)}
    with ledger(tmp_path, GPUS, *api_flags, *nowhere(tmp_path), "--node-name", "crowded") as books:
        books.run(GPUS[0], *chosen)
        for pid, name in chosen.items():
            books.wait_names(pid, (NAMESPACE, name, "main"))
        assert books.resident() < 45 * MIB
    assert len(lists(control_plane, "crowded")) >= 1


def test_it_asks_for_what_it_may_and_only_for_the_pods_of_this_node(
    control_plane: ControlPlane, paper: Paper, api_flags: tuple[str, ...], pods: Pods, tmp_path: Path
) -> None:
    """Every node asks at every start: only with a field selector, from the watch cache, does that scale."""
    # A server that has just started refuses for a moment what it grants: that was another test's.
    before = len(control_plane.audited(ACCOUNT))
    made = paper.create("here", "asking")
    pid = paper.process(made)
    with ledger(tmp_path, GPUS, *api_flags, *nowhere(tmp_path), "--node-name", "asking") as books:
        books.run(GPUS[0], pid)
        books.wait_names(pid, (NAMESPACE, "here", "main"))
    asked = control_plane.audited(ACCOUNT)[before:]
    assert asked
    for event in asked:
        if "objectRef" not in event:
            # Which versions of ResourceSlices there are; this server is older than all of them.
            assert event["requestURI"].startswith("/apis/resource.k8s.io"), event
            continue
        # That it may not list ResourceSlices would be another matter.
        wanted = {"pods": 200, "resourceslices": 404}[event["objectRef"]["resource"]]
        assert event["responseStatus"]["code"] == wanted, event
    objects = [event for event in asked if "objectRef" in event]
    of_pods = [event["requestURI"] for event in objects if event["objectRef"]["resource"] == "pods"]
    assert all("fieldSelector=spec.nodeName%3D" in uri for uri in of_pods)
    (first,) = lists(control_plane, "asking")
    assert "resourceVersion=0" in first["requestURI"]


def test_a_pod_recreated_while_its_first_self_still_runs_takes_over_none_of_its_processes(
    paper: Paper, pods: Pods, api_flags: tuple[str, ...], tmp_path: Path
) -> None:
    first = paper.create("twice", "twins")
    old = paper.process(first)
    with ledger(tmp_path, GPUS, *api_flags, *nowhere(tmp_path), "--node-name", "twins") as books:
        books.run(GPUS[0], old)
        books.wait_names(old, (NAMESPACE, "twice", "main"))
        pods.forget("twice")
        second = paper.create("twice", "twins")
        new = paper.process(second)
        books.run(GPUS[0], old, new)
        books.wait_names(new, (NAMESPACE, "twice", "main"))
        uids = [made["metadata"]["uid"] for made in (first, second)]
        assert [books.pod_uid(old), books.pod_uid(new)] == [{uid} for uid in uids]


def test_an_expired_watch_is_followed_by_a_new_list(
    control_plane: ControlPlane, paper: Paper, pods: Pods, api_flags: tuple[str, ...], tmp_path: Path
) -> None:
    """The server forgets the version at which the watch stood: it answers 410 Gone."""
    first = paper.create("before", "expiring")
    old = paper.process(first)
    with ledger(tmp_path, GPUS, *api_flags, *nowhere(tmp_path), "--node-name", "expiring") as books:
        books.run(GPUS[0], old)
        books.wait_names(old, (NAMESPACE, "before", "main"))
        before = len(lists(control_plane, "expiring"))
        stood = control_plane.revision()
        # What happens on other nodes moves the version on, and this watch does not see it.
        for number in range(3):
            paper.create(f"elsewhere-{number}", "elsewhere")
        control_plane.compact()
        control_plane.server.restart()
        assert is_expired(control_plane, stood)
        new = paper.process(paper.create("after", "expiring"))
        books.run(GPUS[0], old, new)
        books.wait_names(new, (NAMESPACE, "after", "main"))
        assert books.names(old) == {(NAMESPACE, "before", "main")}
        wait_until(lambda: len(lists(control_plane, "expiring")) > before, "another list")


def test_without_permission_it_says_which_rule_is_missing_and_bills_nobody_else(
    control_plane: ControlPlane, paper: Paper, pods: Pods, tmp_path: Path
) -> None:
    made = paper.create("hidden", "forbidden")
    pid = paper.process(made)
    token = tmp_path / "token"
    token.write_text("stranger-token")
    flags = ("--kubernetes-api", control_plane.url, "--kubernetes-ca-file", str(control_plane.ca_file))
    more = ("--kubernetes-token-file", str(token), "--node-name", "forbidden", *nowhere(tmp_path))
    with ledger(tmp_path, GPUS, *flags, *more) as books:
        books.run(GPUS[0], pid)
        line = books.server.wait_line(r"403.*")[0]
        assert "pods" in line
        assert "list" in line
        books.wait_names(pid, NOBODY)
        assert books.unresolved() == {"pod_name": 1}
        # The right comes later: nothing has to be restarted.
        token.write_text(control_plane.token_of("gpuledger", "gpuledger"))
        books.wait_names(pid, (NAMESPACE, "hidden", "main"))


def test_a_new_token_is_taken_from_the_file_when_the_old_one_has_become_worthless(
    control_plane: ControlPlane,
    paper: Paper,
    api_flags: tuple[str, ...],
    token_file: Path,
    tmp_path: Path,
) -> None:
    with ledger(tmp_path, GPUS, *api_flags, *nowhere(tmp_path), "--node-name", "rotating") as books:
        old = paper.process(paper.create("old", "rotating"))
        books.run(GPUS[0], old)
        books.wait_names(old, (NAMESPACE, "old", "main"))
        control_plane.renew_account("gpuledger", "gpuledger")
        # Only now must it show its token again.
        control_plane.server.restart()
        books.server.wait_line("401")
        token_file.write_text(control_plane.token_of("gpuledger", "gpuledger"))
        new = paper.process(paper.create("new", "rotating"))
        books.run(GPUS[0], old, new)
        books.wait_names(new, (NAMESPACE, "new", "main"))
