from __future__ import annotations

from dataclasses import replace

import pytest

from builders import gpu, node_state, reading, snapshot
from gpuledger.http.routes import HEALTH, HEALTHY, READY, Request, Routes
from gpuledger.model.quantities import PCIE_WIDTH, PCIE_WIDTH_MAX
from gpuledger.model.session import LedgerState, ThrottleRow, XidRow
from gpuledger.outputs.responses import describe_health, health_routes
from unit.http.support import a_page

STARTING = {"status": "starting", "healthy": False, "attempted": False}
NO_DRIVER = {"status": "no driver; install it", "healthy": False, "attempted": True}
GOOD = {"status": "ok", "healthy": True, "attempted": True}


def state_with(fresh=True, **health):
    state = a_page(**health)
    return state if fresh else replace(state, snapshot=None)


def get(path, fresh=True, **health):
    response = Routes(health_routes(lambda: state_with(fresh, **health))).respond(Request("GET", path))
    return response.status, response.body.decode()


@pytest.mark.parametrize("health", [STARTING, NO_DRIVER, GOOD])
def test_the_liveness_probe_succeeds_while_the_process_responds(health):
    assert get(HEALTHY, **health) == (200, "OK\n")


@pytest.mark.parametrize(
    ("health", "response"),
    [(STARTING, (503, "NOT READY: starting\n")), (NO_DRIVER, (200, "OK\n")), (GOOD, (200, "OK\n"))],
)
def test_it_is_ready_after_the_first_tick_even_without_a_working_gpu(health, response):
    assert get(READY, **health) == response


@pytest.mark.parametrize(
    ("health", "fresh", "verdict"),
    [
        (STARTING, False, "NOT READY: starting"),
        (NO_DRIVER, False, "STALE: no driver; install it"),
        (NO_DRIVER, True, "DEGRADED: no driver; install it"),
        (GOOD, True, "OK"),
    ],
)
def test_health_is_always_200_and_names_the_problem(health, fresh, verdict):
    status, body = get(HEALTH, fresh, **health)
    assert (status, body.splitlines()[0]) == (200, verdict)


@pytest.mark.parametrize(
    ("interval", "line"),
    [(1.0, "7 ticks, one every 1 s"), (4.0, "7 ticks, one every 4 s (configured: 1 s)")],
)
def test_the_second_line_has_ticks_and_interval(interval, line):
    _, body = get(HEALTH, ticks=7, interval=interval, configured_interval=1.0)
    assert body.splitlines()[1:] == [line]


def test_health_is_that_of_the_current_state():
    states = [state_with(**GOOD), state_with(fresh=False, **NO_DRIVER)]
    routes = Routes(health_routes(lambda: states.pop()))
    assert routes.respond(Request("GET", HEALTH)).body.startswith(b"STALE")
    assert routes.respond(Request("GET", HEALTH)).body.startswith(b"OK")


CARD = gpu(0, pci_bus_id="00000000:18:00.0")


def health_text(values, ledger=None):
    return describe_health(node_state(snapshot(reading(CARD, values=values)), ledger))


def test_a_healthy_gpu_has_no_line():
    assert health_text({PCIE_WIDTH: 16, PCIE_WIDTH_MAX: 16}) == "OK\n0 ticks, one every 1 s"


def test_health_names_each_problem_of_a_gpu_with_its_remedy():
    rows = (ThrottleRow("thermal", 1_700_000_000.0, 30, 120, 0.5),)
    xids = (XidRow(1, CARD.uuid, "", 79, 1_699_999_000.0, 1_699_999_000.0),)
    ledger = LedgerState(throttling={CARD.uuid: rows}, xid_log=xids, invalid=3)
    text = health_text({PCIE_WIDTH: 4, PCIE_WIDTH_MAX: 16}, ledger)
    verdict, _, xid, link, heat, rejected = text.splitlines()
    # Nothing is missing in the data: the verdict is about gpuledger.
    assert verdict == "OK"
    assert xid.startswith("GPU 0 (GPU-0) reported Xid 79: ") and "power-cycle" in xid
    assert link.startswith("GPU 0 (GPU-0) uses 4 of the 16 PCIe lanes") and "reseat" in link
    assert heat.startswith(
        "GPU 0 (GPU-0) slows down because it is hot since 2023-11-14T22:13:20Z, for 25% of"
    )
    assert rejected.startswith("rejected values since the start: 3")


def test_the_verbose_health_has_the_number_of_gpus_and_the_driver():
    state = node_state(snapshot(reading(CARD), reading(gpu(1))))
    state = replace(state, source=replace(state.source, driver_version="550.54.15"))
    routes = Routes(health_routes(lambda: state))
    plain = routes.respond(Request("GET", HEALTH)).body
    verbose = routes.respond(Request("GET", HEALTH, query="verbose")).body
    assert verbose == plain + b"2 GPUs, driver 550.54.15\n"
