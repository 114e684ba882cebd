"""Secrets of the agent's own namespace that targets name: each is watched, so that a rotation arrives."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from gpuledger.agent.deliver.settings import Secret
from gpuledger.kubernetes.access import Access
from gpuledger.kubernetes.object_watch import ObjectWatch, Wanted
from gpuledger.kubernetes.objects import SecretObject
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock


class Vault:
    """Without `access` or `namespace` no Secret can be named."""

    def __init__(self, access: Access | None, namespace: str, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._watches: dict[str, ObjectWatch] = {}
        self._kept: dict[tuple[str, str], Secret] = {}
        self._asked: set[str] = set()
        self.namespace = namespace

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What is named within is watched from then on, and nothing else; if it raises, what was before."""
        before = set(self._watches)
        self._asked = set()
        try:
            yield
        except BaseException:
            self._watch_only(before)
            raise
        self._watch_only(self._asked)

    def secret(self, name: str, key: str) -> Secret:
        """The text below a key of a Secret, as it is whenever it is used. Raises GpuledgerError."""
        if self._access is None or not self.namespace:
            raise GpuledgerError(
                "names a Secret of a cluster, and there is no cluster, or no namespace of this agent, to "
                "look in; mount it and give its file, or give --kubernetes-api and --namespace"
            )
        self._asked.add(name)
        if name not in self._watches:
            wanted = Wanted("secrets", self.namespace, name)
            self._watches[name] = watch = ObjectWatch(self._access, wanted, _nothing, clock=self._clock)
            watch.start()
        return self._kept.setdefault((name, key), Secret(held=KeyOfSecret(self._watches[name], key)))

    def stop(self) -> None:
        """End all watches."""
        self._watch_only(())

    def _watch_only(self, names: Collection[str]) -> None:
        for name in set(self._watches) - set(names):
            self._watches.pop(name).stop(patience=0.0)
        self._kept = {key: secret for key, secret in self._kept.items() if key[0] in self._watches}


class KeyOfSecret:
    """One key of a watched Secret. Equal to itself alone."""

    def __init__(self, watch: ObjectWatch, key: str) -> None:
        self._watch = watch
        self._key = key

    @property
    def name(self) -> str:
        """What it is called in errors."""
        wanted = self._watch.wanted
        return f"the key {self._key} of the Secret {wanted.namespace}/{wanted.name}"

    def mark(self) -> object:
        """Another one whenever the text is another, or why there is none."""
        data = self._data()
        return (data, "" if data is not None else self._watch.health.error)

    def text(self) -> str:
        """The text as it is now. Raises GpuledgerError."""
        data = self._data()
        if data is None:
            why = self._watch.health.error or "there is none; create it"
            raise GpuledgerError(f"{self.name} cannot be read: {why}")
        try:
            return b64decode(data, validate=True).decode("utf-8")
        except ValueError:
            raise GpuledgerError(f"{self.name} is no text") from None

    def _data(self) -> str | None:
        for found in (self._watch.objects or {}).values():
            if isinstance(found, SecretObject):
                return dict(found.data).get(self._key)
        return None


def _nothing() -> None:
    """Nobody is told: secrets are looked at when they are used."""
