"""The page made from a capture has one sample for each field with one number, and no other sample.

GPULEDGER_SMI_CAPTURES names a directory with more captures, in the format of those in tests/fixtures.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from builders import FakeClock, node_state
from gpuledger.dialects.settings import SmiDialectSettings
from gpuledger.dialects.smi.dialect import SmiDialect
from gpuledger.exposition.text import encode_text
from gpuledger.host.commands import CommandResult
from gpuledger.model.quantities import COLUMNS
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.smi.source import SmiSource
from smi.captures import PHASES, captures, check_page
from smi.nvidia_smi import answer_query, parse_query, sections
from smi.recorded import ALL, FIXTURES, FirstSeenHost

OUR_CAPTURES = captures(FIXTURES / "captures")
LINUX, WINDOWS = OUR_CAPTURES
PANEL_CAPTURES = captures(FIXTURES / "panels")
EXTRA_CAPTURES = (
    captures(Path(os.environ["GPULEDGER_SMI_CAPTURES"])) if "GPULEDGER_SMI_CAPTURES" in os.environ else []
)


def replay_page(capture: Path, phase: str, encoding: str = "utf-8") -> str:
    """Return the dialect's page for a fake nvidia-smi that replays the capture."""
    options = argparse.Namespace(capture=capture, phase=phase, answers=None)

    def run(words: tuple[str, ...], _timeout: float) -> CommandResult:
        arguments = list(words[1:])
        text, code = answer_query(parse_query(arguments), arguments, options)
        return CommandResult(text.encode(encoding, "surrogateescape"), exit_code=code)

    source = SmiSource(SmiSettings(), (), FirstSeenHost(), FakeClock(), run)
    dialect = SmiDialect(SmiDialectSettings(), "1.2.3")
    return encode_text(dialect.families(node_state(source.read(ALL | {COLUMNS})))).decode()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(
    "capture", [*OUR_CAPTURES, *PANEL_CAPTURES, *EXTRA_CAPTURES], ids=lambda path: path.stem
)
def test_each_field_with_one_number_is_one_sample(capture: Path, phase: str) -> None:
    result = check_page(capture, phase, replay_page(capture, phase))
    assert result.wrong == []
    assert 0 < result.samples < result.fields


def test_the_check_detects_wrong_samples() -> None:
    page = replay_page(LINUX, "load")
    sample = 'power_draw_watts{uuid="aaaaaaaa-0000-4000-8000-000000000001"} 211.37'
    assert sample in page
    for wrong_sample, error in (
        (sample.replace("211.37", "211.38"), "power.draw [W]: '211.37 W': found 211.38, expected 211.37"),
        (sample.replace("draw", "drawn"), "power_drawn_watts: exported, but there is no such column"),
    ):
        assert error in check_page(LINUX, "load", page.replace(sample, wrong_sample)).wrong


@pytest.mark.parametrize("phase", PHASES)
def test_utf_16_output_gives_the_same_page_as_utf_8(phase: str) -> None:
    assert replay_page(WINDOWS, phase, "utf-16") == replay_page(WINDOWS, phase)


def test_the_windows_capture_has_crlf_line_ends() -> None:
    assert all(text.count("\n") == text.count("\r\n") for text in sections(WINDOWS, "load").values())


def test_processes_on_windows_are_exported_without_memory() -> None:
    lines = [
        line
        for line in replay_page(WINDOWS, "load").splitlines()
        if line.startswith("nvidia_smi_compute_app")
    ]
    uuid = 'uuid="bbbbbbbb-0000-4000-8000-000000000003"'
    name = r"C:\\Program Files\\Example\\play, now.exe"
    assert lines == [
        f'nvidia_smi_compute_app_info{{pid="4",process_name="[N/A]",{uuid}}} 1',
        f'nvidia_smi_compute_app_info{{pid="11840",process_name="{name}",{uuid}}} 1',
        f"nvidia_smi_compute_apps{{{uuid}}} 2",
        "nvidia_smi_compute_apps_last_collect_success 1",
    ]


def test_gpu_info_has_text_as_printed() -> None:
    (info,) = [
        line for line in replay_page(WINDOWS, "idle").splitlines() if line.startswith("nvidia_smi_gpu_info")
    ]
    assert info == (
        'nvidia_smi_gpu_info{compute_cap="8.9",cuda_version="12.9",driver_model_current="WDDM",'
        'driver_model_pending="WDDM",driver_version="576.88",index="0",name="NVIDIA GeForce EXAMPLE SUPER",'
        'pci_bus_id="00000000:0A:00.0",pci_sub_device_id="0x40051458",serial="[N/A]",'
        'uuid="bbbbbbbb-0000-4000-8000-000000000003",vbios_version="95.03.0A.00.01"} 1'
    )
