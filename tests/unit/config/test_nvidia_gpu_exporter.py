"""nvidia_gpu_exporter's flags set their equivalents, or are errors with a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.app.flags import build_parser, parse_flags
from gpuledger.config.commands import COLLECT_GROUPS, NODE_GROUPS
from gpuledger.config.load import load_values
from gpuledger.http.settings import HttpSettings
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build_settings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.source_factory import prefers_smi


def settings(*arguments: str, groups: dict[str, type] = NODE_GROUPS) -> dict[str, Any]:
    given = parse_flags(build_parser("serve", "", "", groups), groups.values(), arguments, {})
    return load_values(groups.values(), given.flags, {}, given.config)


def own_keys(*arguments: str) -> dict[str, Any]:
    """The values of gpuledger's own keys."""
    found = settings(*arguments)
    return {key: value for key, value in found.items() if not key.startswith("nvidia_gpu_exporter.")}


SMI = {"dialect": ("smi",)}


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--web.telemetry-path", "/gpu"], {"metrics_path": "/gpu", **SMI}),
        (["-web.telemetry-path=/gpu"], {"metrics_path": "/gpu", **SMI}),
        (["--collect.backend", "exec"], {"source": "smi", **SMI}),
        (["--collect.backend", "nvml"], {"source": "nvml", **SMI}),
        (["--collect.backend", "demo"], {"source": "simulator", **SMI}),
        (["--collect.interval", "5s"], {"interval": 5.0, **SMI}),
        (["--collect.interval", "0"], SMI),
        (["--collect.timeout", "1m"], {"nvidia_smi.timeout": 60.0, **SMI}),
        (["--collect.compute-apps"], {"smi.compute_apps": True, **SMI}),
        (["--collect.compute-apps=false"], {"smi.compute_apps": False, **SMI}),
        (["--collect.compute-apps-mig"], SMI),
        (["--collect.pcie-throughput"], {"smi.pcie_throughput": True, **SMI}),
        # Flags with the same name here do not change the dialect.
        (["--nvidia-smi-command", "ssh a nvidia-smi"], {"nvidia_smi.command": "ssh a nvidia-smi"}),
        (["--query-field-names", "uuid,pstate"], {"nvidia_smi.query_field_names": ("uuid", "pstate")}),
        (["--query-field-names", "AUTO"], {"nvidia_smi.query_field_names": ("AUTO",)}),
        (
            ["--query-field-names-exclude", "ecc.*,hostname"],
            {"nvidia_smi.query_field_names_exclude": ("ecc.*", "hostname")},
        ),
        (["--query-field-names-exclude", ""], {"nvidia_smi.query_field_names_exclude": ()}),
        (["--log.level", "debug", "--log.format", "json"], {"log.level": "debug", "log.format": "json"}),
        # Flags without effect are accepted.
        (["--web.network", "tcp", "--web.read-timeout=10s", "--web.max-requests", "40"], {}),
        (["--web.enable-pprof=false", "--shutdown-on-error=false", "--demo-config", ""], {}),
    ],
)
def test_a_flag_sets_its_equivalent(arguments: list[str], found: dict[str, Any]) -> None:
    assert own_keys(*arguments) == found


def test_the_web_listen_address_is_used_and_selects_the_dialect_smi() -> None:
    values = settings("--web.listen-address", ":9835")
    assert values["dialect"] == ("smi",)
    assert [str(address) for address in build_settings(HttpSettings, values).listen_address] == [":9835"]


def test_several_web_listen_addresses_are_all_used() -> None:
    values = settings("--web.listen-address=127.0.0.1:9835", "--web.listen-address", "[::1]:9835")
    assert [str(address) for address in build_settings(HttpSettings, values).listen_address] == [
        "127.0.0.1:9835",
        "[::1]:9835",
    ]


def test_a_configured_dialect_overrides_the_implied_one() -> None:
    assert settings("--web.listen-address", ":1", "--dialect", "native")["dialect"] == ("native",)


def test_fields_of_nvidia_smi_make_the_source_auto_choose_it() -> None:
    assert prefers_smi(build_settings(SmiSettings, settings("--query-field-names", "uuid")), object)
    assert not prefers_smi(build_settings(SmiSettings, settings("--query-field-names", "AUTO")), object)
    assert not prefers_smi(
        build_settings(SmiSettings, settings("--query-field-names-exclude", "ecc.*")), object
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--web.listen-address", "9835"], "--web.listen-address: expected an address such as"),
        (["--web.telemetry-path", "metrics"], "--web.telemetry-path: expected a path such as /metrics"),
        (["--collect.backend", "magic"], "--collect.backend: expected one of exec, nvml, demo"),
        (["--collect.timeout", "0"], "--collect.timeout: expected a duration of at least 0.1 s"),
        (["--query-field-names", "power draw"], "--query-field-names: expected AUTO, or fields such as"),
        (["--web.network", "tcp6"], "--web.network: not supported"),
        (["--web.max-requests", "10"], "--web.max-requests: not supported"),
        (["--web.enable-pprof"], "--web.enable-pprof: expected false"),
        (["--shutdown-on-error"], "--shutdown-on-error: expected false"),
        (["--demo-config", "a.yaml"], "--demo-config: not supported"),
    ],
)
def test_an_unsupported_flag_is_an_error_at_start(arguments: list[str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings(*arguments)
    assert str(caught.value).startswith(words)


def test_collect_accepts_fields_but_no_addresses() -> None:
    assert settings("--query-field-names", "uuid", groups=COLLECT_GROUPS)
    with pytest.raises(UsageError, match="unknown flag"):
        settings("--web.listen-address", ":1", groups=COLLECT_GROUPS)
