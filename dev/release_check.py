"""Runs tests/release with real parts that are too slow for CI, and prints date, result and versions.

    python dev/release_check.py [--write docs/development.md]

Needs root. With --write, the table is also put between the marks of the page. The exit code is that of
pytest.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests")]

MARKS = ("<!-- release-check: begin -->", "<!-- release-check: end -->")
# The Debian packages of what the tests run, on this machine and in the roots of other suites.
PACKAGES = {
    "Prometheus": ("prometheus",),
    "VictoriaMetrics": ("victoria-metrics",),
    "Kubernetes apiextensions-apiserver (0.36 is that of 1.36)": ("golang-k8s-apiextensions-apiserver-dev",),
    "etcd": ("etcd-server",),
    "kubelet's pod-resources API": ("golang-github-kubernetes-kubelet-dev",),
}


def debian_versions(packages: tuple[str, ...], database: Path) -> set[str]:
    """Upstream versions of those packages that are installed according to a folder like /var/lib/dpkg."""
    query = [
        "dpkg-query",
        f"--admindir={database}",
        "--show",
        "--showformat=${db:Status-Status} ${Version}\\n",
        *packages,
    ]
    # It fails if one of the packages is not installed.
    listed = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    found = (re.match(r"installed (?:\d+:)?(\d[\d.]*\d)", line) for line in listed.splitlines())
    return {match[1] for match in found if match}


def parts(databases: list[Path]) -> Iterator[tuple[str, str]]:
    """Each real part with its versions, the oldest first."""
    for part, packages in PACKAGES.items():
        versions = set().union(*(debian_versions(packages, database) for database in databases))
        if versions:
            yield part, ", ".join(sorted(versions, key=lambda text: [int(n) for n in text.split(".")]))
    packages = json.loads((ROOT / "tests/release/grafana/package.json").read_text())["dependencies"]
    yield "Grafana: npm `@grafana/data`, `@grafana/prometheus`", packages["@grafana/data"]
    yield "Grafana: types of PyPI `grafana-foundation-sdk`", version("grafana-foundation-sdk").split("!")[-1]


def result(report: Path) -> tuple[str, dict[str, str]]:
    """Counts and duration in a JUnit report, and what tests recorded in it."""
    (suite,) = ET.parse(report).getroot()
    number = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = number["failures"] + number["errors"]
    passed = number["tests"] - failed - number["skipped"]
    counts = {"passed": passed, "failed": failed, "skipped": number["skipped"]}
    shown = ", ".join(f"{count} {what}" for what, count in counts.items() if count or what != "skipped")
    minutes = float(suite.attrib["time"]) / 60
    recorded = {item.attrib["name"]: item.attrib["value"] for item in suite.iterfind("properties/property")}
    return f"{shown} in {minutes:.0f} minutes", recorded


def table(report: Path, databases: list[Path], date: str, commit: str) -> Iterator[str]:
    """The lines between the marks."""
    from gpuledger import __version__

    outcome, recorded = result(report)
    yield f"`make release-check` of {date}: gpuledger {__version__}, commit {commit}: {outcome}."
    yield ""
    yield "| real part | versions |"
    yield "|---|---|"
    for part, versions in (*parts(databases), *recorded.items()):
        yield f"| {part} | {versions} |"


def main() -> int:
    """Runs the tests and prints the table."""
    from debian_root import CACHE
    from tables import create_parser, print_table

    write = create_parser(__doc__).parse_args().write
    if write is not None and not all(mark in write.read_text(encoding="utf-8") for mark in MARKS):
        raise SystemExit(f"{write} lacks the marks {' and '.join(MARKS)}")
    if os.geteuid() != 0:
        raise SystemExit("tests/release needs root: it changes root directories. Run `make release-check`.")
    with tempfile.TemporaryDirectory(prefix="gpuledger-release-") as folder:
        report = Path(folder) / "report.xml"
        tests = ["-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", "tests/release"]
        done = subprocess.run([sys.executable, "-B", *tests], cwd=ROOT, check=False)
        if not report.exists():
            return done.returncode
        head = ["git", "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(head, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        roots = [root for root in sorted(CACHE.iterdir()) if root.is_dir() and root.suffix != ".part"]
        databases = [Path("/var/lib/dpkg"), *(root / "var/lib/dpkg" for root in roots)]
        date = time.strftime("%Y-%m-%d", time.gmtime())
        print_table(table(report, databases, date, commit), write, MARKS)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
