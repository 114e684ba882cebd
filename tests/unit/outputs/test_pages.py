from __future__ import annotations

import gzip
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import FakeClock
from gpuledger.http.routes import Request, Routes
from gpuledger.model.errors import UsageError
from gpuledger.model.family import FamilySpec
from gpuledger.model.quantities import ENERGY, POWER, TEMPERATURE
from gpuledger.outputs.metrics_pages import MetricsPages
from unit.http.support import FakeDialect, a_page

OPENMETRICS = {"accept": "application/openmetrics-text"}
GZIP = {"accept-encoding": "gzip"}


def a_store(*dialects, listed=(), clock=None):
    dialects = dialects or (FakeDialect(),)
    return MetricsPages({each.name: each for each in dialects}, clock or FakeClock(), a_page(), listed)


def get(handler, headers=None):
    return handler(Request("GET", "/metrics", headers=headers or {}))


def test_the_first_page_is_served_before_any_tick():
    response = get(a_store().handler(("process",)))
    assert (response.status, response.body) == (
        200,
        b'# HELP process_x help\n# TYPE process_x gauge\nprocess_x{n="0"} 1\nprocess_x{n="1"} 1\n',
    )


def test_the_newest_page_is_served():
    store = a_store()
    handler = store.handler(("process",))
    store.publish(a_page(2.0))
    assert b'process_x{n="0"} 2\n' in get(handler).body
    assert store.state == a_page(2.0)


def test_several_dialects_share_one_page():
    body = get(a_store(FakeDialect("a"), FakeDialect("b")).handler(("b", "a"))).body
    assert body.index(b"b_x{") < body.index(b"a_x{")


def test_responses_have_a_vary_header():
    handler = a_store().handler(("process",))
    assert get(handler).headers == (("Vary", "Accept, Accept-Encoding"),)
    assert get(handler, GZIP).headers == (
        ("Vary", "Accept, Accept-Encoding"),
        ("Content-Encoding", "gzip"),
    )


@pytest.mark.parametrize("headers", [{}, OPENMETRICS])
def test_gzip_contains_the_plain_page_and_no_timestamp(headers):
    handler = a_store().handler(("process",))
    zipped = get(handler, headers | GZIP).body
    assert gzip.decompress(zipped) == get(handler, headers).body
    assert zipped[4:8] == b"\0\0\0\0"


def test_a_page_is_rendered_once_for_any_number_of_scrapes():
    store = a_store()
    handler = store.handler(("process",))
    for _ in range(50):
        get(handler, GZIP)
        get(handler)
    assert (store.renders, store.compressions) == (1, 1)


def test_a_variant_requested_for_every_state_is_rendered_when_published():
    store = a_store()
    handler = store.handler(("process",))
    get(handler, GZIP)
    for unix in range(2, 12):
        store.publish(a_page(float(unix)))
        before = store.renders, store.compressions
        get(handler, GZIP)
        assert (store.renders, store.compressions) == before
    assert before == (11, 11)


def test_a_variant_that_is_never_requested_is_not_rendered():
    store = a_store()
    store.handler(("process",))
    store.publish(a_page(2.0))
    assert store.renders == 0


def test_a_variant_requested_once_is_rendered_for_two_more_states():
    store = a_store()
    get(store.handler(("process",)))
    for unix in range(2, 20):
        store.publish(a_page(float(unix)))
    assert store.renders == 3


def test_a_dialect_runs_once_for_all_variants_of_a_published_state():
    dialect = FakeDialect()
    store = a_store(dialect, FakeDialect("other"))
    together, alone = store.handler(("process", "other")), store.handler(("process",))
    for headers in ({}, GZIP, OPENMETRICS):
        get(together, headers)
        get(alone, headers)
    dialect.calls = 0
    store.publish(a_page(2.0))
    assert dialect.calls == 1


def test_routes_are_the_metrics_page_and_one_per_dialect():
    store = a_store(FakeDialect("a"), FakeDialect("b"))
    routes = Routes(store.routes("/metrics", ("a",)))
    assert routes.paths == ("/metrics", "/metrics/a", "/metrics/b")
    assert b"b_x{" in routes.respond(Request("GET", "/metrics/b")).body
    assert b"b_x{" not in routes.respond(Request("GET", "/metrics")).body


def test_an_unknown_dialect_is_a_usage_error():
    with pytest.raises(UsageError, match="unknown dialect 'proces'; did you mean 'process'"):
        a_store().handler(("proces",))
    with pytest.raises(UsageError, match="unknown dialect 'smi'"):
        a_store(listed=("smi",))


def test_dialects_that_cannot_share_a_page_are_rejected_at_startup():
    spec, other = FamilySpec("x", "gauge", "one"), FamilySpec("x", "gauge", "another")
    store = a_store(FakeDialect("a", specs=(spec,)), FakeDialect("b", specs=(other,)))
    with pytest.raises(ValueError, match="family x has two different declarations"):
        store.handler(("a", "b"))
    store.handler(("a",))


def test_a_failing_dialect_loses_only_its_families_and_is_logged_once(caplog):
    broken = FakeDialect("broken", broken=True)
    store = a_store(broken, FakeDialect("process"))
    handler = store.handler(("broken", "process"))
    for unix in range(2, 5):
        response = get(handler)
        assert b"process_x{" in response.body
        store.publish(a_page(float(unix)))
    assert caplog.text.count("the dialect broken failed") == 1
    broken.broken = False
    store.publish(a_page(9.0))
    assert b"broken_x{" in get(handler).body


def test_a_page_of_failing_dialects_is_an_error_for_its_scraper_only(caplog):
    store = a_store(FakeDialect("broken", broken=True))
    routes = Routes(store.routes("/metrics", ("broken",)))
    for unix in range(2, 4):
        assert routes.respond(Request("GET", "/metrics")).status == 500
        store.publish(a_page(float(unix)))
    assert store.state == a_page(3.0)
    assert "cannot render the metrics page of the dialects broken" in caplog.text


def store_with_quantities(clock):
    dialects = (
        FakeDialect("process", required_quantities=frozenset({POWER})),
        FakeDialect("dcgm", required_quantities=frozenset({ENERGY})),
    )
    return a_store(*dialects, listed=("process",), clock=clock)


def test_quantities_of_listed_dialects_are_always_required():
    assert store_with_quantities(FakeClock()).required_quantities() == {POWER}


@pytest.mark.parametrize(("seconds", "required"), [(0, True), (600, True), (601, False)])
def test_quantities_of_an_unlisted_dialect_are_required_until_ten_minutes_after_its_last_request(
    seconds, required
):
    clock = FakeClock()
    store = store_with_quantities(clock)
    handler = store.handler(("dcgm",))
    get(handler)
    clock.advance(500)
    get(handler)
    clock.advance(seconds)
    assert (ENERGY in store.required_quantities()) is required
    assert TEMPERATURE not in store.required_quantities()


@pytest.mark.parametrize(("headers", "says"), [({}, True), (OPENMETRICS, False)])
def test_a_page_says_which_dialects_were_not_read_yet(headers, says):
    late, listed = FakeDialect("a", required_quantities=frozenset({POWER})), FakeDialect("b")
    store = a_store(late, listed, listed=("b",))
    store.publish(replace(a_page(2.0), requested=frozenset({TEMPERATURE})))
    body = get(store.handler(("a", "b")), headers).body
    assert (
        body.endswith(b"# Values of a follow with the next reading: these are the first requests.\n") is says
    )
    store.publish(replace(a_page(3.0), requested=frozenset({TEMPERATURE, POWER})))
    assert b"# Values" not in get(store.handler(("a", "b")), headers).body


def test_no_body_mixes_two_states_while_another_thread_publishes():
    store = a_store(FakeDialect(series=200))
    handler = store.handler(("process",))
    enough = threading.Event()

    def publish():
        unix = 1
        while not enough.is_set():
            unix += 1
            store.publish(a_page(float(unix)))

    publisher = threading.Thread(target=publish)
    publisher.start()
    bodies = []
    try:
        while len(set(bodies)) < 30:
            assert publisher.is_alive()
            bodies.append(get(handler, GZIP).body)
    finally:
        enough.set()
        publisher.join()

    values = [[line.rsplit(b" ", 1)[1] for line in gzip.decompress(body).splitlines()[2:]] for body in bodies]
    assert all(len(each) == 200 and len(set(each)) == 1 for each in values)
    states = [int(each[0]) for each in values]
    assert states == sorted(states)


def test_a_state_published_during_rendering_does_not_affect_the_body():
    class Interrupted(FakeDialect):
        def families(self, state):
            for family in super().families(state):
                if state.unix == 1:
                    store.publish(a_page(2.0))
                yield family

    specs = tuple(FamilySpec(name, "gauge", "", ("n",)) for name in ("a", "b"))
    store = a_store(Interrupted(specs=specs, series=1))
    handler = store.handler(("process",))
    bodies = [get(handler).body.decode() for _ in range(2)]
    assert [[line for line in body.splitlines() if line[0] != "#"] for body in bodies] == [
        ['a{n="0"} 1', 'b{n="0"} 1'],
        ['a{n="0"} 2', 'b{n="0"} 2'],
    ]


@given(st.lists(st.sampled_from(["publish", "plain", "gzip", "openmetrics"]), max_size=25))
def test_every_body_is_of_the_newest_state(steps):
    store = a_store()
    handler = store.handler(("process",))
    unix = 1
    for step in steps:
        if step == "publish":
            unix += 1
            store.publish(a_page(float(unix)))
            continue
        headers = {"plain": {}, "gzip": GZIP, "openmetrics": OPENMETRICS}[step]
        body = get(handler, headers).body
        body = gzip.decompress(body) if step == "gzip" else body
        assert f'process_x{{n="0"}} {unix}\n'.encode() in body
    requests = [step for step in steps if step != "publish"]
    # Three kinds of requests have two uncompressed variants: each is rendered at most once per state.
    assert store.renders <= 2 * unix
    assert bool(store.renders) is bool(requests)
