"""The known state of the objects that the operator created, and whether they must be applied again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from hashlib import sha256
from typing import Any, Final

from gpuledger.kubernetes.fields import mapping_at
from gpuledger.kubernetes.object_client import Json
from gpuledger.operator.kinds import ObjectKey, object_key, owner_uid, resource_version, uid_of


@dataclass(frozen=True, slots=True)
class _AppliedContent:
    """Digests of the last apply of an object: the desired content, and the same fields in the response."""

    desired: str
    result: str


@dataclass(eq=False, slots=True)
class ManagedObjects:
    """The newest known state of every object with the operator's label, by key.

    States come from watches and from responses, in any order: an older state never replaces a newer one, and
    a deleted object does not reappear. `on_change` is called with the uid of the monitor that owns a changed
    object.

    An object cannot be compared with its desired content directly, because the server normalizes values
    (`1000m` to `1`) and adds defaults. Instead, the desired fields are compared with their values in the
    response to the last apply. Fields that other clients add do not count, except where an additional entry
    changes the meaning: see `foreign_entries_patch`.
    """

    on_change: Callable[[str], None] = lambda _: None
    _objects: dict[ObjectKey, Json] = field(default_factory=dict, init=False)
    # Uid and last version of deleted objects, to ignore older states that arrive late.
    _deleted: dict[ObjectKey, tuple[str, int]] = field(default_factory=dict, init=False)
    _applied: dict[ObjectKey, _AppliedContent] = field(default_factory=dict, init=False)

    def __iter__(self) -> Iterator[ObjectKey]:
        return iter(tuple(self._objects))

    def record_object(self, body: Json) -> None:
        """Record a current or past state of an object."""
        key = object_key(body)
        if (owner := owner_uid(body)) == "":
            # Without the label, the watch no longer reports the object.
            self.remove_object(body)
            return
        before = self._objects.get(key)
        if before is not None and resource_version(body) <= resource_version(before):
            return
        uid, last = self._deleted.get(key, ("", 0))
        if uid == uid_of(body) and resource_version(body) <= last:
            return
        self._deleted.pop(key, None)
        self._objects[key] = body
        self.on_change(owner)

    def remove_object(self, body: Json) -> None:
        """Record that an object was deleted; `body` is its last state."""
        key = object_key(body)
        before = self._objects.get(key)
        if before is None:
            self._deleted[key] = (uid_of(body), resource_version(body))
            return
        if uid_of(before) != uid_of(body):
            return
        del self._objects[key]
        self._deleted[key] = (uid_of(body), resource_version(body))
        self.on_change(owner_uid(before))

    def apply_listing(self, kind: str, listed: Iterable[Json], version: int) -> None:
        """Record all objects of a kind as of a version; older known objects that are not listed are gone."""
        found = {object_key(body): body for body in listed}
        for body in found.values():
            self.record_object(body)
        for key, body in tuple(self._objects.items()):
            if key.kind == kind and key not in found and resource_version(body) <= version:
                self.remove_object(body)

    def get(self, key: ObjectKey) -> Json | None:
        """The object, None if there is none."""
        return self._objects.get(key)

    def objects_of(self, owner: str) -> Iterator[tuple[ObjectKey, Json]]:
        """The objects of one monitor, in the order of creation."""
        for key in sorted(self._objects):
            if owner_uid(self._objects[key]) == owner:
                yield key, self._objects[key]

    def record_apply(self, desired: Json, result: Json) -> None:
        """Record the server's response `result` to the apply of `desired`."""
        self.record_object(result)
        self._applied[object_key(desired)] = _AppliedContent(
            content_digest(desired), content_digest(_select_fields(result, desired))
        )

    def forget_apply(self, key: ObjectKey) -> None:
        """Forget the last apply of an object that was deleted."""
        self._applied.pop(key, None)

    def is_new_content(self, desired: Json) -> bool:
        """Whether this process has not applied the object with this content before."""
        agreed = self._applied.get(object_key(desired))
        return agreed is None or agreed.desired != content_digest(desired)

    def needs_apply(self, desired: Json) -> bool:
        """Whether the object must be applied: its content is new, or it was deleted or changed."""
        key = object_key(desired)
        live = self._objects.get(key)
        if live is None or self.is_new_content(desired):
            return True
        result = content_digest(_select_fields(live, desired))
        return self._applied[key].result != result or bool(foreign_entries_patch(live, desired))


def content_digest(value: object) -> str:
    """A digest that does not depend on the order of keys."""
    return sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _select_fields(live: Any, desired: Any) -> Any:
    """The part of `live` that `desired` sets: mappings recursively by key, all other values whole."""
    if not isinstance(desired, Mapping) or not isinstance(live, Mapping):
        return live
    return {key: _select_fields(live.get(key), part) for key, part in desired.items()}


# Mappings in which an additional entry changes the meaning: the pods of a Service, the nodes of pods, the
# files of a ConfigMap.
_EXCLUSIVE_MAPS: Final = (
    ("spec", "selector"),
    ("spec", "template", "spec", "nodeSelector"),
    ("spec", "jobTemplate", "spec", "template", "spec", "nodeSelector"),
    ("data",),
)


def foreign_entries_patch(live: Mapping[str, Any], desired: Mapping[str, Any]) -> Json:
    """A merge patch that deletes entries of other clients from mappings that must be exclusively ours.

    Empty if there are none. Server-side apply keeps such entries, because other field managers own them.
    """
    patch: Json = {}
    for path in _EXCLUSIVE_MAPS:
        current, ours = reduce(mapping_at, path, live), reduce(mapping_at, path, desired)
        if path == ("spec", "selector") and "matchLabels" in ours:
            # The selector of a DaemonSet or StatefulSet is immutable.
            continue
        if surplus := sorted(current.keys() - ours.keys()):
            inner = patch
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner[path[-1]] = dict.fromkeys(surplus)
    return patch
