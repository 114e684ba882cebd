"""`gpuledger report` with tokens, where it cannot have them: one line that says what to use."""

from __future__ import annotations

import pytest

from gpuledger.cli.main import main

PROMETHEUS = ("--prometheus", "http://127.0.0.1:9")
MODEL, TEAM = ("--by", "served_model"), ("--by", "gateway:team")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (MODEL, "--by served_model needs --prometheus"),
        (("--tokens",), "--tokens needs --prometheus"),
        (("--tokens", "--format", "focus"), "--tokens needs --prometheus"),
        ((*MODEL, "--state-dir", "/nowhere", *PROMETHEUS), "exclude each other"),
        ((*MODEL, "--books", "/nowhere"), "--by served_model needs --prometheus"),
        ((*MODEL, "--fleet", "http://127.0.0.1:9"), "--by served_model needs --prometheus"),
        (
            (*MODEL, *PROMETHEUS, "--format", "html"),
            "--by served_model has no --format html: choose table, csv, ",
        ),
        (("--by", "gateway:team", *PROMETHEUS, "--format", "html"), "choose table, csv or json"),
        (("--tokens", *PROMETHEUS, "--statement", "new.json"), "--tokens excludes --statement"),
        ((*MODEL, *PROMETHEUS, "--tokens.sources", "[{}]"), "entry 1 has no engine"),
        ((*TEAM, *PROMETHEUS, "--tokens.gateways", "[{}]"), "entry 1 has no gateway"),
        (TEAM, "--by gateway:team needs --prometheus"),
        ((*TEAM, *PROMETHEUS, "--format", "focus"), "--by gateway:team has no --format focus"),
        (("--by", "gateway:", *PROMETHEUS), "--by gateway: requires a gateway's label"),
        (("--by", "gateway:a,gateway:a", *PROMETHEUS), "a key is given twice"),
        (("--by", "pod,gateway:team", *PROMETHEUS), "a gateway does not know the pod of its tokens"),
    ],
)
def test_a_report_that_cannot_have_tokens_says_why(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_doctor_without_an_answering_prometheus_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *PROMETHEUS]) == 1
    out = capsys.readouterr().out
    assert "gpuledger in Prometheus" in out
    assert "cannot be reached" in out
    assert "remedy: start it there, or correct the URL of --prometheus" in out
    assert "driver" not in out
