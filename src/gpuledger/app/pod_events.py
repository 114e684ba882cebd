"""Posts one Kubernetes Event for each pod that had GPUs and has ended: its receipt in a few sentences.

The name of an Event follows from the UID of its pod, so that the API server refuses a second one, of another
replica or after a restart, as long as it keeps the first (an hour by default). A file keeps for longer which
pods had theirs. Events are news: after an hour of failures an Event is not posted any more.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, Final

from gpuledger.app.receipt_source import receipt_from_ledger
from gpuledger.config.node import configured_node_name
from gpuledger.host.files import read_at_most, replace_file
from gpuledger.host.owner_index import PolledIndex
from gpuledger.host.settings import configured_time_zone
from gpuledger.kubernetes.api_client import ApiClient, ApiServerRefused
from gpuledger.kubernetes.cluster_access import find_access
from gpuledger.kubernetes.settings import KubernetesSettings, PodEventSettings
from gpuledger.ledger.report.ranges import RequestedRange
from gpuledger.ledger.report.receipt.content import ReceiptJson
from gpuledger.ledger.report.receipt.sentence import receipt_sentence
from gpuledger.ledger.store.explain_target import OwnerNotFound
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.watched_range import NothingWatched
from gpuledger.ledger.watched_time import QUARTER
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.settings import build_settings
from gpuledger.model.snapshot import Snapshot
from gpuledger.model.source import Clock
from gpuledger.model.workload import Workload
from gpuledger.workloads.pods.pod import Pods

log = logging.getLogger("gpuledger.events")

# Seconds between two passes.
PERIOD: Final = 5.0
STATE_FILE: Final = "pod-events.json"
_VERSION: Final = 1
# Limits of events.k8s.io/v1 (pkg/apis/core/validation/events.go), in bytes and characters.
_LONGEST_NOTE: Final = 1024
_LONGEST_NAME: Final = 253
_LONGEST_INSTANCE: Final = 128
# Seconds. The last interval of a pod is booked some ticks after its end.
_SETTLED: Final = 10.0
# Seconds for which a receipt is waited for that is not there yet, or says that the pod still runs.
_LONGEST_BOOKING: Final = 60.0
# Seconds for which an Event that cannot be posted is tried, and for which the file keeps a posted one.
_LONGEST_TRIAL: Final = 3600.0
_LONGEST_MEMORY: Final = 7 * 86_400.0
# Events at once, and seconds for one more: Kubernetes' own clients limit themselves in this way.
_BURST: Final = 25
_REFILL: Final = 12.0
# Bytes of the file: some ten thousand pods.
_LONGEST_FILE: Final = 16 << 20
_DAMAGED: Final = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
_REASON: Final = "GPUReceipt"
# Statuses of refusals that concern the Events of all pods: no login, too many requests.
_OF_ALL_PODS: Final = (401, 429)


@dataclass(slots=True)
class EndingPod:
    """A pod that has or had GPUs. Times are unix seconds; `gone` is None while it has them."""

    namespace: str
    name: str
    since: float
    controller_kind: str = ""
    controller: str = ""
    gone: float | None = None


# The receipt of a pod since a time; None if the ledger has none. Raises GpuledgerError.
ReadReceipt = Callable[[EndingPod], ReceiptJson | None]
# Creates an object at a path. Raises as ApiClient.create.
CreateObject = Callable[[str, Mapping[str, object]], None]


class PodEvents:
    """Follows the pods on this node's GPUs, and posts an Event after the end of each.

    `snapshot` returns the newest Snapshot, `pods` the pods of this node, None while they are not known. Pods
    that had GPUs for less than `shortest` seconds have no Event: there can be thousands of them.
    Without a `file`, posted Events are remembered only while the program runs. Used by one thread.
    """

    def __init__(
        self,
        node: str,
        snapshot: Callable[[], Snapshot | None],
        pods: Callable[[], Pods | None],
        read_receipt: ReadReceipt,
        create: CreateObject,
        clock: Clock,
        file: Path | None = None,
        shortest: float = 60.0,
    ) -> None:
        self._node = node
        self._shortest = shortest
        self._snapshot = snapshot
        self._pods = pods
        self._read_receipt = read_receipt
        self._create = create
        self._clock = clock
        self._file = file
        self._followed: dict[str, EndingPod] = {}
        # Unix time by UID of the pods that had their Event, or get none.
        self._done: dict[str, float] = {}
        self._tokens, self._refilled = float(_BURST), clock.unix()
        self._load()

    def run_pass(self) -> tuple[str, ...]:
        """Look at the pods once; returns the UIDs of those that are followed.

        Raises GpuledgerError if Events cannot be posted now; the next pass tries again.
        """
        before = self._content()
        try:
            self._follow()
            self._post_ended()
        finally:
            if (content := self._content()) != before:
                self._save(content)
        return tuple(self._followed)

    def _follow(self) -> None:
        """Note which pods have GPUs now, and which have none any more and have ended."""
        snapshot, pods, now = self._snapshot(), self._pods(), self._clock.unix()
        if snapshot is None or pods is None:
            return
        present = dict(_pods_on_gpus(snapshot))
        for uid, owner in present.items():
            if uid not in self._done and uid not in self._followed:
                known = pods.by_uid(uid)
                since = now if known is None or known.created is None else known.created
                self._followed[uid] = EndingPod(
                    owner.namespace, owner.pod, since, owner.controller_kind, owner.controller
                )
        for uid, pod in self._followed.items():
            known = pods.by_uid(uid)
            if uid in present or (known is not None and not known.finished):
                pod.gone = None
            elif pod.gone is None:
                pod.gone = now
        self._done = {
            uid: at
            for uid, at in self._done.items()
            if now - at < _LONGEST_MEMORY or pods.by_uid(uid) is not None
        }

    def _post_ended(self) -> None:
        now = self._clock.unix()
        self._tokens = min(float(_BURST), self._tokens + max(0.0, now - self._refilled) / _REFILL)
        self._refilled = now
        refusal: ApiServerRefused | None = None
        for uid, pod in list(self._followed.items()):
            if pod.gone is None or now - pod.gone < _SETTLED or self._tokens < 1:
                continue
            if now - pod.gone <= _LONGEST_TRIAL:
                receipt = self._read_receipt(pod)
                if (receipt is None or receipt["running"]) and now - pod.gone < _LONGEST_BOOKING:
                    continue
                try:
                    self._post_event(uid, pod, receipt)
                except ApiServerRefused as error:
                    if error.status in _OF_ALL_PODS:
                        raise
                    refusal = error
                    # A quota or permission of its namespace can be the reason: others come first next time.
                    self._followed[uid] = self._followed.pop(uid)
                    continue
            del self._followed[uid]
            self._done[uid] = now
        if refusal is not None:
            raise refusal

    def _post_event(self, uid: str, pod: EndingPod, receipt: ReceiptJson | None) -> None:
        begins, ends = (None, None) if receipt is None else (receipt["begins"], receipt["ends"])
        if (
            receipt is None
            or begins is None
            or ends is None
            or ends - max(begins, pod.since) < self._shortest
        ):
            return
        self._tokens -= 1
        path = f"/apis/events.k8s.io/v1/namespaces/{pod.namespace}/events"
        try:
            self._create(path, build_event(uid, pod, receipt, self._node, self._clock.unix()))
        except ApiServerRefused as error:
            if not _is_final(error):
                raise
            if error.status != 409:
                log.info("no Event for pod %s/%s: %s", pod.namespace, pod.name, error)

    def _content(self) -> str:
        followed = {uid: asdict(pod) for uid, pod in sorted(self._followed.items())}
        done = dict(sorted(self._done.items()))
        return json.dumps({"version": _VERSION, "followed": followed, "done": done})

    def _load(self) -> None:
        """Continue where an earlier run ended; a missing or damaged file is an empty one."""
        if self._file is None:
            return
        try:
            found = json.loads(read_at_most(self._file, _LONGEST_FILE))
            if found["version"] == _VERSION:
                followed = {uid: _stored_pod(pod) for uid, pod in found["followed"].items()}
                done = {str(uid): _stored_time(at) for uid, at in found["done"].items()}
                self._followed, self._done = followed, done
        except FileNotFoundError:
            pass
        except (OSError, *_DAMAGED) as error:
            log.warning("%s cannot be read (%s): a pod can get a second Event", self._file, error)

    def _save(self, content: str) -> None:
        if self._file is None:
            return
        try:
            replace_file(self._file, content.encode())
        except OSError as error:
            log.warning("%s cannot be written (%s): a pod can get a second Event", self._file, error.strerror)


def _stored_pod(found: Any) -> EndingPod:
    """A followed pod as it was stored. Raises one of _DAMAGED."""
    gone = found["gone"]
    names = (found["namespace"], found["name"], found["controller_kind"], found["controller"])
    if not all(isinstance(name, str) for name in names):
        raise TypeError("a name is no text")
    namespace, name, kind, controller = names
    times = _stored_time(found["since"]), None if gone is None else _stored_time(gone)
    return EndingPod(namespace, name, times[0], kind, controller, times[1])


def _stored_time(found: Any) -> float:
    at = float(found)
    if not isfinite(at):
        raise ValueError("a time is infinite")
    return at


def _pods_on_gpus(snapshot: Snapshot) -> Iterator[tuple[str, Workload]]:
    """The pods with names that have a GPU or a process on one, by UID."""
    for allocation in snapshot.allocations:
        if allocation.workload.pod_uid and allocation.workload.pod:
            yield allocation.workload.pod_uid, allocation.workload
    for reading in snapshot.process_readings:
        for process in reading.processes or ():
            if process.workload.pod_uid and process.workload.pod:
                yield process.workload.pod_uid, process.workload


def _is_final(error: ApiServerRefused) -> bool:
    """Whether another attempt would have the same answer.

    409: the Event exists. 404, and 403 without a missing permission: the namespace is gone or being deleted.
    """
    return error.status in (400, 404, 409, 422) or (error.status == 403 and "terminated" in error.message)


def build_event(uid: str, pod: EndingPod, receipt: ReceiptJson, node: str, now: float) -> dict[str, Any]:
    """The Event (events.k8s.io/v1) of the end of a pod, within the API's limits.

    It is about the pod; `related` is the Job that created it, of which `kubectl get events` shows it, too.
    """
    digest = sha256(f"{uid} {_REASON}".encode()).hexdigest()[:16]
    name = pod.name[: _LONGEST_NAME - len(digest) - 1].rstrip("-.")
    event: dict[str, Any] = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{digest}", "namespace": pod.namespace},
        "eventTime": datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": "Normal",
        "reason": _REASON,
        "action": "PodEnded",
        "note": receipt_sentence(receipt, _LONGEST_NOTE),
        "reportingController": "gpuledger.dev/node",
        "reportingInstance": node[:_LONGEST_INSTANCE] or "unknown",
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": uid,
        },
    }
    if pod.controller_kind == "Job" and pod.controller:
        event["related"] = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "namespace": pod.namespace,
            "name": pod.controller,
        }
    return event


def open_pod_events(
    values: Mapping[str, Any],
    environment: Mapping[str, str],
    file: Path | None,
    snapshot: Callable[[], Snapshot | None],
    pods: Callable[[], Pods | None],
    clock: Clock,
) -> PolledIndex[tuple[str, ...]]:
    """The Events of a node, posted in a thread; not started. `file` is the ledger, None without one on disk.

    `snapshot` and `pods` are as in PodEvents. Raises UsageError without a ledger on disk or an API server.
    """
    if file is None:
        raise UsageError("--kubernetes-events needs a ledger on disk: set --state-dir to a directory")
    access = find_access(build_settings(KubernetesSettings, values), environment)
    if access is None:
        raise UsageError(
            "--kubernetes-events needs an API server, and none is configured: set --kubernetes-api or "
            "--kubeconfig"
        )

    def read_receipt(pod: EndingPod) -> ReceiptJson | None:
        # Ranges begin with quarters of an hour.
        since = pod.since // QUARTER * QUARTER
        requested = RequestedRange(
            since, None, f"the begin of pod {pod.name}", "now", configured_time_zone(values)
        )
        try:
            with closing(History(file)) as history:
                return receipt_from_ledger(history, f"pod:{pod.namespace}/{pod.name}", requested, values)
        except (OwnerNotFound, NothingWatched) as error:
            log.debug("no receipt of pod %s/%s: %s", pod.namespace, pod.name, error)
            return None
        except sqlite3.Error as error:
            raise GpuledgerError(f"cannot read the ledger {file}: {error}; retrying") from None

    events = PodEvents(
        configured_node_name(values, environment),
        snapshot,
        pods,
        read_receipt,
        ApiClient(access).create,
        clock,
        file.with_name(STATE_FILE),
        build_settings(PodEventSettings, values).shortest,
    )
    return PolledIndex("pod_events", events.run_pass, (), period=PERIOD, clock=clock)
