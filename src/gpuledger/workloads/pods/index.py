"""The pods of a node at one moment, found by any name that somebody knows them under."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpuledger.workloads.pods.pod import Pod


class Pods:
    """An immutable set of pods. `len` is the number of pods, not of the names under which they are found.

    Of two pods under one name, or one hash, the one created later is found; where that is not told, the one
    given later. Each is still found by its own UID.
    """

    __slots__ = ("_by_container", "_by_name", "_by_uid", "_others", "_pods")

    def __init__(self, pods: Iterable[Pod] = ()) -> None:
        self._pods = tuple(sorted(pods, key=lambda pod: pod.created or 0.0))
        self._others: Pods | None = None
        self._by_uid: dict[str, Pod] = {pod.hash: pod for pod in self._pods if pod.hash}
        self._by_uid |= {pod.uid: pod for pod in self._pods}
        self._by_name: dict[tuple[str, str], Pod] = {(pod.namespace, pod.name): pod for pod in self._pods}
        self._by_container: dict[str, Pod] = {}
        for pod in self._pods:
            for container_id in pod.containers:
                self._by_container[container_id] = pod

    def backed_by(self, others: Pods) -> Pods:
        """These pods, and for what is not found among them the `others`. Copies nothing."""
        backed = Pods.__new__(Pods)
        backed._pods, backed._others = self._pods, others
        backed._by_uid, backed._by_name = self._by_uid, self._by_name
        backed._by_container = self._by_container
        return backed

    def uid(self, uid: str) -> Pod | None:
        """The pod with this UID, or the static pod with this hash."""
        found = self._by_uid.get(uid)
        return found if found or self._others is None else self._others.uid(uid)

    def named(self, namespace: str, name: str) -> Pod | None:
        """The newest pod of this name."""
        found = self._by_name.get((namespace, name))
        return found if found or self._others is None else self._others.named(namespace, name)

    def container(self, container_id: str) -> Pod | None:
        """The pod that this container belongs to."""
        found = self._by_container.get(container_id)
        return found if found or self._others is None else self._others.container(container_id)

    def __len__(self) -> int:
        return len(self._pods) if self._others is None else sum(1 for _ in self)

    def __iter__(self) -> Iterator[Pod]:
        yield from self._pods
        for pod in self._others or ():
            if pod.uid not in self._by_uid:
                yield pod


NO_PODS = Pods()
