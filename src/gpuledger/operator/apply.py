"""What is wanted becomes what is: applied where it differs, made anew where it must be, the rest pruned."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuledger.kubernetes.writing import Api, Json, Refused
from gpuledger.model.errors import GpuledgerError
from gpuledger.operator.counts import Counts
from gpuledger.operator.facts import Owner
from gpuledger.operator.kinds import (
    CLAIM,
    KINDS,
    MANAGED_BY,
    Key,
    as_owner,
    is_ending,
    is_made_for,
    key_of,
    kind_of,
    path_of,
    uid_of,
)
from gpuledger.operator.objects_listing import list_all, list_made
from gpuledger.operator.owned import Owned, strangers
from gpuledger.operator.render.names import owned_by

log = logging.getLogger("gpuledger.operator")


class Rejected(GpuledgerError):
    """The API server would not have one of the objects so. Nothing was changed."""


@dataclass(slots=True)
class Outcome:
    """What was done: objects that were made or became otherwise, that somebody had changed, that went."""

    changed: list[Key] = field(default_factory=list)
    repaired: list[Key] = field(default_factory=list)
    pruned: list[Key] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Step:
    """One object that is to be applied."""

    wanted: Json
    # It was so already and somebody changed it.
    repair: bool
    # A field is not as before that cannot be changed: the object has to be made anew.
    anew: bool = False


class Applier:
    """Writes objects. `namespaces` are those in which there may be any."""

    def __init__(self, api: Api, owned: Owned, namespaces: Sequence[str], counts: Counts) -> None:
        self._api = api
        self._owned = owned
        self._namespaces = tuple(namespaces)
        self._counts = counts
        # What seeds would be, and others have made.
        self._others: set[Key] = set()

    async def converge(self, owner: str, wanted: Sequence[Json], seeds: Sequence[Json] = ()) -> Outcome:
        """Have exactly these objects for the monitor with this uid, in the order given.

        `seeds` are made first where they are not there, and left alone where they are, whoever has made them.
        What is new is tried before anything is changed. Raises Rejected when the server would refuse a part
        of it: all stays as it was. Raises Unreachable, Refused; then a part may be done, and the rest is by
        the next call.
        """
        steps = [
            _Step(body, repair=not self._owned.is_new(body)) for body in wanted if self._owned.differs(body)
        ]
        tried = [await self._tried(step, owner) for step in steps]
        outcome = Outcome()
        for body in seeds:
            await self._sow(body, outcome)
        for step in tried:
            if step is not None:
                await self._take(step, outcome)
        keys = {key_of(body) for body in (*wanted, *seeds)}
        for key, body in reversed(list(self._owned.of(owner))):
            if key not in keys and not is_ending(body):
                await self._remove(body)
                outcome.pruned.append(key)
                self._counts.pruned += 1
                log.info("%s is not wanted any more and was deleted", key)
        return outcome

    async def clean(self, monitor: Json) -> int:
        """Delete all that was made for a resource, and what is waiting in volumes; how much that was.

        The server is asked, not memory: after this nobody looks for what was left behind.
        """
        deleted = 0
        claimed = {"metadata": {"labels": owned_by(as_owner(monitor))}}
        for kind in reversed(KINDS):
            for body in (await list_made(self._api, kind, self._namespaces)).bodies:
                if is_ending(body) or not is_made_for(body, uid_of(monitor), claimed):
                    continue
                await self._remove(body)
                deleted += 1
        return deleted + await self._remove_claims(as_owner(monitor))

    async def _remove_claims(self, owner: Owner) -> int:
        """Delete the volumes of agents, which Kubernetes leaves when a set goes: they bear its labels."""
        labels = {name: value for name, value in owned_by(owner).items() if name != MANAGED_BY}
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        deleted = 0
        for namespace in self._namespaces:
            listed = await list_all(self._api, CLAIM, namespace, labelSelector=selector)
            for body in (one for one in listed.bodies if not is_ending(one)):
                await self._api.delete(CLAIM.path(namespace, body["metadata"]["name"]), uid_of(body))
                deleted += 1
        return deleted

    def look_again(self) -> None:
        """What others have made may be gone: no watch tells."""
        self._others.clear()

    async def _tried(self, step: _Step, owner: str) -> _Step | None:
        """The step, once the server has said that it would take it. A repair was taken before.

        None while the object is on its way out: the watch tells when it is gone.
        """
        path, key = path_of(step.wanted), key_of(step.wanted)
        there = self._owned.get(key) or await self._found(path)
        if there is not None and not is_made_for(there, owner, step.wanted):
            raise Rejected(
                f"{key} is there already and was not made for this resource; delete it, or the resource "
                "that it was made for"
            )
        if there is not None and is_ending(there):
            return None
        if step.repair:
            return step
        try:
            await self._api.apply(path, step.wanted, dry=True)
        except Refused as error:
            if error.takes_no_trial:
                return step
            if not error.by_content:
                raise
            if error.reason != "Invalid" or there is None or not await self._is_valid(step.wanted):
                raise Rejected(f"{key} is refused by the API server: {error}") from None
            return _Step(step.wanted, repair=False, anew=True)
        return step

    async def _found(self, path: str) -> Json | None:
        try:
            return await self._api.get(path)
        except Refused as error:
            if error.status != 404:
                raise
            return None

    async def _is_valid(self, wanted: Json) -> bool:
        """Whether the server would make such an object where there is none: only the change is refused."""
        name = f"{wanted['metadata']['name'][:240]}-tried"
        other = {**wanted, "metadata": {**wanted["metadata"], "name": name}}
        try:
            await self._api.apply(path_of(other), other, dry=True)
        except Refused as error:
            if not error.by_content:
                raise
            return False
        return True

    async def _sow(self, seed: Json, outcome: Outcome) -> None:
        key = key_of(seed)
        if self._owned.get(key) is not None or key in self._others:
            return
        if await self._found(path_of(seed)) is not None:
            self._others.add(key)
            return
        kind = kind_of(seed)
        try:
            made = await self._api.create(kind.path(seed["metadata"].get("namespace") or ""), seed)
        except Refused as error:
            if error.status != 409:
                raise
            return
        self._owned.take(made)
        outcome.changed.append(key)
        self._counts.applied += 1
        log.info("%s was made", key)

    async def _take(self, step: _Step, outcome: Outcome) -> None:
        key = key_of(step.wanted)
        before = self._owned.get(key)
        if step.anew:
            log.info("%s cannot be changed into what is wanted: it is made anew", key)
            if (there := before or await self._found(path_of(step.wanted))) is not None:
                await self._remove(there, orphan=_keeps_its_pods(there, step.wanted))
            if await self._found(path_of(step.wanted)) is not None:
                # What depends on it is being let go: the watch tells when it is gone.
                return
        became = await self._api.apply(path_of(step.wanted), step.wanted)
        if surplus := strangers(became, step.wanted):
            became = await self._api.merge(path_of(step.wanted), surplus)
        self._owned.agree(step.wanted, became)
        if step.repair:
            outcome.repaired.append(key)
            self._counts.repaired += 1
            log.info("%s was changed by somebody else and is as wanted again", key)
        elif before is None or before["metadata"].get("resourceVersion") != became["metadata"].get(
            "resourceVersion"
        ):
            outcome.changed.append(key)
            self._counts.applied += 1
            log.info("%s was %s", key, "made" if before is None or step.anew else "changed")

    async def _remove(self, body: Json, *, orphan: bool = False) -> None:
        await self._api.delete(path_of(body), uid_of(body), orphan=orphan)
        self._owned.forget(body)
        self._owned.disagree(key_of(body))


def _keeps_its_pods(there: Json, wanted: Json) -> bool:
    """Whether the pods of a set go on until the new one, which chooses them too, has replaced them."""
    if there["kind"] not in ("StatefulSet", "DaemonSet"):
        return False
    return bool(there["spec"]["selector"] == wanted["spec"]["selector"])
