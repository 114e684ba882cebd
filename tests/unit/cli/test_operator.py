"""`gpuledger operator` before its first request."""

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
        ((), "no Kubernetes API server found; name one with --kubernetes-api or --kubeconfig"),
        (
            ("--kubernetes-api=http://127.0.0.1:1",),
            "the operator's namespace is not known; set POD_NAMESPACE or --namespace",
        ),
        (("--lease-duration=10ms",), "--lease-duration: expected a duration of at least 1 s, not '10ms'"),
        (("all",), "operator takes no argument 'all'; see gpuledger operator --help"),
    ],
    ids=["no server", "no namespace", "a lease too short", "a positional argument"],
)
def test_missing_settings_are_a_one_line_error(
    arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["operator", *arguments]) == 2
    assert capsys.readouterr().err == f"gpuledger: {line}\n"


def test_an_invalid_configuration_is_an_error_before_the_first_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "operator.yaml"
    file.write_text("namespaces: x\n")
    where = ("--kubernetes-api=http://127.0.0.1:1", "--namespace=n", f"--config={file}")
    assert main(["operator", *where]) == 2
    assert str(file) in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operator", "--help"]) == 0
    text = capsys.readouterr().out
    assert "kubectl get gpumonitors" in text
    assert "--lease-duration" in text
