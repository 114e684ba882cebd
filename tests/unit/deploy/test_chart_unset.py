"""Values that are null, quantities without a unit, and values of other charts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from chart import CHART, files, main_container, of_kind, pod_spec, problems, render
from unit.deploy.test_chart_values import old_chart
from yaml_files import load_yaml

UNSET = load_yaml((CHART / "files/unset.yaml").read_text(encoding="utf-8"))
# Enables all that reads values.
FULL: dict[str, Any] = {
    "mode": "daemonset",
    "agent": {"enabled": True, "config": {"remote_write": [{"url": "http://store/write"}]}},
    "operator": {"enabled": True},
    "whatapCompat": {"enabled": True},
    "openshift": {"enabled": True},
    "followGpuOperator": {"enabled": True},
    "gpuAccess": {"mode": "host"},
    "accounting": {"enable": True},
    "serviceMonitor": {"enabled": True},
    "rules": {"enabled": True},
    "networkPolicy": {"enabled": True},
    "priorityClass": {"create": True},
    "namespace": {"create": True},
    "extraPorts": [{"name": "smi", "port": 9835, "dialects": ["smi"]}],
}
# What a template writes for a value that is not there.
_HOLE = re.compile(r"(?<!priority):\s+null\b|^\s*-\s+null\b|<nil>|<no value>|%!", re.MULTILINE)


def nulls(value: Any) -> Any:
    """The same mapping with null for each value in it."""
    return {key: nulls(one) for key, one in value.items()} if isinstance(value, dict) and value else None


def holes(values: dict[str, Any]) -> dict[str, list[str]]:
    """Places of rendered files where a value is missing, by template; CRDs have no values."""
    texts = {name: text for name, text in files(values).items() if "crds" not in name}
    return {name: found for name, text in texts.items() if (found := _HOLE.findall(text))}


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    found = dict(base)
    for key, value in over.items():
        below = found.get(key)
        found[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return found


def test_null_for_a_section_is_like_a_section_that_is_not_given() -> None:
    kept = ("agent", "valuesVersion", "operator", "whatapCompat")
    assert holes({**FULL, **{key: None for key in UNSET if key not in kept}}) == {}
    assert holes({"agent": None, "operator": None, "whatapCompat": None, "mode": None}) == {}


@pytest.mark.parametrize("mode", ["daemonset", "collect", "cronjob"])
def test_null_for_every_key_below_a_section_is_rendered_as_empty(mode: str) -> None:
    given = {key: value for key, value in FULL.items() if isinstance(value, dict)}
    below = {key: nulls(value) for key, value in UNSET.items() if key not in ("valuesVersion", "mode")}
    # What a value enables keeps its other keys null.
    values = merged(below, given) | {"mode": mode, "cronjob": {**below["cronjob"], "nodeCount": 1}}
    if mode != "daemonset":
        values["serviceMonitor"] = below["serviceMonitor"]
    assert holes(values) == {}


def test_null_takes_a_default_away_and_leaves_what_cannot_be_empty() -> None:
    taken = {
        "tolerations": None,
        "nodeSelector": None,
        "capabilities": None,
        "securityContext": None,
        "resources": None,
        "hostPID": None,
        "image": {"repository": None, "pullPolicy": None},
        "probes": None,
    }
    spec, (container,) = pod_spec(taken), pod_spec(taken)["containers"]
    default = pod_spec()
    assert "tolerations" not in spec
    assert container["resources"] == {}
    assert "add" not in container["securityContext"]["capabilities"]
    for name in ("hostPID", "affinity"):
        assert spec[name] == default[name]
    for name in ("image", "imagePullPolicy", "startupProbe", "livenessProbe", "readinessProbe"):
        assert container[name] == default["containers"][0][name]


def test_null_takes_away_what_an_earlier_file_of_values_gave() -> None:
    values: dict[str, Any] = {
        "podLabels": {"team": None, "x": "y"},
        "config": {"interval": None, "log": {"level": None}},
        "serviceMonitor": {"enabled": True, "interval": None, "tlsConfig": {"ca": None}},
        "extraEnv": [{"name": "A", "value": None}],
    }
    without = {
        "podLabels": {"x": "y"},
        "config": {"log": {}},
        "serviceMonitor": {"enabled": True, "interval": ""},
        "extraEnv": [{"name": "A"}],
    }
    assert render(values) == render(without)


@pytest.mark.parametrize("value", [{"tolerations": [None]}, {"dialect": [None]}, {"extraPorts": [None]}])
def test_null_in_a_list_is_refused(value: dict[str, Any]) -> None:
    assert f"/{next(iter(value))}/0" in problems(value)


def test_values_of_an_older_chart_keep_what_they_make_empty(tmp_path: Any) -> None:
    given = {"capabilities": [], "state": {"dir": ""}, "rbac": {"create": False}, "gpu": None}
    folder = old_chart(tmp_path / "gpuledger", {"valuesVersion": "0.1.0", **given})
    assert render({}, folder=folder) == render(given)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"resources": {"limits": {"memory": 128}}},
            "resources.limits.memory: 128 is 128 bytes, less than 4Mi",
        ),
        ({"resources": {"limits": {"memory": "128"}}}, "such as 128Mi"),
        ({"resources": {"limits": {"memory": "64Gi"}}}, "resources.limits.memory: 64Gi is more than 32Gi"),
        ({"agent": {"resources": {"requests": {"memory": 1e12}}}}, "is more than 32Gi"),
        ({"resources": {"limits": {"memory": "128m"}}}, "128m is 0.128 bytes"),
        ({"resources": {"limits": {"memory": ""}}}, "'' is not a quantity; write one such as 128Mi"),
        ({"resources": {"limits": {"memory": "64 MB"}}}, "'64 MB' is not a quantity"),
        (
            {"resources": {"limits": {"ephemeral-storage": 1}}},
            "resources.limits.ephemeral-storage: 1 is 1 bytes",
        ),
        (
            {"collection": {"resources": {"requests": {"memory": 64}}}},
            "collection.resources.requests.memory: 64",
        ),
        (
            {"operator": {"resources": {"requests": {"cpu": 25}}}},
            "operator.resources.requests.cpu: 25 is 25 cores",
        ),
        ({"resources": {"requests": {"cpu": "100"}}}, "write 100m for thousandths of a core"),
        (
            {"resources": {"requests": {"memory": "512Mi"}}},
            "resources: the request of 512Mi memory is above the limit of 256Mi",
        ),
        (
            {"agent": {"resources": {"requests": {"cpu": "1.5"}, "limits": {"cpu": "500m"}}}},
            "agent.resources: the request of 1.5 cpu is above the limit of 500m",
        ),
        ({"agent": {"persistence": {"size": "2"}}}, "agent.persistence.size: 2 is 2 bytes"),
        (
            {"image": {"repository": "nvcr.io/nvidia/k8s/dcgm-exporter", "tag": "4.4.1-4.6.0-ubuntu22.04"}},
            "image.repository: nvcr.io/nvidia/k8s/dcgm-exporter is the image of another program",
        ),
        ({"image": {"repository": "utkuozdemir/nvidia_gpu_exporter"}}, "is the image of another program"),
        # Keys of the charts of dcgm-exporter and nvidia_gpu_exporter, and a number as text.
        ({"arguments": ["-f", "/etc/x.csv"]}, "'arguments' not allowed"),
        ({"kubeletPath": "/var/lib/kubelet"}, "'kubeletPath' not allowed"),
        ({"service": {"port": 9400}}, "/service"),
        ({"serviceMonitor": {"scheme": "https"}}, "/serviceMonitor"),
        ({"port": "9400"}, "at '/port': got string"),
        ({"gpu": {"count": "4"}}, "at '/gpu/count': got string"),
        ({"image": {"tag": 4.4}}, "at '/image/tag': got number"),
        ({"nodeSelector": {"nvidia.com/gpu.present": True}}, "/nodeSelector/nvidia.com~1gpu.present"),
        ({"image": {"repository": ""}}, "/image/repository"),
        ({"dashboards": {"enabled": True, "label": ""}}, "/dashboards/label"),
        ({"podMonitor": {"enabled": True, "interval": "1m", "scrapeTimeout": "61s"}}, "61s is longer than"),
    ],
)
def test_values_that_would_be_rendered_wrongly_are_refused(values: dict[str, Any], message: str) -> None:
    assert message in problems(values)


@pytest.mark.parametrize("memory", ["1Gi", 1_073_741_824, "1e9", "512M", "1.5Gi", "4Mi", "999999k"])
def test_quantities_in_every_notation_are_rendered_as_given(memory: str | int) -> None:
    resources = {"requests": {"memory": "4Mi", "cpu": 0.5}, "limits": {"memory": memory}}
    found = main_container({"resources": resources})["resources"]
    assert (found["limits"]["memory"], found["requests"]) == (memory, {"memory": "4Mi", "cpu": 0.5})


def test_a_monitor_has_the_fields_that_other_charts_have() -> None:
    given = {
        "enabled": True,
        "labels": {"release": "prometheus"},
        "additionalLabels": {"team": "gpu"},
        "jobLabel": "",
        "targetLabels": ["team"],
        "podTargetLabels": ["x"],
        "attachMetadata": {"node": True},
        "sampleLimit": 500_000,
    }
    (monitor,) = of_kind("ServiceMonitor", {"serviceMonitor": given})
    assert {"release": "prometheus", "team": "gpu"}.items() <= monitor["metadata"]["labels"].items()
    spec = monitor["spec"]
    assert "jobLabel" not in spec
    for key in ("targetLabels", "podTargetLabels", "attachMetadata", "sampleLimit"):
        assert spec[key] == given[key]
    (monitor,) = of_kind("PodMonitor", {"podMonitor": {"enabled": True, "sampleLimit": 0}})
    assert {"targetLabels", "podTargetLabels", "attachMetadata", "sampleLimit"}.isdisjoint(monitor["spec"])


def test_a_monitor_scrapes_the_additional_ports_that_no_other_scraper_reads() -> None:
    ports = [
        {"name": "smi", "port": 9835, "dialects": ["smi"]},
        {"name": "dcgm", "port": 9401, "dialects": ["dcgm"], "scrape": False},
    ]
    (monitor,) = of_kind("PodMonitor", {"podMonitor": {"enabled": True}, "extraPorts": ports})
    first, second = monitor["spec"]["podMetricsEndpoints"]
    assert (first["port"], second["port"]) == ("metrics", "smi")
    assert {**first, "port": ""} == {**second, "port": ""}
