"""Applies the desired objects: changes what differs, recreates what cannot be changed, prunes the rest."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpuledger.kubernetes.fields import mapping_at
from gpuledger.kubernetes.object_client import Json, ObjectClient, WriteRefused
from gpuledger.model.errors import GpuledgerError
from gpuledger.operator.counts import OperatorCounts
from gpuledger.operator.kinds import (
    KINDS,
    MANAGED_BY,
    VOLUME_CLAIM_KIND,
    ObjectKey,
    ObjectKind,
    belongs_to,
    is_being_deleted,
    kind_of,
    object_key,
    object_path,
    owner_reference_of,
    uid_of,
)
from gpuledger.operator.managed_objects import ManagedObjects, foreign_entries_patch
from gpuledger.operator.object_lists import get_if_exists, list_managed_objects, list_objects
from gpuledger.operator.render.naming import COMPONENT, owned_by
from gpuledger.operator.render_context import MonitorReference

log = logging.getLogger("gpuledger.operator")


class ObjectRejected(GpuledgerError):
    """The API server would refuse one of the objects. Nothing was changed.

    `component` is that of the object: exporter or agent.
    """

    def __init__(self, desired: Json, message: str) -> None:
        self.component = str(mapping_at(desired["metadata"], "labels").get(COMPONENT) or "")
        super().__init__(f"{object_key(desired)} {message}")


@dataclass(slots=True)
class ApplyOutcome:
    """The objects that were created or changed, restored after a change by another client, and deleted."""

    changed: list[ObjectKey] = field(default_factory=list)
    repaired: list[ObjectKey] = field(default_factory=list)
    pruned: list[ObjectKey] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Step:
    """One object to apply."""

    desired: Json
    # Another client changed or deleted the object since it was applied with this content.
    repair: bool
    # An immutable field differs: delete the object and create it again.
    recreate: bool = False


@dataclass(eq=False, slots=True)
class Applier:
    """Writes the objects of monitors. `namespaces` are all namespaces that can contain such objects, `kinds`
    all kinds.
    """

    api: ObjectClient
    owned: ManagedObjects
    namespaces: Sequence[str]
    counts: OperatorCounts
    kinds: Sequence[ObjectKind] = KINDS
    # Keys of seeds that other clients created.
    _foreign_seeds: set[ObjectKey] = field(default_factory=set, init=False)

    async def converge(
        self, owner: str, desired: Sequence[Json], seeds: Sequence[Json] = (), kept: Sequence[Json] = ()
    ) -> ApplyOutcome:
        """Make these the only objects of the monitor with the uid `owner`; they are applied in this order.

        `seeds` are created first if they do not exist; existing ones are never changed, even if another
        client created them. `kept` are not created, but not deleted, either. New content is sent as a dry run
        before anything is changed.

        Raises ObjectRejected if the server would refuse an object; then nothing was changed. Raises
        WriteUnreachable or WriteRefused; then a part may be applied, and the next call completes it.
        """
        steps = [
            _Step(body, repair=not self.owned.is_new_content(body))
            for body in desired
            if self.owned.needs_apply(body)
        ]
        accepted = [await self._dry_run(step, owner) for step in steps]
        outcome = ApplyOutcome()
        for body in seeds:
            await self._create_seed(body, outcome)
        for step in accepted:
            if step is not None:
                await self._apply_step(step, outcome)
        keys = {object_key(body) for body in (*desired, *seeds, *kept)}
        for key, body in reversed(list(self.owned.objects_of(owner))):
            if key not in keys and not is_being_deleted(body):
                await self._delete(body)
                outcome.pruned.append(key)
                self.counts.pruned += 1
                log.info("deleted %s: the resource no longer needs it", key)
        return outcome

    async def delete_all_of(self, monitor: Json) -> int:
        """Delete all objects of a resource and the volumes of its agents; returns the number of deletions.

        Lists the API server instead of using the known objects: whatever this call misses remains forever.
        """
        deleted = 0
        claimed = {"metadata": {"labels": owned_by(owner_reference_of(monitor))}}
        for kind in reversed(self.kinds):
            bodies, _ = await list_managed_objects(self.api, kind, self.namespaces)
            for body in bodies:
                if is_being_deleted(body) or not belongs_to(body, uid_of(monitor), claimed):
                    continue
                await self._delete(body)
                deleted += 1
        return deleted + await self._delete_claims(owner_reference_of(monitor))

    async def _delete_claims(self, owner: MonitorReference) -> int:
        """Delete the agents' volume claims, found by label: Kubernetes keeps them without a StatefulSet."""
        labels = {name: value for name, value in owned_by(owner).items() if name != MANAGED_BY}
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        deleted = 0
        for namespace in self.namespaces:
            claims, _ = await list_objects(self.api, VOLUME_CLAIM_KIND, namespace, labelSelector=selector)
            for body in (claim for claim in claims if not is_being_deleted(claim)):
                await self.api.delete(
                    VOLUME_CLAIM_KIND.path(namespace, body["metadata"]["name"]), uid_of(body)
                )
                deleted += 1
        return deleted

    def forget_foreign_seeds(self) -> None:
        """Look up foreign seeds again: no watch reports their deletion."""
        self._foreign_seeds.clear()

    async def _dry_run(self, step: _Step, owner: str) -> _Step | None:
        """Send the step as a dry run and return it. Repairs are skipped: the server accepted them before.

        None while the object is being deleted: the watch reports the end of the deletion.
        """
        path, key = object_path(step.desired), object_key(step.desired)
        existing = self.owned.get(key) or await get_if_exists(self.api, path)
        if existing is not None and not belongs_to(existing, owner, step.desired):
            raise ObjectRejected(
                step.desired,
                "already exists and was not created for this resource; delete it, or the resource that it "
                "was created for",
            )
        if existing is not None and is_being_deleted(existing):
            return None
        if step.repair:
            return step
        try:
            await self.api.apply(path, step.desired, dry=True)
        except WriteRefused as error:
            if error.is_dry_run_unsupported:
                return step
            if not error.is_invalid_content:
                raise
            is_change = error.reason == "Invalid" and existing is not None
            if not is_change or not await self._is_valid_new_object(step.desired):
                raise ObjectRejected(step.desired, f"is refused by the API server: {error}") from None
            return replace(step, recreate=True)
        return step

    async def _is_valid_new_object(self, desired: Json) -> bool:
        """Whether the server accepts the object under an unused name; then it refuses only the change."""
        # The name of a CronJob has at most 52 characters.
        name = f"{desired['metadata']['name'][:46]}-tried"
        other = {**desired, "metadata": {**desired["metadata"], "name": name}}
        try:
            await self.api.apply(object_path(other), other, dry=True)
        except WriteRefused as error:
            if not error.is_invalid_content:
                raise
            return False
        return True

    async def _create_seed(self, seed: Json, outcome: ApplyOutcome) -> None:
        key = object_key(seed)
        if self.owned.get(key) is not None or key in self._foreign_seeds:
            return
        if await get_if_exists(self.api, object_path(seed)) is not None:
            self._foreign_seeds.add(key)
            return
        kind = kind_of(seed)
        try:
            created = await self.api.create(kind.path(seed["metadata"].get("namespace") or ""), seed)
        except WriteRefused as error:
            if error.status != 409:
                raise
            return
        self.owned.record_object(created)
        outcome.changed.append(key)
        self.counts.applied += 1
        log.info("created %s", key)

    async def _apply_step(self, step: _Step, outcome: ApplyOutcome) -> None:
        key = object_key(step.desired)
        before = self.owned.get(key)
        if step.recreate:
            log.info("recreating %s: an immutable field changed", key)
            if (existing := before or await get_if_exists(self.api, object_path(step.desired))) is not None:
                await self._delete(existing, orphan=_can_orphan_pods(existing, step.desired))
            if await get_if_exists(self.api, object_path(step.desired)) is not None:
                # Kubernetes first orphans its dependents; the watch reports the end of the deletion.
                return
        result = await self.api.apply(object_path(step.desired), step.desired)
        if surplus := foreign_entries_patch(result, step.desired):
            result = await self.api.merge(object_path(step.desired), surplus)
        self.owned.record_apply(step.desired, result)
        if step.repair:
            outcome.repaired.append(key)
            self.counts.repaired += 1
            log.info("restored %s, which another client had changed", key)
        elif before is None or before["metadata"].get("resourceVersion") != result["metadata"].get(
            "resourceVersion"
        ):
            outcome.changed.append(key)
            self.counts.applied += 1
            log.info("%s %s", "created" if before is None or step.recreate else "changed", key)

    async def _delete(self, body: Json, *, orphan: bool = False) -> None:
        await self.api.delete(object_path(body), uid_of(body), orphan=orphan)
        self.owned.remove_object(body)
        self.owned.forget_apply(object_key(body))


def _can_orphan_pods(existing: Json, desired: Json) -> bool:
    """Whether the pods can keep running until the new set, which adopts them, has replaced them."""
    is_set = existing["kind"] in ("StatefulSet", "DaemonSet")
    return is_set and bool(existing["spec"]["selector"] == desired["spec"]["selector"])
