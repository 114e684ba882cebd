"""`gpuledger operator` before it asks anybody anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.cli.main import main


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "POD_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "there is no API server to ask; name one with --kubernetes-api or --kubeconfig"),
        (
            ("--kubernetes-api=http://127.0.0.1:1",),
            "which namespace is the operator's own? Set POD_NAMESPACE or --namespace",
        ),
        (("--lease-duration=10ms",), "--lease-duration: a duration of at least 1 s is wanted, not '10ms'"),
        (("all",), "operator takes no 'all'; see gpuledger operator --help"),
    ],
    ids=["no server", "no namespace", "a lease too short", "a word"],
)
def test_what_is_missing_is_said_in_one_line(
    arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["operator", *arguments]) == 2
    assert capsys.readouterr().err == f"gpuledger: {line}\n"


def test_a_configuration_that_is_none_is_said_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "operator.yaml"
    file.write_text("namespaces: x\n")
    where = ("--kubernetes-api=http://127.0.0.1:1", "--namespace=n", f"--config={file}")
    assert main(["operator", *where]) == 2
    assert str(file) in capsys.readouterr().err


def test_help_teaches_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operator", "--help"]) == 0
    told = capsys.readouterr().out
    assert "kubectl get gpumonitors" in told
    assert "--lease-duration" in told
