"""Who answers `gpuledger free`: the running gpuledger, a fleet, or a reading in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import pytest

from gpuledger.app import free_client
from gpuledger.app.control_socket import NoServeRunning, SocketForbidden
from gpuledger.app.fleet_api import FleetApiClient
from gpuledger.app.free_client import list_devices, list_fleet, take_devices
from gpuledger.cli import free
from gpuledger.config.free import FreeSettings
from gpuledger.model.errors import GpuledgerError, SourceUnavailable
from gpuledger.terminal.fleet_picture import FleetPicture, parse_fleet
from gpuledger.terminal.settings import NodeAccessSettings

GIB = 1024**3
SIMULATOR = {"source": "simulator:workstation"}
SCHEDULED = {"source": "simulator:k8s-node"}


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Mapping[str, Any]]]:
    """Let the running gpuledger answer, or fail; returns the requests that it gets."""

    def install(answer: Mapping[str, Any] | Exception) -> list[Mapping[str, Any]]:
        requests: list[Mapping[str, Any]] = []

        def exchange(_: Mapping[str, Any], request: Mapping[str, Any]) -> Mapping[str, Any]:
            requests.append(request)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(free_client, "exchange", exchange)
        return requests

    return install


Answering = Callable[..., list[Mapping[str, Any]]]


def test_the_wish_reaches_the_running_gpuledger(answering: Answering) -> None:
    requests = answering({"devices": []})
    settings = FreeSettings(count=2, memory=GIB, model="h100", window=5.0, reserve=60.0)
    take_devices({}, settings, hold=False, locally=False)
    (request,) = requests
    assert request == {
        "do": "free",
        "act": "take",
        "count": 2,
        "memory": GIB,
        "model": "h100",
        "mig": "any",
        "display": False,
        "window": 5.0,
        "anyway": False,
        "hold": False,
        "seconds": 60.0,
    }


@pytest.mark.parametrize("error", [NoServeRunning("nobody listens"), SocketForbidden("not permitted")])
def test_without_the_running_gpuledger_the_driver_is_read(answering: Answering, error: Exception) -> None:
    answering(error)
    found = list_devices(SIMULATOR, FreeSettings(), locally=False)
    assert found.body["devices"]
    assert found.body["reservations"] is False
    assert found.remarks == (
        f"{error}. Shown is one reading of the driver, without reservations and without --for",
    )


def test_without_gpuledger_and_without_a_driver_both_are_named(
    answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*_: object, **__: object) -> NoReturn:
        raise SourceUnavailable("no driver: install it")

    answering(NoServeRunning("nobody listens on PATH; use --control.socket"))
    monkeypatch.setattr(free_client, "_read_here", unread)
    with pytest.raises(GpuledgerError) as caught:
        list_devices({}, FreeSettings(), locally=False)
    assert str(caught.value) == ("no driver: install it. Also, nobody listens on PATH; use --control.socket")


def test_without_the_running_gpuledger_nothing_is_taken(answering: Answering) -> None:
    answering(NoServeRunning("nobody listens"))
    with pytest.raises(GpuledgerError, match=r"^nothing is reserved: nobody listens\. .*: --anyway$"):
        take_devices(SIMULATOR, FreeSettings(), hold=True, locally=False)


class NoStop:
    """Waits for no time, and is never stopped."""

    def __enter__(self) -> NoStop:
        return self

    def __exit__(self, *_: object) -> None:
        """See StopRequest."""

    def wait(self, _: float) -> bool:
        return False


@pytest.mark.parametrize("anyway", [[], ["--anyway"]])
@pytest.mark.parametrize("error", [NoServeRunning("nobody listens"), SocketForbidden("not permitted")])
def test_a_restart_while_it_waits_ends_no_reservation_of_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, anyway: list[str]
) -> None:
    reserved = {"device_uuid": "GPU-reserved", "vendor": "nvidia"}
    answers: list[Mapping[str, Any] | Exception] = [
        {"devices": [], "reservations": True, "refused": "none of 1 GPU can be taken"},
        error,
        {"devices": [reserved], "reservations": True},
    ]

    def exchange(*_: object) -> Mapping[str, Any]:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    seen = {"devices": [reserved | {"device_uuid": "GPU-seen"}], "reservations": False}
    monkeypatch.setattr(free_client, "_read_here", lambda *_, **__: seen)
    monkeypatch.setattr(free_client, "exchange", exchange)
    monkeypatch.setattr(free, "StopRequest", NoStop)
    assert free.run(["--env", "--wait", "1h", *anyway]) == 0
    assert capsys.readouterr().out == "CUDA_VISIBLE_DEVICES=GPU-reserved\n"


def test_a_scheduler_is_respected_without_the_running_gpuledger_too(answering: Answering) -> None:
    answering(NoServeRunning("nobody listens"))
    with pytest.raises(GpuledgerError, match="a kubelet hands out the GPUs"):
        list_devices(SCHEDULED, FreeSettings(), locally=False)
    assert list_devices(SCHEDULED, FreeSettings(anyway=True), locally=False).body["devices"]


def fleet(*gpus: dict[str, Any], **node: object) -> FleetPicture:
    row = {"name": "lab-1", "up": True, "gpus": list(gpus), **node}
    return parse_fleet({"version": "v1", "now": 5.0, "nodes": [row]})


def gpu_of(index: int, **more: object) -> dict[str, Any]:
    return {
        "uuid": f"GPU-{index}",
        "gpu": str(index),
        "model": "NVIDIA H100",
        "state": "free",
        "free_now": True,
        "memory_total_bytes": 80 * GIB,
        "memory_used_bytes": GIB,
        **more,
    }


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Callable[[FleetPicture], None]:
    def install(picture: FleetPicture) -> None:
        monkeypatch.setattr(FleetApiClient, "fleet", lambda _: picture)

    return install


def states(settings: FreeSettings | None = None) -> list[tuple[str, str]]:
    found = list_fleet(NodeAccessSettings(), "http://lab:9410", settings or FreeSettings())
    return [(one["uuid"], one["availability"]) for one in found.body["devices"]]


def test_a_fleet_lists_free_gpus_first(lab: Callable[[FleetPicture], None]) -> None:
    lab(
        fleet(
            gpu_of(0, state="active", free_now=False, availability="in_use"),
            gpu_of(1, availability="free"),
            # Nodes that are too old to judge it.
            gpu_of(2),
            gpu_of(3, state="held", free_now=False),
            gpu_of(4, state="down", free_now=False),
            gpu_of(5, free_now=False),
        )
    )
    assert states() == [
        ("GPU-1", "free"),
        ("GPU-2", "free"),
        ("GPU-0", "in_use"),
        ("GPU-3", "in_use"),
        ("GPU-4", "down"),
        ("GPU-5", "unknown"),
    ]


def test_a_fleet_is_filtered_by_memory_and_model(lab: Callable[[FleetPicture], None]) -> None:
    lab(fleet(gpu_of(0, memory_used_bytes=70 * GIB), gpu_of(1, model="NVIDIA A100"), gpu_of(2)))
    assert states(FreeSettings(memory=20 * GIB, model="h100")) == [("GPU-2", "free")]


def test_a_node_that_cannot_be_read_is_named_and_never_free(lab: Callable[[FleetPicture], None]) -> None:
    lab(fleet(gpu_of(0), up=False, reason="timed out"))
    assert states() == [("GPU-0", "unknown")]
    found = list_fleet(NodeAccessSettings(), "http://lab:9410", FreeSettings())
    assert found.remarks == ["lab-1: timed out"]
