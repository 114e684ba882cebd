"""How the page formats numbers, times and names: its functions, called in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from browser import BrowserTab, open_tab
from running import serving_prepared

pytestmark = pytest.mark.group("page-format")
DASH = "\N{EN DASH}"


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[BrowserTab]:
    with serving_prepared("--source", "simulator:workstation") as server:
        server.wait_ticks()
        with open_tab(browser, server.url) as tab:
            yield tab.open()


def call_module(tab: BrowserTab, module: str, call: str, *arguments: object) -> object:
    script = f"async (given) => (await import('./page/{module}.js')).{call}(...given)"
    answer: object = tab.page.evaluate(script, list(arguments))
    return answer.replace("\N{NO-BREAK SPACE}", " ") if isinstance(answer, str) else answer


@pytest.mark.parametrize(
    ("call", "arguments", "words"),
    [
        ("percent", (0.734,), "73 %"),
        ("percent", (0,), "0 %"),
        ("percent", (None,), DASH),
        ("percent", (None, "not reported"), "not reported"),
        ("watts", (0,), "0 W"),
        ("watts", (0.5,), "0.5 W"),
        ("watts", (657.2,), "657 W"),
        ("watts", (10_400,), "10.4 kW"),
        ("joules", (0,), "0 J"),
        ("joules", (12.345,), "12.3 J"),
        ("joules", (999.9,), "1.00 kJ"),
        ("joules", (1_234_567,), "1.23 MJ"),
        ("energy", (3_600_000,), "1.00 kWh"),
        ("bytes", (0,), "0 B"),
        ("bytes", (30 * 2**20,), "30.0 MiB"),
        ("bytes", (71 * 2**30,), "71.0 GiB"),
        ("bytesOf", (0, 80 * 2**30), "0 / 80 GiB"),
        ("bytesOf", (31.4 * 2**30, 80 * 2**30), "31.4 / 80 GiB"),
        ("bytesOf", (None, 80 * 2**30), "not reported"),
        ("bytesOf", (2**30, None), "1.00 GiB"),
        ("wattsOf", (70.4, 700), "70 / 700 W"),
        ("wattsOf", (None, 700), "not reported"),
        ("duration", (-3,), "0 s"),
        ("duration", (59.9,), "59 s"),
        ("duration", (60,), "1 min"),
        ("duration", (3600,), "1 h"),
        ("duration", (11_550,), "3 h 12 min"),
        ("duration", (190_000,), "2 d 4 h"),
        ("duration", (None,), DASH),
        ("cost", (None, "EUR"), DASH),
        ("cost", (12.345, "EUR"), "€12.35"),
        ("cost", (0.0123, "EUR"), "€0.0123"),
        ("cost", (0.0123, "EUR", 20), "€0.01"),
        ("cost", (12.3, ""), "12.30"),
        ("plural", (1, "process", "processes"), "1 process"),
        ("plural", (5000, "process", "processes"), "5,000 processes"),
    ],
)
def test_numbers_are_formatted_and_absent_is_not_zero(
    tab: BrowserTab, call: str, arguments: tuple[object, ...], words: str
) -> None:
    assert call_module(tab, "format", call, *arguments) == words


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("plain", "plain"),
        ("a\x00b", "a[NUL]b"),
        ("a\tb", "a[TAB]b"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}a", "[U+202E]a"),
        ("\N{ZERO WIDTH JOINER}", "[U+200D]"),
        ("\N{HANGUL FILLER}", "[U+3164]"),
        ("\N{TAG LATIN SMALL LETTER A}", "[U+E0061]"),
        ("\N{ROCKET}", "\N{ROCKET}"),
    ],
)
def test_invisible_characters_in_a_name_are_shown_as_codes(tab: BrowserTab, name: str, shown: str) -> None:
    assert call_module(tab, "names", "plain", name) == shown


def test_a_long_name_is_truncated_between_characters(tab: BrowserTab) -> None:
    assert call_module(tab, "names", "plain", "\N{ROCKET}" * 20, 11) == "\N{ROCKET}" * 5 + "…"


OWNER = {"owner_kind": "", "namespace": "", "pod": "", "container": "", "user": "", "job": ""}


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ({"namespace": "ml", "pod": "train-0", "container": "main"}, "ml/train-0"),
        ({"job": "4711", "user": "ada"}, "job 4711 (ada)"),
        ({"job": "4711"}, "job 4711"),
        ({"container": "comfyui", "user": "root"}, "comfyui"),
        ({"user": "ada"}, "ada"),
        ({}, "unknown owner"),
    ],
)
def test_an_owner_is_shown_by_its_most_specific_name(
    tab: BrowserTab, owner: dict[str, str], name: str
) -> None:
    assert call_module(tab, "names", "ownerName", {**OWNER, **owner}) == name


def test_set_name_writes_again_after_set_text(tab: BrowserTab) -> None:
    script = """async () => {
        const { setText } = await import('./page/dom.js');
        const { setName } = await import('./page/names.js');
        const node = document.createElement('p');
        setName(node, 'ml/train-0');
        setText(node, 'Point at a session');
        const between = [node.textContent, node.title];
        setName(node, 'ml/train-0');
        return [between, node.textContent, node.title];
    }"""
    assert tab.page.evaluate(script) == [["Point at a session", ""], "ml/train-0", "ml/train-0"]


# Runs the session store with given responses at given times; returns the requested starts and the sessions.
SESSIONS = """async ([answers, times]) => {
    const { SessionStore } = await import('./page/sessions.js');
    const requests = [];
    window.fetch = async (address) => {
        requests.push(Number(new URLSearchParams(address.split('?')[1]).get('since')));
        const body = answers[requests.length - 1];
        return { ok: true, json: async () => ({ next: null, from_books: false, ...body }) };
    };
    const store = new SessionStore(() => {});
    for (const now of times) await store.refresh(now);
    return [requests, [...store.known.values()].map((one) => [one.id, one.ended])];
}"""


def test_a_session_missing_in_a_response_ended_at_its_last_sighting(
    browser: Browser, tab: BrowserTab
) -> None:
    running = {"id": "1", "ended": None, "last_seen": 100_000.0}
    answers = [{"sessions": [running], "until": 100_030.0}, {"sessions": [], "until": 100_065.0}]
    with open_tab(browser, tab.origin) as own:
        own.open()
        requests, known = own.page.evaluate(SESSIONS, [answers, [100_030.0, 100_065.0]])
    # The end of a session is its last sighting, an interval ago.
    assert requests[1] < 100_000.0
    assert known == [["1", 100_000.0]]


def test_sessions_are_fetched_again_after_the_clock_was_set_back(browser: Browser, tab: BrowserTab) -> None:
    answers = [{"sessions": [], "until": 100_000.0}, {"sessions": [], "until": 99_900.0}]
    with open_tab(browser, tab.origin) as own:
        own.open()
        requests, _ = own.page.evaluate(SESSIONS, [answers, [100_000.0, 99_900.0]])
    assert requests[1] < 99_900.0


# Seconds without an event while the computer was awake, and in all, with its sleep.
@pytest.mark.parametrize(
    ("awake", "silent", "connects"), [(5, 5, 0), (61, 61, 1), (5, 28_800, 1), (61, 0, 1)]
)
def test_a_connection_without_events_is_opened_again(
    tab: BrowserTab, awake: int, silent: int, connects: int
) -> None:
    script = """async ([awake, silent]) => {
        const { LiveConnection } = await import('./page/live.js');
        const live = new LiveConnection({ state() {} });
        let connects = 0;
        live.connect = () => (connects += 1);
        live.connected = true;
        live.tickSeen = { at: performance.now() - awake * 1000, wall: Date.now() - silent * 1000 };
        live.reportFreshness();
        return connects;
    }"""
    assert tab.page.evaluate(script, [awake, silent]) == connects


@pytest.mark.parametrize("simulated", [True, False])
def test_after_a_sleep_the_age_of_the_data_includes_it(tab: BrowserTab, simulated: bool) -> None:
    """In Chromium, the performance clock stops while the computer sleeps."""
    script = """async (simulated) => {
        const { LiveConnection } = await import('./page/live.js');
        const live = new LiveConnection({ snapshot() {}, state() {} });
        live.connected = true;
        const status = { readings: true, interval_seconds: 1 };
        live.acceptSnapshot({ unix: Date.now() / 1000 - 2, source: { simulated }, status });
        const wall = Date.now;
        Date.now = () => wall() + 8 * 3600e3;
        const { name, age } = live.freshness();
        Date.now = wall;
        return [name, Math.floor(age / 60)];
    }"""
    assert tab.page.evaluate(script, simulated) == ["stale", 480]


@pytest.mark.parametrize(
    ("zone", "begins", "words"),
    [
        ("Europe/Berlin", "2026-03-28T20:30Z", "22:00|23:00|29 Mar|01:00|03:00|04:00|05:00|06:00"),
        ("Europe/Berlin", "2026-10-24T20:30Z", "23:00|25 Oct|01:00|02:00|02:00|03:00|04:00|05:00"),
        ("Pacific/Chatham", "2026-04-04T10:00Z", "5 Apr|01:00|02:00|03:00|03:00|04:00|05:00|06:00"),
        ("America/St_Johns", "2027-01-01T01:00Z", "22:00|23:00|1 Jan|01:00|02:00|03:00|04:00|05:00"),
    ],
)
def test_the_axis_has_the_date_at_midnight_where_clocks_change(
    browser: Browser, tab: BrowserTab, zone: str, begins: str, words: str
) -> None:
    script = """async (begins) => {
        const { TimelinePainter } = await import('./page/painter.js');
        const painter = new TimelinePainter(document.createElement('canvas'));
        Object.assign(painter, { gutter: 0, width: 600, color: () => '' });
        const words = [];
        painter.pen.fillText = (text) => words.push(text);
        const from = Date.parse(begins) / 1000;
        painter.drawAxis({ from, to: from + 8 * 3600 }, 10);
        return words.join('|');
    }"""
    with open_tab(browser, tab.origin, timezone_id=zone) as local:
        assert local.open().page.evaluate(script, begins) == words
