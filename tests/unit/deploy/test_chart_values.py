"""The chart's values: what is refused and how, what older charts' mean, and what is written from them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from chart import CHART, MATRIX, ROOT, files, notes, of_kind, program, render, settings, workload
from gpuledger import __version__

MAKE = ROOT / "deploy/helm/make"

# The values of the process exporter's chart as they stood, with what it never read.
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
# As document 001 writes them.
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
    """What `helm upgrade --reuse-values` renders: these templates over the defaults of an older chart."""
    shutil.copytree(CHART, folder)
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    return folder


def problems(values: dict[str, Any]) -> str:
    with pytest.raises(helm_python.HelmError) as caught:
        files(values)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"modus": "daemonset"}, "modus"),
        ({"mode": "deamonset"}, "/mode"),
        ({"gpu": {"device": [0]}}, "device"),
        ({"gpu": {"count": "four"}}, "/gpu/count"),
        ({"gpu": {"count": -1}}, "/gpu/count"),
        ({"gpu-process-exporter": {"enable": True}}, "enable"),
        ({"gpu-session-monitoring": {"enabled": "yes"}}, "/gpu-session-monitoring/enabled"),
        ({"collection": {"shedule": "* * * * *"}}, "shedule"),
        ({"collection": {"resources": {"limit": {}}}}, "limit"),
        ({"resources": {"requests": {"cpu": True}}}, "/resources/requests/cpu"),
        ({"image": {"variant": "slim"}}, "/image/variant"),
        ({"image": {"digest": "abc"}}, "/image/digest"),
        ({"gpuAccess": {"mode": "privileged"}}, "/gpuAccess/mode"),
        ({"gpuAccess": {"cdiDevice": "all"}}, "/gpuAccess/cdiDevice"),
        ({"gpuAccess": {"host": {"libary": ""}}}, "libary"),
        ({"dialect": ["nativ"]}, "/dialect/0"),
        ({"dialect": "native"}, "/dialect"),
        ({"port": 70000}, "/port"),
        ({"extraPorts": [{"name": "smi", "port": 9835}]}, "dialects"),
        ({"extraPorts": [{"name": "SMI", "port": 9835, "dialects": ["smi"]}]}, "/extraPorts/0/name"),
        ({"web": {"page": "wide"}}, "/web/page"),
        ({"web": {"config": {"tls_config": {}}}}, "tls_config"),
        ({"kubernetes": {"names": "dns"}}, "/kubernetes/names"),
        ({"textfile": {"file": "gpu.txt"}}, "/textfile/file"),
        ({"textfile": {"every": "often"}}, "/textfile/every"),
        ({"cronjob": {"apiVersion": "batch/v2"}}, "/cronjob/apiVersion"),
        ({"capabilities": ["CAP_SYS_PTRACE,"]}, "/capabilities/0"),
        ({"tolerations": [{"key": "x", "operater": "Exists"}]}, "operater"),
        ({"serviceMonitor": {"interval": "30 s"}}, "/serviceMonitor/interval"),
        ({"serviceMonitor": {"honourLabels": True}}, "honourLabels"),
        ({"probes": {"liveness": {"timeoutSeconds": "10"}}}, "/probes/liveness/timeoutSeconds"),
        ({"updateStrategy": {"type": "Recreate"}}, "/updateStrategy/type"),
        ({"agent": {"on": True}}, "on"),
        ({"source": "nvidia"}, "/source"),
        ({"probes": {"startup": {"periodSecond": 1}}}, "periodSecond"),
        ({"updateStrategy": {"rollingUpdate": {"maxUnavailble": 1}}}, "maxUnavailble"),
        ({"state": {"dir": "books"}}, "/state/dir"),
        ({"state": {"dir": "/"}}, "/state/dir"),
        ({"textfile": {"directory": ""}}, "/textfile/directory"),
        ({"kubelet": {"dir": "/a b"}}, "/kubelet/dir"),
        ({"gpuAccess": {"host": {"driverDir": "nvidia"}}}, "/gpuAccess/host/driverDir"),
        ({"image": {"tag": "0.1.0 "}}, "/image/tag"),
        ({"fullnameOverride": "GPU_ledger"}, "/fullnameOverride"),
        ({"agent": {"persistence": {"size": "2GB"}}}, "/agent/persistence/size"),
        ({"agent": {"config": {"remote_write": [{"name": "x"}]}}}, "url"),
    ],
)
def test_what_cannot_be_is_refused_by_the_schema_and_named(values: dict[str, Any], named: str) -> None:
    said = problems(values)
    assert "values don't meet the specifications" in said
    assert named in said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"agent": {"enabled": True}}, "agent.enabled: nobody is named to deliver to"),
        (
            {"whatapCompat": {"enabled": True}},
            "whatapCompat.enabled: it is the operator that reads WhatapAgent",
        ),
        (
            {"mode": "cronjob", "collection": {"schedule": "*/30 * * * * *"}},
            "collection.schedule: '*/30 * * * * *' has 6 fields; cron in Kubernetes has five, and no seconds",
        ),
        (
            {"gpu-session-monitoring": {"enabled": True}, "collection": {"schedule": "@every 30s"}},
            "collection.schedule: '@every 30s': Kubernetes starts no Job more often than once a minute",
        ),
        ({"mode": "cronjob", "collection": {"schedule": "hourly"}}, "has 1 fields; five are wanted"),
        (
            {"mode": "cronjob", "dialect": ["process", "native"]},
            "counters and books of native need a program",
        ),
        ({"mode": "collect", "serviceMonitor": {"enabled": True}}, "in mode collect nothing is served"),
        (
            {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}},
            "would scrape every pod twice",
        ),
        ({"serviceMonitor": {"enabled": True}, "service": {"enabled": False}}, "needs service.enabled"),
        ({"web": {"existingSecret": "x"}}, "say in web.scheme"),
        ({"web": {"existingSecret": "x", "scheme": "http", "config": {"rate_limit": {}}}}, "set one"),
        ({"priorityClass": {"create": True}, "priorityClassName": "x"}, "set one"),
        (
            {"extraPorts": [{"name": "a", "port": 9400, "dialects": ["smi"]}]},
            "a has port 9400, which is port's already",
        ),
        (
            {
                "extraPorts": [
                    {"name": "a", "port": 1, "dialects": ["smi"]},
                    {"name": "a", "port": 2, "dialects": ["smi"]},
                ]
            },
            "two ports are called a",
        ),
        (
            {"config": {"listen_address": ":1"}},
            "config: listen_address is said by the value port or extraPorts",
        ),
        (
            {"config": {"web": {"config": {"file": "x"}}}},
            "config: web.config.file is said by the value web.config",
        ),
        ({"config": {"web.config.file": "x"}}, "config: web.config.file is said by the value web.config"),
        ({"podLabels": {"app": "x"}}, "podLabels: by app the chart's objects find their pods"),
        (
            {"commonLabels": {"app.kubernetes.io/component": "x"}},
            "commonLabels: by app.kubernetes.io/component the chart's objects find their pods",
        ),
        (
            {"resources": {"limits": {"nvidia.com/gpu": 1}}},
            "resources.limits: nvidia.com/gpu would take a device from the pods that compute with it",
        ),
        (
            {"mode": "cronjob", "collection": {"resources": {"requests": {"example.com/vgpu": "1"}}}},
            "collection.resources.requests: example.com/vgpu would take a device",
        ),
        (
            {"operator": {"enabled": True, "resources": {"limits": {"nvidia.com/gpu": 1}}}},
            "operator.resources.limits: nvidia.com/gpu would take a device",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_remedy(values: dict[str, Any], said: str) -> None:
    assert said in problems(values)


def test_a_release_that_no_service_can_be_called_after_is_refused_with_the_remedy() -> None:
    with pytest.raises(helm_python.HelmError, match="fullnameOverride: the name of a Service begins with"):
        files(name="456")
    assert files({"fullnameOverride": "gpus"}, name="456")


def described(schema: dict[str, Any], at: str = "") -> Iterator[str]:
    """Paths of the properties that do not say what they mean."""
    for name, one in schema.get("properties", {}).items():
        if not one.get("description", "").strip():
            yield f"{at}.{name}"
        yield from described(one, f"{at}.{name}")


def test_every_key_is_described_and_every_section_is_closed() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert list(described(schema)) == []
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == {*yaml.safe_load((CHART / "values.yaml").read_text()), "global"}


def test_what_the_chart_has_from_elsewhere_is_what_make_chart_writes(tmp_path: Path) -> None:
    made = tmp_path / "gpuledger"
    shutil.copytree(CHART, made)
    # Whatever is not written anew is not found again.
    for name in ("values.schema.json", "files/defaults.yaml"):
        (made / name).unlink()
    subprocess.run([sys.executable, "-B", str(MAKE), str(made)], check=True)
    kept = {str(file.relative_to(CHART)): file.read_bytes() for file in CHART.rglob("*") if file.is_file()}
    assert {
        str(file.relative_to(made)): file.read_bytes() for file in made.rglob("*") if file.is_file()
    } == kept, "run `make chart`"


def test_the_packed_chart_is_the_same_and_small_enough_for_helms_secret(tmp_path: Path) -> None:
    # Each revision is kept in a Secret, together with what was rendered: 1 MiB at most.
    archive = Path(helm_python.Chart.load(CHART).save(tmp_path))
    assert archive.stat().st_size < 150_000
    values = MATRIX["monitoring"]
    assert render(values, folder=archive) == render(values)


def test_the_chart_is_of_the_programs_version() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert about["version"] == about["appVersion"] == values["valuesVersion"] == __version__


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ({}, f"gpuledger:{__version__}"),
        ({"variant": "smi"}, f"gpuledger:{__version__}-smi"),
        ({"tag": "2.0", "variant": "smi"}, "gpuledger:2.0-smi"),
        ({"repository": "a/b", "registry": "mirror:5000"}, f"mirror:5000/a/b:{__version__}"),
        ({"digest": "sha256:" + "0" * 64, "tag": "2.0"}, "gpuledger@sha256:" + "0" * 64),
    ],
)
def test_the_image_is_named_by_registry_and_tag_or_digest(image: dict[str, str], reference: str) -> None:
    assert program({"image": image})["image"] == reference


def test_a_closed_networks_registry_by_its_former_name() -> None:
    assert (
        program({"offline": {"registry": "10.0.0.1:35000"}})["image"]
        == f"10.0.0.1:35000/gpuledger:{__version__}"
    )


def test_the_former_charts_values_work_as_they_stand() -> None:
    container = program(FORMER)
    assert "--devices=0,1,2,3" in container["args"]
    assert container["resources"] == FORMER["collection"]["resources"]  # type: ignore[index]  (a table)
    spec = workload(FORMER)
    assert spec["nodeSelector"] == FORMER["nodeSelector"]
    assert spec["tolerations"] == FORMER["tolerations"]
    said = notes(FORMER)
    assert "collection.image is not used" in said
    assert "prometheus.serverService is not used" in said


def test_the_session_documents_values_work_as_they_stand() -> None:
    (cronjob,) = of_kind("CronJob", SESSIONS)
    assert cronjob["metadata"]["name"] == "gpu-session-metrics-collector"
    container = program(SESSIONS)
    assert "--file=gpu_sessions.prom" in container["args"]
    assert container["resources"] == SESSIONS["collection"]["resources"]  # type: ignore[index]  (a table)
    assert workload(SESSIONS)["nodeSelector"] == {"accelerator": "nvidia"}


def test_where_the_former_chart_kept_the_textfile_directory_it_still_counts() -> None:
    values = {"mode": "collect", "prometheus": {"textfileCollectorPath": "/textfiles"}}
    assert "--textfile-dir=/textfiles" in program(values)["args"]


@pytest.mark.parametrize(
    "former", [FORMER, SESSIONS, {}], ids=["process exporter", "sessions", "none at all"]
)
def test_values_reused_from_an_older_chart_get_this_ones_defaults_beneath(
    former: dict[str, Any], tmp_path: Path
) -> None:
    folder = old_chart(tmp_path / "gpuledger", former)
    assert render({}, folder=folder) == render(former)
    assert "the values are of another chart version (unknown)" in notes({}, folder=folder)


def test_values_reused_from_our_own_last_version_lack_only_what_is_new(tmp_path: Path) -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    older = {
        key: value for key, value in defaults.items() if key not in ("networkPolicy", "helmTest", "sysAdmin")
    }
    older |= {"valuesVersion": "0.0.9", "web": {"page": "off"}, "hostPID": False}
    folder = old_chart(tmp_path / "gpuledger", older)
    wanted = {"web": {"page": "off"}, "hostPID": False}
    assert render({}, folder=folder) == render(wanted)


def test_null_takes_a_default_away() -> None:
    assert "limits" not in program({"resources": {"limits": None}})["resources"]


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
        # What the program tells by itself is right: process and session once, all with --every.
        ({"mode": "cronjob"}, None),
        ({"mode": "collect"}, None),
        ({"mode": "collect", "dialect": ["native"]}, ["native"]),
    ],
)
def test_which_dialects_the_page_tells(values: dict[str, Any], dialects: list[str] | None) -> None:
    assert settings(values).get("dialect") == dialects


@pytest.mark.parametrize(
    ("page", "told"), [("landing", "landing"), ("full", "full"), ("off", "off"), (False, "off")]
)
def test_the_page_shows_nobodys_name_unless_asked(page: object, told: str) -> None:
    # `off` is false in YAML 1.1.
    assert settings()["web"] == {"page": "landing"}
    assert settings({"web": {"page": page}})["web"] == {"page": told}


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
def test_pods_are_exchanged_only_for_what_a_running_program_does_not_take(
    config: dict[str, Any], exchanged: bool
) -> None:
    assert (annotation({"config": config}) != annotation({})) is exchanged
    # The collector reads its file once.
    collect = {"mode": "collect"}
    assert annotation({**collect, "config": config}) != annotation(collect)


def test_turning_tls_on_exchanges_them_too() -> None:
    plain = {"web": {"config": {"rate_limit": {"interval": "1s"}}}}
    assert annotation(plain) == annotation({})
    assert annotation({"web": {"config": {"tls_server_config": {"cert": "x", "key": "y"}}}}) != annotation({})


def test_the_matrix_of_these_tests_names_no_key_that_is_not_there() -> None:
    # Rendering validates: this says so for itself.
    assert [name for name, values in MATRIX.items() if not render(values)] == []
