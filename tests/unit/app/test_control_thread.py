"""The control socket of pause and resume: its paths, its permissions, its answers."""

from __future__ import annotations

import os
import select
import socket
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import current_thread
from typing import Any

import pytest

from builders import SOURCE, gpu, reading, snapshot
from gpuledger.app import control_socket
from gpuledger.app.control_socket import (
    PRIVATE_MODE,
    SHARED_MODE,
    SOCKET_NAME,
    ControlSocket,
    default_socket_paths,
    open_control_socket,
    send_request_to,
)
from gpuledger.app.control_thread import ControlThread
from gpuledger.host import steady_thread
from gpuledger.model.errors import GpuledgerError, SourceUnavailable
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.node.loop import Node
from gpuledger.node.settings import NO_SOCKET, ControlSettings
from running import PATIENCE
from unit.node.support import ScriptedSource, node_of

GOOD = snapshot(reading(gpu(0)))


@dataclass
class RunningNode:
    """A node that runs, and the socket on which it is running."""

    source: ScriptedSource
    node: Node
    path: Path

    def send(self, **request: object) -> str:
        return send_request_to([self.path], request, timeout=PATIENCE)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningNode]:
    source = ScriptedSource(lambda: GOOD)
    node = node_of(source, interval=0.05, pausable=True)
    path = tmp_path / SOCKET_NAME
    control = ControlThread(node, ControlSocket(path))
    node.start()
    control.start()
    yield RunningNode(source, node, path)
    control.stop()
    node.stop()
    assert not path.exists()


def test_pause_returns_after_the_source_is_closed(running: RunningNode) -> None:
    answer = running.send(do="pause", reason="driver\n upgrade", **{"for": 60})
    assert running.source.closed == 1
    assert answer.startswith("paused until ")
    assert "(driver upgrade)" in answer


def test_both_threads_go_on_after_a_failed_allocation(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(steady_thread, "PAUSE", 0.01)
    starved, select_ready = {"control", "control socket"}, select.select

    def scarce_select(*given: Any) -> Any:
        if (name := current_thread().name) in starved:
            starved.remove(name)
            raise MemoryError
        return select_ready(*given)

    monkeypatch.setattr(select, "select", scarce_select)
    running: RunningNode = request.getfixturevalue("running")
    assert running.send(do="pause", **{"for": 60}).startswith("paused until ")
    assert not starved


def test_resume_returns_the_result_of_the_first_reading(running: RunningNode) -> None:
    running.send(do="pause", **{"for": 60})
    assert running.send(do="resume") == "resumed"
    assert running.send(do="resume") == "not paused"


def test_resume_reports_a_missing_driver(running: RunningNode) -> None:
    running.send(do="pause", **{"for": 60})

    def gone() -> Snapshot:
        raise SourceUnavailable("no driver: install it")

    running.source.acts = [gone]
    with pytest.raises(GpuledgerError, match="resumed, but the source cannot be read: no driver: install it"):
        running.send(do="resume")


BAD_REQUESTS = [
    {"do": "dance"},
    {"do": "pause"},
    {"do": "pause", "for": "long"},
    {"do": "pause", "for": None},
    {"do": "pause", "for": 0},
    {"do": "pause", "for": -5},
    {"do": "pause", "for": 86_401},
    {"do": "pause", "for": float("nan")},
    {},
]


@pytest.mark.parametrize("request_", BAD_REQUESTS, ids=str)
def test_an_invalid_request_returns_an_error_and_changes_nothing(
    running: RunningNode, request_: dict[str, object]
) -> None:
    with pytest.raises(GpuledgerError):
        running.send(**request_)
    assert running.source.closed == 0
    assert running.send(do="resume") == "not paused"


@pytest.mark.parametrize("sent", [b"", b"\n", b"[1]\n", b"\xff\xfe\n", b"{" * 5000, b'"pause"\n', b"{}"])
def test_malformed_input_does_not_stop_the_control_thread(running: RunningNode, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(str(running.path))
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
    assert running.send(do="resume") == "not paused"


def test_a_silent_client_does_not_block_others_for_long(running: RunningNode) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(str(running.path))
        assert running.send(do="resume") == "not paused"


def test_only_its_user_can_connect_to_the_socket(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        control = ControlSocket(tmp_path / SOCKET_NAME)
    finally:
        os.umask(before)
    assert stat.S_IMODE(control.path.stat().st_mode) == 0o600
    control.close()


def test_a_peer_that_may_not_control_the_node_changes_nothing(tmp_path: Path) -> None:
    source = ScriptedSource(lambda: GOOD)
    node = node_of(source, interval=0.05, pausable=True)
    path = tmp_path / SOCKET_NAME
    control = ControlThread(node, ControlSocket(path), may_control=lambda _: False)
    node.start()
    control.start()
    try:
        for request in ({"do": "pause", "for": 60}, {"do": "resume"}):
            with pytest.raises(GpuledgerError, match="only root and the user of gpuledger serve"):
                send_request_to([path], request, timeout=PATIENCE)
        assert source.closed == 0
    finally:
        control.stop()
        node.stop()


def test_a_directory_that_is_made_for_all_users_admits_them(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        system = tmp_path / "run"
        control = open_control_socket(ControlSettings(), SOURCE, None, {}, system, SHARED_MODE)
    finally:
        os.umask(before)
    assert control is not None
    assert stat.S_IMODE(system.stat().st_mode) == 0o755
    assert stat.S_IMODE(control.path.stat().st_mode) == 0o666
    control.close()


def test_a_shared_socket_that_users_cannot_reach_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / SOCKET_NAME
    control = open_control_socket(ControlSettings(str(path)), SOURCE, None, {}, mode=SHARED_MODE)
    assert control is not None
    control.close()
    assert "users cannot reach" in caplog.text


@pytest.mark.parametrize("mode", [PRIVATE_MODE, SHARED_MODE])
@pytest.mark.parametrize(("socket", "simulated"), [(NO_SOCKET, False), ("", True)])
def test_users_without_a_socket_are_named_in_the_log(
    caplog: pytest.LogCaptureFixture, mode: int, socket: str, simulated: bool
) -> None:
    source = SourceInfo("any", simulated=simulated)
    assert open_control_socket(ControlSettings(socket), source, None, {}, mode=mode) is None
    assert ("users cannot read their own rows" in caplog.text) == (mode == SHARED_MODE)


def test_the_socket_of_a_killed_program_is_replaced(tmp_path: Path) -> None:
    left = ControlSocket(tmp_path / SOCKET_NAME)
    left.socket.close()
    control = ControlSocket(tmp_path / SOCKET_NAME)
    left.close()
    # It does not remove the file of another socket.
    assert control.path.exists()
    control.close()
    assert not control.path.exists()


def test_a_socket_in_use_is_not_replaced(tmp_path: Path) -> None:
    first = ControlSocket(tmp_path / SOCKET_NAME)
    with pytest.raises(GpuledgerError, match=r"another gpuledger listens on .*--control\.socket"):
        ControlSocket(tmp_path / SOCKET_NAME)
    first.close()


def test_a_file_that_is_not_a_socket_is_never_removed(tmp_path: Path) -> None:
    file = tmp_path / "precious"
    file.write_text("data")
    with pytest.raises(GpuledgerError, match=r"is not a socket: choose another --control\.socket"):
        ControlSocket(file)
    assert file.read_text() == "data"


@pytest.mark.parametrize("path", ["missing/control.sock", "x" * 120])
def test_a_path_that_cannot_be_bound_is_a_one_line_error(tmp_path: Path, path: str) -> None:
    with pytest.raises(GpuledgerError, match=r"cannot listen on .*; see --control\.socket"):
        ControlSocket(tmp_path / path)


def opened(tmp_path: Path, *, system: bool, runtime: bool, ledger: bool, socket: str = "") -> str:
    """The path of the opened socket below `tmp_path`; "" for none."""
    for name, there in (("system", system), ("runtime", runtime), ("ledger", ledger)):
        if there:
            (tmp_path / name).mkdir()
    control = open_control_socket(
        ControlSettings(socket),
        SOURCE,
        tmp_path / "ledger" if ledger else None,
        {"XDG_RUNTIME_DIR": str(tmp_path / "runtime")} if runtime else {},
        # The parent directory is missing, so it cannot be created.
        tmp_path / ("system" if system else "none") / "gpuledger",
    )
    if control is None:
        return ""
    control.close()
    return str(control.path.relative_to(tmp_path))


PATHS = [
    ({"system": True, "runtime": True, "ledger": True}, "system/gpuledger/control.sock"),
    ({"system": False, "runtime": True, "ledger": True}, "runtime/gpuledger/control.sock"),
    ({"system": False, "runtime": False, "ledger": True}, "ledger/control.sock"),
    ({"system": False, "runtime": False, "ledger": False}, ""),
    ({"system": True, "runtime": True, "ledger": True, "socket": "none"}, ""),
]


@pytest.mark.parametrize(("there", "path"), PATHS)
def test_the_socket_is_opened_at_the_first_usable_path(
    tmp_path: Path, there: dict[str, bool], path: str
) -> None:
    assert opened(tmp_path, **there) == path  # type: ignore[arg-type]  # `socket` is text


def test_a_configured_path_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    settings = ControlSettings(str(tmp_path / "here.sock"))
    control = open_control_socket(settings, SOURCE, None, {})
    assert control is not None
    with pytest.raises(GpuledgerError, match="another gpuledger listens"):
        open_control_socket(settings, SOURCE, None, {})
    control.close()


def test_a_default_path_that_cannot_be_opened_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    system = tmp_path / "gpuledger"
    first = open_control_socket(ControlSettings(), SOURCE, None, {}, system)
    assert first is not None
    assert open_control_socket(ControlSettings(), SOURCE, None, {}, system) is None
    assert "gpuledger pause will not work: another gpuledger listens on" in caplog.text
    first.close()


def test_a_simulated_source_opens_only_a_configured_socket(tmp_path: Path) -> None:
    simulated = SourceInfo("simulator", simulated=True)
    assert open_control_socket(ControlSettings(), simulated, tmp_path, {}, tmp_path) is None
    control = open_control_socket(ControlSettings(str(tmp_path / "s")), simulated, None, {}, tmp_path)
    assert control is not None
    control.close()


def test_client_and_server_use_the_same_default_paths(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": "/run/user/7"}
    assert [str(path) for path in default_socket_paths(environment, tmp_path)] == [
        "/run/gpuledger/control.sock",
        "/run/user/7/gpuledger/control.sock",
        f"{tmp_path}/control.sock",
    ]


def test_without_a_running_gpuledger_the_error_names_all_paths_and_the_remedy(tmp_path: Path) -> None:
    left = ControlSocket(tmp_path / "dead.sock")
    left.socket.close()
    with pytest.raises(GpuledgerError) as caught:
        send_request_to([tmp_path / "missing.sock", left.path], {"do": "resume"})
    text = str(caught.value)
    assert text.startswith("no gpuledger is running here")
    assert str(tmp_path / "missing.sock") in text
    assert str(left.path) in text
    assert "kubectl exec" in text
    left.close()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(13, "Permission denied"), "no permission to connect to .*: run this as root"),
        (TimeoutError(), "no answer on .*/health"),
        (OSError(5, "Input/output error"), "cannot connect to .*: Input/output error"),
    ],
)
def test_a_connection_error_names_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: OSError, line: str
) -> None:
    def refuse(*_: object) -> bytes:
        raise error

    monkeypatch.setattr(control_socket, "_exchange", refuse)
    with pytest.raises(GpuledgerError, match=line):
        send_request_to([tmp_path / SOCKET_NAME], {"do": "resume"})


def test_a_forbidden_path_does_not_hide_a_listening_one(
    monkeypatch: pytest.MonkeyPatch, running: RunningNode
) -> None:
    exchange = control_socket._exchange

    def sometimes(path: Path, request: Mapping[str, object], timeout: float) -> bytes:
        if path != running.path:
            raise PermissionError(13, "Permission denied")
        return exchange(path, request, timeout)

    monkeypatch.setattr(control_socket, "_exchange", sometimes)
    assert send_request_to([Path("/run/others.sock"), running.path], {"do": "resume"}) == "not paused"


def test_another_program_on_the_socket_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(control_socket, "_exchange", lambda *_: b"220 mail.example ESMTP\r\n")
    with pytest.raises(GpuledgerError, match="program is not gpuledger"):
        send_request_to([tmp_path / SOCKET_NAME], {"do": "resume"})
