"""Exports in directories: damage, contradictions, repetitions, and what a report must say about them."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from builders import gpu
from exported_ledgers import SINCE, UNTIL, write_export, write_node
from gpuledger.ledger.books import manifest
from gpuledger.ledger.books.forgetting import forget_person
from gpuledger.ledger.books.library import (
    check_exports,
    export_notes,
    find_exports,
    merge_exports,
    without_repetitions,
)
from gpuledger.ledger.books.manifest import MANIFEST_NAME, read_manifest
from gpuledger.model.errors import GpuledgerError
from time_books import A, B

MIDDLE = SINCE + 3600
CARDS = [gpu(number) for number in range(6)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_node(tmp_path_factory.mktemp("node"), ticks=120)


@pytest.fixture
def ledger(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written.parent, tmp_path / "node") / written.name


def truncate(place: Path) -> None:
    file = place / "gpu_time.csv"
    file.write_bytes(file.read_bytes()[:-40])


def change_digit(place: Path) -> None:
    file = place / "gpu_time.csv"
    file.write_text(file.read_text().replace("000,", "001,", 1))


def change_manifest(place: Path) -> None:
    file = place / MANIFEST_NAME
    file.write_text(file.read_text().replace('"node-1"', '"node-2"'))


def cut_manifest(place: Path) -> None:
    file = place / MANIFEST_NAME
    file.write_text(file.read_text()[:200])


def remove_table(place: Path) -> None:
    (place / "energy.csv").unlink()


def make_newer(place: Path) -> None:
    file = place / MANIFEST_NAME
    file.write_text(file.read_text().replace('"gpuledger_export": 1', '"gpuledger_export": 2'))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (truncate, "gpu_time.csv is damaged: it has .* bytes, not the .* that its manifest says"),
        (change_digit, "gpu_time.csv is damaged: it has not the content that its manifest says"),
        (change_manifest, "manifest.json was changed after the export"),
        (cut_manifest, "manifest.json is no manifest .*, or damaged"),
        (remove_table, "energy.csv is missing"),
        (make_newer, "later version"),
    ],
)
def test_damage_is_named(tmp_path: Path, ledger: Path, damage: Callable[[Path], None], named: str) -> None:
    place, _ = write_export(ledger, tmp_path / "out")
    damage(place)
    with pytest.raises(GpuledgerError, match=named):
        find_exports([tmp_path / "out"])


def test_a_check_names_each_damaged_export(tmp_path: Path, ledger: Path) -> None:
    whole, _ = write_export(ledger, tmp_path / "out", between=(SINCE, SINCE + 900))
    for number, damage in enumerate((truncate, cut_manifest), 1):
        place, _ = write_export(
            ledger, tmp_path / "out", between=(SINCE + 900 * number, SINCE + 900 * (number + 1))
        )
        damage(place)
    found, problems = check_exports(tmp_path / "out")
    assert [one.folder for one in found] == [whole]
    assert len(problems) == 2
    (problem,) = check_exports(tmp_path / "node")[1]
    assert f"has a ledger (gpuledger.db), not exports of one: name it as --state-dir {tmp_path}" in problem


def remove_manifest(place: Path) -> None:
    (place / MANIFEST_NAME).unlink()


def rename_manifest(place: Path) -> None:
    (place / MANIFEST_NAME).rename(place / "manifest.json.bak")


def replace_manifest_by_a_directory(place: Path) -> None:
    remove_manifest(place)
    (place / MANIFEST_NAME).mkdir()


def empty_the_range(place: Path) -> None:
    for file in place.iterdir():
        file.unlink()


def remove_the_range(place: Path) -> None:
    shutil.rmtree(place)


def keep_one_table(place: Path) -> None:
    for file in place.iterdir():
        if file.name != "energy.csv":
            file.unlink()
    place.rename(place.with_name("october"))


@pytest.mark.parametrize(
    "damage",
    [
        remove_manifest,
        rename_manifest,
        replace_manifest_by_a_directory,
        empty_the_range,
        remove_the_range,
        keep_one_table,
    ],
)
def test_an_export_that_lost_its_manifest_is_named(
    tmp_path: Path, ledger: Path, damage: Callable[[Path], None]
) -> None:
    whole, _ = write_export(write_node(tmp_path / "other", ticks=20), tmp_path / "out", node="node-2")
    place, _ = write_export(ledger, tmp_path / "out")
    damage(place)
    found, (problem,) = check_exports(tmp_path / "out")
    assert [one.folder for one in found] == [whole]
    assert str(place.parent) in problem
    assert "move this directory away" in problem
    for refused in (
        lambda: find_exports([tmp_path / "out"], verify=False),
        lambda: merge_exports([tmp_path / "out"], tmp_path / "all"),
        lambda: merge_exports([whole], tmp_path / "out"),
    ):
        with pytest.raises(GpuledgerError, match=r"node-1\."):
            refused()
    assert not (tmp_path / "all").exists()


def test_linked_directories_are_searched_once(tmp_path: Path, ledger: Path) -> None:
    write_export(ledger, tmp_path / "far")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").symlink_to(tmp_path / "far")
    (tmp_path / "far" / "loop").symlink_to(tmp_path / "far")
    assert len(find_exports([tmp_path / "out"])) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("books", "/../../x"),
        ("books", 5),
        ("node", 7),
        ("last", "x"),
        ("last", float("nan")),
        ("begins", 10**20),
        ("begins", True),
        ("first", -1),
        ("totals", []),
        ("complete", 1),
    ],
)
def test_a_manifest_with_a_valid_hash_and_odd_values_is_refused(
    tmp_path: Path, ledger: Path, key: str, value: object
) -> None:
    place, _ = write_export(ledger, tmp_path / "out")
    values = json.loads((place / MANIFEST_NAME).read_text())
    del values["sha256"]
    values[key] = value
    values["sha256"] = manifest._hash_of(values)
    (place / MANIFEST_NAME).write_text(json.dumps(values))
    with pytest.raises(GpuledgerError, match="no manifest of an exported ledger, or damaged"):
        find_exports([tmp_path / "out"])


def test_only_the_files_of_the_manifest_are_merged(tmp_path: Path, ledger: Path) -> None:
    place, facts = write_export(ledger, tmp_path / "out")
    (place / "secret").symlink_to(ledger)
    (added,), _ = merge_exports([tmp_path / "out"], tmp_path / "all")
    assert sorted(one.name for one in added.iterdir()) == sorted(
        [MANIFEST_NAME, *(f"{table}.csv" for table in facts.tables)]
    )


def test_an_export_beside_a_different_one_names_it_and_what_to_do(tmp_path: Path, ledger: Path) -> None:
    place, _ = write_export(ledger, tmp_path / "out", between=(SINCE, MIDDLE))
    forget_person(ledger, "train-0", "former-7")
    cases = {
        "other names .*move .* away": {"between": (SINCE, MIDDLE)},
        "GPULEDGER_NODE_NAME=node-1": {"between": (SINCE, MIDDLE), "node": "node-2"},
        "overlaps .* export whole months": {"between": (SINCE + 900, MIDDLE)},
    }
    for text, how in cases.items():
        with pytest.raises(GpuledgerError, match=text) as error:
            write_export(ledger, tmp_path / "out", **how)  # type: ignore[arg-type]
        assert str(error.value).startswith(str(place))
    assert list((tmp_path / "out").iterdir()) == [place.parent]
    place.rename(tmp_path / "old")
    assert write_export(ledger, tmp_path / "out", between=(SINCE, MIDDLE))[0] == place


@pytest.mark.parametrize("call", ["first rename", "second rename", "third rename"])
def test_a_replacement_that_is_killed_leaves_an_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    ledger, later = write_node(tmp_path / "a", ticks=60), write_node(tmp_path / "b", ticks=62)
    copy_id(ledger, later)
    place, _ = write_export(ledger, tmp_path / "out")
    left = ["first rename", "second rename", "third rename"].index(call)
    rename = Path.rename

    def killed(self: Path, target: Path) -> Path:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        return rename(self, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Path, "rename", killed)
        write_export(later, tmp_path / "out")
    assert len(without_repetitions(find_exports([tmp_path / "out"]))) == 1
    replaced, facts = write_export(later, tmp_path / "out")
    assert replaced == place
    (found,) = without_repetitions(find_exports([tmp_path / "out"]))
    assert found.manifest == facts


def test_zones_with_equal_rules_are_one(tmp_path: Path) -> None:
    found = []
    for number, zone in enumerate(("UTC", "Etc/UTC", "Africa/Abidjan")):
        file = write_node(tmp_path / zone.replace("/", "-"), *CARDS[2 * number : 2 * number + 2], ticks=20)
        with closing(sqlite3.connect(file)) as books, books:
            books.execute("REPLACE INTO meta VALUES ('zone', ?)", (zone,))
        write_export(file, tmp_path / "out", node=f"node-{number}")
        found = find_exports([tmp_path / "out"])
        assert list(export_notes(found)) == []
    last = found[-1]
    india = last._replace(manifest=replace(last.manifest, time_zone="Asia/Kolkata"))
    (note,) = export_notes([*found[:-1], india])
    assert "(Asia/Kolkata: node-2; Etc/UTC: node-0, node-1)" in note


def test_a_directory_without_exports_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name, text in (("empty", "no exported ledger"), ("missing", "does not exist")):
        with pytest.raises(GpuledgerError, match=text):
            find_exports([tmp_path / name])


def test_the_same_month_twice_is_merged_once_also_in_other_formats(tmp_path: Path, ledger: Path) -> None:
    write_export(ledger, tmp_path / "one")
    write_export(ledger, tmp_path / "two", form="parquet")
    added, found = merge_exports([tmp_path / "one", tmp_path / "two", tmp_path / "one"], tmp_path / "all")
    assert (len(added), len(found)) == (1, 1)
    assert merge_exports([tmp_path / "two"], tmp_path / "all")[0] == []


def test_different_exports_of_one_time_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    write_export(write_node(tmp_path / "a", ticks=90), tmp_path / "one", between=(SINCE, MIDDLE))
    clone = write_node(tmp_path / "b", B, A, begins=SINCE + 300.0)
    place, facts = write_export(clone, tmp_path / "two", between=(SINCE, MIDDLE))
    text = (place / MANIFEST_NAME).read_text()
    ours = read_manifest(next((tmp_path / "one").rglob(MANIFEST_NAME)))
    rewrite(place, text.replace(facts.books, ours.books))
    with pytest.raises(GpuledgerError) as error:
        merge_exports([tmp_path / "one", tmp_path / "two"], tmp_path / "all")
    assert str(tmp_path / "one") in str(error.value)
    assert str(place) in str(error.value)
    assert "two machines run with copies of one ledger" in str(error.value)
    assert not (tmp_path / "all").exists()


def rewrite(place: Path, text: str) -> None:
    """Write a manifest with a valid hash, as a program that has another copy of the ledger does."""
    values = json.loads(text)
    del values["sha256"]
    del values["gpuledger_export"]
    manifest.write_manifest(place, manifest._from_values(values))


def test_overlapping_exports_are_refused(tmp_path: Path, ledger: Path) -> None:
    write_export(ledger, tmp_path / "one", between=(SINCE, MIDDLE))
    write_export(ledger, tmp_path / "two", between=(SINCE + 900, MIDDLE))
    with pytest.raises(GpuledgerError, match=r"overlap: .* and .*; keep exports of whole months only"):
        without_repetitions(find_exports([tmp_path / "one", tmp_path / "two"]))


def test_a_later_export_replaces_one_that_ended_with_the_ledger(tmp_path: Path) -> None:
    file = write_node(tmp_path / "node", ticks=60)
    first, facts = write_export(file, tmp_path / "out", between=(SINCE, UNTIL))
    assert not facts.complete
    longer = write_node(tmp_path / "longer", ticks=120)
    copy_id(file, longer)
    second, _ = write_export(longer, tmp_path / "out", between=(SINCE, UNTIL))
    assert not first.exists()
    assert [one.folder for one in find_exports([tmp_path / "out"])] == [second]
    merged, _ = merge_exports([tmp_path / "out"], tmp_path / "all")
    assert len(merged) == 1


def copy_id(file: Path, other: Path) -> None:
    with closing(sqlite3.connect(file)) as books:
        ((found,),) = books.execute("SELECT value FROM meta WHERE key = 'books_id'").fetchall()
    with closing(sqlite3.connect(other)) as books, books:
        books.execute("UPDATE meta SET value = ? WHERE key = 'books_id'", (found,))


def test_an_export_of_a_clone_replaces_nothing(tmp_path: Path) -> None:
    file, clone = (
        write_node(tmp_path / "a", ticks=60),
        write_node(tmp_path / "b", ticks=90, begins=SINCE + 60.0),
    )
    copy_id(file, clone)
    write_export(file, tmp_path / "out", between=(SINCE, UNTIL))
    with pytest.raises(GpuledgerError, match="two machines run with one ledger"):
        write_export(clone, tmp_path / "out", between=(SINCE, UNTIL))


def test_names_gpus_zones_and_gaps_are_noted(tmp_path: Path, ledger: Path) -> None:
    other = write_node(tmp_path / "other", B, A)
    write_export(ledger, tmp_path / "out", "node-1", (SINCE, SINCE + 1800))
    write_export(ledger, tmp_path / "out", "node-9", (MIDDLE, MIDDLE + 900))
    write_export(other, tmp_path / "out", "node-1", (SINCE, SINCE + 1800))
    notes = "\n".join(export_notes(find_exports([tmp_path / "out"])))
    assert "2 ledgers have the node name node-1" in notes
    assert "was renamed: node-1, node-9" in notes
    assert f"{A.uuid} was in two ledgers at the same time" in notes


def test_a_gpu_that_moved_is_not_noted(tmp_path: Path, ledger: Path) -> None:
    later = write_node(tmp_path / "later", begins=float(UNTIL))
    write_export(ledger, tmp_path / "out", "node-1", (SINCE, UNTIL))
    write_export(later, tmp_path / "out", "node-2", (SINCE, UNTIL + 7200))
    assert not [note for note in export_notes(find_exports([tmp_path / "out"])) if "two ledgers" in note]
