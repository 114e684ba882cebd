"""The packages, installed in Debian roots that have no Python."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from debian_root import DebianRoot, debian_root
from packages.artifacts import packages
from running import PATIENCE, Program, wait_until

pytestmark = pytest.mark.group("packages")

UNITS = Path("usr/lib/systemd/system")
CONFIG = "/etc/gpuledger/config.yaml"
BOOKS = "/var/lib/gpuledger/gpuledger.db"
# A separate network: the service listens on the port of its configuration.
ALONE = ["env", "--chdir=/", "unshare", "--net", "sh", "-ec", 'ip link set lo up; exec "$@"', "-"]


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty folder; not tmp_path, which lies in /tmp, and the roots have this machine's /tmp."""
    folder = debian_root("bookworm").path.parent / "installed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(params=["bookworm", "trixie"])
def root(request: pytest.FixtureRequest, place: Path) -> DebianRoot:
    """A root with essential packages only."""
    copied = debian_root(request.param).copy(place / "root")
    assert not list(copied.path.glob("usr/bin/python*"))
    return copied


def install(root: DebianRoot, package: Path, *command: str) -> None:
    shutil.copy(package, root.path / package.name)
    root.run(*command, f"/{package.name}")


@contextmanager
def service(root: DebianRoot, *flags: str) -> Iterator[Program]:
    """The command of the installed unit, as the unit's user and with its directories, without systemd."""
    unit = read_unit(root, "gpuledger.service", "gpuledger.service.d/package.conf")
    root.run("install", "-d", "-m", "755", "-o", unit["user"], f"/run/{unit['runtimedirectory']}")
    as_user = ["setpriv", f"--reuid={unit['user']}", f"--regid={unit['group']}", "--clear-groups", "env"]
    command = [*as_user, *unit["environment"].split(), *unit["execstart"].split(), *flags]
    program = Program([*ALONE, *root.command(*command)])
    try:
        yield program
    finally:
        assert program.stop() == 0


def read_unit(root: DebianRoot, *names: str) -> dict[str, str]:
    """Settings of the section [Service]; several lines of one name are joined by spaces."""
    found: dict[str, str] = {}
    for name in names:
        for line in (root.path / UNITS / name).read_text().splitlines():
            key, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                joined = key == "Environment" and key.lower() in found
                found[key.lower()] = f"{found[key.lower()]} {value}" if joined else value
    return found


def output_of(command: Sequence[str]) -> str:
    """What a command writes that may fail."""
    return subprocess.run(
        command, cwd="/", capture_output=True, text=True, timeout=PATIENCE, check=False
    ).stdout


def fetch(program: Program, url: str) -> str:
    """The answer to a GET from the network of the program."""
    inside = ["nsenter", "--net", "--target", str(program.process.pid), "curl", "--fail", "--silent", url]
    return output_of(inside)


def test_the_deb_serves_page_and_report_to_this_machine_alone(
    root: DebianRoot, made: dict[str, Path]
) -> None:
    install(root, made["deb"], "dpkg", "--install")
    with service(root, "--source", "simulator") as program:
        program.wait_line(r"listening on 127\.0\.0\.1 port 9400")
        page = "http://127.0.0.1:9400"
        wait_until(lambda: "gpuledger_device_energy" in fetch(program, f"{page}/metrics"), "metrics")
        assert "<title>" in fetch(program, page)
        report = root.command("gpuledger", "report", "--state-dir", "/var/lib/gpuledger")
        wait_until(lambda: "pod/" in output_of(report), "rows in the report")
    # The roots leave out man pages.
    installed = root.run("dpkg", "--listfiles", "gpuledger").split()
    assert {"/usr/share/bash-completion/completions/gpuledger", "/usr/share/man/man1/gpuledger.1.gz"} < set(
        installed
    )


def test_a_ledger_that_root_began_before_the_installation_is_the_service_s(
    root: DebianRoot, made: dict[str, Path]
) -> None:
    root.run("install", "-d", "-m", "700", "/var/lib/gpuledger")
    root.run("touch", BOOKS)
    install(root, made["deb"], "dpkg", "--install")
    assert root.run("stat", "-c", "%U", "/var/lib/gpuledger", BOOKS).split() == ["gpuledger", "gpuledger"]


def test_an_upgrade_keeps_settings_and_books_and_purge_removes_them(
    root: DebianRoot, made: dict[str, Path], built: Path
) -> None:
    install(root, made["deb"], "dpkg", "--install")
    changed = root.path / CONFIG[1:]
    changed.write_text("listen_address: ['127.0.0.1:9401']\n")
    root.run("sh", "-c", f"echo books > {BOOKS}")
    install(root, packages(built, "99.0.0")["deb"], "dpkg", "--install")
    assert changed.read_text() == "listen_address: ['127.0.0.1:9401']\n"
    root.run("dpkg", "--remove", "gpuledger")
    assert not (root.path / "usr/lib/gpuledger").exists()
    assert changed.exists()
    assert (root.path / BOOKS[1:]).read_text() == "books\n"
    root.run("dpkg", "--purge", "gpuledger")
    assert not changed.parent.exists()
    assert not (root.path / BOOKS[1:]).parent.exists()
    assert "gpuledger" not in (root.path / "etc/passwd").read_text()


def test_the_rpm_installs_and_leaves_the_books(place: Path, made: dict[str, Path]) -> None:
    root = debian_root("bookworm", ("rpm",)).copy(place / "root")
    # The root has no database of rpm packages: its glibc and shadow-utils are Debian's.
    install(root, made["rpm"], "rpm", "--install", "--nodeps")
    assert root.run("gpuledger", "version").startswith("gpuledger ")
    assert root.run("stat", "-c", "%U %a", "/var/lib/gpuledger") == "gpuledger 700\n"
    assert (root.path / "usr/share/zsh/site-functions/_gpuledger").stat().st_size > 0
    root.run("sh", "-c", f"echo books > {BOOKS}")
    root.run("rpm", "--erase", "gpuledger")
    assert not (root.path / "usr/lib/gpuledger").exists()
    assert (root.path / BOOKS[1:]).read_text() == "books\n"


def test_the_one_file_runs_in_a_root_without_python(root: DebianRoot, built: Path) -> None:
    shutil.copy(built / "gpuledger-onefile", root.path / "usr/bin/gpuledger")
    assert root.run("gpuledger", "version").startswith("gpuledger ")
    assert "GPU" in root.run("gpuledger", "top", "--once", "--source", "simulator")
