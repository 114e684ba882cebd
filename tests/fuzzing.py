"""Shared parts of the fuzz tests: corpus files, their mutation, and the checks for every reader.

`tests/corpus/<reader>` has small files, each named after the case that it covers. A plain test reads each of
them, and hypothesis mutates them. GPULEDGER_FUZZ_EXAMPLES sets the number of examples (default 30).
"""

from __future__ import annotations

import math
import os
import signal
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any
from unicodedata import category

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.process import GpuProcess
from gpuledger.model.snapshot import Snapshot

CORPUS = Path(__file__).parent / "corpus"
EXAMPLES = int(os.environ.get("GPULEDGER_FUZZ_EXAMPLES", "30"))
fuzzed = settings(
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
# For laws of which each example is a whole ledger.
costly = settings(max_examples=settings.default.max_examples // 2)

# Bytes that break parsers of any format.
_HOSTILE = (
    *(
        b"",
        b"\0",
        b"\n",
        b"\r\n",
        b"\t",
        b" ",
        b'"',
        b"'",
        b"\\",
        b"\\u0000",
        b"\\ud800",
        b"\xff\xfe",
        b"\xc3",
    ),
    *("é\u2028\u202e".encode(), b"-1", b"0", b"1e400", b"nan", b"-inf", b"Infinity", b"9" * 40, b"9" * 5000),
    *(b"4294967295", b"18446744073709551615", b"[]", b"{}", b"null", b"true", b"[" * 1200, b"#", b":", b","),
)
_LARGEST = 64 * 1024


def corpus_files(reader: str) -> list[Path]:
    """The corpus files of a reader, for `parametrize` with `ids=file_name`."""
    found = sorted(path for path in (CORPUS / reader).iterdir() if path.is_file())
    assert found, f"no corpus for {reader}"
    return found


def file_name(path: Path) -> str:
    return path.name


def mutated_files(reader: str, *words: bytes) -> st.SearchStrategy[bytes]:
    """A corpus file with parts cut, changed, repeated or spliced; `words` are tokens of the format."""
    return mutated([path.read_bytes() for path in corpus_files(reader)], *words)


def mutated(files: list[bytes], *words: bytes) -> st.SearchStrategy[bytes]:
    """One of these contents, mutated in the same way."""
    put = st.one_of(st.sampled_from((*words, *_HOSTILE)), st.binary(max_size=12))

    @st.composite
    def strategy(draw: st.DrawFn) -> bytes:
        content = draw(st.sampled_from(files))
        for _ in range(draw(st.integers(1, 6))):
            content = _changed(draw, content, files, put)[:_LARGEST]
        return content

    return strategy()


def _changed(draw: st.DrawFn, content: bytes, files: list[bytes], put: st.SearchStrategy[bytes]) -> bytes:
    how = draw(st.sampled_from(("put", "cut", "end", "swap", "lose", "twice", "often", "cross")))
    start = draw(st.integers(0, len(content)))
    end = min(len(content), start + draw(st.integers(0, 40)))
    if how == "put":
        return content[:start] + draw(put) + content[end if draw(st.booleans()) else start :]
    if how == "cut":
        return content[:start] + content[end:]
    if how == "end":
        return content[:start]
    if how == "often":
        return content[:start] + content[start:end] * draw(st.integers(2, 300)) + content[end:]
    if how == "cross":
        other = draw(st.sampled_from(files))
        place = draw(st.integers(0, len(other)))
        return content[:start] + other[place:]
    lines = content.split(b"\n")
    first, second = (draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    if how == "swap":
        lines[first], lines[second] = lines[second], lines[first]
    elif how == "lose":
        del lines[first]
    else:
        lines.insert(second, lines[first])
    return b"\n".join(lines)


# Values that a reader of JSON does not expect.
_HOSTILE_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 1.5, -0.5, 1e308, math.inf, -math.inf, math.nan, 2**63, 10**30, 10**400),
    *("", "x", "\n", "\x1b[31m", "\ud800", "\0", "9" * 5000, "1/0", "-1", "2026-13-99", "nan", "a/../b"),
    *([], [[]], [None], {}, {"a": {}}, {"": None}, [{}], [0, 1, 2]),
)


def mutated_values(*documents: Any) -> st.SearchStrategy[Any]:
    """A copy of one of these values of JSON with some parts replaced, removed, exchanged or repeated.

    Mutated bytes are rarely valid JSON: these reach what is behind the parser.
    """

    @st.composite
    def strategy(draw: st.DrawFn) -> Any:
        found = [deepcopy(draw(st.sampled_from(documents)))]
        for _ in range(draw(st.integers(1, 4))):
            places = list(_places_in(found))
            holder, key = places[draw(st.integers(0, len(places) - 1))]
            how = draw(st.sampled_from(("hostile", "hostile", "lose", "other", "twice", "many")))
            if how == "lose" and holder is not found:
                del holder[key]
            elif how in ("twice", "many") and isinstance(holder[key], list) and len(holder[key]) < 50:
                # The same objects again: a later change is in all of them.
                holder[key] *= 2 if how == "twice" else 30
            elif how == "other":
                there, name = places[draw(st.integers(0, len(places) - 1))]
                holder[key] = deepcopy(there[name])
            else:
                holder[key] = deepcopy(draw(st.sampled_from(_HOSTILE_VALUES)))
            if not found:
                found.append(None)
        return found[0]

    return strategy()


def _places_in(whole: list[Any]) -> Iterator[tuple[Any, Any]]:
    """The places of all values in lists and objects, at most some thousand."""
    waiting: list[Any] = [whole]
    count = 0
    while waiting and count < 5000:
        holder = waiting.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            yield holder, key
            count += 1
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])


class Hang(AssertionError):
    """Too much CPU time."""


@contextmanager
def bounded(seconds: float = 15.0) -> Iterator[None]:
    """Fail if the block takes more CPU time than this. Readers should take milliseconds."""

    def over(*_: object) -> None:
        raise Hang(f"more than {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def counted_steps() -> Iterator[list[int]]:
    """Count calls of functions, also of those in C."""
    steps = [0]

    def count(*event: object) -> None:
        steps[0] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield steps
    finally:
        sys.setprofile(before)


@contextmanager
def memory_below(most: int) -> Iterator[None]:
    """Fail if the block allocates more bytes of memory at any moment."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most, f"{peak} bytes"


def check_line(error: GpuledgerError) -> None:
    """Check that the error is one line without control characters, for terminals and logs."""
    text = str(error)
    assert text
    assert not {category(char) for char in text} & {"Cc", "Cs", "Zl", "Zp"}, repr(text)


def check_snapshot(seen: Snapshot) -> None:
    """Check that values, pids and texts are possible in the model."""
    for reading in seen.readings:
        for quantity, value in reading.values.items():
            assert quantity.is_possible(value), (quantity, value)
        for process in reading.processes or ():
            _check_process(process)


def _check_process(process: GpuProcess) -> None:
    assert 0 <= process.pid < 2**32
    assert process.memory is None or 0 <= process.memory < 2**63
    usage = process.usage
    for share in (usage.sm, usage.memory, usage.encoder, usage.decoder, usage.jpeg, usage.ofa):
        assert share is None or 0 <= share <= 1
    check_text(process.command)


def check_text(*texts: str) -> None:
    """Check that texts can be exported: UTF-8 without zero bytes."""
    for text in texts:
        assert "\0" not in text.encode("utf-8").decode("utf-8"), repr(text)
