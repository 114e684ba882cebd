"""The units and the Debian package under a real systemd, with the tests' driver of NVIDIA."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from debian_root import debian_root
from gpuledger import __version__
from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from packages.artifacts import CHECKOUT, executables, packages
from running import wait_until
from systemd_machine import SystemdMachine, booted

pytestmark = pytest.mark.group("systemd")

SERVICE = "gpuledger.service"
NEWER = "99.0.0"
CONFIG = "etc/gpuledger/config.yaml"
# Of curl: nobody listens.
REFUSED = 7
STATE = "/srv/nvml/state"
DRIVER = f"LD_LIBRARY_PATH=/srv/nvml\nTEST_NVML_STATE={STATE}\n"
PAGE = "http://127.0.0.1:9400"
USER = "mia"


@pytest.fixture(scope="module")
def built() -> Path:
    return executables()


@pytest.fixture(scope="module")
def debs(built: Path) -> list[Path]:
    """The packages of this version and of a newer one."""
    return [packages(built, version)["deb"] for version in (__version__, NEWER)]


@pytest.fixture
def machine(debs: list[Path]) -> Iterator[SystemdMachine]:
    """A machine with a GPU on which a process runs. It has no Python, no `kill` and no network.

    The owner of the process is not known: systemd must be process 1, so this is not the first pid namespace.
    """
    base = debian_root("bookworm", ("systemd", "systemd-sysv", "dbus", "curl"))
    place = base.path.parent / "booted"
    shutil.rmtree(place, ignore_errors=True)
    root = base.copy(place)
    for deb in debs:
        shutil.copy(deb, place)
    with booted(root) as machine:
        machine.run("useradd", USER)
        machine.run("systemd-run", "--unit=training", f"--uid={USER}", "sleep", "infinity")
        pid = int(machine.wait_active("training"))
        library = place / "srv/nvml/libnvidia-ml.so.1"
        library.parent.mkdir(0o755)
        shutil.copy(build(), library)
        NvmlState(place / STATE[1:], [NvmlGpu(NvmlProcess(pid, sm=50), uuid="GPU-0", power=250_000)]).write()
        (place / STATE[1:]).chmod(0o644)
        machine.write("etc/default/gpuledger", DRIVER)
        yield machine
    shutil.rmtree(place)


def install(machine: SystemdMachine, version: str = __version__) -> None:
    machine.run("dpkg", "--install", f"/gpuledger_{version}_amd64.deb")


def start(machine: SystemdMachine) -> str:
    """Install the package and start its service; its pid."""
    install(machine)
    machine.run("systemctl", "enable", "--now", SERVICE)
    return machine.wait_active(SERVICE)


def energy(machine: SystemdMachine) -> float:
    """The energy of the GPU since its ledger was created, from the first page that has it."""

    def found() -> float:
        page = machine.call("curl", "--silent", f"{PAGE}/metrics/native").stdout
        match = re.search(r"^gpuledger_device_energy_joules_total\{.*\} (\S+)$", page, re.MULTILINE)
        return float(match[1]) if match else 0.0

    return wait_until(found, "energy of the GPU")


def wait_own_report(machine: SystemdMachine) -> None:
    """Wait until the service answers a user who may not read its ledger."""
    words = ("gpuledger", "report", "--by", "user")
    wait_until(
        lambda: f"rows that {USER} may read" in machine.call(*words, user=USER).stderr, "an own report"
    )


def test_the_service_answers_users_who_may_not_read_its_ledger(machine: SystemdMachine) -> None:
    start(machine)
    wait_own_report(machine)
    assert machine.shows(SERVICE, "User") == "gpuledger"
    (books,) = machine.root.glob("var/lib/gpuledger/*.db")
    assert machine.call("cat", f"/{books.relative_to(machine.root)}", user=USER).returncode == 1


def test_a_reload_reads_the_settings_in_the_same_process(machine: SystemdMachine) -> None:
    pid = start(machine)
    energy(machine)
    machine.write(CONFIG, "listen_address: ['127.0.0.1:9400']\nprice:\n  gpu_hour: 2.5\n")
    machine.run("systemctl", "reload", SERVICE)
    wait_until(lambda: any("reloaded" in line for line in machine.journal(SERVICE)), "a line on the reload")
    assert machine.wait_active(SERVICE) == pid


def test_a_killed_service_starts_again_and_its_counters_go_on(machine: SystemdMachine) -> None:
    pid = start(machine)
    before = energy(machine)
    machine.run("systemctl", "kill", "--signal=KILL", SERVICE)
    wait_until(lambda: machine.wait_active(SERVICE) != pid, "another process")
    assert energy(machine) >= before


def test_a_wrong_setting_is_logged_in_a_line_and_not_tried_again(machine: SystemdMachine) -> None:
    install(machine)
    machine.write(CONFIG, "intervall: 1s\n")
    assert machine.call("systemctl", "start", SERVICE).returncode == 0
    wait_until(lambda: machine.shows(SERVICE, "ActiveState") == "failed", "the end of the service")
    assert machine.shows(SERVICE, "NRestarts") == "0"
    (line,) = (line for line in machine.journal(SERVICE) if line.startswith("gpuledger:"))
    assert "intervall" in line


def test_an_upgrade_runs_the_new_version_with_the_old_books(machine: SystemdMachine) -> None:
    pid = start(machine)
    before = energy(machine)
    install(machine, NEWER)
    assert machine.wait_active(SERVICE) != pid
    assert energy(machine) >= before


def test_an_upgrade_does_not_start_a_stopped_service(machine: SystemdMachine) -> None:
    install(machine)
    install(machine, NEWER)
    assert machine.shows(SERVICE, "ActiveState") == "inactive"


def test_a_removal_ends_the_service_and_leaves_the_books(machine: SystemdMachine) -> None:
    start(machine)
    energy(machine)
    machine.run("dpkg", "--remove", "gpuledger")
    assert machine.shows(SERVICE, "LoadState") == "not-found"
    assert machine.call("curl", "--silent", PAGE).returncode == REFUSED
    assert not list(machine.root.glob("etc/systemd/system/*/gpuledger*"))
    assert list(machine.root.glob("var/lib/gpuledger/*.db"))


def test_the_unit_alone_runs_as_a_dynamic_user_who_owns_the_books(
    machine: SystemdMachine, built: Path
) -> None:
    shutil.copy(built / "gpuledger-onefile", machine.root / "usr/bin/gpuledger")
    shutil.copy(CHECKOUT / "deploy/systemd" / SERVICE, machine.root / "etc/systemd/system")
    machine.write("etc/default/gpuledger", f"{DRIVER}GPULEDGER_ACCESS_MODE=socket\n")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "enable", "--now", SERVICE)
    wait_own_report(machine)
    (books,) = machine.root.glob("var/lib/private/gpuledger/*.db")
    # systemd.exec(5): the range of dynamic users.
    assert books.stat().st_uid in range(61184, 65520)


def test_the_timer_writes_a_file_for_node_exporter(machine: SystemdMachine) -> None:
    folder = "var/lib/prometheus/node-exporter"
    (machine.root / folder).mkdir(parents=True)
    machine.write("etc/default/gpuledger-collect", f"{DRIVER}GPULEDGER_TEXTFILE_DIR=/{folder}\n")
    install(machine)
    machine.run("systemctl", "enable", "--now", "gpuledger-collect.timer")
    # Does not wait for the next minute.
    machine.run("systemctl", "start", "gpuledger-collect.service")
    (file,) = (machine.root / folder).iterdir()
    assert '\ngpu_process_count{gpu="0"} 1\n' in file.read_text()
