"""Nothing listens but what is configured, whatever mode; and what listens keeps its limits and its names."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from running import Program, free_port, get, gpuledger, serving, wait_until
from sockets import listening, named_sockets

AGENT = "remote_write: [{url: 'http://127.0.0.1:1/write', name: nobody}]\n"
# Nobody is there, so none of several acts: it waits for its turn.
OPERATOR = ("operator", "--kubernetes-api", "http://127.0.0.1:1", "--namespace", "gpu-monitoring")


@contextmanager
def program(*words: str, until: str, env: dict[str, str] | None = None) -> Iterator[Program]:
    started = Program([sys.executable, "-m", "gpuledger", *words], env)
    try:
        started.wait_line(until)
        yield started
    finally:
        started.stop()


def test_serve_listens_where_it_is_told_and_nowhere_else(tmp_path: Path) -> None:
    door, ports = tmp_path / "control.sock", (free_port(), free_port())
    words = ("serve", "--source", "simulator", "--control.socket", str(door))
    addresses = (
        "--listen-address",
        f"127.0.0.1:{ports[0]}",
        "--listen-address",
        f"127.0.0.2:{ports[1]}=native",
    )
    with program(*words, *addresses, until="listening on 127.0.0.2") as serve:
        url = f"http://127.0.0.1:{ports[0]}"
        # Whatever begins to work when it is first asked for.
        for path in ("/", "/metrics", "/api/v1/health", "/api/v1/energy", "/api/v1/sessions"):
            get(url + path, timeout=30)
        assert listening(serve.process.pid) == {f"tcp 127.0.0.1:{ports[0]}", f"tcp 127.0.0.2:{ports[1]}"}
        assert named_sockets(serve.process.pid) == {str(door)}


def test_serve_without_a_word_listens_on_one_port_of_all_interfaces() -> None:
    port = free_port()
    words = ("serve", "--source", "simulator", "--listen-address", f":{port}")
    with program(*words, until="listening on every address") as serve:
        assert {one.rpartition(":")[2] for one in listening(serve.process.pid)} == {str(port)}
        assert len(listening(serve.process.pid)) == 1
        assert named_sockets(serve.process.pid) == set()


def test_collect_listens_nowhere(tmp_path: Path) -> None:
    words = ("collect", "--source", "simulator", "--every", "1s", "--textfile-dir", str(tmp_path))
    with program(*words, until="writing") as collect:
        wait_until(lambda: list(tmp_path.glob("*.prom")), "the file")
        assert listening(collect.process.pid) == set()
        assert named_sockets(collect.process.pid) == set()


def test_the_agent_listens_on_its_own_port_alone(tmp_path: Path) -> None:
    file, port = tmp_path / "agent.yaml", free_port()
    file.write_text(AGENT)
    words = ("agent", "--config", str(file), "--queue-directory", str(tmp_path / "queue"), "--drain", "0s")
    with program(*words, "--listen-address", f"127.0.0.1:{port}", until="listening on") as agent:
        assert listening(agent.process.pid) == {f"tcp 127.0.0.1:{port}"}
        assert named_sockets(agent.process.pid) == set()


def test_the_operator_listens_on_its_own_port_alone() -> None:
    port = free_port()
    with program(*OPERATOR, "--listen-address", f"127.0.0.1:{port}", until="listening on") as operator:
        assert get(f"http://127.0.0.1:{port}/metrics", timeout=30).status_code == 200
        assert listening(operator.process.pid) == {f"tcp 127.0.0.1:{port}"}
        assert named_sockets(operator.process.pid) == set()


def statuses(url: str, *hosts: str) -> list[int]:
    return [get(url, headers={"Host": host}, timeout=30).status_code for host in hosts]


def test_on_a_loopback_address_no_page_of_somebody_elses_reads_it_through_a_browser(tmp_path: Path) -> None:
    with serving("--source", "simulator") as server:
        asked = statuses(server.url, "evil.example", "localhost", f"127.0.0.1:{server.port}")
        assert asked == [421, 200, 200]
    file = tmp_path / "agent.yaml"
    file.write_text(AGENT)
    words = ("agent", "--config", str(file), "--queue-directory", str(tmp_path / "queue"), "--drain", "0s")
    port = free_port()
    for one in (words, OPERATOR):
        with program(*one, "--listen-address", f"127.0.0.1:{port}", until="listening on"):
            asked = statuses(f"http://127.0.0.1:{port}/metrics", "evil.example", "localhost")
            assert asked == [421, 200], one[0]


def test_over_http_nothing_is_changed_and_nothing_is_given_to_other_origins() -> None:
    with serving("--source", "simulator") as server:
        for path in ("/", "/metrics", "/api/v1/snapshot", "/-/healthy"):
            for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
                refused = httpx.request(method, server.url + path, trust_env=False, timeout=30)
                assert refused.status_code == 405
            shown = server.get(path, Origin="https://evil.example")
            assert not [name for name in shown.headers if name.startswith("access-control")]


def test_names_are_set_and_changed_while_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("web: {hosts: [gpu-1.lab]}\nreload.interval: 1s\n")
    with serving("--source", "simulator", "--config", str(file)) as server:
        assert statuses(server.url, "gpu-1.lab", "other.lab") == [200, 421]
        file.write_text("web: {hosts: ['*']}\nreload.interval: 1s\n")
        wait_until(lambda: statuses(server.url, "gpu-1.lab", "other.lab") == [200, 200], "the new names")


def test_limits_are_set_by_flags_and_told_to_be_fixed_when_they_change(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("web: {limits: {headers: 5}}\nreload.interval: 1s\n")
    arguments = (
        "--config",
        str(file),
        "--web.limits.connections",
        "2",
        "--web.limits.connections-per-client",
        "2",
    )
    with serving("--source", "simulator", *arguments) as server:
        with (
            socket.create_connection(("127.0.0.1", server.port)),
            socket.create_connection(("127.0.0.1", server.port)),
        ):
            wait_until(lambda: server.get("/metrics").status_code == 503, "the limit of connections")
            assert server.get("/-/ready").status_code == 200
        wait_until(lambda: server.get("/metrics").status_code == 200, "room again")
        many = {f"x-{number}": "y" for number in range(5)}
        assert server.get("/metrics", **many).status_code == 431
        file.write_text("web: {limits: {headers: 50}}\nreload.interval: 1s\n")
        wait_until(lambda: "web.limits.headers" in server.get("/health").text, "the word that it waits")


def test_the_operator_keeps_the_same_limits_and_names() -> None:
    port = free_port()
    limits = ("--web.limits.connections", "2", "--web.limits.headers", "9", "--web.hosts", "operator.lab")
    with program(*OPERATOR, *limits, "--listen-address", f":{port}", until="listening on"):
        url = f"http://127.0.0.1:{port}"
        assert statuses(f"{url}/metrics", "operator.lab", "other.lab") == [200, 421]
        many = {f"x-{number}": "y" for number in range(9)}
        assert get(f"{url}/metrics", headers=many, timeout=30).status_code == 431
        with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):

            def status(path: str) -> int:
                return get(url + path, timeout=30).status_code

            wait_until(lambda: status("/metrics") == 503, "the limit of connections")
            assert (status("/-/healthy"), status("/-/ready")) == (200, 200)


@pytest.mark.parametrize("command", ["serve", "agent", "operator"])
def test_a_limit_that_cannot_be_is_named(command: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(AGENT)
    words = ("--config", str(file)) if command == "agent" else ()
    done = gpuledger(command, *words, "--web.limits.header-size", "1")
    assert done.returncode == 2
    assert done.stderr.startswith("gpuledger: --web.limits.header-size: a size of at least 1024 bytes")
