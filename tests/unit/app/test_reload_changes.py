"""Comparing settings, the keys that a running program can change, and watching files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpuledger.app.reload import OWNER_GROUPS, SOURCE_GROUPS, compare_settings, files_named_in
from gpuledger.config.commands import NODE_GROUPS
from gpuledger.config.help_pages import HelpPage
from gpuledger.config.node import help_page
from gpuledger.config.settings import LogSettings
from gpuledger.dialects.settings import (
    AmdDialectSettings,
    DcgmSettings,
    DialectSettings,
    EnergyDialectSettings,
    SmiDialectSettings,
)
from gpuledger.host.files import FileWatch, file_states
from gpuledger.http.limits import HttpLimits
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from gpuledger.ledger.report.settings import Prices, TeamSettings
from gpuledger.model.settings import (
    ReloadPolicy,
    comma_separated,
    declared_settings,
    integer,
    reload_policy,
    setting,
    text,
)


@dataclass(frozen=True, slots=True)
class Reloadable:
    """All keys but one can be reloaded."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy(restart=("port",), files=("table", "more"))

    colour: str = setting("colour", text, "red", "h")
    port: int = setting("port", integer(0, 9), 1, "h")
    table: str = setting("table", text, "", "h")
    more: tuple[str, ...] = setting("more", comma_separated(text), (), "h")


@dataclass(frozen=True, slots=True)
class Fixed:
    """Without a reload policy."""

    depth: int = setting("depth", integer(0, 9), 1, "h")


GROUPS = (Reloadable, Fixed)

CHANGES: list[tuple[str, dict[str, Any], dict[str, Any], list[str], list[str], dict[str, Any]]] = [
    ("nothing", {"colour": "blue"}, {"colour": "blue"}, [], [], {"colour": "blue"}),
    ("applied", {}, {"colour": "blue"}, ["colour"], [], {"colour": "blue"}),
    ("back to the default", {"colour": "blue"}, {}, ["colour"], [], {}),
    ("the default, set explicitly", {}, {"colour": "red"}, [], [], {"colour": "red"}),
    ("needs a restart", {"port": 2}, {"port": 3}, [], ["port"], {"port": 2}),
    ("needs a restart from the default", {}, {"port": 3}, [], ["port"], {}),
    ("needs a restart back to the default", {"port": 2}, {}, [], ["port"], {"port": 2}),
    ("a group without a policy", {}, {"depth": 5}, [], ["depth"], {}),
    ("the others are applied", {}, {"port": 3, "colour": "blue"}, ["colour"], ["port"], {"colour": "blue"}),
]


@pytest.mark.parametrize(
    ("before", "after", "taken", "pending", "values"),
    [case[1:] for case in CHANGES],
    ids=[case[0] for case in CHANGES],
)
def test_reloadable_changes_are_applied_and_the_others_keep_their_old_values(
    before: dict[str, Any],
    after: dict[str, Any],
    taken: list[str],
    pending: list[str],
    values: dict[str, Any],
) -> None:
    found = compare_settings(GROUPS, before, after)
    assert (list(found.taken), list(found.pending), dict(found.values)) == (taken, pending, values)


def test_a_fixed_group_needs_a_restart() -> None:
    found = compare_settings(GROUPS, {}, {"colour": "blue"}, fixed=(Reloadable,))
    assert (found.taken, found.pending) == ((), ("colour",))


def test_the_watched_files_are_those_that_settings_name() -> None:
    assert files_named_in(GROUPS, {}) == ()
    values = {"table": "/a", "more": ("/b", "/c"), "colour": "/d"}
    assert files_named_in(GROUPS, values) == (Path("/a"), Path("/b"), Path("/c"))


@pytest.mark.parametrize("group", NODE_GROUPS.values(), ids=lambda group: group.__name__)
def test_the_reload_policy_of_a_group_names_only_its_own_keys(group: type) -> None:
    policy = reload_policy(group)
    keys = {item.key for _, item, _ in declared_settings(group)}
    assert {*policy.restart, *policy.files} <= keys


# What is created from these groups is created again by a reload.
CREATED_AGAIN = {
    *SOURCE_GROUPS,
    *OWNER_GROUPS,
    AdviceSettings,
    AmdDialectSettings,
    DialectSettings,
    DcgmSettings,
    EnergyDialectSettings,
    SmiDialectSettings,
    Prices,
    TeamSettings,
    LogSettings,
}
# The keys of other groups that a reload applies one by one.
APPLIED = {
    "interval",
    "reload.interval",
    "metrics_path",
    "web.page",
    "web.hosts",
    "store.detail",
    "store.hours",
    "store.max_size",
    "energy.policy",
    "energy.empty_watts",
    "energy.resident_watts",
    "metric_retention",
    "access.users",
    "access.admins",
}


def test_each_key_is_applied_by_a_reload_or_needs_a_restart() -> None:
    """Other programs' settings are translated into these keys before a reload compares them."""
    groups = {group for group in NODE_GROUPS.values() if help_page(group) is not HelpPage.COMPATIBILITY}
    keys = {
        item.key
        for group in groups - CREATED_AGAIN
        for _, item, _ in declared_settings(group)
        if item.key not in reload_policy(group).restart
    }
    assert keys == APPLIED, (
        "apply the key in app/reload.py, or add it to `restart` of its group's ReloadPolicy"
    )


def test_only_these_keys_need_a_restart() -> None:
    limits = {item.key for _, item, _ in declared_settings(HttpLimits)}
    assert {key for group in NODE_GROUPS.values() for key in reload_policy(group).restart} == limits | {
        "source",
        "gpu_count",
        "simulator.seed",
        "simulator.speed",
        "nvidia_smi.command",
        "nvidia_smi.query_field_names",
        "listen_address",
        "process.max_per_device",
        "energy.zero_hold",
        "price.basis",
        "report.timezone",
        "state_dir",
        "procfs",
        "sysfs",
        "passwd_file",
        "name_service",
        "host.pids",
        "control.socket",
        "access.mode",
        "kubernetes.events",
        "kubernetes.events_after",
        "web.config.file",
        "systemd_socket",
        "profiling.dcgm_exporter_url",
        "profiling.dcgm_exporter_period",
    }


@pytest.fixture
def config_map(tmp_path: Path) -> Path:
    """A file as mounted by the kubelet: a link through ..data into a dated directory."""
    (tmp_path / "..1").mkdir()
    (tmp_path / "..1" / "c.yaml").write_text("a: 1")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "c.yaml").symlink_to("..data/c.yaml")
    return tmp_path / "c.yaml"


def in_place(file: Path) -> None:
    file.write_text("a: 22")


def renamed_over(file: Path) -> None:
    aside = file.with_name("aside")
    # With the same size and time: only the inode differs.
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
def test_a_change_is_detected_once_the_file_is_stable(
    config_map: Path, change: Callable[[Path], None]
) -> None:
    watch = FileWatch([config_map])
    assert not watch.has_changed()
    change(config_map)
    assert [watch.has_changed(), watch.has_changed()] == [False, True]
    watch.set_baseline(file_states([config_map]))
    assert [watch.has_changed(), watch.has_changed()] == [False, False]


def test_a_file_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("")
    watch = FileWatch([file])
    seen = []
    for size in range(1, 5):
        file.write_text("x" * size)
        seen.append(watch.has_changed())
    assert seen == [False] * 4
    assert watch.has_changed()


def test_a_file_that_appears_is_a_change(tmp_path: Path) -> None:
    file = tmp_path / "late.csv"
    watch = FileWatch([file])
    assert not watch.has_changed()
    file.write_text("x")
    assert [watch.has_changed(), watch.has_changed()] == [False, True]


def test_a_reverted_change_is_no_change(tmp_path: Path) -> None:
    file, aside = tmp_path / "c.yaml", tmp_path / "aside"
    file.write_text("a")
    watch = FileWatch([file])
    file.rename(aside)
    assert not watch.has_changed()
    aside.rename(file)
    assert [watch.has_changed(), watch.has_changed()] == [False, False]
