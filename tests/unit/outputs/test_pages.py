from __future__ import annotations

import gzip
import threading

import pytest
from hypothesis import given, settings
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


def ask(handler, headers=None):
    return handler(Request("GET", "/metrics", headers=headers or {}))


def test_the_first_page_is_served_before_any_tick():
    answer = ask(a_store().handler(("process",)))
    assert (answer.status, answer.body) == (
        200,
        b'# HELP process_x help\n# TYPE process_x gauge\nprocess_x{n="0"} 1\nprocess_x{n="1"} 1\n',
    )


def test_the_newest_page_is_served():
    store = a_store()
    handler = store.handler(("process",))
    store.publish(a_page(2.0))
    assert b'process_x{n="0"} 2\n' in ask(handler).body
    assert store.page == a_page(2.0)


def test_several_dialects_share_one_page():
    body = ask(a_store(FakeDialect("a"), FakeDialect("b")).handler(("b", "a"))).body
    assert body.index(b"b_x{") < body.index(b"a_x{")


def test_answers_say_on_which_headers_they_depend():
    handler = a_store().handler(("process",))
    assert ask(handler).headers == (("Vary", "Accept, Accept-Encoding"),)
    assert ask(handler, GZIP).headers == (
        ("Vary", "Accept, Accept-Encoding"),
        ("Content-Encoding", "gzip"),
    )


@pytest.mark.parametrize("headers", [{}, OPENMETRICS])
def test_gzip_holds_the_plain_bytes_and_no_time_stamp(headers):
    handler = a_store().handler(("process",))
    zipped = ask(handler, headers | GZIP).body
    assert gzip.decompress(zipped) == ask(handler, headers).body
    assert zipped[4:8] == b"\0\0\0\0"


def test_a_page_is_rendered_once_whatever_the_number_of_scrapes():
    store = a_store()
    handler = store.handler(("process",))
    for _ in range(50):
        ask(handler, GZIP)
        ask(handler)
    assert (store.renders, store.compressions) == (1, 1)


def test_what_is_asked_on_every_page_is_made_when_it_is_published():
    store = a_store()
    handler = store.handler(("process",))
    ask(handler, GZIP)
    for unix in range(2, 12):
        store.publish(a_page(float(unix)))
        before = store.renders, store.compressions
        ask(handler, GZIP)
        assert (store.renders, store.compressions) == before
    assert before == (11, 11)


def test_what_nobody_asks_for_is_not_made():
    store = a_store()
    store.handler(("process",))
    store.publish(a_page(2.0))
    assert store.renders == 0


def test_what_was_asked_once_is_made_on_two_more_pages_and_then_no_more():
    store = a_store()
    ask(store.handler(("process",)))
    for unix in range(2, 20):
        store.publish(a_page(float(unix)))
    assert store.renders == 3


def test_a_dialect_is_told_once_for_all_variants_of_a_published_page():
    dialect = FakeDialect()
    store = a_store(dialect, FakeDialect("other"))
    together, alone = store.handler(("process", "other")), store.handler(("process",))
    for headers in ({}, GZIP, OPENMETRICS):
        ask(together, headers)
        ask(alone, headers)
    dialect.told = 0
    store.publish(a_page(2.0))
    assert dialect.told == 1


def test_routes_are_the_metrics_page_and_one_for_each_dialect():
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


def test_dialects_that_cannot_share_a_page_are_refused_at_start():
    spec, other = FamilySpec("x", "gauge", "one"), FamilySpec("x", "gauge", "another")
    store = a_store(FakeDialect("a", specs=(spec,)), FakeDialect("b", specs=(other,)))
    with pytest.raises(ValueError, match="family x is declared in two ways"):
        store.handler(("a", "b"))
    store.handler(("a",))


def test_a_dialect_that_fails_loses_its_own_families_alone_and_is_logged_once(caplog):
    broken = FakeDialect("broken", broken=True)
    store = a_store(broken, FakeDialect("process"))
    handler = store.handler(("broken", "process"))
    for unix in range(2, 5):
        answer = ask(handler)
        assert b"process_x{" in answer.body
        store.publish(a_page(float(unix)))
    assert caplog.text.count("the dialect broken failed") == 1
    broken.broken = False
    store.publish(a_page(9.0))
    assert b"broken_x{" in ask(handler).body


def test_a_page_that_no_dialect_can_tell_is_an_error_for_its_scraper_and_not_for_the_tick(caplog):
    store = a_store(FakeDialect("broken", broken=True))
    routes = Routes(store.routes("/metrics", ("broken",)))
    for unix in range(2, 4):
        assert routes.respond(Request("GET", "/metrics")).status == 500
        store.publish(a_page(float(unix)))
    assert store.page == a_page(3.0)
    assert "the page of broken failed" in caplog.text


def wanting_store(clock):
    dialects = (
        FakeDialect("process", wants=frozenset({POWER})),
        FakeDialect("dcgm", wants=frozenset({ENERGY})),
    )
    return a_store(*dialects, listed=("process",), clock=clock)


def test_listed_dialects_always_want_their_quantities():
    assert wanting_store(FakeClock()).wants() == {POWER}


@pytest.mark.parametrize(("seconds", "wanted"), [(0, True), (600, True), (601, False)])
def test_an_unlisted_dialect_wants_from_its_first_request_until_ten_minutes_after_its_last(seconds, wanted):
    clock = FakeClock()
    store = wanting_store(clock)
    handler = store.handler(("dcgm",))
    ask(handler)
    clock.advance(500)
    ask(handler)
    clock.advance(seconds)
    assert (ENERGY in store.wants()) is wanted
    assert TEMPERATURE not in store.wants()


def test_no_body_mixes_two_pages_while_another_thread_publishes():
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
            bodies.append(ask(handler, GZIP).body)
    finally:
        enough.set()
        publisher.join()

    values = [[line.rsplit(b" ", 1)[1] for line in gzip.decompress(body).splitlines()[2:]] for body in bodies]
    assert all(len(each) == 200 and len(set(each)) == 1 for each in values)
    pages = [int(each[0]) for each in values]
    assert pages == sorted(pages)


def test_a_page_published_while_another_is_rendered_does_not_get_into_it():
    class Interrupted(FakeDialect):
        def families(self, page):
            for family in super().families(page):
                if page.unix == 1:
                    store.publish(a_page(2.0))
                yield family

    specs = tuple(FamilySpec(name, "gauge", "", ("n",)) for name in ("a", "b"))
    store = a_store(Interrupted(specs=specs, series=1))
    handler = store.handler(("process",))
    bodies = [ask(handler).body.decode() for _ in range(2)]
    assert [[line for line in body.splitlines() if line[0] != "#"] for body in bodies] == [
        ['a{n="0"} 1', 'b{n="0"} 1'],
        ['a{n="0"} 2', 'b{n="0"} 2'],
    ]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(["publish", "plain", "gzip", "openmetrics"]), max_size=25))
def test_every_body_is_that_of_the_newest_page(steps):
    store = a_store()
    handler = store.handler(("process",))
    unix = 1
    for step in steps:
        if step == "publish":
            unix += 1
            store.publish(a_page(float(unix)))
            continue
        headers = {"plain": {}, "gzip": GZIP, "openmetrics": OPENMETRICS}[step]
        body = ask(handler, headers).body
        body = gzip.decompress(body) if step == "gzip" else body
        assert f'process_x{{n="0"}} {unix}\n'.encode() in body
    asked = [step for step in steps if step != "publish"]
    # Three ways to ask, two plain variants: at most one render of each a Page.
    assert store.renders <= 2 * unix
    assert bool(store.renders) is bool(asked)
