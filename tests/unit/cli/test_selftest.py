"""`gpuledger selftest`: where there is nothing to measure, and wrong usage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuledger.cli import selftest
from gpuledger.model.errors import GpuledgerError, UsageError


@pytest.mark.parametrize("source", ["simulator", "smi"])
def test_other_sources_have_nothing_to_measure(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.run(["--json", "--source", source]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["verdict"] == "skipped"
    assert finding["why"].startswith(f"gpuledger reads {source}, not this machine's driver through NVML")


def test_a_machine_with_only_nvidia_smi_has_nothing_to_measure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "prefers_smi", lambda _: True)
    assert selftest.run([]) == 0
    assert "gpuledger reads nvidia-smi, because libnvidia-ml.so.1 cannot be loaded" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--for", "0s"], ["--for", "2h"], ["--format", "xml"], ["now"]])
def test_wrong_usage_is_refused(words: list[str]) -> None:
    with pytest.raises(UsageError):
        selftest.run(words)


def test_a_report_that_cannot_be_written_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(GpuledgerError, match=f"--report: cannot write {tmp_path}: Is a directory"):
        selftest._write(str(tmp_path), "text")
