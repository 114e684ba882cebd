"""Who calls: users of this machine, administrators, and those of whom that cannot be said."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.app.readers import Peer, Readers
from gpuledger.config.access import AccessSettings
from gpuledger.host.users import PasswdUsers
from gpuledger.model.errors import GpuledgerError

PASSWD = """\
root:x:0:0::/root:/bin/sh
gpuledger:x:900:900::/:/usr/sbin/nologin
dan:x:1001:100::/home/dan:/bin/sh
ann:x:1002:100::/home/ann:/bin/sh
1003:x:1004:100::/home/1003:/bin/sh
1005:x:1005:100::/home/1005:/bin/sh
"""
LOGIN = "0::/user.slice/user-{}.slice/session-3.scope\n"
CONTAINER = f"0::/system.slice/docker-{'ab' * 32}.scope\n"
POD = "0::/kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice/cri-containerd-{}.scope\n"
GROUPS = {"gpu-admins": 50, "wheel": 10}


class Machine:
    """A passwd file and a tree of /proc."""

    def __init__(self, folder: Path) -> None:
        (folder / "passwd").write_text(PASSWD)
        self.proc = folder / "proc"
        self.passwd = folder / "passwd"
        self.cgroup("self", "0::/system.slice/gpuledger.service\n")
        overflow = self.proc / "sys/kernel/overflowuid"
        overflow.parent.mkdir(parents=True)
        overflow.write_text("65534\n")

    def cgroup(self, pid: str, text: str) -> None:
        (self.proc / pid).mkdir(parents=True, exist_ok=True)
        (self.proc / pid / "cgroup").write_text(text)

    def readers(self, *admins: str, users: tuple[tuple[str, str], ...] = ()) -> Readers:
        settings = AccessSettings("own", users, admins)
        return Readers(settings, PasswdUsers(str(self.passwd)), str(self.proc), 900, GROUPS.get)

    def peer(self, uid: int, *groups: int, gid: int = 100, cgroup: str = "") -> Peer:
        self.cgroup("77", cgroup or LOGIN.format(uid))
        return Peer(uid, gid, 77, groups)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("uid", "users"),
    [
        (1001, {"dan", "1001"}),
        # A user without a name, as of a directory that does not answer: rows have the number.
        (1009, {"1009"}),
        # uid 1003 has no name, but another user is named so: rows of "1003" are of either.
        (1003, set()),
        # That user's name is the number of another one: only the number of the user is certain.
        (1004, {"1004"}),
        # Name and number are the same.
        (1005, {"1005"}),
    ],
)
def test_the_names_by_which_the_ledger_knows_a_user(machine: Machine, uid: int, users: set[str]) -> None:
    reader = machine.readers().reader_of_peer(machine.peer(uid))
    assert (reader.users, reader.uid, reader.reads_all) == (users, uid, False)


@pytest.mark.parametrize("uid", [0, 900])
def test_root_and_the_user_of_the_program_read_everything_and_pause(machine: Machine, uid: int) -> None:
    readers, peer = machine.readers(), machine.peer(uid)
    assert readers.reader_of_peer(peer).reads_all
    assert readers.controls(peer)


@pytest.mark.parametrize(
    ("admins", "uid", "groups", "reads_all"),
    [
        (("dan",), 1001, (), True),
        (("dan",), 1002, (), False),
        (("1002",), 1002, (), True),
        # A number in the settings is a uid, not a name.
        (("1003",), 1004, (), False),
        (("1003",), 1003, (), True),
        (("@gpu-admins",), 1002, (4, 50), True),
        (("@gpu-admins",), 1002, (4, 5), False),
        (("@100",), 1002, (), False),
        (("@nobody-knows",), 1002, (0, 4), False),
        # A user with the name of the group.
        (("@dan",), 1001, (), False),
    ],
)
def test_administrators_are_users_and_groups(
    machine: Machine, admins: tuple[str, ...], uid: int, groups: tuple[int, ...], reads_all: bool
) -> None:
    reader = machine.readers(*admins).reader_of_peer(machine.peer(uid, *groups))
    assert reader.reads_all is reads_all
    # Reading everything is no right to pause.
    assert not machine.readers(*admins).controls(machine.peer(uid, *groups))


def test_the_first_group_counts_as_well(machine: Machine) -> None:
    assert machine.readers("@wheel").reader_of_peer(machine.peer(1001, gid=10)).reads_all


@pytest.mark.parametrize(
    ("uid", "cgroup", "message"),
    [
        (65_534, "", "does not say which user you are"),
        (1001, CONTAINER, "users of a container are not users of this machine"),
        (1001, POD.format("cd" * 32), "users of a container are not users of this machine"),
    ],
)
def test_a_user_who_may_be_anybody_reads_nothing(
    machine: Machine, uid: int, cgroup: str, message: str
) -> None:
    # Not even as an administrator: the number may be another person's.
    with pytest.raises(GpuledgerError, match=message):
        machine.readers("dan", "65534").reader_of_peer(machine.peer(uid, cgroup=cgroup))


def test_another_overflow_uid_is_honored(machine: Machine) -> None:
    (machine.proc / "sys/kernel/overflowuid").write_text("1001\n")
    with pytest.raises(GpuledgerError, match="does not say which user"):
        machine.readers().reader_of_peer(machine.peer(1001))


def test_a_process_of_another_pid_namespace_reads_nothing(machine: Machine) -> None:
    with pytest.raises(GpuledgerError, match="another pid namespace"):
        machine.readers().reader_of_peer(Peer(1001, 100, 0))


def test_a_process_that_has_exited_reads_nothing(machine: Machine) -> None:
    with pytest.raises(GpuledgerError, match="cannot read the cgroup"):
        machine.readers().reader_of_peer(Peer(1001, 100, 4_000_000))


def test_users_of_the_container_in_which_serve_runs_are_its_users(machine: Machine) -> None:
    """A container that is a machine, such as one of LXC."""
    machine.cgroup("self", CONTAINER)
    reader = machine.readers().reader_of_peer(machine.peer(1001, cgroup=CONTAINER))
    assert reader.users == {"dan", "1001"}
    other = CONTAINER.replace("abab", "cdcd")
    with pytest.raises(GpuledgerError, match="users of a container"):
        machine.readers().reader_of_peer(machine.peer(1001, cgroup=other))


@pytest.mark.parametrize(
    ("name", "users", "reads_all"),
    [
        ("dan", {"dan"}, False),
        ("dan@example.com", {"dan"}, False),
        ("prometheus", set(), True),
        # A user of this machine whom the settings do not list has no rights over HTTP.
        ("ann", None, False),
        ("root", None, False),
        ("", None, False),
        ("1001", None, False),
        ("@wheel", None, False),
        ("50", None, False),
    ],
)
def test_over_http_a_name_must_be_listed(
    machine: Machine, name: str, users: set[str] | None, reads_all: bool
) -> None:
    listed = (("dan", "dan"), ("dan@example.com", "dan"))
    found = machine.readers("prometheus", "@wheel", "50", users=listed).reader_of_name(name)
    if users is None:
        assert found is None
    else:
        assert found is not None
        assert (found.users, found.reads_all) == (users, reads_all)


def test_groups_that_do_not_exist_are_known(machine: Machine) -> None:
    assert machine.readers("dan", "@wheel", "@weel", "@gpu-admins").unknown_groups() == ["weel"]
