"""Settings read anew: what is different, what a running program takes, and which files are looked at."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpuledger.app.reload import changes, files_of
from gpuledger.config.node import NODE
from gpuledger.host.files import FileWatch
from gpuledger.http.limits import Limits
from gpuledger.model.settings import Reload, declared, integer, reload_of, setting, text, words


@dataclass(frozen=True, slots=True)
class Lively:
    """Takes changes, but one."""

    reload: ClassVar[Reload] = Reload(restart=("port",), files=("table", "more"))

    colour: str = setting("colour", text, "red", "h")
    port: int = setting("port", integer(0, 9), 1, "h")
    table: str = setting("table", text, "", "h")
    more: tuple[str, ...] = setting("more", words(text), (), "h")


@dataclass(frozen=True, slots=True)
class Silent:
    """Says nothing of changes."""

    depth: int = setting("depth", integer(0, 9), 1, "h")


GROUPS = (Lively, Silent)

CHANGES: list[tuple[str, dict[str, Any], dict[str, Any], list[str], list[str], dict[str, Any]]] = [
    ("nothing", {"colour": "blue"}, {"colour": "blue"}, [], [], {"colour": "blue"}),
    ("taken", {}, {"colour": "blue"}, ["colour"], [], {"colour": "blue"}),
    ("back to the default", {"colour": "blue"}, {}, ["colour"], [], {}),
    ("the default in words", {}, {"colour": "red"}, [], [], {"colour": "red"}),
    ("needs a restart", {"port": 2}, {"port": 3}, [], ["port"], {"port": 2}),
    ("needs one from the default on", {}, {"port": 3}, [], ["port"], {}),
    ("needs one back to the default", {"port": 2}, {}, [], ["port"], {"port": 2}),
    ("a group that says nothing", {}, {"depth": 5}, [], ["depth"], {}),
    ("the rest is taken", {}, {"port": 3, "colour": "blue"}, ["colour"], ["port"], {"colour": "blue"}),
]


@pytest.mark.parametrize(
    ("before", "after", "taken", "pending", "values"),
    [case[1:] for case in CHANGES],
    ids=[case[0] for case in CHANGES],
)
def test_what_can_be_taken_is_and_the_rest_stays_as_it_was(
    before: dict[str, Any],
    after: dict[str, Any],
    taken: list[str],
    pending: list[str],
    values: dict[str, Any],
) -> None:
    found = changes(GROUPS, before, after)
    assert (list(found.taken), list(found.pending), dict(found.values)) == (taken, pending, values)


def test_a_group_can_be_fixed_by_what_the_program_does() -> None:
    found = changes(GROUPS, {}, {"colour": "blue"}, fixed=(Lively,))
    assert (found.taken, found.pending) == ((), ("colour",))


def test_the_files_are_those_that_settings_name() -> None:
    assert files_of(GROUPS, {}) == ()
    values = {"table": "/a", "more": ("/b", "/c"), "colour": "/d"}
    assert files_of(GROUPS, values) == (Path("/a"), Path("/b"), Path("/c"))


@pytest.mark.parametrize("group", NODE.values(), ids=lambda group: group.__name__)
def test_a_group_speaks_of_its_own_keys_alone(group: type) -> None:
    said = reload_of(group)
    keys = {item.key for _, item, _ in declared(group)}
    assert {*said.restart, *said.files} <= keys


def test_what_needs_a_restart_is_no_more_than_what_must() -> None:
    limits = {item.key for _, item, _ in declared(Limits)}
    assert {key for group in NODE.values() for key in reload_of(group).restart} == limits | {
        "source",
        "gpu_count",
        "simulator.seed",
        "simulator.speed",
        "nvidia_smi.command",
        "nvidia_smi.query_field_names",
        "listen_address",
        "process.max_per_device",
        "energy.zero_hold",
        "state_dir",
        "procfs",
        "sysfs",
        "passwd_file",
        "host.pids",
        "control.socket",
        "web.config.file",
        "profiling.dcgm_exporter_url",
        "profiling.dcgm_exporter_period",
    }


@pytest.fixture
def config_map(tmp_path: Path) -> Path:
    """A file as the kubelet mounts it: a link through ..data into a directory with a date."""
    (tmp_path / "..1").mkdir()
    (tmp_path / "..1" / "c.yaml").write_text("a: 1")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "c.yaml").symlink_to("..data/c.yaml")
    return tmp_path / "c.yaml"


def in_place(file: Path) -> None:
    file.write_text("a: 22")


def renamed_over(file: Path) -> None:
    aside = file.with_name("aside")
    # As long as before, and as old: only another inode tells.
    aside.write_text("a: 2")
    os.utime(aside, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    aside.replace(file)


def swapped(file: Path) -> None:
    folder = file.parent
    (folder / "..2").mkdir()
    (folder / "..2" / "c.yaml").write_text("a: 2")
    (folder / "..data_tmp").symlink_to("..2")
    (folder / "..data_tmp").replace(folder / "..data")


def swapped_to_the_same_inode(file: Path) -> None:
    folder = file.parent
    (folder / "..2").mkdir()
    os.link(folder / "..1" / "c.yaml", folder / "..2" / "c.yaml")
    (folder / "..data_tmp").symlink_to("..2")
    (folder / "..data_tmp").replace(folder / "..data")


def removed(file: Path) -> None:
    file.unlink()


@pytest.mark.parametrize("change", [in_place, renamed_over, swapped, swapped_to_the_same_inode, removed])
def test_a_change_is_seen_once_it_stands_still(config_map: Path, change: Callable[[Path], None]) -> None:
    watch = FileWatch([config_map])
    assert not watch.look()
    change(config_map)
    assert [watch.look(), watch.look()] == [False, True]
    watch.take(watch.states([config_map]))
    assert [watch.look(), watch.look()] == [False, False]


def test_what_is_being_written_is_not_read_by_halves(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("")
    watch = FileWatch([file])
    seen = []
    for size in range(1, 5):
        file.write_text("x" * size)
        seen.append(watch.look())
    assert seen == [False] * 4
    assert watch.look()


def test_a_file_that_was_missing_and_comes_is_a_change(tmp_path: Path) -> None:
    file = tmp_path / "late.csv"
    watch = FileWatch([file])
    assert not watch.look()
    file.write_text("x")
    assert [watch.look(), watch.look()] == [False, True]


def test_what_changes_and_changes_back_is_no_change(tmp_path: Path) -> None:
    file, aside = tmp_path / "c.yaml", tmp_path / "aside"
    file.write_text("a")
    watch = FileWatch([file])
    file.rename(aside)
    assert not watch.look()
    aside.rename(file)
    assert [watch.look(), watch.look()] == [False, False]
