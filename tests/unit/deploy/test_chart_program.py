"""What the chart has the program run with is what the program takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from chart import (
    CHART,
    MANIFESTS,
    MATRIX,
    containers,
    files,
    of_kind,
    pod_specs,
    program,
    render,
    settings,
    taken,
)
from gpuledger.config.node import COLLECT, NODE
from gpuledger.dialects.dcgm.collectors import parse as parse_collectors
from gpuledger.http.settings import HttpSettings
from gpuledger.model.settings import build, declared, reload_of
from gpuledger.web.settings import WebSettings

# With the operator, or the agent alone, the chart itself makes nothing that has these settings.
OF_NODES = {name: values for name, values in MATRIX.items() if name not in ("operator", "the agent alone")}
each = pytest.mark.parametrize("values", OF_NODES.values(), ids=OF_NODES)


def programs(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Containers that run gpuledger."""
    ours = [one for spec in pod_specs(manifests) for one in containers(spec)]
    return [one for one in ours if one["name"] in ("exporter", "collector", "look")]


def config_of(manifests: list[dict[str, Any]]) -> dict[str, str]:
    (found,) = [one["data"] for one in manifests if "gpuledger.yaml" in one.get("data", {})]
    return dict(found)


@each
def test_the_program_takes_every_argument_variable_and_key(values: Any, tmp_path: Path) -> None:
    made = render(values)
    found = programs(made)
    assert found
    for container in found:
        taken(container, config_of(made), tmp_path)


@pytest.mark.parametrize("file", sorted(path.name for path in MANIFESTS.glob("*.yaml")))
def test_it_takes_those_of_the_plain_manifests(file: str, tmp_path: Path) -> None:
    made = [one for one in yaml.safe_load_all((MANIFESTS / file).read_text(encoding="utf-8")) if one]
    for container in programs(made):
        taken(container, config_of(made), tmp_path)


def test_it_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    values = {"extraArgs": ["--intervall=1s"]}
    made = render(values)
    with pytest.raises(Exception, match="unknown flag '--intervall'"):
        taken(program(values), config_of(made), tmp_path)


def test_the_count_is_checked_by_the_program(tmp_path: Path) -> None:
    for values in (MATRIX["devices"], {**MATRIX["both"], "gpu": {"count": 8}}):
        assert taken(program(values), config_of(render(values)), tmp_path)["gpu_count"] == 8
    assert "gpu_count" not in taken(program(), config_of(render()), tmp_path)


def test_devices_become_the_flag_and_the_programs_setting(tmp_path: Path) -> None:
    values = MATRIX["devices"]
    assert "--devices=0,3,GPU-5c1b8e8e" in program(values)["args"]
    assert taken(program(values), config_of(render(values)), tmp_path)["devices"] == (
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
def test_it_listens_where_the_pod_says(values: Any, listening: list[str], tmp_path: Path) -> None:
    container = program(values)
    got = taken(container, config_of(render(values)), tmp_path)
    addresses = [str(one) for one in build(HttpSettings, got).listen_address]
    ports = [one["containerPort"] for one in container["ports"]]
    assert [int(one.partition("=")[0].rpartition(":")[2]) for one in addresses] == ports
    assert addresses == listening


def test_the_chart_knows_which_settings_need_a_restart(tmp_path: Path) -> None:
    """Those that it gives by flags change the pod; of the others it keeps a list."""
    restart = {key for group in NODE.values() for key in reload_of(group).restart}
    owned = listed("gpuledger.owned") | {"textfile.dir", "textfile.file", "textfile.every"}
    assert listed("gpuledger.restarting") == restart - owned


def listed(define: str) -> set[str]:
    """The keys that a named template of _config.tpl lists."""
    text = (CHART / "templates/_config.tpl").read_text(encoding="utf-8")
    body = text.split(f'define "{define}" -}}}}')[1].split("{{- end -}}")[0]
    found = yaml.safe_load(body)
    return set(found)


def test_every_setting_that_the_chart_owns_is_one_of_the_programs() -> None:
    known = {item for group in (*NODE.values(), *COLLECT.values()) for item in keys_of(group)}
    assert listed("gpuledger.owned") <= known


def keys_of(group: type) -> list[str]:
    return [item.key for _, item, _ in declared(group)]


def test_a_collectors_file_is_found_where_the_settings_say(tmp_path: Path) -> None:
    values = MATRIX["dcgm"]
    got = taken(program(values), config_of(render(values)), tmp_path)
    assert got["dcgm.collectors"] == "/etc/gpuledger/config/collectors.csv"
    assert len(parse_collectors((tmp_path / "collectors.csv").read_bytes(), "it").columns) == 1


def test_the_page_of_the_chart_is_one_that_the_program_has(tmp_path: Path) -> None:
    got = taken(program(), config_of(render()), tmp_path)
    assert build(WebSettings, got).page == "landing"


def test_books_are_kept_on_the_node_but_not_by_who_looks_once(tmp_path: Path) -> None:
    where = {
        mode: taken(program({"mode": mode}), config_of(render({"mode": mode})), tmp_path)["state_dir"]
        for mode in ("daemonset", "collect", "cronjob")
    }
    assert where == {"daemonset": "/var/lib/gpuledger", "collect": "/var/lib/gpuledger", "cronjob": "none"}


def test_from_the_host_nvidia_smi_is_found_where_it_is_mounted() -> None:
    values = {"source": "smi", "gpuAccess": {"mode": "host"}}
    command = settings(values)["nvidia_smi"]["command"]
    assert command in [mount["mountPath"] for mount in program(values)["volumeMounts"]]
    assert "nvidia_smi" not in settings({"source": "smi"})


def test_users_of_the_image_are_not_told_as_users_of_the_node() -> None:
    assert "--passwd-file=/dev/null" in program()["args"]
    assert "--passwd-file=/etc/gpuledger/passwd" in program({"host": {"passwdFile": "/etc/passwd"}})["args"]


def test_the_chart_renders_for_the_oldest_supported_kubernetes() -> None:
    assert files(kube="v1.20.2")
    (cronjob,) = of_kind("CronJob", {"mode": "cronjob"}, kube="v1.20.2")
    assert cronjob["apiVersion"] == "batch/v1beta1"
