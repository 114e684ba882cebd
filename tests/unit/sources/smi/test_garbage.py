"""Output that is not of nvidia-smi: one line that says so, after few steps, whatever its shape."""

from __future__ import annotations

import pytest

from builders import FakeClock
from fuzzing import bounded, check_line, counted_steps, memory_below
from gpuledger.host.commands import CommandResult
from gpuledger.model.errors import SourceUnavailable
from gpuledger.sources.smi.parsed_gpus import parse_gpu_listing
from gpuledger.sources.smi.parsed_output import MOST_GPUS
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.source import SmiSource
from gpuledger.sources.smi.text_report import parse_text_report
from gpuledger.sources.smi.xml import parse_xml
from smi.recorded import ALL, FirstSeenHost

SIZE = 1 << 20
GPU = '<gpu id="00000000:01:00.0">'
GPU_ROWS = b"".join(
    b"%d, GPU-%d, 00000000:%02X:00.0, a, 1 MiB\n" % (number, number, number % 256)
    for number in range(SIZE // 50)
)
TABLE = b"index, uuid, pci.bus_id, name, memory.total [MiB]\n"


def lines(line: bytes) -> bytes:
    return line * (SIZE // len(line))


GARBAGE = {
    "short lines": lines(b"y\n"),
    "empty lines": lines(b"\n"),
    "log lines": lines(b"2026-11-28 12:00:00 INFO something happened\n"),
    "one line": lines(b"x"),
    "zeros": lines(b"\0"),
    "invalid UTF-8": lines(b"\xff\xfe\n"),
    "cells of a report": lines(b"    a : b\n"),
    "no rows after a header": TABLE + lines(b"y\n"),
    "tags": lines(b"<a>"),
    "errors": lines(b"Unable to determine the device handle for GPU 00000000:01:00.0: Unknown Error\n"),
    "unclosed GPUs": lines(f"{GPU}\n".encode()),
    "unclosed GPUs in one line": lines(GPU.encode()),
    "ends of GPUs": GPU.encode() + lines(b"</gpu>"),
    "zeros in a GPU": GPU.encode() + lines(b"\0") + b"</gpu>\n",
    "headings": lines(b"GPU 00000000:01:00.0\n"),
}


def read_answers(garbage: bytes, *, has_xml: bool) -> int:
    """Steps of one reading in which every call prints this; `has_xml`: also `-q -x`, which fails without."""

    def run(words: tuple[str, ...], timeout: float) -> CommandResult:
        refused = "-x" in words and not has_xml
        return CommandResult(b"Invalid argument\n", exit_code=2) if refused else CommandResult(garbage)

    source = SmiSource(SmiSettings(), (), FirstSeenHost(), FakeClock(), run)
    with bounded(), counted_steps() as steps:
        try:
            assert not source.read(ALL).readings
        except SourceUnavailable as error:
            check_line(error)
            assert "; " in str(error)
    return steps[0]


@pytest.mark.parametrize("has_xml", [True, False], ids=["all", "without XML"])
@pytest.mark.parametrize("name", GARBAGE)
def test_the_steps_for_garbage_do_not_grow_with_its_length(name: str, has_xml: bool) -> None:
    once, twice = (read_answers(GARBAGE[name] * times, has_xml=has_xml) for times in (1, 2))
    assert twice < once * 1.1 + 1000


def test_garbage_is_named_after_one_call() -> None:
    calls: list[tuple[str, ...]] = []

    def run(words: tuple[str, ...], timeout: float) -> CommandResult:
        calls.append(words)
        return CommandResult(GARBAGE["short lines"])

    with pytest.raises(SourceUnavailable) as caught:
        SmiSource(SmiSettings(), (), FirstSeenHost(), FakeClock(), run).read(ALL)
    cause, _, remedy = str(caught.value).partition("; ")
    assert cause == "nvidia-smi: 1,048,576 bytes of output without a GPU"
    assert remedy == "check --nvidia-smi-command: it is not nvidia-smi"
    assert caught.value.reason == "not_nvidia_smi"
    assert len(calls) == 1


MANY = {
    "elements": lambda count: parse_xml(
        "".join(f'<gpu id="00000000:{at % 256:02X}:00.0">\n<a/>\n</gpu>\n' for at in range(count))
    ),
    "headings": lambda count: parse_text_report("GPU 00000000:01:00.0\n    UUID : GPU-1\n" * count),
}


@pytest.mark.parametrize("form", MANY)
def test_more_gpus_than_a_machine_has_are_not_read(form: str) -> None:
    assert len(MANY[form](MOST_GPUS).blocks) == MOST_GPUS
    assert not MANY[form](MOST_GPUS).problems
    output = MANY[form](3 * MOST_GPUS)
    assert len(output.blocks) == MOST_GPUS
    assert [problem.reason for problem in output.problems] == ["TOO_MANY_GPUS"]


def test_processes_of_gpus_with_equal_ids_are_read_once() -> None:
    """Otherwise each of these GPUs would have the processes of all."""
    rows = b"pid, gpu_bus_id, gpu_uuid, process_name, used_gpu_memory [MiB]\n" + b"".join(
        b"%d, 00000000:01:00.0, GPU-%d, a, 5 MiB\n" % (number, number) for number in range(500)
    )

    def run(words: tuple[str, ...], timeout: float) -> CommandResult:
        return CommandResult(b"Invalid\n", exit_code=2) if "-x" in words else CommandResult(rows)

    found = SmiSource(SmiSettings(), (), FirstSeenHost(), FakeClock(), run).read(ALL)
    assert len(found.readings) == MOST_GPUS
    assert sum(len(reading.processes or ()) for reading in found.readings) == 500


@pytest.mark.parametrize(
    ("text", "parse"),
    [
        (f"{GPU}<{'a' * SIZE}>" + "<b>1</b>" * 10_000 + f"</{'a' * SIZE}></gpu>", parse_xml),
        (f"GPU 00000000:01:00.0\n  {'a' * SIZE}\n" + "".join(f"    b{n} : 1\n" for n in range(10_000)),
         parse_text_report),
    ],
    ids=["elements", "report"],
)  # fmt: skip
def test_a_long_name_is_not_part_of_many_paths(text: str, parse: object) -> None:
    assert callable(parse)
    with memory_below(40 * SIZE):
        parse(text)


@pytest.mark.parametrize(
    "line",
    [
        "Unable to determine the device handle for" + " " * 100_000 + "x",
        "index" + " " * 100_000 + "x, uuid",
        "index [" + "a " * 100_000 + ", uuid",
    ],
    ids=["blanks of an error", "blanks of a title", "note of a title"],
)
def test_a_line_takes_time_in_proportion_to_its_length(line: str) -> None:
    # In C the steps are not counted: it would take minutes.
    read_answers(f"{line}\n".encode(), has_xml=False)


def test_lines_of_a_listing_take_time_in_proportion_to_their_length() -> None:
    with bounded():
        parse_gpu_listing(("GPU 0: a (UUID: GPU-1)\n  MIG a" + " " * 900 + "b\n") * 20_000)
