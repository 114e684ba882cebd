"""The unix socket of pause and resume: where it lies, who reaches it, what is answered."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from builders import SOURCE, gpu, reading, snapshot
from gpuledger.app import control_socket as ask
from gpuledger.app.control import Control
from gpuledger.app.control_socket import NAME, Doorway, ask_at, open_doorway, usual_places
from gpuledger.model.errors import GpuledgerError, SourceUnavailable
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.node.loop import Node
from gpuledger.node.settings import ControlSettings
from unit.node.support import ScriptedSource, node_of

GOOD = snapshot(reading(gpu(0)))


@dataclass
class Told:
    """A node that runs, and the socket on which it is told."""

    source: ScriptedSource
    node: Node
    path: Path

    def ask(self, **request: object) -> str:
        return ask_at([self.path], request, patience=20)


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    source = ScriptedSource(lambda: GOOD)
    node = node_of(source, interval=0.05, pausable=True)
    path = tmp_path / NAME
    control = Control(node, Doorway(path))
    node.start()
    control.start()
    yield Told(source, node, path)
    control.stop()
    node.stop()
    assert not path.exists()


def test_pause_is_answered_when_the_source_is_closed(told: Told) -> None:
    answer = told.ask(do="pause", reason="driver\n upgrade", **{"for": 60})
    assert told.source.closed == 1
    assert answer.startswith("paused until ")
    assert "(driver upgrade)" in answer


def test_resume_is_answered_with_what_the_first_reading_says(told: Told) -> None:
    told.ask(do="pause", **{"for": 60})
    assert told.ask(do="resume") == "resumed"
    assert told.ask(do="resume") == "there was no pause"


def test_resume_says_when_the_driver_is_not_there(told: Told) -> None:
    told.ask(do="pause", **{"for": 60})

    def gone() -> Snapshot:
        raise SourceUnavailable("no driver: install it")

    told.source.acts = [gone]
    with pytest.raises(GpuledgerError, match="resumed, but nothing can be read: no driver: install it"):
        told.ask(do="resume")


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
def test_what_cannot_be_done_is_answered_with_an_error_and_changes_nothing(
    told: Told, request_: dict[str, object]
) -> None:
    with pytest.raises(GpuledgerError):
        told.ask(**request_)
    assert told.source.closed == 0
    assert told.ask(do="resume") == "there was no pause"


@pytest.mark.parametrize("said", [b"", b"\n", b"[1]\n", b"\xff\xfe\n", b"{" * 5000, b'"pause"\n', b"{}"])
def test_noise_is_survived(told: Told, said: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.connect(str(told.path))
        caller.sendall(said)
        caller.shutdown(socket.SHUT_WR)
    assert told.ask(do="resume") == "there was no pause"


def test_who_connects_and_says_nothing_keeps_nobody_waiting_for_long(told: Told) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(str(told.path))
        assert told.ask(do="resume") == "there was no pause"


def test_nobody_but_its_owner_can_reach_the_socket(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        door = Doorway(tmp_path / NAME)
    finally:
        os.umask(before)
    assert stat.S_IMODE(door.path.stat().st_mode) == 0o600
    door.close()


def test_what_a_killed_program_left_behind_is_replaced(tmp_path: Path) -> None:
    left = Doorway(tmp_path / NAME)
    left.socket.close()
    door = Doorway(tmp_path / NAME)
    left.close()
    # What is not its own any more, it does not take away.
    assert door.path.exists()
    door.close()
    assert not door.path.exists()


def test_a_socket_on_which_somebody_hears_is_left_to_him(tmp_path: Path) -> None:
    first = Doorway(tmp_path / NAME)
    with pytest.raises(GpuledgerError, match=r"another gpuledger hears on .*--control\.socket"):
        Doorway(tmp_path / NAME)
    first.close()


def test_a_file_that_is_no_socket_is_never_removed(tmp_path: Path) -> None:
    file = tmp_path / "precious"
    file.write_text("data")
    with pytest.raises(GpuledgerError, match=r"is no socket: give another --control\.socket"):
        Doorway(file)
    assert file.read_text() == "data"


@pytest.mark.parametrize("path", ["missing/control.sock", "x" * 120])
def test_a_place_that_cannot_be_had_is_one_line(tmp_path: Path, path: str) -> None:
    with pytest.raises(GpuledgerError, match=r"cannot listen on .*; see --control\.socket"):
        Doorway(tmp_path / path)


def opened(tmp_path: Path, *, system: bool, runtime: bool, books: bool, socket: str = "") -> str:
    """Where the socket is opened, below `tmp_path`; "" for nowhere."""
    for name, there in (("system", system), ("runtime", runtime), ("books", books)):
        if there:
            (tmp_path / name).mkdir()
    door = open_doorway(
        ControlSettings(socket),
        SOURCE,
        tmp_path / "books" if books else None,
        {"XDG_RUNTIME_DIR": str(tmp_path / "runtime")} if runtime else {},
        # Below a directory that is missing, it cannot be made.
        tmp_path / ("system" if system else "none") / "gpuledger",
    )
    if door is None:
        return ""
    door.close()
    return str(door.path.relative_to(tmp_path))


PLACES = [
    ({"system": True, "runtime": True, "books": True}, "system/gpuledger/control.sock"),
    ({"system": False, "runtime": True, "books": True}, "runtime/gpuledger/control.sock"),
    ({"system": False, "runtime": False, "books": True}, "books/control.sock"),
    ({"system": False, "runtime": False, "books": False}, ""),
    ({"system": True, "runtime": True, "books": True, "socket": "none"}, ""),
]


@pytest.mark.parametrize(("there", "place"), PLACES)
def test_the_socket_lies_where_it_can(tmp_path: Path, there: dict[str, bool], place: str) -> None:
    assert opened(tmp_path, **there) == place  # type: ignore[arg-type]  # `socket` is text


def test_a_place_that_is_asked_for_is_had_or_the_program_ends(tmp_path: Path) -> None:
    asked = ControlSettings(str(tmp_path / "here.sock"))
    door = open_doorway(asked, SOURCE, None, {})
    assert door is not None
    with pytest.raises(GpuledgerError, match="another gpuledger hears"):
        open_doorway(asked, SOURCE, None, {})
    door.close()


def test_the_usual_place_is_no_reason_not_to_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    system = tmp_path / "gpuledger"
    first = open_doorway(ControlSettings(), SOURCE, None, {}, system)
    assert first is not None
    assert open_doorway(ControlSettings(), SOURCE, None, {}, system) is None
    assert "gpuledger pause will not be heard: another gpuledger hears on" in caplog.text
    first.close()


def test_who_makes_data_up_hears_only_where_asked(tmp_path: Path) -> None:
    made_up = SourceInfo("simulator", simulated=True)
    assert open_doorway(ControlSettings(), made_up, tmp_path, {}, tmp_path) is None
    door = open_doorway(ControlSettings(str(tmp_path / "s")), made_up, None, {}, tmp_path)
    assert door is not None
    door.close()


def test_the_caller_looks_where_the_program_listens(tmp_path: Path) -> None:
    environment = {"XDG_RUNTIME_DIR": "/run/user/7"}
    assert [str(place) for place in usual_places(environment, tmp_path)] == [
        "/run/gpuledger/control.sock",
        "/run/user/7/gpuledger/control.sock",
        f"{tmp_path}/control.sock",
    ]


def test_when_none_runs_here_that_is_said_with_every_place_and_the_remedy(tmp_path: Path) -> None:
    left = Doorway(tmp_path / "dead.sock")
    left.socket.close()
    with pytest.raises(GpuledgerError) as caught:
        ask_at([tmp_path / "missing.sock", left.path], {"do": "resume"})
    text = str(caught.value)
    assert text.startswith("no gpuledger runs here")
    assert str(tmp_path / "missing.sock") in text
    assert str(left.path) in text
    assert "kubectl exec" in text
    left.close()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (PermissionError(13, "Permission denied"), "no permission for .*: run this as root"),
        (TimeoutError(), "no answer on .*/health"),
        (OSError(5, "Input/output error"), "cannot reach .*: Input/output error"),
    ],
)
def test_a_socket_that_cannot_be_asked_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: OSError, line: str
) -> None:
    def refuse(*_: object) -> bytes:
        raise error

    monkeypatch.setattr(ask, "_exchange", refuse)
    with pytest.raises(GpuledgerError, match=line):
        ask_at([tmp_path / NAME], {"do": "resume"})


def test_a_place_that_is_forbidden_does_not_hide_the_one_that_hears(
    monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    exchange = ask._exchange

    def sometimes(place: Path, request: Mapping[str, object], patience: float) -> bytes:
        if place != told.path:
            raise PermissionError(13, "Permission denied")
        return exchange(place, request, patience)

    monkeypatch.setattr(ask, "_exchange", sometimes)
    assert ask_at([Path("/run/others.sock"), told.path], {"do": "resume"}) == "there was no pause"


def test_another_program_on_the_socket_is_not_taken_for_gpuledger(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ask, "_exchange", lambda *_: b"220 mail.example ESMTP\r\n")
    with pytest.raises(GpuledgerError, match="is no gpuledger"):
        ask_at([tmp_path / NAME], {"do": "resume"})
