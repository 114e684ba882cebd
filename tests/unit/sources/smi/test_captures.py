"""The page of a whole capture has one sample for each field that holds one number, and none beside.

GPULEDGER_SMI_CAPTURES names a directory with more captures in the form of those in tests/fixtures.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from builders import FakeClock, page
from gpuledger.dialects.settings import SmiDialectSettings
from gpuledger.dialects.smi.dialect import SmiDialect
from gpuledger.exposition.text import encode_text
from gpuledger.model.quantities import COLUMNS
from gpuledger.sources.smi.command import Outcome, Ran
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.source import SmiSource
from smi.captures import PHASES, captures, judge
from smi.nvidia_smi import answer_to, question_of, sections
from smi.recorded import ALL, FIXTURES, FirstSight

OWN = captures(FIXTURES / "captures")
LINUX, WINDOWS = OWN
PANELS = captures(FIXTURES / "panels")
MORE = captures(Path(os.environ["GPULEDGER_SMI_CAPTURES"])) if "GPULEDGER_SMI_CAPTURES" in os.environ else []


def told(capture: Path, phase: str, encoding: str = "utf-8") -> str:
    """The page of the dialect with a stand-in that replays the capture."""
    options = argparse.Namespace(capture=capture, phase=phase, answers=None)

    def run(words: tuple[str, ...], _timeout: float) -> Outcome:
        arguments = list(words[1:])
        text, code = answer_to(question_of(arguments), arguments, options)
        return Ran(text.encode(encoding, "surrogateescape"), code=code)

    source = SmiSource(SmiSettings(), (), FirstSight(), FakeClock(), run)
    dialect = SmiDialect(SmiDialectSettings(), "1.2.3")
    return encode_text(dialect.families(page(source.read(ALL | {COLUMNS})))).decode()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("capture", [*OWN, *PANELS, *MORE], ids=lambda path: path.stem)
def test_each_field_with_one_number_is_one_sample(capture: Path, phase: str) -> None:
    verdict = judge(capture, phase, told(capture, phase))
    assert verdict.wrong == []
    assert 0 < verdict.samples < verdict.fields


def test_the_judge_sees_what_is_wrong() -> None:
    whole = told(LINUX, "load")
    watts = 'power_draw_watts{uuid="aaaaaaaa-0000-4000-8000-000000000001"} 211.37'
    assert watts in whole
    for false, complaint in (
        (watts.replace("211.37", "211.38"), "power.draw [W]: '211.37 W': told 211.38, expected 211.37"),
        (watts.replace("draw", "drawn"), "power_drawn_watts: told, and no column"),
    ):
        assert complaint in judge(LINUX, "load", whole.replace(watts, false)).wrong


@pytest.mark.parametrize("phase", PHASES)
def test_utf_16_tells_the_same_as_utf_8(phase: str) -> None:
    assert told(WINDOWS, phase, "utf-16") == told(WINDOWS, phase)


def test_the_windows_capture_has_the_line_ends_of_windows() -> None:
    assert all(text.count("\n") == text.count("\r\n") for text in sections(WINDOWS, "load").values())


def test_processes_of_windows_are_told_without_the_memory_that_it_does_not_know() -> None:
    lines = [line for line in told(WINDOWS, "load").splitlines() if line.startswith("nvidia_smi_compute_app")]
    uuid = 'uuid="bbbbbbbb-0000-4000-8000-000000000003"'
    name = r"C:\\Program Files\\Example\\play, now.exe"
    assert lines == [
        f'nvidia_smi_compute_app_info{{pid="4",process_name="[N/A]",{uuid}}} 1',
        f'nvidia_smi_compute_app_info{{pid="11840",process_name="{name}",{uuid}}} 1',
        f"nvidia_smi_compute_apps{{{uuid}}} 2",
        "nvidia_smi_compute_apps_last_collect_success 1",
    ]


def test_gpu_info_has_texts_as_printed() -> None:
    (info,) = [line for line in told(WINDOWS, "idle").splitlines() if line.startswith("nvidia_smi_gpu_info")]
    assert info == (
        'nvidia_smi_gpu_info{compute_cap="8.9",cuda_version="12.9",driver_model_current="WDDM",'
        'driver_model_pending="WDDM",driver_version="576.88",index="0",name="NVIDIA GeForce EXAMPLE SUPER",'
        'pci_bus_id="00000000:0A:00.0",pci_sub_device_id="0x40051458",serial="[N/A]",'
        'uuid="bbbbbbbb-0000-4000-8000-000000000003",vbios_version="95.03.0A.00.01"} 1'
    )
