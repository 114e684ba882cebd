"""gpuledger accepts the arguments, variables and settings of the chart's containers."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from chart import (
    CHART,
    MANIFESTS,
    MATRIX,
    containers,
    files,
    load_container_settings,
    main_container,
    of_kind,
    pod_specs,
    render,
    settings,
)
from gpuledger.config.commands import COLLECT_GROUPS, NODE_GROUPS
from gpuledger.dialects.dcgm.collectors import parse_collectors
from gpuledger.http.settings import HttpSettings
from gpuledger.model.settings import build_settings, declared_settings, reload_policy
from gpuledger.web.settings import WebSettings
from yaml_files import load_documents, load_yaml

# Values with an exporter or collector.
NODE_VALUES = {name: values for name, values in MATRIX.items() if name not in ("operator", "only the agent")}
each = pytest.mark.parametrize("values", NODE_VALUES.values(), ids=NODE_VALUES)


def programs(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Containers that run gpuledger."""
    ours = [one for spec in pod_specs(manifests) for one in containers(spec)]
    return [one for one in ours if one["name"] in ("exporter", "collector", "look")]


def config_of(manifests: list[dict[str, Any]]) -> dict[str, str]:
    (found,) = [one["data"] for one in manifests if "gpuledger.yaml" in one.get("data", {})]
    return dict(found)


@each
def test_the_program_accepts_all_arguments_variables_and_settings(values: Any, tmp_path: Path) -> None:
    made = render(values)
    found = programs(made)
    assert found
    for container in found:
        load_container_settings(container, config_of(made), tmp_path)


@pytest.mark.parametrize("file", sorted(path.name for path in MANIFESTS.glob("*.yaml")))
def test_the_program_accepts_those_of_the_plain_manifests(file: str, tmp_path: Path) -> None:
    made = load_documents((MANIFESTS / file).read_text(encoding="utf-8"))
    for container in programs(made):
        load_container_settings(container, config_of(made), tmp_path)


def test_the_program_rejects_unknown_flags(tmp_path: Path) -> None:
    values = {"extraArgs": ["--intervall=1s"]}
    made = render(values)
    with pytest.raises(Exception, match="unknown flag '--intervall'"):
        load_container_settings(main_container(values), config_of(made), tmp_path)


def test_the_gpu_count_is_passed_to_the_program(tmp_path: Path) -> None:
    for values in (MATRIX["devices"], {**MATRIX["both"], "gpu": {"count": 8}}):
        assert (
            load_container_settings(main_container(values), config_of(render(values)), tmp_path)["gpu_count"]
            == 8
        )
    assert "gpu_count" not in load_container_settings(main_container(), config_of(render()), tmp_path)


def test_devices_become_the_flag_and_the_programs_setting(tmp_path: Path) -> None:
    values = MATRIX["devices"]
    assert "--devices=0,3,GPU-5c1b8e8e" in main_container(values)["args"]
    assert load_container_settings(main_container(values), config_of(render(values)), tmp_path)[
        "devices"
    ] == (
        "0",
        "3",
        "GPU-5c1b8e8e",
    )


@pytest.mark.parametrize(
    ("values", "listening"),
    [
        ({}, [":9400"]),
        ({"port": 9500}, [":9500"]),
        (MATRIX["smi"], [":9835"]),
        ({**MATRIX["smi"], "extraPorts": MATRIX["dcgm"]["extraPorts"], "port": 9400}, [":9400", ":9835=smi"]),
        (MATRIX["dcgm"], [":9400", ":9835=smi"]),
    ],
)
def test_the_program_listens_on_the_ports_of_the_pod(
    values: Any, listening: list[str], tmp_path: Path
) -> None:
    container = main_container(values)
    got = load_container_settings(container, config_of(render(values)), tmp_path)
    addresses = [str(one) for one in build_settings(HttpSettings, got).listen_address]
    ports = [one["containerPort"] for one in container["ports"]]
    assert [int(one.partition("=")[0].rpartition(":")[2]) for one in addresses] == ports
    assert addresses == listening


def test_a_price_list_in_the_settings_reaches_the_program(tmp_path: Path) -> None:
    entries = [
        {"gpu": "*H100*", "mig": "1g.*", "from": "2026-01-01", "price": 2.4, "per": "instance"},
        {"price": "1.00000000000000000001"},
        {"node": "lab-*", "price": 1_000_000},
    ]
    values = {"config": {"price": {"gpu_hour": entries, "kwh": 0.3}}}
    got = load_container_settings(main_container(values), config_of(render(values)), tmp_path)
    assert got["price.kwh"] == Decimal("0.3")
    assert [entry.amount for entry in got["price.gpu_hour"]] == [
        Decimal("2.4"),
        Decimal("1.00000000000000000001"),
        1_000_000,
    ]
    assert dict(got["price.gpu_hour"][0].conditions)["from"] == "2026-01-01"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"config": {"web.page": "full"}}, "web.page"),
        ({"config": {"kubernetes.names": "logs"}}, "kubernetes.names"),
        ({"config": {"dcgm.schema": "4.9", "dcgm": {"pod_uid": True}}}, "dcgm.schema"),
    ],
)
def test_a_setting_that_is_given_with_a_dot_overrides_that_of_a_value(
    values: Any, key: str, tmp_path: Path
) -> None:
    got = load_container_settings(main_container(values), config_of(render(values)), tmp_path)
    assert got[key] == values["config"][key]


def test_the_chart_knows_which_settings_need_a_restart(tmp_path: Path) -> None:
    """Settings that the chart passes as flags change the pod; the chart lists the others."""
    restart = {key for group in NODE_GROUPS.values() for key in reload_policy(group).restart}
    assert listed("gpuledger.restarting") == restart - listed("gpuledger.owned"), "change _config.tpl"


def test_the_chart_owns_the_settings_that_it_passes_as_flags() -> None:
    groups = (*NODE_GROUPS.values(), *COLLECT_GROUPS.values())
    keys = {
        flag: item.key for group in groups for _, item, _ in declared_settings(group) for flag in item.flags
    }
    passed = set(
        re.findall(r"--[a-z][\w.-]*(?==)", (CHART / "templates/_args.tpl").read_text(encoding="utf-8"))
    )
    assert {keys[flag] for flag in passed - {"--config"}} == listed("gpuledger.owned")


def listed(define: str) -> set[str]:
    """The keys that a named template of _config.tpl lists."""
    text = (CHART / "templates/_config.tpl").read_text(encoding="utf-8")
    body = text.split(f'define "{define}" -}}}}')[1].split("{{- end -}}")[0]
    found = load_yaml(body)
    return set(found)


def test_every_setting_that_the_chart_owns_is_one_of_the_programs() -> None:
    known = {item for group in (*NODE_GROUPS.values(), *COLLECT_GROUPS.values()) for item in keys_of(group)}
    assert listed("gpuledger.owned") <= known


def keys_of(group: type) -> list[str]:
    return [item.key for _, item, _ in declared_settings(group)]


def test_the_collectors_file_is_mounted_at_the_configured_path(tmp_path: Path) -> None:
    values = MATRIX["dcgm"]
    got = load_container_settings(main_container(values), config_of(render(values)), tmp_path)
    assert got["dcgm.collectors"] == "/etc/gpuledger/config/collectors.csv"
    assert len(parse_collectors((tmp_path / "collectors.csv").read_bytes(), "it").columns) == 1


def test_the_default_web_page_is_valid(tmp_path: Path) -> None:
    got = load_container_settings(main_container(), config_of(render()), tmp_path)
    assert build_settings(WebSettings, got).page == "landing"


def test_the_ledger_is_kept_on_the_node_except_by_the_cronjob(tmp_path: Path) -> None:
    where = {}
    for mode in ("daemonset", "collect", "cronjob"):
        values = {"mode": mode, "cronjob": {"nodeCount": 1}}
        config = config_of(render(values))
        where[mode] = load_container_settings(main_container(values), config, tmp_path)["state_dir"]
    assert where == {"daemonset": "/var/lib/gpuledger", "collect": "/var/lib/gpuledger", "cronjob": "none"}


@pytest.mark.parametrize("source", ["smi", "smi+drm"])
def test_nvidia_smi_of_the_host_is_mounted_at_the_configured_path(source: str) -> None:
    values = {"source": source, "gpuAccess": {"mode": "host"}}
    command = settings(values)["nvidia_smi"]["command"]
    assert command in [mount["mountPath"] for mount in main_container(values)["volumeMounts"]]
    assert "nvidia_smi" not in settings({"source": source})


def test_users_of_the_image_are_not_reported_as_users_of_the_node() -> None:
    assert "--passwd-file=/dev/null" in main_container()["args"]
    assert (
        "--passwd-file=/etc/gpuledger/passwd"
        in main_container({"host": {"passwdFile": "/etc/passwd"}})["args"]
    )


def test_the_chart_renders_for_the_oldest_supported_kubernetes() -> None:
    assert files(kube="v1.20.2")
    (cronjob,) = of_kind("CronJob", {"mode": "cronjob"}, kube="v1.20.2")
    assert cronjob["apiVersion"] == "batch/v1beta1"
