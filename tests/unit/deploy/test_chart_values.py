"""The chart's values: their descriptions, values of former charts, defaults, and generated files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from chart import CHART, MATRIX, ROOT, main_container, notes, of_kind, pod_spec, problems, render, settings
from gpuledger import __version__
from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.settings import DialectSettings
from yaml_files import load_yaml

MAKE = ROOT / "deploy/helm/make"

# The values of the former process exporter's chart, including keys that it ignored.
FORMER = {
    "gpu-process-exporter": {"enabled": True},
    "collection": {
        "schedule": "*/1 * * * *",
        "image": {"repository": "busybox", "tag": "1.35", "pullPolicy": "IfNotPresent"},
        "resources": {
            "limits": {"cpu": "100m", "memory": "64Mi"},
            "requests": {"cpu": "50m", "memory": "32Mi"},
        },
    },
    "prometheus": {
        "textfileCollectorPath": "/var/lib/node_exporter/textfile_collector",
        "serverService": "prometheus.prometheus.svc:9090",
    },
    "gpu": {"count": 4, "devices": [0, 1, 2, 3]},
    "nodeSelector": {"nvidia.com/gpu.present": "true"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
}
# The values in document 001.
SESSIONS = {
    "gpu-session-monitoring": {"enabled": True},
    "collection": {
        "schedule": "*/1 * * * *",
        "resources": {
            "requests": {"memory": "128Mi", "cpu": "100m"},
            "limits": {"memory": "256Mi", "cpu": "200m"},
        },
    },
    "nodeSelector": {"accelerator": "nvidia"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
}


def old_chart(folder: Path, values: dict[str, Any]) -> Path:
    """A chart as `helm upgrade --reuse-values` renders it: current templates, values of an older chart."""
    shutil.copytree(CHART, folder)
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    return folder


def described(schema: dict[str, Any], at: str = "") -> Iterator[str]:
    """Paths of the properties without a description."""
    for name, one in schema.get("properties", {}).items():
        if not one.get("description", "").strip():
            yield f"{at}.{name}"
        yield from described(one, f"{at}.{name}")


def test_every_key_has_a_description_and_unknown_keys_are_rejected() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert list(described(schema)) == []
    assert schema["additionalProperties"] is False
    keys = load_yaml((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(schema["properties"]) == {*keys, "global", "enabled"}


@pytest.mark.parametrize(("enabled", "kinds"), [(True, {"DaemonSet"}), (False, set())])
def test_a_parent_chart_turns_the_chart_on_and_off_by_its_condition(
    enabled: bool, kinds: set[str], tmp_path: Path
) -> None:
    chart = {"name": "gpuledger", "version": "0.2.0", "alias": "gpus", "condition": "gpus.enabled"}
    parent = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [chart]}
    shutil.copytree(CHART, tmp_path / "charts/gpuledger")
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(parent), encoding="utf-8")
    (tmp_path / "values.yaml").write_text("global: {team: a}\n", encoding="utf-8")
    found = of_kind("DaemonSet", {"gpus": {"enabled": enabled}}, folder=tmp_path)
    assert {one["kind"] for one in found} == kinds
    assert all(one["metadata"]["name"] == "gpuledger-gpus" for one in found)


def test_the_chart_itself_cannot_be_turned_off_by_that_key() -> None:
    assert "/enabled" in problems({"enabled": False})


def test_the_generated_files_of_the_chart_are_up_to_date(tmp_path: Path) -> None:
    made = tmp_path / "gpuledger"
    shutil.copytree(CHART, made)
    # A file that is not generated again will be missing.
    for name in ("values.schema.json", "files/defaults.yaml"):
        (made / name).unlink()
    subprocess.run([sys.executable, "-B", str(MAKE), str(made)], check=True)
    kept = {str(file.relative_to(CHART)): file.read_bytes() for file in CHART.rglob("*") if file.is_file()}
    assert {
        str(file.relative_to(made)): file.read_bytes() for file in made.rglob("*") if file.is_file()
    } == kept, "run `make chart`"


def test_the_packaged_chart_renders_the_same_and_fits_into_helms_secret(tmp_path: Path) -> None:
    import helm_python

    # Helm stores each revision with its rendered objects in a Secret, which is limited to 1 MiB.
    # A file of Python that was imported leaves compiled ones.
    chart = shutil.copytree(CHART, tmp_path / "gpuledger", ignore=shutil.ignore_patterns("__pycache__"))
    compiled = chart / "files/__pycache__/uninstall.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.write_bytes(os.urandom(10_000))
    archive = Path(helm_python.Chart.load(chart).save(tmp_path))
    assert archive.stat().st_size < 150_000
    with tarfile.open(archive) as packed:
        assert not [name for name in packed.getnames() if "__pycache__" in name]
    values = MATRIX["monitoring"]
    assert render(values, folder=archive) == render(values)


def test_the_chart_has_the_version_of_the_program() -> None:
    about = load_yaml((CHART / "Chart.yaml").read_text())
    values = load_yaml((CHART / "values.yaml").read_text())
    assert about["version"] == about["appVersion"] == values["valuesVersion"] == __version__


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ({}, f"gpuledger:{__version__}"),
        ({"variant": "smi"}, f"gpuledger:{__version__}-smi"),
        ({"tag": "2.0", "variant": "smi"}, "gpuledger:2.0-smi"),
        ({"repository": "a/b", "registry": "mirror:5000"}, f"mirror:5000/a/b:{__version__}"),
        ({"repository": "mirror:5000/a/b"}, f"mirror:5000/a/b:{__version__}"),
        ({"digest": "sha256:" + "0" * 64, "tag": "2.0"}, "gpuledger@sha256:" + "0" * 64),
    ],
)
def test_the_image_reference_combines_registry_and_tag_or_digest(
    image: dict[str, str], reference: str
) -> None:
    assert main_container({"image": image})["image"] == reference


def test_the_former_registry_key_is_honored() -> None:
    assert (
        main_container({"offline": {"registry": "10.0.0.1:35000"}})["image"]
        == f"10.0.0.1:35000/gpuledger:{__version__}"
    )


def test_values_of_the_former_process_chart_work_unchanged() -> None:
    container = main_container(FORMER)
    assert "--devices=0,1,2,3" in container["args"]
    assert container["resources"] == FORMER["collection"]["resources"]  # type: ignore[index]  (a table)
    spec = pod_spec(FORMER)
    assert spec["nodeSelector"] == FORMER["nodeSelector"]
    assert spec["tolerations"] == FORMER["tolerations"]
    text = notes(FORMER)
    assert "collection.image is ignored" in text
    assert "prometheus.serverService is ignored" in text


def test_values_of_document_001_work_unchanged() -> None:
    (cronjob,) = of_kind("CronJob", SESSIONS)
    assert cronjob["metadata"]["name"] == "gpu-session-metrics-collector"
    container = main_container(SESSIONS)
    assert "--file=gpu_sessions.prom" in container["args"]
    assert container["resources"] == SESSIONS["collection"]["resources"]  # type: ignore[index]  (a table)
    assert pod_spec(SESSIONS)["nodeSelector"] == {"accelerator": "nvidia"}


def test_the_former_textfile_directory_key_is_honored() -> None:
    values = {"mode": "collect", "prometheus": {"textfileCollectorPath": "/textfiles"}}
    assert "--textfile-dir=/textfiles" in main_container(values)["args"]


@pytest.mark.parametrize(
    "former", [FORMER, SESSIONS, {}], ids=["process exporter", "sessions", "none at all"]
)
def test_values_of_a_former_chart_get_the_new_defaults(former: dict[str, Any], tmp_path: Path) -> None:
    folder = old_chart(tmp_path / "gpuledger", former)
    assert render({}, folder=folder) == render(former)
    assert "the values are from another chart version (unknown)" in notes({}, folder=folder)


def test_values_of_an_older_version_get_the_defaults_of_new_keys(tmp_path: Path) -> None:
    defaults = load_yaml((CHART / "values.yaml").read_text())
    older = {
        key: value for key, value in defaults.items() if key not in ("networkPolicy", "helmTest", "sysAdmin")
    }
    older |= {"valuesVersion": "0.1.0", "web": {"page": "off"}, "hostPID": False}
    folder = old_chart(tmp_path / "gpuledger", older)
    expected = {"web": {"page": "off"}, "hostPID": False}
    assert render({}, folder=folder) == render(expected)


def test_the_schema_lists_all_dialects() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert set(schema["properties"]["dialect"]["items"]["enum"]) == set(
        create_dialects(DialectSettings(), "0")
    )


def test_null_removes_a_default() -> None:
    assert "limits" not in main_container({"resources": {"limits": None}})["resources"]


@pytest.mark.parametrize(
    ("values", "dialects"),
    [
        ({}, ["native"]),
        (
            {"mode": "daemonset", "gpu-process-exporter": {"enabled": True}},
            ["process", "session", "energy", "native"],
        ),
        (
            {"mode": "daemonset", "gpu-session-monitoring": {"enabled": True}},
            ["process", "session", "energy", "native"],
        ),
        ({"dialect": ["dcgm"]}, ["dcgm"]),
        ({"dialect": ["dcgm"], "config": {"dialect": ["smi"]}}, ["smi"]),
        ({"image": {"variant": "smi"}}, ["smi"]),
        # gpuledger's defaults apply: process and session when it runs once, all dialects with --every.
        ({"mode": "cronjob"}, None),
        ({"mode": "collect"}, None),
        ({"mode": "collect", "dialect": ["native"]}, ["native"]),
    ],
)
def test_the_dialects_of_metrics_path_follow_from_the_values(
    values: dict[str, Any], dialects: list[str] | None
) -> None:
    assert settings(values).get("dialect") == dialects


@pytest.mark.parametrize(
    ("page", "setting"), [("landing", "landing"), ("full", "full"), ("off", "off"), (False, "off")]
)
def test_the_web_page_shows_no_names_by_default(page: object, setting: str) -> None:
    # `off` is false in YAML 1.1.
    assert settings()["web"] == {"page": "landing"}
    assert settings({"web": {"page": page}})["web"] == {"page": setting}


def agent_with_interval(interval: object) -> dict[str, Any]:
    receiver = {"url": "http://receiver/api/v1/write"}
    config = {"remote_write": [receiver], "features": {"openAgent": {"globalInterval": interval}}}
    return {"agent": {"enabled": True, "config": config}}


@pytest.mark.parametrize(
    ("values", "hold"),
    [
        ({}, None),
        ({"serviceMonitor": {"interval": "60s"}}, None),
        ({"serviceMonitor": {"enabled": True, "interval": "15s"}}, None),
        ({"serviceMonitor": {"enabled": True}}, "40s"),
        ({"serviceMonitor": {"enabled": True, "interval": "60s"}}, "70s"),
        ({"podMonitor": {"enabled": True, "interval": "1m30s", "scrapeTimeout": "45s"}}, "135s"),
        ({"podMonitor": {"enabled": True, "interval": "59s500ms", "scrapeTimeout": ""}}, "70s"),
        ({"podMonitor": {"enabled": True, "interval": ""}}, None),
        (agent_with_interval("15s"), None),
        (agent_with_interval("1m"), "70s"),
        # Without a unit, seconds, as for the agent.
        (agent_with_interval("60"), "70s"),
        (agent_with_interval(60), "70s"),
        ({"mode": "collect"}, "90s"),
        ({"mode": "collect", "textfile": {"every": "15s"}}, "45s"),
        ({"mode": "collect", "textfile": {"every": "1.5m"}}, "120s"),
        ({"mode": "collect", "textfile": {"every": "5m"}}, "330s"),
    ],
)
def test_new_series_are_held_for_the_interval_that_the_same_values_set(
    values: dict[str, Any], hold: str | None
) -> None:
    assert settings(values).get("energy", {}).get("zero_hold") == hold
    for given in ({"energy": {"zero_hold": "5s"}}, {"energy.zero_hold": "5s"}):
        found = settings({**values, "config": given})
        assert found.get("energy.zero_hold", found.get("energy", {}).get("zero_hold")) == "5s"
        assert ("energy" in found) != ("energy.zero_hold" in found)


def annotation(values: dict[str, Any]) -> str:
    (daemonset,) = of_kind("DaemonSet", values)
    return str(daemonset["spec"]["template"]["metadata"]["annotations"]["gpuledger/restart-on"])


@pytest.mark.parametrize(
    ("config", "exchanged"),
    [
        ({"interval": "5s"}, False),
        ({"log": {"level": "debug"}}, False),
        ({"process": {"max_per_device": 8}}, True),
        ({"process.max_per_device": 8}, True),
        ({"energy": {"zero_hold": "60s"}}, True),
    ],
)
def test_pods_are_restarted_only_for_settings_that_need_it(config: dict[str, Any], exchanged: bool) -> None:
    assert (annotation({"config": config}) != annotation({})) is exchanged
    # The collector does not reload its configuration file.
    collect = {"mode": "collect"}
    assert annotation({**collect, "config": config}) != annotation(collect)


def test_enabling_tls_restarts_the_pods() -> None:
    plain = {"web": {"config": {"rate_limit": {"interval": "1s"}}}}
    assert annotation(plain) == annotation({})
    assert annotation({"web": {"config": {"tls_server_config": {"cert": "x", "key": "y"}}}}) != annotation({})


def test_all_values_of_the_matrix_render() -> None:
    # Rendering validates all values.
    assert [name for name, values in MATRIX.items() if not render(values)] == []
