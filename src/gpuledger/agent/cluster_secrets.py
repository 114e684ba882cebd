"""Kubernetes Secrets in the agent's namespace that targets refer to, watched for rotation."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from gpuledger.agent.deliver.settings import Secret
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.object_watch import ObjectWatch, WatchScope
from gpuledger.kubernetes.objects import SecretObject
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock


class ClusterSecrets:
    """Watches the Secrets that a configuration uses. Needs `access` and `namespace`."""

    def __init__(self, access: ApiServerAccess | None, namespace: str, clock: Clock) -> None:
        self._access = access
        self._clock = clock
        self._watches: dict[str, ObjectWatch] = {}
        self._kept: dict[tuple[str, str], Secret] = {}
        self._used: set[str] = set()
        self.namespace = namespace

    @contextmanager
    def watch_only_used(self) -> Iterator[None]:
        """Keep only the watches that `get_secret` uses in this context; if it raises, keep the old ones."""
        kept = set(self._watches)
        self._used = set()
        try:
            yield
            kept = self._used
        finally:
            self._watch_only(kept)

    def get_secret(self, name: str, key: str) -> Secret:
        """Return a key of a Secret; its text is resolved at every use. Raises GpuledgerError."""
        if self._access is None or not self.namespace:
            raise GpuledgerError(
                "refers to a Kubernetes Secret, but the API server or the agent's namespace is unknown; set "
                "--kubernetes-api and --namespace, or mount the Secret and use its file"
            )
        self._used.add(name)
        if name not in self._watches:
            scope = WatchScope("secrets", self.namespace, name)
            # Secrets are resolved when they are used, not when they change.
            self._watches[name] = watch = ObjectWatch(self._access, scope, lambda: None, clock=self._clock)
            watch.start()
        return self._kept.setdefault((name, key), Secret(provider=ClusterSecretKey(self._watches[name], key)))

    def stop(self) -> None:
        """Stop all watches."""
        self._watch_only(())

    def _watch_only(self, names: Collection[str]) -> None:
        for name in set(self._watches) - set(names):
            self._watches.pop(name).stop(patience=0.0)
        self._kept = {key: secret for key, secret in self._kept.items() if key[0] in self._watches}


class ClusterSecretKey:
    """SecretProvider for one key of a watched Secret. Compared by identity."""

    def __init__(self, watch: ObjectWatch, key: str) -> None:
        self._watch = watch
        self._key = key

    @property
    def name(self) -> str:
        """Name for error messages."""
        scope = self._watch.scope
        return f"the key {self._key} of the Secret {scope.namespace}/{scope.name}"

    def revision(self) -> object:
        """Return a value that changes with the text, and with the watch's error while there is no text."""
        data = self._data()
        return (data, "" if data is not None else self._watch.health.error)

    def text(self) -> str:
        """Return the current text. Raises GpuledgerError."""
        data = self._data()
        if data is None:
            why = self._watch.health.error or "not found; create it"
            raise GpuledgerError(f"cannot read {self.name}: {why}")
        try:
            return b64decode(data, validate=True).decode("utf-8")
        except ValueError:
            raise GpuledgerError(f"{self.name} is not valid UTF-8 text") from None

    def _data(self) -> str | None:
        for found in (self._watch.objects or {}).values():
            if isinstance(found, SecretObject):
                return dict(found.data).get(self._key)
        return None
