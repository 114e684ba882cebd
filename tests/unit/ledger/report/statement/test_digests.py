"""Where a statement was altered is named."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from gpuledger.ledger.report.statement.digests import find_alterations, seal_statement, statement_hash
from statement_helpers import PRICED, changed, entries, other_digit, paths_of, statement_of, written


def named(path: tuple[str | int, ...]) -> str:
    """The place that must be named for a path: a row and its field, or a member."""
    section, *rest = path
    if section == "checks":
        return "checks."
    if len(rest) > 1 and isinstance(rest[0], int):
        return f"{section}[{rest[0]}].{rest[1]}"
    if rest and isinstance(rest[0], str):
        return f"{section}.{rest[0]}"
    return str(section)


def test_every_altered_value_is_named() -> None:
    content = written(statement_of(entries().report(PRICED)))
    assert find_alterations(content) == []
    paths = [path for path in paths_of(content) if path[0] != "checks"]
    assert len(paths) > 150
    for path in paths:
        assert find_alterations(changed(content, path, other_digit)) == [named(path)], path


def test_every_altered_value_is_named_if_only_the_hash_was_computed_again() -> None:
    content = written(statement_of(entries().report(PRICED)))
    for path in [path for path in paths_of(content) if path[0] not in ("checks", "sha256")]:
        altered = changed(content, path, other_digit)
        altered["sha256"] = statement_hash(altered)
        assert find_alterations(altered) == [named(path)], path


def test_checks_that_are_gone_or_stale_are_named_whatever_the_hash() -> None:
    content = written(statement_of(entries().report(PRICED)))
    for checks, place in (
        (None, "checks"),
        ({}, "by"),
        ({**content["checks"], "extra": "0"}, "extra"),
        ({**content["checks"], "rows": {"rows": []}}, "checks.rows"),
    ):
        altered = {**content, "checks": checks}
        altered["sha256"] = statement_hash(altered)
        assert find_alterations(altered)[0] == place


def test_altered_checks_are_named() -> None:
    content = written(statement_of(entries().report(PRICED)))
    for path in [path for path in paths_of(content["checks"]) if path[0] in ("rows", "gpus", "total")]:
        (place,) = find_alterations(changed(content, ("checks", *path), other_digit))
        assert place == (f"total.{path[1]}" if path[0] == "total" else f"checks.{dotted(path)}")


def dotted(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path).lstrip(".")


def test_rows_that_are_gone_or_exchanged_are_named() -> None:
    content = written(statement_of(entries().report(PRICED)))
    rows = content["rows"]
    (place,) = find_alterations({**content, "rows": rows[1:]})
    assert place == f"rows (it has {len(rows) - 1} rows, and was written with {len(rows)})"
    exchanged = find_alterations({**content, "rows": [rows[1], rows[0], *rows[2:]]})
    assert {place.partition(".")[0] for place in exchanged} == {"rows[0]", "rows[1]"}


def test_a_hash_that_was_computed_again_is_another_hash() -> None:
    content = written(statement_of(entries().report(PRICED)))
    altered = changed(content, ("rows", 0, "sessions"), lambda _: 77)
    again: dict[str, Any] = seal_statement(
        {k: v for k, v in altered.items() if k not in ("checks", "sha256")}
    )
    assert find_alterations(again) == []
    assert again["sha256"] != content["sha256"]


def test_the_hash_is_that_of_sorted_compact_json_in_ascii() -> None:
    content = written(statement_of(entries().report(PRICED)))
    sha256 = content.pop("sha256")
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    assert hashlib.sha256(text.encode("ascii")).hexdigest() == sha256
