from __future__ import annotations

from dataclasses import replace

import pytest

from gpuledger.http.routes import HEALTH, HEALTHY, READY, Request, Routes
from gpuledger.outputs.responses import health_routes
from unit.http.support import a_page

STARTING = {"status": "starting", "healthy": False, "tried": False}
NO_DRIVER = {"status": "no driver; install it", "healthy": False, "tried": True}
GOOD = {"status": "ok", "healthy": True, "tried": True}


def shown(fresh=True, **health):
    page = a_page(**health)
    return page if fresh else replace(page, snapshot=None)


def ask(path, fresh=True, **health):
    answer = Routes(health_routes(lambda: shown(fresh, **health))).respond(Request("GET", path))
    return answer.status, answer.body.decode()


@pytest.mark.parametrize("health", [STARTING, NO_DRIVER, GOOD])
def test_the_process_is_alive_while_it_answers(health):
    assert ask(HEALTHY, **health) == (200, "OK\n")


@pytest.mark.parametrize(
    ("health", "answer"),
    [(STARTING, (503, "NOT READY: starting\n")), (NO_DRIVER, (200, "OK\n")), (GOOD, (200, "OK\n"))],
)
def test_it_is_ready_once_a_tick_was_tried_whether_or_not_a_gpu_works(health, answer):
    assert ask(READY, **health) == answer


@pytest.mark.parametrize(
    ("health", "fresh", "verdict"),
    [
        (STARTING, False, "NOT READY: starting"),
        (NO_DRIVER, False, "STALE: no driver; install it"),
        (NO_DRIVER, True, "DEGRADED: no driver; install it"),
        (GOOD, True, "OK"),
    ],
)
def test_health_is_always_200_and_says_what_is_wrong(health, fresh, verdict):
    status, body = ask(HEALTH, fresh, **health)
    assert (status, body.splitlines()[0]) == (200, verdict)


@pytest.mark.parametrize(
    ("interval", "line"),
    [(1.0, "7 ticks, one every 1 s"), (4.0, "7 ticks, one every 4 s (1 s asked)")],
)
def test_the_second_line_tells_ticks_and_interval(interval, line):
    _, body = ask(HEALTH, ticks=7, interval=interval, asked_interval=1.0)
    assert body.splitlines()[1:] == [line]


def test_health_is_that_of_the_page_at_the_time_of_asking():
    pages = [shown(**GOOD), shown(fresh=False, **NO_DRIVER)]
    routes = Routes(health_routes(lambda: pages.pop()))
    assert routes.respond(Request("GET", HEALTH)).body.startswith(b"STALE")
    assert routes.respond(Request("GET", HEALTH)).body.startswith(b"OK")
