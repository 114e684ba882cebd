"""Container names, read from a real HTTP server on a unix socket."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from builders import FakeClock
from gpuledger.model.checks import Verdict
from gpuledger.model.errors import GpuledgerError
from gpuledger.workloads.containers.checks import container_checks
from gpuledger.workloads.containers.container import Containers, find_container_name, parse_containers
from gpuledger.workloads.containers.container_reader import (
    ContainerIndex,
    list_runtime,
    open_container_indexes,
    read_containers,
)
from gpuledger.workloads.containers.settings import ContainerSettings
from running import PATIENCE

ID = "5eed917563583925ffdbd40a64efb2aaffe58638e57add8becaf460fe74f5b1c"
ID2 = "5eed9175635866cfcab8400277ad96770ce52c1d75eeac29046753875056eaca"
ENTRY = {"Id": ID, "Names": ["/web"], "Image": "nginx:1", "Labels": {}}

Serve = Callable[[socket.socket], None]


@contextmanager
def service(path: Path, serve: Serve) -> Iterator[None]:
    """A listener at `path` that passes each connection to `serve`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()

        def run() -> None:
            while True:
                try:
                    connected, _ = listening.accept()
                except OSError:
                    return
                with connected:
                    serve(connected)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)


def request(connected: socket.socket) -> bytes:
    requests = b""
    while not requests.endswith(b"\r\n\r\n") and (more := connected.recv(4096)):
        requests += more
    return requests


def answering(body: object, status: str = "200 OK", requests: list[bytes] | None = None) -> Serve:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()

    def serve(connected: socket.socket) -> None:
        received = request(connected)
        if requests is not None:
            requests.append(received)
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
        connected.sendall(head.encode() + raw)

    return serve


def chunked(connected: socket.socket) -> None:
    """A chunked response, which Docker sends if it is long."""
    request(connected)
    raw = json.dumps([ENTRY]).encode()
    connected.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for piece in (raw[:7], raw[7:]):
        connected.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
    connected.sendall(b"0\r\n\r\n")


def cut(connected: socket.socket) -> None:
    request(connected)
    connected.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n[{")


def no_http(connected: socket.socket) -> None:
    request(connected)
    connected.sendall(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")


def silent(connected: socket.socket) -> None:
    request(connected)
    connected.recv(1)


def read(path: Path, timeout: float = PATIENCE) -> Containers:
    return read_containers(str(path), "--docker-socket", timeout=timeout)


def test_containers_are_read_with_one_get_without_an_api_version(tmp_path: Path) -> None:
    requests: list[bytes] = []
    with service(tmp_path / "s", answering([ENTRY], requests=requests)):
        found = read(tmp_path / "s")
    assert found == {ID: "web"}
    assert requests[0].startswith(b"GET /containers/json HTTP/1.1\r\n")


def test_a_chunked_response_is_read(tmp_path: Path) -> None:
    with service(tmp_path / "s", chunked):
        assert len(read(tmp_path / "s")) == 1


def test_unchanged_containers_are_the_same_object(tmp_path: Path) -> None:
    with service(tmp_path / "s", answering([ENTRY])):
        (one,) = open_container_indexes(ContainerSettings(str(tmp_path / "s"), ""), clock=FakeClock())
        assert one.refresh()
        first = one.value
        assert one.refresh()
    assert one.value is first
    assert first == {ID: "web"}


@pytest.mark.parametrize(
    ("serve", "line"),
    [
        (answering({"message": "x"}, "500 Internal Server Error"), "HTTP status 500; "),
        (answering({"message": "page"}), "expected a list of containers; "),
        (answering(b"<html>"), "the response is not JSON; "),
        (answering(b"[" * 100_000), "the response is not JSON; "),
        (cut, "no response (.*); "),
        (no_http, "no response (.*); "),
        (silent, "no response within .*; "),
    ],
    ids=["status", "no list", "no JSON", "deep", "cut", "no HTTP", "silent"],
)
def test_an_invalid_response_is_an_error_of_one_line_with_a_remedy(
    tmp_path: Path, serve: Serve, line: str
) -> None:
    with service(tmp_path / "s", serve), pytest.raises(GpuledgerError, match=line) as raised:
        read(tmp_path / "s", 0.2 if serve is silent else PATIENCE)
    assert str(raised.value).startswith(str(tmp_path / "s"))
    assert "\n" not in str(raised.value)


def test_a_socket_without_a_service_is_an_error(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    with pytest.raises(GpuledgerError, match="Connection refused"):
        read(tmp_path / "s")


def test_a_missing_container_socket_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(GpuledgerError, match="does not exist; start the service"):
        read(tmp_path / "s")


def test_a_restarted_container_service_is_found_again(tmp_path: Path) -> None:
    with service(tmp_path / "s", answering([ENTRY])):
        before = read(tmp_path / "s")
    (tmp_path / "s").unlink()
    with pytest.raises(GpuledgerError):
        read(tmp_path / "s")
    with service(tmp_path / "s", answering([ENTRY])):
        assert read(tmp_path / "s") == before


def test_missing_permission_is_an_error_of_one_line_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Faked, because tests may run as root, which has all permissions.
    class Closed(socket.socket):
        def connect(self, address: object) -> None:
            raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr("socket.socket", Closed)
    with pytest.raises(GpuledgerError, match=r"permission denied; .* group .*--docker-socket ''"):
        read(tmp_path / "s")


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        (ENTRY, "web"),
        ({**ENTRY, "Names": ["/db/alias", "/web"]}, "web"),
        ({**ENTRY, "Names": ["web"]}, "web"),
        ({**ENTRY, "Names": []}, None),
        ({**ENTRY, "Names": None}, None),
        ({**ENTRY, "Id": ""}, None),
        ({}, None),
        ("text", None),
    ],
)
def test_an_entry_needs_an_id_and_a_name_to_be_a_container(entry: object, found: str | None) -> None:
    assert parse_containers([entry]) == ({ID: found} if found else {})


def test_control_characters_in_a_container_name_are_escaped() -> None:
    assert parse_containers([{**ENTRY, "Names": ["/a\0b"]}]) == {ID: "a\\x00b"}


def test_a_unique_id_prefix_finds_its_container() -> None:
    known = {ID: "web", ID2: "db"}
    assert find_container_name(known, ID[:20]) == "web"
    assert [find_container_name(known, prefix) for prefix in (ID[:12], ID[:11], "")] == ["", "", ""]


def test_a_missing_socket_has_no_index(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = ContainerSettings(str(tmp_path / "file"), str(tmp_path / "none"))
    assert open_container_indexes(settings, clock=FakeClock()) == ()


def test_each_existing_socket_has_an_index_and_an_empty_setting_has_none(tmp_path: Path) -> None:
    with service(tmp_path / "s", answering([ENTRY])):
        (docker,) = open_container_indexes(ContainerSettings(str(tmp_path / "s"), ""), clock=FakeClock())
        assert docker.refresh()
        assert (docker.name, docker.health.entries) == ("docker", 1)
        (podman,) = open_container_indexes(ContainerSettings("", str(tmp_path / "s")), clock=FakeClock())
        assert podman.name == "podman"


def test_doctor_checks_each_container_socket(tmp_path: Path) -> None:
    with service(tmp_path / "s", answering([ENTRY])), service(tmp_path / "p", answering({})):
        checks = container_checks(ContainerSettings(str(tmp_path / "s"), str(tmp_path / "p")))
        found = [finding for check in checks for finding in check.run()]
    assert [(finding.verdict, finding.what) for finding in found] == [
        (Verdict.WORKS, "Docker containers"),
        (Verdict.WARNING, "Podman containers"),
    ]
    assert "1 running" in found[0].why
    assert "--podman-socket" in found[1].remedy


@pytest.mark.parametrize(
    ("docker", "why"), [("", "switched off"), ("/none/x.sock", "no socket at /none/x.sock")]
)
def test_doctor_skips_missing_and_disabled_container_sockets(docker: str, why: str) -> None:
    (check,) = container_checks(ContainerSettings(docker, ""))
    (finding,) = check.run()
    assert (finding.verdict, finding.why) == (Verdict.SKIPPED, why)


@pytest.mark.parametrize(
    ("name", "path", "is_rootless"),
    [
        ("docker", "/var/run/docker.sock", False),
        ("podman", "/run/podman/podman.sock", False),
        ("docker", "/run/user/1000/docker.sock", True),
        ("podman", "/run/user/1000/podman/podman.sock", True),
        ("podman", "/run/users/podman.sock", False),
    ],
)
def test_a_list_has_its_runtime_and_whether_it_is_that_of_a_login(
    name: str, path: str, is_rootless: bool
) -> None:
    found = list_runtime(ContainerIndex(name, path, f"--{name}-socket", FakeClock()))
    assert (found.runtime, found.is_rootless, found.tried, dict(found.names)) == (
        name,
        is_rootless,
        False,
        {},
    )
