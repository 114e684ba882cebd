"""Each mode listens only on configured addresses, and its server enforces limits and host names."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from prepared import MODULE
from running import PATIENCE, Program, free_port, get, gpuledger, serving_prepared, wait_until
from sockets import listening, named_sockets

AGENT = "remote_write: [{url: 'http://127.0.0.1:1/write', name: nobody}]\n"
# There is no API server, so this operator does not become the leader.
OPERATOR = ("operator", "--kubernetes-api", "http://127.0.0.1:1", "--namespace", "gpu-monitoring")


@contextmanager
def program(*words: str, until: str, prepared: bool = False) -> Iterator[Program]:
    started = Program([*MODULE, *words], prepared=prepared)
    try:
        started.wait_line(until)
        yield started
    finally:
        started.stop()


def test_serve_listens_only_on_configured_addresses(tmp_path: Path) -> None:
    control_socket, ports = tmp_path / "control.sock", (free_port(), free_port())
    words = ("serve", "--source", "simulator", "--control.socket", str(control_socket))
    addresses = (
        "--listen-address",
        f"127.0.0.1:{ports[0]}",
        "--listen-address",
        f"127.0.0.2:{ports[1]}=native",
    )
    with program(*words, *addresses, until="listening on 127.0.0.2") as serve:
        url = f"http://127.0.0.1:{ports[0]}"
        # Start everything that starts with its first request.
        for path in ("/", "/metrics", "/api/v1/health", "/api/v1/energy", "/api/v1/sessions"):
            get(url + path)
        assert listening(serve.process.pid) == {f"tcp 127.0.0.1:{ports[0]}", f"tcp 127.0.0.2:{ports[1]}"}
        assert named_sockets(serve.process.pid) == {str(control_socket)}


def test_serve_listens_by_default_on_one_port_of_all_interfaces() -> None:
    port = free_port()
    words = ("serve", "--source", "simulator", "--listen-address", f":{port}")
    with program(*words, until="listening on all addresses") as serve:
        assert {one.rpartition(":")[2] for one in listening(serve.process.pid)} == {str(port)}
        assert len(listening(serve.process.pid)) == 1
        assert named_sockets(serve.process.pid) == set()


def test_collect_does_not_listen(tmp_path: Path) -> None:
    words = ("collect", "--source", "simulator", "--every", "1s", "--textfile-dir", str(tmp_path))
    with program(*words, until="writing") as collect:
        wait_until(lambda: list(tmp_path.glob("*.prom")), "the file")
        assert listening(collect.process.pid) == set()
        assert named_sockets(collect.process.pid) == set()


def test_the_agent_listens_only_on_its_configured_port(tmp_path: Path) -> None:
    file, port = tmp_path / "agent.yaml", free_port()
    file.write_text(AGENT)
    words = ("agent", "--config", str(file), "--queue-directory", str(tmp_path / "queue"), "--drain", "0s")
    with program(*words, "--listen-address", f"127.0.0.1:{port}", until="listening on") as agent:
        assert listening(agent.process.pid) == {f"tcp 127.0.0.1:{port}"}
        assert named_sockets(agent.process.pid) == set()


def test_the_operator_listens_only_on_its_configured_port() -> None:
    port = free_port()
    with program(*OPERATOR, "--listen-address", f"127.0.0.1:{port}", until="listening on") as operator:
        assert get(f"http://127.0.0.1:{port}/metrics").status_code == 200
        assert listening(operator.process.pid) == {f"tcp 127.0.0.1:{port}"}
        assert named_sockets(operator.process.pid) == set()


def statuses(url: str, *hosts: str) -> list[int]:
    return [get(url, headers={"Host": host}).status_code for host in hosts]


def test_a_loopback_server_rejects_the_host_names_of_other_sites(tmp_path: Path) -> None:
    """This prevents DNS rebinding, by which a web page could read the server through a browser."""
    with serving_prepared("--source", "simulator") as server:
        found = statuses(server.url, "evil.example", "localhost", f"127.0.0.1:{server.port}")
        assert found == [421, 200, 200]
    file = tmp_path / "agent.yaml"
    file.write_text(AGENT)
    words = ("agent", "--config", str(file), "--queue-directory", str(tmp_path / "queue"), "--drain", "0s")
    port = free_port()
    for one in (words, OPERATOR):
        with program(*one, "--listen-address", f"127.0.0.1:{port}", until="listening on", prepared=True):
            found = statuses(f"http://127.0.0.1:{port}/metrics", "evil.example", "localhost")
            assert found == [421, 200], one[0]


def test_http_changes_nothing_and_sends_no_cors_headers() -> None:
    with serving_prepared("--source", "simulator") as server:
        for path in ("/", "/metrics", "/api/v1/snapshot", "/-/healthy"):
            for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
                refused = httpx.request(method, server.url + path, trust_env=False, timeout=PATIENCE)
                assert refused.status_code == 405
            shown = server.get(path, Origin="https://evil.example")
            assert not [name for name in shown.headers if name.startswith("access-control")]


def test_host_names_can_be_changed_by_a_reload(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("web: {hosts: [gpu-1.lab]}\nreload.interval: 1s\n")
    with serving_prepared("--source", "simulator", "--config", str(file)) as server:
        assert statuses(server.url, "gpu-1.lab", "other.lab") == [200, 421]
        file.write_text("web: {hosts: ['*']}\nreload.interval: 1s\n")
        wait_until(lambda: statuses(server.url, "gpu-1.lab", "other.lab") == [200, 200], "the new host names")


def test_limits_are_set_by_flags_and_a_changed_limit_needs_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("web: {limits: {headers: 5}}\nreload.interval: 1s\n")
    # Removed settings are accepted, and logged.
    removed = ("--web.limits.connections-per-client", "2", "--web.limits.requests-per-client=9")
    arguments = ("--config", str(file), "--web.limits.connections", "2", *removed)
    with serving_prepared("--source", "simulator", *arguments) as server:
        line = server.wait_line("no effect: ").string
        assert "--web.limits.connections-per-client, --web.limits.requests-per-client" in line
        with (
            socket.create_connection(("127.0.0.1", server.port)),
            socket.create_connection(("127.0.0.1", server.port)),
        ):
            wait_until(lambda: server.get("/metrics").status_code == 503, "the limit of connections")
            wait_until(lambda: server.get("/-/ready").status_code == 200, "readiness beyond the limit")
        wait_until(lambda: server.get("/metrics").status_code == 200, "a free connection")
        many = {f"x-{number}": "y" for number in range(5)}
        assert server.get("/metrics", **many).status_code == 431
        file.write_text("web: {limits: {headers: 50}}\nreload.interval: 1s\n")
        wait_until(lambda: "web.limits.headers" in server.get("/health").text, "the setting in health")


def test_the_operator_enforces_the_same_limits_and_host_names() -> None:
    port = free_port()
    limits = ("--web.limits.connections", "2", "--web.limits.headers", "9", "--web.hosts", "operator.lab")
    with program(*OPERATOR, *limits, "--listen-address", f":{port}", until="listening on", prepared=True):
        url = f"http://127.0.0.1:{port}"
        assert statuses(f"{url}/metrics", "operator.lab", "other.lab") == [200, 421]
        many = {f"x-{number}": "y" for number in range(9)}
        assert get(f"{url}/metrics", headers=many).status_code == 431
        with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):

            def status(path: str) -> int:
                return get(url + path).status_code

            wait_until(lambda: status("/metrics") == 503, "the limit of connections")
            assert (status("/-/healthy"), status("/-/ready")) == (200, 200)


@pytest.mark.parametrize("command", ["serve", "agent", "operator"])
def test_an_impossible_limit_is_named_in_the_error(command: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(AGENT)
    words = ("--config", str(file)) if command == "agent" else ()
    done = gpuledger(command, *words, "--web.limits.header-size", "1")
    assert done.returncode == 2
    expected = "gpuledger: --web.limits.header-size: expected a size of at least 1024 bytes"
    assert done.stderr.startswith(expected)
