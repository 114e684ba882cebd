"""Users of one machine read their own rows, by the kernel and by real passwords: each runs as that user."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from tempfile import TemporaryDirectory
from typing import Any

import bcrypt
import httpx
import pytest
from playwright.sync_api import Browser, expect

from browser import open_tab
from nvml.library import NvmlGpu, NvmlProcess, NvmlState, build
from prepared import MODULE, run_prepared
from running import PATIENCE, Server, gpuledger, serving, serving_prepared, wait_until
from unprivileged import environment, python_for_all

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become other users"),
    # One worker: each would start the machines of this module.
    pytest.mark.group("access"),
]

DAN, ANN, EVE, ADMIN = 64_001, 64_002, 64_003, 64_004
# A group of administrators.
GROUP = 64_100
PASSWD = f"""\
root:x:0:0::/:/bin/sh
dan:x:{DAN}:100::/:/bin/sh
annsecret:x:{ANN}:100::/:/bin/sh
"""


@dataclass
class Machine:
    """A node with a GPU on which dan and ann have a process each."""

    folder: Path
    pids: dict[int, int]
    server: Server

    @property
    def socket(self) -> Path:
        return self.folder / "run/control.sock"

    def run(self, uid: int, *arguments: str, groups: tuple[int, ...] = ()) -> CompletedProcess[str]:
        """Run a command as this user, who knows the path of the socket."""
        command = [python_for_all(), *MODULE[1:], *arguments, "--control.socket", str(self.socket)]
        env = {"PATH": os.environ["PATH"], **environment(self.folder / "home")}
        return run_prepared(command, env, PATIENCE, (uid, (100, *groups)))

    def rows(self, uid: int, **options: Any) -> dict[str, Any]:
        done = self.run(uid, "report", "--by", "user", "--format", "json", **options)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@contextmanager
def machine(folder: Path, *arguments: str) -> Iterator[Machine]:
    """`arguments` are of `gpuledger serve`."""
    for name, mode in (("run", 0o755), ("books", 0o700), ("home", 0o755)):
        (folder / name).mkdir()
        (folder / name).chmod(mode)
    (folder / "passwd").write_text(PASSWD)
    workers = {
        uid: subprocess.Popen(["sleep", "100000"], user=uid, group=100, extra_groups=[], cwd="/")
        for uid in (DAN, ANN)
    }
    try:
        pids = {uid: one.pid for uid, one in workers.items()}
        state = NvmlState(folder / "state", [NvmlGpu(*(NvmlProcess(pid) for pid in pids.values()))])
        state.write()
        given = [
            *("--state-dir", str(folder / "books"), "--control.socket", str(folder / "run/control.sock")),
            *("--passwd-file", str(folder / "passwd"), "--interval", "0.2s", *arguments),
            *("--price.gpu-hour", "2", "--price.kwh", "0.3", "--price.currency", "EUR"),
        ]
        variables = {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(state.path)}
        with serving_prepared(*given, env=variables) as server:
            made = Machine(folder, pids, server)

            def is_booked() -> bool:
                done = gpuledger("report", "--by", "user", "--json", "--state-dir", str(folder / "books"))
                return done.returncode == 0 and len(json.loads(done.stdout)["rows"]) == 2

            wait_until(is_booked, "rows of both users")
            yield made
    finally:
        for one in workers.values():
            one.kill()
            one.wait()


@pytest.fixture(scope="module")
def shared() -> Iterator[Machine]:
    # Not below pytest's directory, which other users cannot search.
    with TemporaryDirectory(prefix="gpuledger-access-") as made:
        Path(made).chmod(0o755)
        with machine(Path(made), "--access", "socket", "--access.admins", f"@{GROUP}") as found:
            yield found


@pytest.mark.parametrize(("uid", "name"), [(DAN, "dan"), (ANN, "annsecret")])
def test_each_user_reads_own_rows_over_the_socket(shared: Machine, uid: int, name: str) -> None:
    found = shared.rows(uid)
    assert [row["user"] for row in found["rows"]] == [name]
    assert found["own"] == found["not_billed"] == []
    assert found["total"]["gpu_microseconds"] == found["rows"][0]["gpu_microseconds"] > 0


def test_a_user_without_rows_reads_nothing(shared: Machine) -> None:
    assert shared.rows(EVE)["rows"] == []


def test_an_administrator_by_group_and_root_read_everything(shared: Machine) -> None:
    for uid, groups in ((ADMIN, (GROUP,)), (ADMIN, (7, GROUP)), (0, ())):
        assert len(shared.rows(uid, groups=groups)["rows"]) == 2
    assert shared.rows(ADMIN)["rows"] == []


def test_stderr_names_the_user_and_the_source_of_the_rows(shared: Machine) -> None:
    done = shared.run(DAN, "report")
    assert "rows that dan may read, from gpuledger serve" in done.stderr
    assert "annsecret" not in done.stdout + done.stderr


@pytest.mark.parametrize("form", ["table", "csv", "json", "focus"])
def test_every_format_is_written(shared: Machine, form: str) -> None:
    done = shared.run(DAN, "report", "--by", "user", "--format", form)
    assert done.returncode == 0, done.stderr
    assert "dan" in done.stdout
    assert "annsecret" not in done.stdout


def test_what_is_not_yours_is_as_if_absent(shared: Machine) -> None:
    for command in ("explain", "receipt"):
        said, other = (shared.run(DAN, command, one) for one in ("user:annsecret", "user:annsecres"))
        assert said.returncode == other.returncode == 1
        assert said.stderr.replace("user:annsecret", "X") == other.stderr.replace("user:annsecres", "X")
        assert said.stdout == other.stdout == ""
        assert "'idle' is not in" in shared.run(DAN, command, "idle").stderr
        done = shared.run(DAN, command, "user:dan")
        assert done.returncode == 0, done.stderr
        assert "annsecret" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["explain", "receipt"])
def test_answers_for_what_is_not_yours_are_those_for_what_is_absent(shared: Machine, command: str) -> None:
    for mine, absent in (
        ("user:annsecret", "user:annsecres"),
        (f"pid:{shared.pids[ANN]}", "pid:3999999"),
        (str(shared.pids[ANN]), "3999999"),
        ("owner:user//annsecret", "owner:user//annsecres"),
    ):
        said, other = (
            json.dumps(raw(shared, DAN, json.dumps({"do": command, "parameters": {"of": one}})))
            for one in (mine, absent)
        )
        assert "is not in" in said
        assert said.replace(mine, "X") == other.replace(absent, "X")


def test_a_receipt_of_ones_own(shared: Machine) -> None:
    done = shared.run(DAN, "receipt", "--mine", "--format", "json")
    assert done.returncode == 0, done.stderr
    receipt = json.loads(done.stdout)
    assert {one["pid"] for one in receipt["processes"]} == {shared.pids[DAN]}
    assert "annsecret" not in done.stdout


def test_top_shows_own_processes(shared: Machine) -> None:
    done = shared.run(DAN, "top", "--json", "--url", f"unix:{shared.socket}")
    assert done.returncode == 0, done.stderr
    assert [row["pid"] for row in json.loads(done.stdout)["processes"]] == [shared.pids[DAN]]
    # Without a driver for this user, whom the running gpuledger answers.
    done = shared.run(DAN, "top", "--json")
    assert done.returncode == 0, done.stderr
    assert [row["pid"] for row in json.loads(done.stdout)["processes"]] == [shared.pids[DAN]]
    done = shared.run(DAN, "top", "--once", "--url", "unix:")
    assert done.returncode == 0, done.stderr
    assert "annsecret" not in done.stdout


def test_only_root_pauses(shared: Machine) -> None:
    for uid, groups in ((DAN, ()), (ADMIN, (GROUP,))):
        for command in ("pause", "resume"):
            done = shared.run(uid, command, groups=groups)
            assert done.returncode == 1
            assert "only root and the user of gpuledger serve" in done.stderr


def test_settings_of_the_node_cannot_be_replaced(shared: Machine) -> None:
    done = shared.run(DAN, "report", "--price.kwh", "0.01")
    assert done.returncode == 2
    assert "--price.kwh: the running gpuledger reports by its own settings" in done.stderr


def test_the_ledger_and_its_directory_remain_closed(shared: Machine) -> None:
    assert (shared.folder / "books").stat().st_mode & 0o777 == 0o700
    assert shared.socket.stat().st_mode & 0o777 == 0o666
    done = shared.run(DAN, "report", "--state-dir", str(shared.folder / "books"))
    # With a named socket, the rows come from the program that has this ledger.
    assert done.returncode == 0
    assert "annsecret" not in done.stdout


def raw(machine: Machine, uid: int, sent: str) -> Any:
    """What the socket answers to a line of this user."""
    script = (
        "import socket,sys;s=socket.socket(socket.AF_UNIX);s.connect(sys.argv[1]);"
        "s.sendall(sys.argv[2].encode()+b'\\n');s.shutdown(1);\n"
        "while d:=s.recv(65536): sys.stdout.buffer.write(d)"
    )
    done = subprocess.run(
        [python_for_all(), "-c", script, str(machine.socket), sent],
        user=uid,
        group=100,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "request_",
    [
        {"do": "report", "parameters": {"by": "user"}, "uid": 0, "user": "root", "peer": [0, 0, 1]},
        {"do": "report", "parameters": {"by": "user", "reader": "root"}},
        {"do": "report", "parameters": {"state_dir": "/"}},
        {"do": "report", "parameters": {"format": "html"}},
        {"do": "explain", "parameters": {"of": "user:*"}},
        {"do": "explain", "parameters": {"of": "*secret*"}},
        {"do": "explain", "parameters": {"of": ""}},
        {"do": "receipt", "parameters": {"of": "user:annsecret"}},
        {"do": "receipt", "parameters": {"mine": "annsecret"}},
        {"do": "snapshot", "parameters": {"user": "annsecret"}},
        {"do": "idle", "parameters": {"for": "1s"}},
        {"do": "idle", "parameters": {"digest": "user"}},
        {"do": "report", "parameters": "by=user"},
        {"do": "report", "parameters": {"by": {"user": 1}}},
        {"do": "report"},
        {"do": "explain"},
        {"do": "receipt"},
        {"do": "sessions"},
    ],
    ids=str,
)
def test_no_request_by_hand_gets_more(shared: Machine, request_: Mapping[str, object]) -> None:
    answer = json.dumps(raw(shared, DAN, json.dumps(request_)))
    assert "annsecret" not in answer.replace('"user:annsecret"', "").replace("'user:annsecret'", "")
    assert not re.search(rf"\b{shared.pids[ANN]}\b", answer)


def test_a_server_in_a_user_namespace_does_not_know_the_users_outside() -> None:
    """Then the kernel shows 65534 for all of them, so that they cannot be distinguished."""
    inside = ("unshare", "--user", "--map-root-user")
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("user namespaces are not permitted here")
    with TemporaryDirectory(prefix="gpuledger-access-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        path = folder / "control.sock"
        with serving(
            *("--source", "simulator", "--control.socket", str(path), "--access", "socket"),
            *("--state-dir", str(folder / "books")),
            inside=inside,
        ) as server:
            server.wait_ticks(2)
            node = Machine(folder, {}, server)
            (folder / "run").symlink_to(folder)
            done = node.run(DAN, "report", "--url", f"unix:{path}")
        assert done.returncode == 1
        assert "the kernel does not say which user you are (uid 65534)" in done.stderr


def hashed(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


@pytest.fixture(scope="module")
def own() -> Iterator[Machine]:
    with TemporaryDirectory(prefix="gpuledger-access-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        users = {name: hashed(f"pw-{name}") for name in ("dan", "annsecret", "eve", "scraper", "root")}
        lines = [f"  {name}: {text}" for name, text in users.items()]
        (folder / "web.yml").write_text("\n".join(["basic_auth_users:", *lines]))
        for name in users:
            (folder / f"{name}.password").write_text(f"pw-{name}\n")
            (folder / f"{name}.password").chmod(0o644)
        with machine(
            folder,
            *("--access", "own", "--access.users", "dan,annsecret,eve=dan", "--access.admins", "scraper"),
            *("--web.config.file", str(folder / "web.yml")),
        ) as found:
            yield found


def answer(machine: Machine, user: str, path: str, **options: Any) -> httpx.Response:
    auth = (user, f"pw-{user}") if user else None
    return httpx.get(
        machine.server.url + path, auth=auth, trust_env=False, verify=False, timeout=PATIENCE, **options
    )


@pytest.mark.parametrize(
    ("user", "path", "status"),
    [
        ("", "/metrics", 401),
        ("", "/", 401),
        ("", "/api/v1/snapshot", 401),
        ("", "/-/healthy", 200),
        # A password of the web config that no setting lists.
        ("root", "/metrics", 403),
        ("root", "/api/v1/snapshot", 403),
        ("dan", "/metrics", 403),
        ("dan", "/metrics/native", 403),
        ("dan", "/plain", 403),
        ("dan", "/api/v1/recent", 403),
        ("dan", "/", 200),
        ("dan", "/api/v1/snapshot", 200),
        ("scraper", "/metrics/native", 200),
        ("scraper", "/plain", 200),
    ],
)
def test_over_http_a_listed_name_is_needed(own: Machine, user: str, path: str, status: int) -> None:
    assert answer(own, user, path).status_code == status


@pytest.mark.parametrize(
    "path", ["snapshot", "sessions?limit=1000", "energy?by=user&since=1h", "report?by=user"]
)
def test_users_read_own_rows_over_http(own: Machine, path: str) -> None:
    dan, ann, scraper, eve = (
        answer(own, user, f"/api/v1/{path}").text for user in ("dan", "annsecret", "scraper", "eve")
    )
    assert "dan" in dan
    assert "annsecret" not in dan
    assert not re.search(rf"\b{own.pids[ANN]}\b", dan)
    assert '"dan"' not in ann
    assert "annsecret" in scraper
    # Another name for dan.
    assert "annsecret" not in eve


def test_the_page_shows_a_user_own_processes_and_rows(own: Machine, browser: Browser) -> None:
    login = {"username": "dan", "password": "pw-dan"}
    with open_tab(browser, own.server.url, http_credentials=login) as tab:
        # The last hour of whole GPUs and the health of the node are refused, which the browser logs.
        tab.node_may_stop = True
        tab.open()
        expect(tab.rows()).to_have_count(1)
        expect(tab.section("sessions")).to_contain_text("1 session")
        expect(tab.section("energy")).to_contain_text("These rows are yours, and add up to the total")
        text = tab("html").inner_html()
    assert str(own.pids[DAN]) in text
    assert "annsecret" not in text
    assert not re.search(rf"\b{own.pids[ANN]}\b", text)


def test_commands_read_another_node_with_a_password(own: Machine) -> None:
    login = ("--user", "dan", "--password-file", str(own.folder / "dan.password"))
    for command in (
        *(("report", "--by", "user"), ("explain", "user:dan"), ("receipt", "user:dan")),
        *(("idle",), ("idle", "--for", "0s", "--json")),
    ):
        done = own.run(EVE, *command, "--url", own.server.url, *login)
        assert done.returncode == 0, done.stderr
        assert "dan" in done.stdout
        assert "annsecret" not in done.stdout + done.stderr
    said, other = (
        own.run(EVE, "explain", one, "--url", own.server.url, *login)
        for one in ("user:annsecret", "user:annsecres")
    )
    assert said.stderr.replace("user:annsecret", "X") == other.stderr.replace("user:annsecres", "X")
    refused = own.run(EVE, "report", "--url", own.server.url)
    assert (refused.returncode, "requires a login (401)" in refused.stderr) == (1, True)


def test_a_user_of_the_machine_needs_no_password_over_the_socket(own: Machine) -> None:
    assert [row["user"] for row in own.rows(DAN)["rows"]] == ["dan"]


def test_by_default_users_cannot_connect() -> None:
    with TemporaryDirectory(prefix="gpuledger-access-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        with machine(folder) as closed:
            assert closed.socket.stat().st_mode & 0o777 == 0o600
            done = closed.run(DAN, "report")
            assert done.returncode == 1
            assert "no permission to connect" in done.stderr or "no ledger" in done.stderr
            assert "annsecret" not in done.stdout + done.stderr
