from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.http.routes import HEALTH, HEALTHY, READY, Request, Routes
from gpuledger.outputs.responses import health_routes
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
