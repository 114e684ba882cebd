"""`serve` imports settings of other exporters and removed ones only for a flag, variable or key of theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuledger.app.flags import DESCRIBE, HELP_FLAGS
from gpuledger.config.commands import ALL_GROUPS, NODE_GROUPS
from gpuledger.config.load import load_values, settings_of
from gpuledger.config.node import OWN_GROUPS, ignored_flags, other_exporter_groups, serve_groups
from gpuledger.config.other_exporters import OTHER_EXPORTER_GROUPS
from gpuledger.model.errors import UsageError

OTHERS = settings_of(OTHER_EXPORTER_GROUPS.values())


@pytest.mark.parametrize(
    "words",
    [
        *((flag, "x") for item in OTHERS.values() for flag in item.flags),
        ("--web.telemetry-path=/m",),
        ("-web.telemetry-path", "/m"),
        ("--no-collect.compute-apps",),
        ("--interval", "1s", "-fdefault.csv"),
        *((flag,) for flag in sorted(HELP_FLAGS)),
        (DESCRIBE,),
        ("--unknown",),
    ],
)
def test_a_flag_of_another_exporter_a_page_of_the_help_and_an_unknown_flag_need_all_groups(
    words: tuple[str, ...],
) -> None:
    # In the order of --help.
    assert list(serve_groups(words, {}).items()) == list(NODE_GROUPS.items())


@pytest.mark.parametrize(
    "variable", [name for item in OTHERS.values() for name in (item.environment, *item.variables)]
)
def test_a_variable_of_another_exporter_needs_all_groups(variable: str) -> None:
    assert serve_groups((), {"PATH": "/bin", variable: "x"}) == NODE_GROUPS


def test_the_flags_and_variables_of_gpuledger_itself_need_no_other_groups() -> None:
    items = settings_of(OWN_GROUPS.values()).values()
    words = [word for item in items for flag in item.flags for word in (flag, ":9400", f"{flag}=-1")]
    variables = {item.environment for item in items if not item.key.startswith("web.limits.")}
    assert len(words) > 300
    injected = {"KUBERNETES_SERVICE_HOST", "NVIDIA_VISIBLE_DEVICES", "GPULEDGER_PORT"}
    assert serve_groups(["--config", "file.yaml", *words], variables | injected) is OWN_GROUPS


def read_file(tmp_path: Path, content: str, *, complete: bool) -> dict[str, object]:
    file = tmp_path / "config.yaml"
    file.write_text(content)
    if complete:
        return load_values(NODE_GROUPS.values(), {}, {}, file, ALL_GROUPS)
    return load_values(OWN_GROUPS.values(), {}, {}, file, ALL_GROUPS, other_exporter_groups())


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("dcgm_exporter: {interval: 5000}", {"slow_interval": 5.0, "dialect": ("dcgm",)}),
        ("nvidia_gpu_exporter: {telemetry_path: /m}", {"metrics_path": "/m", "dialect": ("smi",)}),
        ("my_gpu_exporter: {enable_energy_estimation: true}", {"energy.policy": "apportioned"}),
        ("dcgm_exporter: {dump_retention: 3}\ninterval: 2s", {"interval": 2.0}),
        ("web: {limits: {requests_per_client: 3}}", {}),
        ("report: {by: user}\ninterval: 2s", {"interval": 2.0}),
        ("interval: 2s", {"interval": 2.0}),
    ],
)
def test_a_key_of_another_exporter_in_the_file_has_its_effect(
    tmp_path: Path, content: str, found: dict[str, object]
) -> None:
    values = read_file(tmp_path, content, complete=False)
    assert values == read_file(tmp_path, content, complete=True)
    assert {key: value for key, value in values.items() if key not in OTHERS} == found
    assert bool(ignored_flags(values)) == ("dump_retention" in content or "requests_per_client" in content)


@pytest.mark.parametrize(
    "content",
    ["dcgm_exporter: {intervall: 5}", "intervall: 5", "dcgm_exporter: {interval: x}", "my_gpu_exporter: 3"],
)
def test_an_error_in_the_file_is_the_same_without_the_other_groups(tmp_path: Path, content: str) -> None:
    messages = []
    for complete in (False, True):
        with pytest.raises(UsageError) as caught:
            read_file(tmp_path, content, complete=complete)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
