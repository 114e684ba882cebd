"""What a reader may read: everything, or the rows of one user of this machine. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuledger.model.workload import Workload

# Owners of which the user is a user of this machine: a login with the units in its slice, and batch jobs.
# Never pods and containers: uid 1000 in them is often the number of a local person. Never system units.
PERSONAL_KINDS: Final = frozenset({"user", "slurm", "job"})


@dataclass(frozen=True)
class Reader:
    """The caller of a request, and what it may read.

    `name` is the user's name, for messages and for rows "of mine". `users` are the texts by which the ledger
    names this user: the name, and the uid as long as no name was known. `uid` is None if the caller is known
    by name only. A reader that `reads_all` is an administrator, or a program on the ledger's own behalf.
    """

    name: str = ""
    users: frozenset[str] = frozenset()
    uid: int | None = None
    reads_all: bool = False

    def permits(self, owner: Workload) -> bool:
        """Whether the rows of this owner may be read."""
        return self.permits_names(owner.kind, owner.user)

    def permits_names(self, kind: str, user: str) -> bool:
        """As `permits`, by the kind of the owner and its user."""
        return self.reads_all or (kind in PERSONAL_KINDS and user != "" and user in self.users)


EVERYTHING: Final = Reader(reads_all=True)

# The owner in place of all that a reader may not see.
OTHERS: Final = Workload(kind="others")
