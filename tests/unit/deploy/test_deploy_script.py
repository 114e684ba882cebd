"""deploy/deploy.sh: the helm and kubectl commands that it runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from chart import CHART, ROOT

LINK = ROOT / "deploy_astrago.sh"
CONTEXT = ["--namespace", "gpu-operator", "--reuse-values"]
EXPORTER = [
    "upgrade",
    "gpuledger",
    str(CHART),
    "--install",
    "--namespace",
    "gpu-monitoring",
    "--reuse-values",
]
COLLECTOR = ["upgrade", "gpu-collector", str(CHART), "--install", *CONTEXT, "--set"]

# Fake helm and kubectl: logs its arguments, and reports the releases with a values file in a folder.
STAND_IN = """\
#!/bin/bash
printf '%s\\n' "$(basename "$0") $*" >> "$CALLS"
case "$1 $2" in
  "get values") [ -f "$RELEASES/$3" ] && cat "$RELEASES/$3" ;;
  "get namespace") [ -z "$NEW" ] ;;
esac
"""


class Machine:
    """Runs the script with fake helm and kubectl in PATH."""

    def __init__(self, folder: Path) -> None:
        self._bin = folder / "bin"
        self._bin.mkdir()
        self._calls = folder / "calls"
        self._releases = folder / "releases"
        self._releases.mkdir()
        self._folder = folder

    def has(self, *programs: str) -> Machine:
        for name in programs:
            (self._bin / name).write_text(STAND_IN)
            (self._bin / name).chmod(0o755)
        return self

    def installed(self, release: str, values: str = "{}\n") -> Machine:
        (self._releases / release).write_text(values)
        return self

    def run(self, *words: str, script: Path = LINK, **env: str) -> subprocess.CompletedProcess[str]:
        variables = {
            "PATH": f"{self._bin}:/usr/bin:/bin",
            "CALLS": str(self._calls),
            "RELEASES": str(self._releases),
            "NEW": "",
            **env,
        }
        return subprocess.run(
            ["/bin/bash", script, *words],
            capture_output=True,
            text=True,
            env=variables,
            cwd=self._folder,
            check=False,
        )

    def changes(self) -> list[list[str]]:
        """Commands that change something: without `get`."""
        calls = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [call.split() for call in calls if " get " not in call]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path).has("helm", "kubectl")


def test_the_documented_name_is_a_link_to_the_script() -> None:
    assert LINK.readlink() == Path("deploy/deploy.sh")
    assert os.access(LINK, os.X_OK)


@pytest.mark.parametrize(
    ("words", "done"),
    [
        (["sync"], [EXPORTER, [*COLLECTOR, "gpu-process-exporter.enabled=true"]]),
        (["sync", "exporter"], [EXPORTER]),
        (["sync", "gpu-process-exporter"], [[*COLLECTOR, "gpu-process-exporter.enabled=true"]]),
        (["sync", "gpu-session-monitoring"], [[*COLLECTOR, "gpu-session-monitoring.enabled=true"]]),
        (["sync", "exporter", "--", "--set", "port=1"], [[*EXPORTER, "--set", "port=1"]]),
        (
            ["sync", "--", "--wait"],
            [[*EXPORTER, "--wait"], [*COLLECTOR, "gpu-process-exporter.enabled=true", "--wait"]],
        ),
    ],
)
def test_sync_installs_or_upgrades(words: list[str], done: list[list[str]], machine: Machine) -> None:
    assert machine.run(*words).returncode == 0
    assert machine.changes() == [["helm", *call] for call in done]


def test_a_new_namespace_admits_host_pids_and_an_existing_one_is_unchanged(machine: Machine) -> None:
    machine.run("sync", "exporter", NEW="yes")
    assert machine.changes()[:2] == [
        ["kubectl", "create", "namespace", "gpu-monitoring"],
        ["kubectl", "label", "namespace", "gpu-monitoring", "pod-security.kubernetes.io/enforce=privileged"],
    ]


def test_namespaces_are_configurable(machine: Machine) -> None:
    machine.run("sync", EXPORTER_NAMESPACE="a", COLLECTOR_NAMESPACE="b")
    assert [call[call.index("--namespace") + 1] for call in machine.changes()] == ["a", "b"]


BOTH = "gpu-process-exporter:\n  enabled: true\ngpu-session-monitoring:\n  enabled: true\n"
PROCESS = "gpu-process-exporter:\n  enabled: true\n"
OFF = "gpu-process-exporter:\n  enabled: true\ngpu-session-monitoring:\n  enabled: false\n"


@pytest.mark.parametrize(
    ("values", "component", "done"),
    [
        (PROCESS, "gpu-process-exporter", [["uninstall", "gpu-collector", "--namespace", "gpu-operator"]]),
        (OFF, "gpu-process-exporter", [["uninstall", "gpu-collector", "--namespace", "gpu-operator"]]),
        (
            BOTH,
            "gpu-process-exporter",
            [
                [
                    "upgrade",
                    "gpu-collector",
                    str(CHART),
                    *CONTEXT,
                    "--set",
                    "gpu-process-exporter.enabled=false",
                ]
            ],
        ),
        (
            BOTH,
            "gpu-session-monitoring",
            [
                [
                    "upgrade",
                    "gpu-collector",
                    str(CHART),
                    *CONTEXT,
                    "--set",
                    "gpu-session-monitoring.enabled=false",
                ]
            ],
        ),
        (PROCESS, "gpu-session-monitoring", []),
        (None, "gpu-process-exporter", []),
    ],
    ids=[
        "only this",
        "other disabled",
        "first of both",
        "second of both",
        "only the other",
        "none installed",
    ],
)
def test_destroy_removes_one_collector_and_keeps_the_other(
    values: str | None, component: str, done: list[list[str]], machine: Machine
) -> None:
    if values is not None:
        machine.installed("gpu-collector", values)
    got = machine.run("destroy", component)
    assert got.returncode == 0
    assert machine.changes() == [["helm", *call] for call in done]
    assert done or f"{component} is not installed" in got.stdout


def test_destroy_uninstalls_everything_and_reports_the_remaining_ledger(machine: Machine) -> None:
    machine.installed("gpu-collector", PROCESS).installed("gpuledger")
    got = machine.run("destroy")
    assert machine.changes() == [
        ["helm", "uninstall", "gpu-collector", "--namespace", "gpu-operator"],
        ["helm", "uninstall", "gpuledger", "--namespace", "gpu-monitoring"],
    ]
    assert "rm -rf /host/var/lib/gpuledger" in got.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "missing command: expected sync or destroy"),
        (["snyc"], "unknown command 'snyc'"),
        (["sync", "gpu-proces-exporter"], "unknown component 'gpu-proces-exporter'"),
        (["sync", "exporter", "--set", "a=b"], "put flags for helm after --"),
        (["destroy", "exporter", "--", "--wait"], "destroy takes no flags"),
    ],
)
def test_invalid_arguments_cause_one_error_line_and_no_changes(
    words: list[str], message: str, machine: Machine
) -> None:
    got = machine.run(*words)
    assert (got.returncode, machine.changes()) == (2, [])
    (line,) = got.stderr.splitlines()
    assert line.startswith("deploy_astrago.sh: ")
    assert message in line


@pytest.mark.parametrize(("there", "missing"), [(["kubectl"], "helm"), (["helm"], "kubectl")])
def test_a_missing_program_is_named_with_its_download_page(
    there: list[str], missing: str, tmp_path: Path
) -> None:
    # This machine may have a real kubectl.
    got = Machine(tmp_path).has(*there).run("sync", **{missing.upper(): f"no-such-{missing}"})
    assert got.returncode == 1
    (line,) = got.stderr.splitlines()
    assert f"no-such-{missing} is not installed, or not in PATH; install it from https://" in line


@pytest.mark.parametrize("words", [("destroy", "--help"), ("sync", "exporter", "-h")])
def test_help_after_a_command_prints_help_and_changes_nothing(
    machine: Machine, words: tuple[str, ...]
) -> None:
    got = machine.has("helm", "kubectl").run(*words)
    assert (got.returncode, got.stdout.startswith("usage:")) == (0, True)
    assert machine.changes() == []


def test_help_lists_commands_and_components(machine: Machine) -> None:
    got = machine.run("--help", script=ROOT / "deploy/deploy.sh")
    assert got.returncode == 0
    for word in (
        "deploy.sh sync",
        "destroy",
        "gpu-process-exporter",
        "gpu-session-monitoring",
        "gpu-operator",
    ):
        assert word in got.stdout


def test_a_failed_helm_upgrade_stops_the_script(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "bin/helm").write_text("#!/bin/bash\necho broken >&2; exit 3\n")
    got = machine.run("sync")
    assert (got.returncode, got.stderr) == (3, "broken\n")
