"""Processes that serve others own nothing: the MPS server, its control daemon, persistenced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builders import gpu, instance, process, reading, snapshot
from gpuledger.ledger.device_states import HELD, IDLE, DeviceStates
from gpuledger.ledger.owners import OwnerTimes
from gpuledger.ledger.report.settings import Prices
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.service_processes import serving_processes
from gpuledger.ledger.store.history import History
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.watched_time import HOUR
from gpuledger.model import quantities as q
from gpuledger.model.process import NO_USAGE, GpuProcess, ProcessType, Usage
from gpuledger.model.workload import Allocation, Workload
from ledger_helpers import UNIX, Run
from report_helpers import folded, quarters, same

A, B = gpu(0), gpu(1)
PART, OTHER_PART = instance(A, 1), instance(A, 2)
ROOT, ANN = Workload("user", user="root"), Workload("user", user="ann")
SERVER = process(A, 9, name="/usr/bin/nvidia-cuda-mps-server", sm=0.0, workload=ROOT)
BUSY = replace(SERVER, usage=Usage(sm=0.5))
ELSEWHERE = replace(SERVER, device=B)
CONTROL = process(B, 8, name="nvidia-cuda-mps-control", sm=0.0, workload=ROOT)
CLIENT = process(A, 1, types="M+C", workload=ANN)
J = 1000


def of_user(one: GpuProcess, user: str, uid: int | None = None) -> GpuProcess:
    return replace(one, host=replace(one.host, user=user, uid=uid))


MPS, BENS = of_user(SERVER, "root", 0), of_user(CLIENT, "ben", 1001)
ACTIVE = replace(CONTROL, usage=BUSY.usage)
PERSISTENCED = process(A, 7, name="/usr/bin/nvidia-persistenced")


@pytest.mark.parametrize(
    ("what", "processes", "serving"),
    [
        ("a server with a client", [SERVER, CLIENT], {9}),
        ("a server without clients waits for them", [SERVER], {9}),
        ("its activity is not known", [replace(SERVER, usage=NO_USAGE)], {9}),
        ("a process of that name that works", [BUSY], set()),
        ("works, and another process is no client", [BUSY, process(A, 1)], set()),
        ("works on one of its GPUs", [BUSY, ELSEWHERE], set()),
        ("the work of its clients", [BUSY, CLIENT], {9}),
        ("a client on another GPU only, of another server", [BUSY, replace(CLIENT, device=B)], set()),
        ("its context on a GPU without clients", [SERVER, ELSEWHERE, CLIENT], {9}),
        ("the control daemon", [CONTROL, CLIENT], {8}),
        ("the control daemon without clients", [CONTROL, SERVER], {8, 9}),
        ("a process that is named like the daemon and works", [replace(CONTROL, usage=BUSY.usage)], set()),
        (
            "only the kernel's name is known",
            [process(A, 9, name="", executable="nvidia-cuda-mps"), CLIENT],
            {9},
        ),
        ("under MIG", [process(PART, 9, name="nvidia-cuda-mps-server"), process(PART, 1, types="M+C")], {9}),
        (
            "works, and its clients are on another instance",
            [process(PART, 9, name="nvidia-cuda-mps-server"), process(OTHER_PART, 1, types="M+C")],
            set(),
        ),
        ("a client that is named like a server", [replace(SERVER, types=CLIENT.types)], set()),
        ("persistenced", [of_user(PERSISTENCED, "root", 0)], {7}),
        ("persistenced of a separate user", [of_user(PERSISTENCED, "nvidia-persistenced", 998)], {7}),
        ("a user's process of that name", [of_user(PERSISTENCED, "ann", 1000)], set()),
        ("root's server, clients of two users", [MPS, of_user(CLIENT, "ann", 1000), BENS], {9}),
        ("a user's server, that user's client", [of_user(SERVER, "ben", 1001), BENS], {9}),
        ("and it works, or its client", [of_user(BUSY, "ben", 1001), BENS], {9}),
        ("a user's server, another's client", [of_user(SERVER, "ann", 1000), BENS], set()),
        ("a miner beside root's server", [of_user(BUSY, "ann", 1000), replace(MPS, pid=7), BENS], {7}),
        (
            "a miner with an idle client of its user, too",
            [of_user(BUSY, "ann", 1000), of_user(replace(CLIENT, pid=2), "ann", 1000), BENS],
            set(),
        ),
        ("a user's server without clients", [of_user(SERVER, "ann", 1000)], set()),
        ("of unknown activity", [of_user(replace(SERVER, usage=NO_USAGE), "ann", 1000)], set()),
        ("a user's control daemon", [of_user(CONTROL, "ben", 1001), BENS], {8}),
        ("another user's control daemon", [of_user(CONTROL, "ann", 1000), BENS], set()),
        ("a working control daemon of another user", [of_user(ACTIVE, "ann", 1000), BENS], set()),
        ("a name without a uid", [of_user(SERVER, "ann"), of_user(CLIENT, "ann")], {9}),
        ("a user whom nobody knows, clients that are known", [SERVER, BENS], set()),
        ("graphics-only", [replace(MPS, types=frozenset({ProcessType.GRAPHICS})), BENS], set()),
        ("of unknown type", [replace(MPS, types=frozenset()), BENS], {9}),
    ],
)
def test_who_serves_others(what: str, processes: list[GpuProcess], serving: set[int]) -> None:
    assert {key[1] for key in serving_processes(processes)} == serving, what


def owner_rows(
    *processes: GpuProcess, allocated: tuple[Allocation, ...] = ()
) -> dict[str, tuple[float, float]]:
    """Resident and held seconds by user or pod after 10 s."""
    times = OwnerTimes(0.0, 300.0)
    serving = serving_processes(processes)
    for at in (0.0, 10.0):
        readings = [
            reading(card, *(one for one in processes if one.device == card), values={q.UTILIZATION: 0.0})
            for card in (A, B)
        ]
        rows = times.post(replace(snapshot(*readings), elapsed=at, allocations=allocated), serving)
    return {row.labels[4] or row.labels[2]: (row.resident, row.held) for row in rows}


def test_the_server_is_no_owner_of_any_of_its_devices() -> None:
    assert owner_rows(SERVER, ELSEWHERE, CLIENT) == {"ann": (10, 0)}


def test_a_server_without_clients_holds_nothing_unless_it_works() -> None:
    assert owner_rows(SERVER) == {}
    assert owner_rows(BUSY) == {"root": (10, 0)}


def test_a_pod_that_serves_on_its_allocated_device_does_not_hold_it_idle() -> None:
    pod = Workload("pod", "gpu", "mps-daemon", "main", pod_uid="u", container_id="c", user="root")
    mine = (Allocation(A, pod, "pod_resources"),)
    server = replace(SERVER, workload=pod)
    assert owner_rows(server, CLIENT, allocated=mine) == {"mps-daemon": (0, 0), "ann": (10, 0)}
    assert owner_rows(server, allocated=mine) == {"mps-daemon": (0, 0)}
    idle = replace(process(A, 2, types="M+C", sm=0.0), workload=pod)
    assert owner_rows(server, idle, allocated=mine) == {"mps-daemon": (10, 10)}, "its own client is idle"


def test_a_device_with_only_the_context_of_a_serving_server_is_idle() -> None:
    states = DeviceStates()
    quiet = {q.UTILIZATION: 0.0}
    client = replace(CLIENT, usage=replace(CLIENT.usage, sm=0.0))
    seen = snapshot(reading(A, SERVER, client, values=quiet), reading(B, ELSEWHERE, values=quiet))
    states.post(seen, serving_processes(seen.processes))
    assert states.now == {("GPU-0", ""): HELD, ("GPU-1", ""): IDLE}


def report_of(file: Path, by: str = "user") -> UsageReport:
    history = History(file)
    try:
        return build_report(history, by, Prices(), quarters(0, 2**32 // 900 * 900))
    finally:
        history.close()


def test_only_time_in_which_it_works_without_clients_is_the_servers(tmp_path: Path) -> None:
    """It is no session of its user: a report counts those that use GPUs. Folding changes nothing."""
    run = Run(tmp_path)
    run.clock.advance(HOUR - UNIX % HOUR)
    for minute in range(181):
        clients = [CLIENT] if 60 < minute <= 120 else []
        server = BUSY if minute > 120 else SERVER
        run.tick({A: minute * 1000 * J}, [server, *clients], seconds=60.0, busy=minute > 60)
    run.store.close()
    found = report_of(run.store.file)
    hours = {
        line.key[0]: (float(line.resident or 0) / HOUR, float(line.held or 0) / HOUR, line.sessions)
        for line in found.lines
    }
    about = pytest.approx
    assert hours["ann"] == (about(1, abs=0.02), 0.0, 1)
    assert hours["root"] == (about(1, abs=0.02), 0.0, 0)
    assert same(found, report_of(folded(run.store.file, run.clock.now_unix, tmp_path / "folded.db")))


def test_a_server_that_always_had_clients_is_in_no_row(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for second in range(30):
        run.tick({A: second * 100 * J, B: second * 50 * J}, [SERVER, ELSEWHERE, CLIENT, CONTROL], busy=False)
    run.store.close()
    for by in ("owner", "user", "command"):
        report = report_of(run.store.file, by)
        assert len(report.lines) == 1, by
    idle, *_ = report.gpu_accounts
    assert idle.millijoules == 28 * 50 * J, "its context on B is idle energy"
