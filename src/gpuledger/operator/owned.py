"""What was made, as watches and answers of the API server tell it, and whether it is as wanted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from gpuledger.kubernetes.writing import Json
from gpuledger.operator.kinds import Key, key_of, owner_of, uid_of, version_of


@dataclass(frozen=True, slots=True)
class _Agreed:
    """What was wanted when an object was last applied, and what the server made of it."""

    wanted: str
    became: str


class Owned:
    """The newest known state of every object that bears the operator's label, by key.

    States come from watches and from answers, in any order: an older one never replaces a newer one, and what
    is known to be deleted does not come back. `changed` is told the monitor's uid of what has changed.

    Whether an object is as wanted is not seen from its fields alone, for the server writes some of them in
    its own way (`1000m` as `1`) and adds defaults. It is seen from this: nothing of what was wanted reads
    otherwise than in the server's answer to the apply. What others add beside it is theirs and no difference,
    but where one more entry means something else altogether: see `strangers`.
    """

    def __init__(self, changed: Callable[[str], None] = lambda _: None) -> None:
        self._changed = changed
        self._objects: dict[Key, Json] = {}
        # Of an object that is gone: its uid and last version, so that older news of it are not believed.
        self._gone: dict[Key, tuple[str, int]] = {}
        self._agreed: dict[Key, _Agreed] = {}

    def __iter__(self) -> Iterator[Key]:
        return iter(tuple(self._objects))

    def take(self, body: Json) -> None:
        """This is how an object is, or was a while ago."""
        key = key_of(body)
        if (owner := owner_of(body)) == "":
            # The watch goes by a label: without it the object is gone, as far as we see.
            self.forget(body)
            return
        before = self._objects.get(key)
        if before is not None and version_of(body) <= version_of(before):
            return
        uid, last = self._gone.get(key, ("", 0))
        if uid == uid_of(body) and version_of(body) <= last:
            return
        self._gone.pop(key, None)
        self._objects[key] = body
        self._changed(owner)

    def forget(self, body: Json) -> None:
        """This object was deleted; `body` is how it was last."""
        key = key_of(body)
        before = self._objects.get(key)
        if before is None:
            self._gone[key] = (uid_of(body), version_of(body))
            return
        if uid_of(before) != uid_of(body):
            return
        del self._objects[key]
        self._gone[key] = (uid_of(body), version_of(body))
        self._changed(owner_of(before))

    def settle(self, kind: str, listed: Iterable[Json], version: int) -> None:
        """These were all objects of a kind as of a version: others that are older are gone."""
        found = {key_of(body): body for body in listed}
        for body in found.values():
            self.take(body)
        for key, body in tuple(self._objects.items()):
            if key.kind == kind and key not in found and version_of(body) <= version:
                self.forget(body)

    def get(self, key: Key) -> Json | None:
        """The object, None where there is none."""
        return self._objects.get(key)

    def of(self, owner: str) -> Iterator[tuple[Key, Json]]:
        """What was made for one monitor, in the order of making."""
        for key in sorted(self._objects):
            if owner_of(self._objects[key]) == owner:
                yield key, self._objects[key]

    def agree(self, wanted: Json, became: Json) -> None:
        """`became` is the server's answer to the apply of `wanted`."""
        self.take(became)
        self._agreed[key_of(wanted)] = _Agreed(digest(wanted), digest(_share(became, wanted)))

    def disagree(self, key: Key) -> None:
        """The object is not wanted any more."""
        self._agreed.pop(key, None)

    def is_new(self, wanted: Json) -> bool:
        """Whether it was never wanted so, as far as this process knows."""
        agreed = self._agreed.get(key_of(wanted))
        return agreed is None or agreed.wanted != digest(wanted)

    def differs(self, wanted: Json) -> bool:
        """Whether the object has to be applied: it is new, gone, or was changed by somebody."""
        key = key_of(wanted)
        agreed, live = self._agreed.get(key), self._objects.get(key)
        if agreed is None or live is None or agreed.wanted != digest(wanted):
            return True
        return agreed.became != digest(_share(live, wanted)) or bool(strangers(live, wanted))


def digest(value: object) -> str:
    """The same for the same content, whatever the order of its keys."""
    return sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _share(live: Any, wanted: Any) -> Any:
    """Of what is, that which was wanted: mappings by their keys, all else as a whole."""
    if not isinstance(wanted, Mapping) or not isinstance(live, Mapping):
        return live
    return {key: _share(live.get(key), part) for key, part in wanted.items()}


# Maps of which every entry counts: who is chosen by a service, where pods may run, what a program reads.
_WHOLE: Final = (("spec", "selector"), ("spec", "template", "spec", "nodeSelector"), ("data",))


def strangers(live: Json, wanted: Json) -> Json:
    """A merge patch that takes entries away which others have put where all entries are ours; empty for none.

    Server-side apply leaves them: it knows them to be another's.
    """
    patch: Json = {}
    for path in _WHOLE:
        here, ours = _at(live, path), _at(wanted, path)
        if path == ("spec", "selector") and "matchLabels" in ours:
            # A set's, which nobody can change.
            continue
        if surplus := sorted(here.keys() - ours.keys()):
            inner = patch
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner[path[-1]] = dict.fromkeys(surplus)
    return patch


def _at(body: Json, path: Sequence[str]) -> Mapping[str, Any]:
    found: Any = body
    for key in path:
        found = (found or {}).get(key)
    return found or {}
