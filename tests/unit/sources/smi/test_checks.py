"""Findings of `doctor` for nvidia-smi as the source: one reading shows what is wrong and what to do."""

from __future__ import annotations

import pytest

from builders import FakeClock
from gpuledger.host.commands import CommandResult
from gpuledger.model.checks import Finding, Verdict
from gpuledger.sources.smi.checks import find_smi_problems
from gpuledger.sources.smi.settings import SmiSettings
from smi.recorded import Recorded, fixture

XML = fixture("cards/xml")
REBOOT = "<gpu_recovery_action>Node Reboot</gpu_recovery_action>"
DRAIN = "<gpu_recovery_action>Drain and Reset</gpu_recovery_action>"
UNLOADED = "<persistence_mode>Disabled</persistence_mode>"
FIRST = "GPU-aaaaaaaa-0000-4000-8000-000000000001"


def findings(
    run: Recorded, *devices: str, seconds: float = 0.0, command: str = "nvidia-smi"
) -> list[Finding]:
    clock = FakeClock()

    def timed(words: tuple[str, ...], timeout: float) -> CommandResult:
        clock.advance(seconds)
        return run(words, timeout)

    settings = SmiSettings(command)
    return list(
        find_smi_problems(settings, "550.54.15", is_only_source=True, devices=devices, run=timed, clock=clock)
    )


def problems(found: list[Finding]) -> list[tuple[str, str]]:
    return [(one.what, one.verdict.value) for one in found if one.verdict is not Verdict.WORKS]


def test_a_healthy_machine_has_no_problem() -> None:
    found = findings(Recorded("cards"))
    assert problems(found) == []
    assert "driver 550.54.15" in found[0].why
    assert "2 of 2 read" in found[1].why
    assert "power, summed over time" in found[-1].why


@pytest.mark.parametrize(
    ("word", "why", "remedy"),
    [
        ("GPU requires reset", "requires a reset", "nvidia-smi --gpu-reset -i 00000000:01:00.0"),
        ("GPU is lost", "is lost", "Xid 79"),
    ],
)
def test_a_gpu_that_is_down_is_named_with_reason_and_remedy(word: str, why: str, remedy: str) -> None:
    found = findings(Recorded("cards", xml=XML.replace(">57 C<", f">{word}<")))
    (bad,) = [one for one in found if one.verdict is Verdict.FAILS]
    assert (bad.what, FIRST in bad.why, why in bad.why, remedy in bad.remedy) == ("GPU 0", True, True, True)
    assert "1 of 2 read" in found[1].why


def test_a_gpu_that_only_an_error_names_is_a_failure() -> None:
    start, end = XML.index("\t<gpu id="), XML.index('\t<gpu id="00000000:81')
    error = "Unable to determine the device handle for GPU 0000:01:00.0: Unknown Error\n"
    found = findings(Recorded("cards", xml=error + XML[:start] + XML[end:]))
    (bad,) = [one for one in found if one.verdict is Verdict.FAILS]
    assert "0000:01:00.0" in bad.why
    assert "NVRM" in bad.remedy


@pytest.mark.parametrize(
    ("old", "new", "what", "expected"),
    [
        ("<serial>", f"{DRAIN}<serial>", "GPU 0", "requests that its work ends"),
        ("<serial>", f"{UNLOADED}<serial>", "persistence mode", "off on GPU 0"),
        ("<gpu_temp>57 C", "<gpu_temp>Unknown Error", "GPUs", "Unknown Error"),
        ("550.54.15", "560.10", "nvidia-smi", "the kernel has loaded 550.54.15"),
    ],
)  # fmt: skip
def test_a_limitation_is_a_warning(old: str, new: str, what: str, expected: str) -> None:
    found = findings(Recorded("cards", xml=XML.replace(old, new, 1)))
    assert problems(found) == [(what, "warning")]
    (one,) = [one for one in found if one.verdict is Verdict.WARNING]
    assert expected in one.why
    assert one.remedy


def test_a_gpu_that_needs_a_reboot_is_a_failure() -> None:
    found = findings(Recorded("cards", xml=XML.replace("<serial>", f"{REBOOT}<serial>", 1)))
    assert problems(found) == [("GPU 0", "fails")]
    assert "requests a reboot" in next(one.why for one in found if one.what == "GPU 0")


def test_unreadable_parts_are_warnings() -> None:
    assert problems(findings(Recorded("cards", pmon=None))) == [("per-process utilization", "warning")]
    start, end = XML.index("<processes>"), XML.index("</processes>")
    text = XML[: start + len("<processes>")] + "Insufficient Permissions" + XML[end:]
    assert problems(findings(Recorded("cards", xml=text))) == [("process lists", "warning")]


def test_a_slow_reading_is_a_warning_with_its_duration() -> None:
    slow = XML.replace("<serial>", f"{UNLOADED}<serial>")
    found = findings(Recorded("cards", xml=slow), seconds=6.0)
    (one,) = [one for one in found if one.verdict is Verdict.WARNING]
    assert "a reading takes 12.0 s" in one.why
    assert "persistence mode is off on GPU 0, 1" in one.why
    assert "nvidia-smi -pm 1" in one.remedy


def test_a_dead_driver_is_one_failure_with_cause_and_remedy() -> None:
    text = b"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.65\n"
    (one,) = findings(Recorded("cards", xml=CommandResult(text, b"", 18)))
    assert one.verdict is Verdict.FAILS
    assert "version mismatch" in one.why
    assert one.remedy.startswith("reboot")


def test_pids_of_another_machine_are_said() -> None:
    found = findings(Recorded("cards"), command="ssh user@host nvidia-smi")
    assert "on another machine: pids there have no owners here" in found[0].why


def test_a_selection_without_a_gpu_is_a_failure() -> None:
    assert ("GPUs", "fails") in problems(findings(Recorded("cards"), "7"))
