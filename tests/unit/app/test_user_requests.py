"""Requests on the control socket: threads, peers, and clients that send nonsense or nothing."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Barrier, Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from gpuledger.app import user_requests
from gpuledger.app.control_socket import (
    SHARED_MODE,
    ControlSocket,
    NoServeRunning,
    SocketForbidden,
    exchange_with,
)
from gpuledger.app.readers import Peer
from gpuledger.app.user_requests import RequestHandler, RequestThreads
from gpuledger.model.errors import GpuledgerError
from running import PATIENCE, wait_until


@contextmanager
def threads(folder: Path, **handlers: RequestHandler) -> Iterator[Path]:
    control = ControlSocket(folder / "control.sock")
    running = RequestThreads(control.socket, handlers)
    running.start()
    try:
        yield control.path
    finally:
        running.stop(PATIENCE)
        control.close()


def send(path: Path, do: object, **more: object) -> Mapping[str, Any]:
    return exchange_with([path], {"do": do, **more}, PATIENCE)


def echo(request: Mapping[str, Any], peer: Peer) -> Mapping[str, Any]:
    return {"said": request.get("say"), "uid": peer.uid, "pid": peer.pid, "gid": peer.gid}


def test_the_kernel_says_who_the_peer_is(tmp_path: Path) -> None:
    with threads(tmp_path, echo=echo) as path:
        said = send(path, "echo", say="hello")
    assert said == {"said": "hello", "uid": os.getuid(), "pid": os.getpid(), "gid": os.getgid()}


def test_all_groups_of_the_peer_are_known(tmp_path: Path) -> None:
    with threads(tmp_path, groups=lambda _, peer: {"groups": sorted(peer.groups)}) as path:
        assert send(path, "groups")["groups"] == sorted(os.getgroups())


def test_an_answer_can_be_long(tmp_path: Path) -> None:
    with threads(tmp_path, long=lambda *_: {"text": "x" * 5_000_000}) as path:
        assert len(send(path, "long")["text"]) == 5_000_000


def raising(error: Exception) -> RequestHandler:
    def handler(*_: object) -> Mapping[str, Any]:
        raise error

    return handler


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (GpuledgerError("not yours: ask dan"), "not yours: ask dan"),
        (ValueError("text with details"), "malformed request"),
        (RuntimeError("text with details"), "internal error; the log of gpuledger has the reason"),
    ],
)
def test_errors_reach_the_client_as_one_line_without_internals(
    tmp_path: Path, error: Exception, message: str
) -> None:
    with threads(tmp_path, fail=raising(error)) as path, pytest.raises(GpuledgerError, match=message) as seen:
        send(path, "fail")
    assert "details" not in str(seen.value)


@pytest.mark.parametrize("do", ["dance", "x" * 1000, None, 7, ["echo"], {"echo": 1}])
def test_an_unknown_request_is_refused(tmp_path: Path, do: object) -> None:
    with threads(tmp_path, echo=echo) as path, pytest.raises(GpuledgerError, match="unknown request"):
        send(path, do)


@pytest.mark.parametrize(
    "sent", [b"", b"\n", b"[1]\n", b"\xff\n", b"[" * 70_000, b"[" * 60_000 + b"\n", b'"x"\n']
)
def test_nonsense_does_not_stop_the_threads(tmp_path: Path, sent: bytes) -> None:
    with threads(tmp_path, echo=echo) as path:
        for _ in range(20):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                client.connect(str(path))
                client.sendall(sent)
        assert send(path, "echo", say=1)["said"] == 1


def test_a_request_waits_for_no_other_one(tmp_path: Path) -> None:
    go = Event()

    def slow(*_: object) -> Mapping[str, Any]:
        assert go.wait(PATIENCE)
        return {}

    with threads(tmp_path, slow=slow, echo=echo) as path:
        waiting = [Thread(target=send, args=(path, "slow")) for _ in range(3)]
        for one in waiting:
            one.start()
        assert send(path, "echo", say=1)["said"] == 1
        go.set()
        for one in waiting:
            one.join(PATIENCE)


def test_the_requests_of_one_user_leave_threads_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user fills all places; another one is served all the same."""
    uids = iter([*[1001] * 12, *[1002] * 100])
    monkeypatch.setattr(user_requests, "read_peer", lambda _: Peer(next(uids), 100, 1))
    go, running = Event(), []

    def slow(_: object, peer: Peer) -> Mapping[str, Any]:
        running.append(peer.uid)
        assert go.wait(PATIENCE)
        return {}

    with threads(tmp_path, slow=slow, echo=echo) as path, ExitStack() as open_clients:
        for _ in range(12):
            client = open_clients.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.connect(str(path))
            client.sendall(b'{"do": "slow"}\n')
        wait_until(lambda: len(running) == 4, "as many requests as one user may have")
        assert send(path, "echo", say=1)["uid"] == 1002
        assert running == [1001] * 4
        go.set()
        wait_until(lambda: len(running) == 12, "the rest")


def test_a_client_that_sends_byte_by_byte_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time, and the whole request does not."""
    now = iter(range(100))
    monkeypatch.setattr(user_requests, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr(user_requests, "_SHORTEST_WAIT", 0.0001)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"{")
        with pytest.raises(TimeoutError):
            user_requests._read_line(ours, 1.5)


def test_many_clients_at_once_are_all_answered(tmp_path: Path) -> None:
    at_once, answers = Barrier(40), []

    def client() -> None:
        at_once.wait(PATIENCE)
        answers.append(send(path, "echo", say=1)["said"])

    with threads(tmp_path, echo=echo) as path:
        clients = [Thread(target=client) for _ in range(40)]
        for one in clients:
            one.start()
        for one in clients:
            one.join(PATIENCE)
    assert answers == [1] * 40


def test_a_user_with_too_many_waiting_requests_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_requests, "_MOST_WAITING_PER_USER", 0)
    with threads(tmp_path, echo=echo) as path, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(path))
        client.settimeout(PATIENCE)
        assert json.loads(client.recv(1000))["busy"] is True


def test_stopping_ends_while_a_request_hangs(tmp_path: Path) -> None:
    never, begun = Event(), Event()

    def hang(*_: object) -> Mapping[str, Any]:
        begun.set()
        never.wait(PATIENCE)
        return {}

    with threads(tmp_path, hang=hang) as path:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.connect(str(path))
        client.sendall(b'{"do": "hang"}\n')
        assert begun.wait(PATIENCE)
    never.set()
    client.close()


def test_a_client_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NoServeRunning, match="no gpuledger is running here"):
        exchange_with([tmp_path / "nowhere.sock"], {"do": "echo"}, PATIENCE)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may connect to every socket")
def test_a_client_without_permission_says_so(tmp_path: Path) -> None:
    with threads(tmp_path, echo=echo) as path:
        path.chmod(0)
        with pytest.raises(SocketForbidden, match="no permission to connect"):
            send(path, "echo")


def test_a_shared_socket_admits_all_users_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        control = ControlSocket(tmp_path / "shared.sock", SHARED_MODE)
    finally:
        os.umask(before)
    assert control.path.stat().st_mode & 0o777 == 0o666
    control.close()


@pytest.mark.parametrize("sent", [b"hello\n", b"[]\n", b'{"error": 5', b"\xff"])
def test_an_answer_of_another_program_is_refused(tmp_path: Path, sent: bytes) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(str(path))
        other.listen()

        def answer() -> None:
            client, _ = other.accept()
            with client:
                client.recv(1000)
                client.sendall(sent)

        thread = Thread(target=answer)
        thread.start()
        with pytest.raises(GpuledgerError, match="malformed answer"):
            exchange_with([path], {"do": "echo"}, PATIENCE)
        thread.join(PATIENCE)
