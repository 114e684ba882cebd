"""Each mode as an unprivileged user: what works, and how missing permissions are reported."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from running import Program, get, gpuledger, serving_prepared, wait_until
from scripted_target import Answer, scripted
from unprivileged import UID, environment, run_unprivileged, unprivileged_command

# One worker, with one process that commands of that user are forks of.
pytestmark = pytest.mark.group("security")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory outside of pytest's own, which other users cannot read."""
    with TemporaryDirectory(prefix="gpuledger-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory of the unprivileged user."""
    made = tmp_path / "home"
    made.mkdir()
    if os.geteuid() == 0:
        os.chown(made, UID, UID)
    return made


# Those of this machine may run, and refuse that user.
NO_RUNTIMES = ("--docker-socket", "", "--podman-socket", "")


@pytest.fixture
def driver(tmp_path: Path, home: Path) -> dict[str, str]:
    """Environment of a driver that reports this process, which belongs to another user."""
    state = NvmlState(tmp_path / "state", [NvmlGpu(NvmlProcess(os.getpid()))])
    state.write()
    return {
        **environment(home),
        "LD_LIBRARY_PATH": str(build().parent),
        "TEST_NVML_STATE": str(state.path),
        "GPULEDGER_STATE_DIR": str(home / "books"),
        "GPULEDGER_CONTROL_SOCKET": str(home / "control.sock"),
    }


@contextmanager
def running(arguments: tuple[str, ...], env: dict[str, str]) -> Iterator[tuple[Program, str]]:
    program = Program(unprivileged_command(*arguments), env)
    try:
        port = program.wait_line(r"listening on .*port (\d+)")[1]
        yield program, f"http://127.0.0.1:{port}"
    finally:
        assert program.stop() == 0


def page(url: str, path: str) -> str:
    return get(url + path).text


def wait_line(url: str, series: str) -> str:
    """Wait for a line of the native page that begins with `series`, and return it."""

    def found() -> str | None:
        lines = page(url, "/metrics/native").splitlines()
        return next((line for line in lines if line.startswith(series)), None)

    return wait_until(found, series)


def capabilities(program: Program) -> dict[str, int]:
    status = Path(f"/proc/{program.process.pid}/status").read_text()
    return {name: int(value, 16) for name, value in re.findall(r"^(Cap\w+):\s*(\w+)$", status, re.MULTILINE)}


@AS_ROOT
def test_serve_needs_no_privileges_for_processes_owners_and_the_ledger(
    driver: dict[str, str], home: Path
) -> None:
    with running(("serve", "--listen-address", "127.0.0.1:0"), driver) as (program, url):
        assert wait_line(url, "gpuledger_device_up").endswith(" 1")
        row = wait_until(
            lambda: re.search(
                r'^gpu_process_info\{.*pid="(\d+)",command="(\w+).*\} 1$', page(url, "/metrics"), re.MULTILINE
            ),
            "the process",
        )
        assert row[1] == str(os.getpid())
        assert row[2]
        assert 'user="root"' in wait_line(url, "gpuledger_process_info{")
        assert wait_line(url, 'gpuledger_collector_success{collector="store"}').endswith(" 1")
        assert set(capabilities(program).values()) == {0}
        owners = {file.stat().st_uid for file in (home / "books").iterdir()}
        modes = {stat.S_IMODE(file.stat().st_mode) for file in (home / "books").iterdir()}
        assert (owners, modes) == ({UID}, {0o600})
        assert stat.S_IMODE((home / "books").stat().st_mode) == 0o700
        assert stat.S_IMODE((home / "control.sock").stat().st_mode) == 0o600


@AS_ROOT
def test_missing_permissions_of_serve_are_reported_by_health_and_doctor(
    driver: dict[str, str], tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "some.sock").touch()
    arguments = (
        *(
            "--listen-address",
            "127.0.0.1:0",
            "--state-dir",
            str(closed / "books"),
            "--control.socket",
            "none",
        ),
        *("--pod-resources-socket", str(closed / "some.sock"), "--kubernetes-enabled", "true"),
        *("--docker-socket", str(closed / "some.sock")),
    )
    with running(("serve", *arguments), driver) as (program, url):
        wait_until(
            lambda: re.search("DEGRADED: .*store: .*Permission denied", page(url, "/health")), "the ledger"
        )
        wait_until(lambda: "pod_resources: no permission for" in page(url, "/health"), "the kubelet's socket")
        wait_until(lambda: re.search("\ndocker: .*permission denied", page(url, "/health")), "Docker's")
        assert wait_line(url, 'gpuledger_collector_success{collector="store"}').endswith(" 0")
        assert wait_line(url, 'gpuledger_map_success{map="pod_resources"}').endswith(" 0")
        # Everything that needs no permission still works.
        assert wait_line(url, "gpuledger_device_up").endswith(" 1")
    assert not any("books in" in line and "memory" not in line for line in program.lines)
    done = run_unprivileged(driver, "doctor", *arguments, "--format", "json")
    every = json.loads(done.stdout)["findings"]
    findings = {one["check"]: one for one in every}
    refused = {one["what"] for one in every if "permission" in one["why"] and one["remedy"]}
    assert {"pod-resources socket", "Docker containers"} <= refused
    assert findings["books.directory"]["verdict"] == "fails"
    assert f"uid {UID} cannot write" in findings["books.directory"]["why"]
    # The paths of other users' executables are unknown: the remedy names the capability.
    assert findings["host.proc"]["verdict"] == "warning"
    assert "CAP_SYS_PTRACE" in findings["host.proc"]["remedy"]
    assert f"uid {UID}, without" in findings["host.user"]["why"]
    assert all(one["remedy"] for one in findings.values() if one["verdict"] == "fails")


@AS_ROOT
def test_collect_needs_only_a_writable_directory(driver: dict[str, str], home: Path) -> None:
    done = run_unprivileged(driver, "collect", "--textfile-dir", str(home), *NO_RUNTIMES)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (0, 1, "")
    written = home / "gpu_processes.prom"
    assert f"wrote {written}: 1 GPUs" in done.stderr
    assert f'pid="{os.getpid()}"' in written.read_text()
    assert (written.stat().st_uid, stat.S_IMODE(written.stat().st_mode)) == (UID, 0o644)


@AS_ROOT
def test_collect_names_the_directory_and_the_user_without_permission(
    driver: dict[str, str], tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    done = run_unprivileged(driver, "collect", "--textfile-dir", str(closed), *NO_RUNTIMES)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert str(closed) in done.stderr
    assert f"allow user {UID} to write to it" in done.stderr


@AS_ROOT
def test_an_agent_needs_no_privileges_and_its_queue_is_private(home: Path) -> None:
    with serving_prepared("--source", "simulator") as node:
        endpoint = f"127.0.0.1:{node.port}"
        file = home / "agent.yaml"
        file.write_text(
            "features: {openAgent: {globalInterval: 500ms, targets: [{targetName: t, type: StaticEndpoints,"
            f" endpoints: [{{address: '{endpoint}'}}]}}]}}}}\n"
            "remote_write: [{url: 'http://127.0.0.1:1/write', name: nobody}]\n"
        )
        arguments = ("agent", "--config", str(file), "--drain", "0s", "--listen-address", "127.0.0.1:0")
        file.chmod(0o644)
        queue = ("--queue-directory", str(home / "queue"))
        with running((*arguments, *queue), environment(home)) as (program, url):
            wait_until(lambda: 'state="up"} 1' in page(url, "/metrics"), "a scrape")
            wait_until(lambda: any((home / "queue").rglob("*/*")), "the queue")
            assert set(capabilities(program).values()) == {0}
            kept = list((home / "queue").rglob("*"))
            assert {stat.S_IMODE(one.stat().st_mode) for one in kept if one.is_dir()} == {0o700}
            assert {stat.S_IMODE(one.stat().st_mode) for one in kept if one.is_file()} == {0o600}
            assert {one.stat().st_uid for one in kept} == {UID}


@AS_ROOT
def test_an_operator_needs_no_privileges_and_writes_no_file(home: Path) -> None:
    """An account without permissions is refused, which is logged once.

    tests/cluster/test_operator_permissions.py checks the permissions of the chart.
    """
    with scripted(lambda _: Answer("{}", status=403)) as api:
        server = ("--kubernetes-api", f"http://127.0.0.1:{api.port}", "--namespace", "gpu-monitoring")
        arguments = ("operator", *server, "--lease-duration", "1s", "--listen-address", "127.0.0.1:0")
        with running(arguments, environment(home)) as (program, url):
            refused = re.compile(r'api_requests_total\{method="GET",code="403"\} (\d+)$', re.MULTILINE)
            wait_until(
                lambda: (found := refused.search(page(url, "/metrics"))) and int(found[1]) > 1,
                "two refusals",
            )
            assert "\ngpuledger_operator_leading 0\n" in page(url, "/metrics")
            assert page(url, "/-/ready") == "OK\n"
            assert set(capabilities(program).values()) == {0}
            assert list(home.rglob("*")) == []
    assert len([line for line in program.lines if "403 to" in line]) == 1


@AS_ROOT
@pytest.mark.parametrize(
    "command",
    [("pause",), ("resume",)],
)
def test_only_the_user_of_a_node_can_pause_it(command: tuple[str, ...], tmp_path: Path, home: Path) -> None:
    socket = tmp_path / "control.sock"
    env = {"GPULEDGER_CONTROL_SOCKET": str(socket)}
    with serving_prepared("--source", "simulator", env=env) as node:
        node.wait_ticks()
        done = run_unprivileged(environment(home) | env, *command)
        assert done.returncode == 1
        assert "ermission" in done.stderr
        assert not node.get("/health").text.startswith("PAUSED")
        assert gpuledger("pause", "--for", "1h", env=env).returncode == 0


# Commands of an unprivileged user in a shell that still has root's HOME, and what the error names.
COMMANDS = {
    # The machine's default ledger can exist or not.
    "report": "ledger",
    "report --state-dir CLOSED/books": "the ledger in CLOSED/books",
    "explain 1 --state-dir CLOSED/books": "the ledger in CLOSED/books",
    "record CLOSED/file": "CLOSED/file",
    "collect --textfile-dir CLOSED": "CLOSED",
    "agent --config CLOSED/agent.yaml": "CLOSED/agent.yaml",
    "serve --config CLOSED/settings.yaml": "CLOSED/settings.yaml",
    "serve --web.config.file CLOSED/web.yaml": "CLOSED/web.yaml",
    "serve --source replay:CLOSED/recording": "CLOSED/recording",
    "serve --source simulator --state-dir none --listen-address 127.0.0.1:1": "127.0.0.1:1",
}


@AS_ROOT
@pytest.mark.parametrize(("command", "named"), COMMANDS.items(), ids=COMMANDS)
def test_missing_permissions_are_an_error_in_one_line_that_names_the_path(
    command: str, named: str, tmp_path: Path, home: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / ".local" / "state" / "gpuledger").mkdir(parents=True)
    env = {**environment(closed), "GPULEDGER_STATE_DIR": ""}
    words = command.replace("CLOSED", str(closed)).split()
    done = run_unprivileged(env, *words)
    assert done.returncode in (1, 2)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("gpuledger: ")
    assert named.replace("CLOSED", str(closed)) in last
    assert "Traceback" not in done.stderr
