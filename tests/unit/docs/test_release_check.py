"""dev/release_check.py: the table that it writes into docs/development.md."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from documentation import ROOT

SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "dev" / "release_check.py"))
REPORT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites name="pytest tests"><testsuite name="pytest" errors="{errors}" failures="{failures}"
  skipped="{skipped}" tests="{tests}" time="754.2">
<properties><property name="Memory of `serve`" value="33.1 MiB"/></properties>
<testcase classname="a" name="b" time="0.1"/></testsuite></testsuites>
"""
STATUS = """Package: {name}
Status: {state}
Version: {version}
Architecture: all
Maintainer: none <none@example.com>
Description: none

"""


def report(folder: Path, tests: int, *, failures: int = 0, errors: int = 0, skipped: int = 0) -> Path:
    file = folder / "report.xml"
    file.write_text(REPORT.format(tests=tests, failures=failures, errors=errors, skipped=skipped))
    return file


def database(folder: Path, *packages: tuple[str, str, str]) -> Path:
    """A folder like /var/lib/dpkg with these names, versions and states."""
    for needed in ("info", "updates"):
        (folder / needed).mkdir(parents=True)
    (folder / "status").write_text(
        "".join(STATUS.format(name=name, version=version, state=state) for name, version, state in packages)
    )
    return folder


INSTALLED = "install ok installed"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"tests": 12}, "12 passed, 0 failed in 13 minutes"),
        ({"tests": 12, "failures": 2, "errors": 1}, "9 passed, 3 failed in 13 minutes"),
        ({"tests": 12, "skipped": 1}, "11 passed, 0 failed, 1 skipped in 13 minutes"),
    ],
)
def test_errors_count_as_failures_and_skipped_tests_are_named(
    tmp_path: Path, counts: dict[str, int], expected: str
) -> None:
    assert SCRIPT["result"](report(tmp_path, **counts))[0] == expected


def test_a_part_has_all_its_versions_without_debians_additions(tmp_path: Path) -> None:
    old = database(tmp_path / "old", ("prometheus", "2.42.0+ds-5+b5", INSTALLED))
    new = database(
        tmp_path / "new",
        ("prometheus", "1:3.10.1+ds1-2", INSTALLED),
        ("victoria-metrics", "1.112.0+ds1-2+b3", INSTALLED),
    )
    found = dict(SCRIPT["parts"]([new, old]))
    assert found["Prometheus"] == "2.42.0, 3.10.1"
    assert found["VictoriaMetrics"] == "1.112.0"


def test_a_part_that_is_not_installed_has_no_row(tmp_path: Path) -> None:
    removed = database(tmp_path / "dpkg", ("etcd-server", "3.4.23-4", "deinstall ok config-files"))
    assert "etcd" not in dict(SCRIPT["parts"]([removed]))


def test_the_table_has_date_result_versions_and_what_tests_recorded(tmp_path: Path) -> None:
    dpkg = database(tmp_path / "dpkg", ("prometheus", "3.5.3+ds-1", INSTALLED))
    lines = list(SCRIPT["table"](report(tmp_path, 3), [dpkg], "2026-11-29", "abc1234"))
    assert "2026-11-29" in lines[0]
    assert "commit abc1234: 3 passed, 0 failed" in lines[0]
    assert "| Prometheus | 3.5.3 |" in lines
    assert lines[-1] == "| Memory of `serve` | 33.1 MiB |"
