"""User names from a passwd file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuledger.host import users as users_module
from gpuledger.host.files import read_whole
from gpuledger.host.name_service import NameService
from gpuledger.host.settings import HostSettings
from gpuledger.host.users import PasswdUsers, open_users
from gpuledger.model.settings import build_settings
from running import PATIENCE


def test_a_uid_in_the_file_has_a_name(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0::/:/bin/sh\nbob:x:10:100::/:/bin/sh\nalice:x:100:10::/:/bin/sh\n")
    users = PasswdUsers(str(path))
    assert [users.name(uid) for uid in (0, 10, 100, 1)] == ["root", "bob", "alice", "1"]


def test_without_a_file_users_are_numbers(tmp_path: Path) -> None:
    assert PasswdUsers(str(tmp_path / "none")).name(7) == "7"


def test_a_name_that_is_not_utf8_is_escaped(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_bytes(b"\xe9milie:x:7:7::/:/bin/sh\n")
    assert PasswdUsers(str(path)).name(7) == "\\xe9milie"


def test_the_file_is_searched_once_per_uid_until_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text("old:x:7:7::/:/bin/sh\n")
    searched: list[str] = []

    def read(name: str) -> bytes:
        searched.append(name)
        return read_whole(name)

    users = PasswdUsers(str(path), read=read)
    assert [users.name(7), users.name(7)] == ["old", "old"]
    assert len(searched) == 1
    path.write_text("new:x:7:7::/:/bin/sh\n")
    os.utime(path, ns=(1, 1))
    assert users.name(7) == "new"


def test_the_number_of_cached_names_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text("")
    users = PasswdUsers(str(path), read=lambda name: b"")
    for uid in range(10_000):
        users.name(uid)
    assert len(users._names) <= 1024


def test_the_file_comes_before_the_name_service(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text("bob:x:10:100::/:/bin/sh\n")
    service = NameService({10: "robert", 812345: "lena"}.get, patience=PATIENCE)  # type: ignore[arg-type]
    users = PasswdUsers(str(path), name_service=service)
    assert [users.name(uid) for uid in (10, 812345)] == ["bob", "lena"]


def test_a_name_in_the_file_has_its_uid(tmp_path: Path) -> None:
    path = tmp_path / "passwd"
    path.write_text("bob:x:10:100::/:/bin/sh\nbo.b:x:11:100::/:/bin/sh\n")
    users = PasswdUsers(str(path))
    assert [users.uid_of(name) for name in ("bob", "bo.b", "b.b", "bo", "", "\ud800")] == [
        10,
        11,
        None,
        None,
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("values", "environment", "is_used"),
    [
        ({}, {}, True),
        ({"passwd_file": "/etc/passwd.host"}, {}, False),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
        ({"name_service": "false"}, {}, False),
        ({"name_service": "true", "passwd_file": "/x"}, {"container": "podman"}, True),
    ],
)
def test_the_name_service_is_used_where_it_is_that_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], environment: dict[str, str], is_used: bool
) -> None:
    # The machine of the tests can be a container itself.
    monkeypatch.setattr(
        users_module, "find_container", lambda _root, _procfs, found: "Podman" if found else ""
    )
    users = open_users(build_settings(HostSettings, values), values, environment)
    assert (users._service is not None) is is_used


@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_a_special_file_neither_blocks_nor_is_read_endlessly(kind: str, tmp_path: Path) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / "passwd")
    else:
        (tmp_path / "passwd").symlink_to("/dev/zero")
    assert PasswdUsers(str(tmp_path / "passwd")).name(7) == "7"
