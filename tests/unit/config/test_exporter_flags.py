"""nvidia_gpu_exporter's flags mean here what they meant there, or are errors that say what to do."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.app.flags import parse, parser
from gpuledger.config.assemble import assemble
from gpuledger.config.node import COLLECT, NODE
from gpuledger.http.settings import HttpSettings
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build
from gpuledger.sources.open import prefers_smi
from gpuledger.sources.smi.settings import SmiSettings


def settings(*arguments: str, groups: dict[str, type] = NODE) -> dict[str, Any]:
    given = parse(parser("serve", "", "", groups), groups.values(), arguments, {})
    return assemble(groups.values(), given.flags, {}, given.config)


def means(*arguments: str) -> dict[str, Any]:
    """What was set by gpuledger's own keys."""
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
        (["--collect.compute-apps-mig", "--collect.pcie-throughput"], SMI),
        # These have the same name here, and the page stays as it is.
        (["--nvidia-smi-command", "ssh a nvidia-smi"], {"nvidia_smi.command": "ssh a nvidia-smi"}),
        (["--query-field-names", "uuid,pstate"], {"nvidia_smi.query_field_names": ("uuid", "pstate")}),
        (["--query-field-names", "AUTO"], {"nvidia_smi.query_field_names": ("AUTO",)}),
        (
            ["--query-field-names-exclude", "ecc.*,hostname"],
            {"nvidia_smi.query_field_names_exclude": ("ecc.*", "hostname")},
        ),
        (["--query-field-names-exclude", ""], {"nvidia_smi.query_field_names_exclude": ()}),
        (["--log.level", "debug", "--log.format", "json"], {"log.level": "debug", "log.format": "json"}),
        # What asks for nothing is taken.
        (["--web.network", "tcp", "--web.read-timeout=10s", "--web.max-requests", "40"], {}),
        (["--web.enable-pprof=false", "--shutdown-on-error=false", "--demo-config", ""], {}),
    ],
)
def test_a_flag_means_what_it_meant(arguments: list[str], found: dict[str, Any]) -> None:
    assert means(*arguments) == found


def test_the_web_listen_address_is_listened_on_and_makes_metrics_smi() -> None:
    values = settings("--web.listen-address", ":9835")
    assert values["dialect"] == ("smi",)
    assert [str(one) for one in build(HttpSettings, values).listen_address] == [":9835"]


def test_several_web_listen_addresses_are_all_listened_on() -> None:
    values = settings("--web.listen-address=127.0.0.1:9835", "--web.listen-address", "[::1]:9835")
    assert [str(one) for one in build(HttpSettings, values).listen_address] == [
        "127.0.0.1:9835",
        "[::1]:9835",
    ]


def test_a_dialect_that_is_asked_for_beats_the_one_that_is_implied() -> None:
    assert settings("--web.listen-address", ":1", "--dialect", "native")["dialect"] == ("native",)


def test_fields_that_only_nvidia_smi_knows_make_auto_read_it() -> None:
    assert prefers_smi(build(SmiSettings, settings("--query-field-names", "uuid")), object)
    assert not prefers_smi(build(SmiSettings, settings("--query-field-names", "AUTO")), object)
    assert not prefers_smi(build(SmiSettings, settings("--query-field-names-exclude", "ecc.*")), object)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--web.listen-address", "9835"], "--web.listen-address: an address such as"),
        (["--web.telemetry-path", "metrics"], "--web.telemetry-path: a path such as /metrics"),
        (["--collect.backend", "magic"], "--collect.backend: one of exec, nvml, demo is wanted"),
        (["--collect.timeout", "0"], "--collect.timeout: a duration of at least 0.1 s"),
        (["--query-field-names", "power draw"], "--query-field-names: AUTO, or fields such as"),
        (["--web.network", "tcp6"], "--web.network: it cannot be honoured"),
        (["--web.max-requests", "10"], "--web.max-requests: it cannot be honoured"),
        (["--web.enable-pprof"], "--web.enable-pprof: only false can be honoured"),
        (["--shutdown-on-error"], "--shutdown-on-error: only false can be honoured"),
        (["--demo-config", "a.yaml"], "--demo-config: it cannot be honoured"),
    ],
)
def test_what_cannot_be_honoured_is_an_error_at_start(arguments: list[str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings(*arguments)
    assert str(caught.value).startswith(words)


def test_collect_has_fields_and_no_addresses() -> None:
    assert settings("--query-field-names", "uuid", groups=COLLECT)
    with pytest.raises(UsageError, match="unknown flag"):
        settings("--web.listen-address", ":1", groups=COLLECT)
