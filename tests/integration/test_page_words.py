"""How the page writes numbers, times and names: its own functions, asked in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from browser import Look, looking
from running import serving

pytestmark = pytest.mark.xdist_group("browser")
DASH = "\N{EN DASH}"


@pytest.fixture(scope="module")
def look(browser: Browser) -> Iterator[Look]:
    with serving("--source", "simulator:workstation") as server:
        server.wait_ticks()
        with looking(browser, server.url) as look:
            yield look.open()


def ask(look: Look, module: str, call: str, *arguments: object) -> object:
    script = f"async (given) => (await import('./page/{module}.js')).{call}(...given)"
    answer: object = look.page.evaluate(script, list(arguments))
    return answer.replace("\N{NO-BREAK SPACE}", " ") if isinstance(answer, str) else answer


@pytest.mark.parametrize(
    ("call", "arguments", "words"),
    [
        ("percent", (0.734,), "73 %"),
        ("percent", (0,), "0 %"),
        ("percent", (None,), DASH),
        ("percent", (None, "not told"), "not told"),
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
        ("bytesOf", (None, 80 * 2**30), "not told"),
        ("bytesOf", (2**30, None), "1.00 GiB"),
        ("wattsOf", (70.4, 700), "70 / 700 W"),
        ("wattsOf", (None, 700), "not told"),
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
def test_numbers_are_written_for_people_and_what_is_absent_is_not_zero(
    look: Look, call: str, arguments: tuple[object, ...], words: str
) -> None:
    assert ask(look, "format", call, *arguments) == words


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
def test_what_cannot_be_seen_in_a_name_is_spelled_out(look: Look, name: str, shown: str) -> None:
    assert ask(look, "names", "plain", name) == shown


def test_a_long_name_is_cut_between_characters(look: Look) -> None:
    assert ask(look, "names", "plain", "\N{ROCKET}" * 20, 11) == "\N{ROCKET}" * 5 + "…"


OWNER = {"owner_kind": "", "namespace": "", "pod": "", "container": "", "user": "", "job": ""}


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ({"namespace": "ml", "pod": "train-0", "container": "main"}, "ml/train-0"),
        ({"job": "4711", "user": "ada"}, "job 4711 (ada)"),
        ({"job": "4711"}, "job 4711"),
        ({"container": "comfyui", "user": "root"}, "comfyui"),
        ({"user": "ada"}, "ada"),
        ({}, "an unknown owner"),
    ],
)
def test_an_owner_goes_by_the_deepest_name_that_is_known(
    look: Look, owner: dict[str, str], name: str
) -> None:
    assert ask(look, "names", "ownerName", {**OWNER, **owner}) == name
