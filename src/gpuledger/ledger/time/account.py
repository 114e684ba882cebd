"""Accounts of time: the identity of an owner, and of the row to which a part of a Gpu's time is posted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpuledger.ledger.energy.residence import identity_order
from gpuledger.model.process import ProcessKey
from gpuledger.model.session import IDLE, UNATTRIBUTED, UNOBSERVED
from gpuledger.model.workload import PENDING_NAMES, Workload

# The kinds of account beside those of energy. OWNER belongs to an owner. UNCUT is the part of IDLE that no
# MIG Instance covers. DOWN: the Gpu was lost or needed a reset.
OWNER, UNCUT, DOWN = "owner", "uncut", "down"
_ORDER = {OWNER: 0, IDLE: 1, UNCUT: 2, UNATTRIBUTED: 3, UNOBSERVED: 4, DOWN: 5}

# The kind, then the names or ids that make the owner unique on a node.
OwnerKey = tuple[str, ...]
UNKNOWN_OWNER: OwnerKey = ("unknown",)


class TimeAccount(NamedTuple):
    """The row to which time is posted.

    `account` is OWNER or one of the Gpu's own accounts, of which only `instance` can be set. `instance` is
    `GI_CI` of the Device, empty without MIG and for the SMs that no Instance covers. `process` is None if the
    owner ran nothing on the Device. `is_estimate` marks time that rests on an unknown fraction.
    """

    account: str
    instance: str = ""
    owner: OwnerKey = ()
    container: str = ""
    process: ProcessKey | None = None
    is_estimate: bool = False


def account_order(account: TimeAccount) -> tuple[object, ...]:
    """A total order of accounts, for ties: owners by identity, then the Gpu's own accounts."""
    process = () if account.process is None else identity_order(account.process)
    row = (account.instance, account.owner, account.container, process, account.is_estimate)
    return (_ORDER[account.account], *row)


def owner_key(owner: Workload) -> OwnerKey:
    """The identity of an owner: a pod, batch job, container outside Kubernetes, systemd unit, or user."""
    match owner.kind:
        case "pod" if owner.pod:
            return ("pod", owner.namespace, owner.pod)
        case "pod":
            return ("pod", "", "", owner.pod_uid or owner.container_id)
        case "slurm" | "job":
            # A job-mapping directory does not know which batch system runs the job.
            return ("job", owner.job)
        case "container":
            return ("container", owner.container_id or owner.container)
        case "unit":
            return ("unit", owner.unit, owner.user)
        case "user":
            return ("user", owner.user)
    return UNKNOWN_OWNER


def is_named(owner: Workload) -> bool:
    """Whether the owner is known, not merely an id of which the name is awaited."""
    if owner.kind == "pod":
        # The pod is the owner: the name of its container may still be missing.
        return bool(owner.pod)
    return owner.kind != "unknown" and owner.missing not in PENDING_NAMES


class OwnerNames:
    """The owners on one Device: an id without a name is joined to the named owner with the same pod UID."""

    def __init__(self, owners: Iterable[Workload]) -> None:
        known = [owner for owner in owners if owner.kind == "pod" and owner.pod and owner.pod_uid]
        self._by_uid: Mapping[str, Workload] = {owner.pod_uid: owner for owner in known}

    def key(self, owner: Workload) -> OwnerKey:
        """The identity of the owner."""
        return owner_key(self.known(owner))

    def is_named(self, owner: Workload) -> bool:
        """Whether the owner is known."""
        return is_named(self.known(owner))

    def known(self, owner: Workload) -> Workload:
        """The owner, with its names if another owner of the Device has them."""
        if owner.kind != "pod" or owner.pod:
            return owner
        return self._by_uid.get(owner.pod_uid, owner)


def container_of(owner: Workload) -> str:
    """The container of a pod's process or Allocation; its id while the name is missing."""
    return owner.container or owner.container_id if owner.kind == "pod" else ""
