"""Doctor checks of the machine, on directory trees."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuledger.app.diagnosis import run_checks
from gpuledger.host.checks import HostInspection, host_checks, read_clock_state
from gpuledger.host.settings import HostSettings
from gpuledger.model.checks import Finding, Verdict

_FIRST_NAMESPACE = "pid:[4026531836]"


class Clock:
    def __init__(self, unix: float = 1_700_000_000.0, broken: bool = False) -> None:
        self._unix, self._broken = unix, broken

    def unix(self) -> float:
        return self._unix

    def elapsed(self) -> float:
        if self._broken:
            raise OSError(22, "Invalid argument")
        return 5.0


class Machine:
    """A root directory and a procfs with pid 1 and this process (`self`), as on a bare machine."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.proc = folder / "proc"
        self.environment: dict[str, str] = {}
        self.clock = Clock()
        self.adjtimex: int | None = 0
        self.encoding = "utf-8"
        self.pids = "auto"
        self.local = True
        self.write("2/comm", "kthreadd\n")
        self.write("1/stat", "1 (systemd) S 0\n")
        self.write("1/cgroup", "0::/init.scope\n")
        (self.proc / "1/exe").symlink_to("/lib/systemd/systemd")
        self.write("self/stat", "77 (python3) R 1\n")
        self.write("self/cgroup", "0::/user.slice/session-1.scope\n")
        self.write("self/mounts", "proc /proc proc rw,relatime 0 0\n")
        self.write("self/status", "Name:\tpython3\nUid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n")
        self.passwd = folder / "passwd"
        self.passwd.write_text("root:x:0:0::/:/bin/sh\n")

    def write(self, name: str, text: str) -> None:
        path = self.proc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def remove(self, name: str) -> None:
        (self.proc / name).unlink()

    def run(self) -> dict[str, Finding]:
        settings = HostSettings(str(self.proc), self.pids, str(self.passwd))
        checks = host_checks(
            settings,
            self.environment,
            local=self.local,
            root=self.root,
            clock=self.clock,
            synchronized=lambda: self.adjtimex,
            encoding=self.encoding,
        )
        return {finding.check: finding for finding in run_checks(checks)}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def failing(found: Mapping[str, Finding]) -> list[str]:
    return [check for check, finding in found.items() if finding.verdict is Verdict.FAILS]


def test_all_checks_work_on_a_bare_machine(machine: Machine) -> None:
    found = machine.run()
    assert {finding.verdict for finding in found.values()} == {Verdict.WORKS}
    assert found["host.container"].why == "not in a container"
    assert "CAP_SYS_PTRACE" in found["host.user"].why


def test_missing_host_pids_fail_with_a_remedy_and_dependent_checks_are_skipped(machine: Machine) -> None:
    machine.remove("2/comm")
    found = machine.run()
    assert failing(found) == ["host.pids"]
    assert "`hostPID: true`" in found["host.pids"].remedy
    assert "`--pid=host`" in found["host.pids"].remedy
    assert found["host.cgroup_namespace"].why == "because of: host pids"


def test_the_pid_namespace_link_shows_host_pids_if_kernel_threads_are_hidden(machine: Machine) -> None:
    machine.remove("2/comm")
    (machine.proc / "self/ns").mkdir()
    (machine.proc / "self/ns/pid").symlink_to(_FIRST_NAMESPACE)
    assert machine.run()["host.pids"].verdict is Verdict.WORKS


def test_trusted_pids_that_are_not_visible_are_a_warning(machine: Machine) -> None:
    machine.remove("2/comm")
    machine.pids = "trust"
    assert machine.run()["host.pids"].verdict is Verdict.WARNING


def test_a_missing_procfs_is_one_failure(machine: Machine) -> None:
    machine.remove("self/stat")
    found = machine.run()
    assert failing(found) == ["host.proc"]
    assert "--procfs" in found["host.proc"].remedy
    assert {found[check].verdict for check in ("host.pids", "host.cgroup", "host.cgroup_namespace")} == {
        Verdict.SKIPPED
    }


@pytest.mark.parametrize("option", ["hidepid=2", "hidepid=invisible,gid=4"])
def test_hidden_processes_are_reported_with_the_mount_option(machine: Machine, option: str) -> None:
    machine.write("self/mounts", f"sysfs /sys sysfs rw 0 0\nproc /proc proc rw,{option} 0 0\n")
    machine.remove("1/stat")
    found = machine.run()
    assert failing(found) == ["host.proc"]
    assert option.split(",", maxsplit=1)[0] in found["host.proc"].why
    assert "remount,hidepid=0" in found["host.proc"].remedy


def test_a_mount_option_that_hides_nothing_is_not_reported(machine: Machine) -> None:
    machine.write("self/mounts", "proc /proc proc rw,hidepid=0 0 0\n")
    machine.remove("1/cgroup")
    assert "/proc/1 cannot be read" in machine.run()["host.proc"].why


@pytest.mark.parametrize(
    ("capabilities", "verdict"), [("0000000000000000", Verdict.WARNING), ("0000000000080000", Verdict.WORKS)]
)
def test_executables_of_other_users_need_a_capability(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capabilities: str, verdict: Verdict
) -> None:
    monkeypatch.setattr(HostInspection, "follows", lambda self, name: False)
    machine.write("self/status", f"Uid:\t1000\t1000\t1000\t1000\nCapEff:\t{capabilities}\n")
    found = machine.run()
    assert found["host.proc"].verdict is verdict
    assert found["host.user"].why.startswith("uid 1000, with")


def test_a_dangling_link_is_not_a_missing_permission(machine: Machine) -> None:
    assert HostInspection(machine.proc, machine.root, {}).follows("1/none")


@pytest.mark.parametrize(
    ("text", "verdict", "version"),
    [
        ("0::/user.slice\n", Verdict.WORKS, "v2"),
        ("12:devices:/user.slice\n1:name=systemd:/\n", Verdict.WORKS, "v1"),
        ("9:name=systemd:/\n0::/\n", Verdict.WORKS, "hybrid (v1 with v2)"),
        ("", Verdict.UNKNOWN, "empty"),
    ],
)
def test_cgroup_versions_are_distinguished(
    machine: Machine, text: str, verdict: Verdict, version: str
) -> None:
    machine.write("self/cgroup", text)
    finding = machine.run()["host.cgroup"]
    assert finding.verdict is verdict
    assert version in finding.why


@pytest.mark.parametrize("text", ["0::/../../init.scope\n", "1:name=systemd:/../..\n0::/\n"])
def test_a_cgroup_namespace_is_a_warning_with_a_remedy(machine: Machine, text: str) -> None:
    machine.write("1/cgroup", text)
    finding = machine.run()["host.cgroup_namespace"]
    assert finding.verdict is Verdict.WARNING
    assert "--cgroupns=host" in finding.remedy


@pytest.mark.parametrize(
    ("environment", "files", "cgroup", "expected"),
    [
        (
            {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
            ["run/.containerenv"],
            "",
            "Kubernetes, by KUBERNETES_SERVICE_HOST",
        ),
        ({}, [".dockerenv"], "", "Docker, by /.dockerenv"),
        ({}, ["run/.containerenv"], "", "Podman, by /run/.containerenv"),
        ({"container": "lxc"}, [], "", "lxc, by the variable container"),
        ({}, [], "0::/kubepods.slice/kubepods-pod1.slice\n", "Kubernetes, by /proc/self/cgroup"),
        ({}, [], "1:cpu:/docker/0123\n", "Docker, by /proc/self/cgroup"),
        ({}, [], "0::/system.slice/dockerd-watch.service\n", ""),
    ],
)
def test_a_container_is_recognized(
    machine: Machine, environment: dict[str, str], files: list[str], cgroup: str, expected: str
) -> None:
    for name in files:
        path = machine.root / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    machine.write("self/cgroup", cgroup)
    assert HostInspection(machine.proc, machine.root, environment).container() == expected


@pytest.mark.parametrize(
    ("clock", "verdict", "words"),
    [
        (Clock(), Verdict.WORKS, "plausible"),
        (Clock(0.0), Verdict.FAILS, "1970"),
        (Clock(1_577_836_799.0), Verdict.FAILS, "2019"),
        (Clock(1_577_836_800.0), Verdict.WORKS, "plausible"),
        (Clock(broken=True), Verdict.FAILS, "Invalid argument"),
    ],
)
def test_the_clock_must_work_and_be_plausible(
    machine: Machine, clock: Clock, verdict: Verdict, words: str
) -> None:
    machine.clock = clock
    finding = machine.run()["host.clock"]
    assert finding.verdict is verdict
    assert words in finding.why


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        (0, Verdict.WORKS),
        (2, Verdict.WORKS),
        (5, Verdict.WARNING),
        (-1, Verdict.UNKNOWN),
        (None, Verdict.UNKNOWN),
    ],
)
def test_clock_synchronization_follows_the_state_of_the_kernel(
    machine: Machine, state: int | None, verdict: Verdict
) -> None:
    machine.adjtimex = state
    assert machine.run()["host.clock_synchronized"].verdict is verdict


def test_the_clock_state_of_this_kernel_is_readable() -> None:
    assert read_clock_state() in (None, -1, 0, 1, 2, 3, 4, 5)


def test_an_unreadable_passwd_file_is_a_warning(machine: Machine) -> None:
    machine.passwd.unlink()
    finding = machine.run()["host.users"]
    assert finding.verdict is Verdict.WARNING
    assert "--passwd-file" in finding.remedy


@pytest.mark.parametrize(
    ("encoding", "verdict"), [("utf-8", Verdict.WORKS), ("UTF8", Verdict.WORKS), ("ascii", Verdict.WARNING)]
)
def test_the_locale_check_uses_the_encoding_of_the_output(
    machine: Machine, encoding: str, verdict: Verdict
) -> None:
    machine.encoding = encoding
    assert machine.run()["host.locale"].verdict is verdict


def test_pids_of_another_machine_are_not_checked(machine: Machine) -> None:
    machine.local = False
    machine.remove("self/stat")
    assert not {"host.pids", "host.proc", "host.cgroup"} & set(machine.run())
