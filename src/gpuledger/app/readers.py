"""Says who calls and what the caller may read: by the credentials of a socket's peer, or a name over HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from gpuledger.config.access import AccessSettings, user_of_name
from gpuledger.host.users import PasswdUsers
from gpuledger.model.access import EVERYTHING, Reader
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import clean_name
from gpuledger.workloads.cgroup import CgroupOwner, parse_cgroup

# The kernel shows this number for users that have none in this user namespace. See user_namespaces(7).
_OVERFLOW_FILE: Final = "sys/kernel/overflowuid"
_OVERFLOW: Final = 65_534
_CONTAINED: Final = ("pod", "container")


class Peer(NamedTuple):
    """The process at the other end of a socket, as the kernel knows it.

    `pid` is 0 for a process of another pid namespace. `groups` are the numbers of all groups, if known.
    """

    uid: int
    gid: int
    pid: int
    groups: tuple[int, ...] = ()


class Readers:
    """Finds the Reader of a caller. `procfs` is the directory of /proc. Used in threads that may block."""

    def __init__(
        self,
        settings: AccessSettings,
        users: PasswdUsers,
        procfs: str = "/proc",
        own_uid: int | None = None,
        group_number: Callable[[str], int | None] | None = None,
    ) -> None:
        self.settings = settings
        self._users = users
        self._procfs = Path(procfs)
        self._own_uid = os.geteuid() if own_uid is None else own_uid
        self._group_number = group_number or _group_number

    def unknown_groups(self) -> list[str]:
        """The groups of administrators that this machine does not have."""
        groups = [entry[1:] for entry in self.settings.admins if entry.startswith("@")]
        return [name for name in groups if self._group_number(name) is None]

    def controls(self, peer: Peer) -> bool:
        """Whether the peer may pause and resume the node: root, and the user of the program."""
        return peer.uid in (0, self._own_uid)

    def reader_of_peer(self, peer: Peer) -> Reader:
        """The reader behind a socket. Raises GpuledgerError if the kernel does not say which user it is."""
        if self.controls(peer):
            return replace(EVERYTHING, name=self._users.wait_for_name(peer.uid), uid=peer.uid)
        if peer.uid == self._overflow_uid():
            raise GpuledgerError(
                f"the kernel does not say which user you are (uid {peer.uid}): run this outside of your"
                " container or user namespace"
            )
        self._require_same_machine(peer.pid)
        name, number = self._users.wait_for_name(peer.uid), str(peer.uid)
        if self._is_admin(name, peer):
            return replace(EVERYTHING, name=name, uid=peer.uid)
        users = set() if name.isdigit() else {name}
        # Rows of a user without a name have the number. It is not this user's if another one is named so.
        if self._users.wait_for_uid(number) in (None, peer.uid):
            users.add(number)
        return Reader(name, frozenset(users), peer.uid)

    def reader_of_name(self, name: str) -> Reader | None:
        """The reader with this proven name over HTTP; None if the settings do not list it."""
        if not name:
            return None
        if name in self.settings.admins and not name.startswith("@") and not name.isdigit():
            return replace(EVERYTHING, name=name)
        user = user_of_name(self.settings, name)
        if user is None:
            return None
        return Reader(user, frozenset({clean_name(user)}), self._users.uid_of(user))

    def _is_admin(self, name: str, peer: Peer) -> bool:
        for entry in self.settings.admins:
            if entry.startswith("@"):
                group = self._group_number(entry[1:])
                if group is not None and group in (peer.gid, *peer.groups):
                    return True
            elif entry == (str(peer.uid) if entry.isdigit() else name):
                return True
        return False

    def _overflow_uid(self) -> int:
        try:
            return int((self._procfs / _OVERFLOW_FILE).read_text())
        except (OSError, ValueError):
            return _OVERFLOW

    def _require_same_machine(self, pid: int) -> None:
        """Raise GpuledgerError for a process in a container: its users are not those of this machine."""
        if not pid:
            raise GpuledgerError(
                "gpuledger serve cannot see your process, which has another pid namespace: run this where"
                " serve runs"
            )
        theirs = self._cgroup(str(pid))
        if theirs is None:
            raise GpuledgerError("gpuledger serve cannot read the cgroup of your process: run this again")
        if theirs.kind in _CONTAINED and _place(theirs) != _place(self._cgroup("self")):
            raise GpuledgerError(
                "users of a container are not users of this machine: run this outside of the container"
            )

    def _cgroup(self, pid: str) -> CgroupOwner | None:
        try:
            return parse_cgroup((self._procfs / pid / "cgroup").read_text(errors="replace"))
        except OSError:
            return None


def _place(owner: CgroupOwner | None) -> Sequence[str]:
    if owner is None:
        return ()
    return (owner.pod_uid, owner.container_id, owner.container, owner.inner_container)


def _group_number(name: str) -> int | None:
    if name.isdigit():
        return int(name)
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, OSError):
        return None
