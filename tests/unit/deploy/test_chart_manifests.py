"""kubernetes/*.yaml and deploy/*rbac.yaml: generated from the chart, for use without Helm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chart import MANIFESTS, ROOT, pod_specs
from yaml_files import load_documents, load_yaml

NAMES = sorted(file.name for file in MANIFESTS.iterdir())
WITH_NAMESPACE = [name for name in NAMES if name not in ("servicemonitor.yaml", "prometheusrule.yaml")]


def objects(name: str) -> list[dict[str, Any]]:
    return load_documents((MANIFESTS / name).read_text(encoding="utf-8"))


def test_the_manifests_are_up_to_date(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-B", str(ROOT / "deploy/helm/make/manifests.py"), str(tmp_path)], check=True
    )
    made = {str(file.relative_to(tmp_path)): file.read_text() for file in tmp_path.rglob("*.yaml")}
    kept = {
        name: (ROOT / name).read_text()
        for name in [*(f"kubernetes/{name}" for name in NAMES), "deploy/rbac.yaml", "deploy/agent-rbac.yaml"]
    }
    assert kept == made, "run `make manifests`"


def test_the_documented_files_exist() -> None:
    assert {
        "daemonset.yaml",
        "cronjob.yaml",
        "openshift-daemonset.yaml",
        "openshift-scc.yaml",
        "servicemonitor.yaml",
    } <= set(NAMES)


@pytest.mark.parametrize("name", WITH_NAMESPACE)
def test_the_namespace_comes_first_so_that_one_apply_is_enough(name: str) -> None:
    made = objects(name)
    assert made[0]["kind"] == "Namespace"
    assert made[0]["metadata"]["name"] == "gpu-monitoring"
    assert made[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert {one["metadata"].get("namespace", "gpu-monitoring") for one in made} == {"gpu-monitoring"}


def test_the_daemonset_has_the_names_labels_and_port_of_the_energy_exporter() -> None:
    by_kind = {one["kind"]: one for one in objects("daemonset.yaml")}
    daemonset, service = by_kind["DaemonSet"], by_kind["Service"]
    for one in (daemonset, service, by_kind["ServiceAccount"]):
        assert one["metadata"]["name"] == "my-gpu-exporter"
        assert one["metadata"]["labels"]["app"] == "my-gpu-exporter"
    assert daemonset["spec"]["template"]["metadata"]["labels"]["app"] == "my-gpu-exporter"
    assert [(port["name"], port["port"]) for port in service["spec"]["ports"]] == [("metrics", 9400)]
    spec = daemonset["spec"]["template"]["spec"]
    assert [init["name"] for init in spec["initContainers"]] == ["enable-accounting"]
    assert "nvidia-smi -am 1" in spec["initContainers"][0]["args"][0]
    assert spec["hostPID"] is True


def test_the_daemonset_exports_the_dialects_of_all_former_exporters() -> None:
    (config,) = [one for one in objects("daemonset.yaml") if one["kind"] == "ConfigMap"]
    settings = load_yaml(config["data"]["gpuledger.yaml"])
    assert settings["dialect"] == ["process", "session", "energy", "native"]


def test_the_cronjob_has_the_name_and_schedule_of_the_process_exporter() -> None:
    (cronjob,) = [one for one in objects("cronjob.yaml") if one["kind"] == "CronJob"]
    assert cronjob["metadata"]["name"] == "gpu-process-metrics-collector"
    assert cronjob["spec"]["schedule"] == "*/1 * * * *"


def test_exporter_and_collector_have_no_common_object_names() -> None:
    def named(name: str) -> set[tuple[str, str]]:
        return {(one["kind"], one["metadata"]["name"]) for one in objects(name) if one["kind"] != "Namespace"}

    assert named("daemonset.yaml") & named("cronjob.yaml") == set()


def test_the_openshift_constraints_match_the_openshift_daemonset() -> None:
    scc = {one["kind"]: one for one in objects("openshift-scc.yaml")}
    (account,) = [one for one in objects("openshift-daemonset.yaml") if one["kind"] == "ServiceAccount"]
    (subject,) = scc["RoleBinding"]["subjects"]
    assert (subject["name"], subject["namespace"]) == (
        account["metadata"]["name"],
        account["metadata"]["namespace"],
    )
    assert scc["ClusterRole"]["rules"][0]["resourceNames"] == [
        scc["SecurityContextConstraints"]["metadata"]["name"]
    ]
    (spec,) = pod_specs(objects("openshift-daemonset.yaml"))
    assert spec["runtimeClassName"] == "nvidia"
    added = {name for one in spec["containers"] for name in one["securityContext"]["capabilities"]["add"]}
    assert set(scc["SecurityContextConstraints"]["allowedCapabilities"]) == added


@pytest.mark.parametrize("name", NAMES)
def test_no_object_has_metadata_of_helm(name: str) -> None:
    text = (MANIFESTS / name).read_text(encoding="utf-8").lower()
    assert "helm.sh" not in text
    assert "managed-by" not in text


def test_the_permissions_in_deploy_are_those_of_the_chart() -> None:
    (role,) = [
        one for one in load_documents((ROOT / "deploy/rbac.yaml").read_text()) if one["kind"] == "ClusterRole"
    ]
    (in_manifest,) = [one for one in objects("daemonset.yaml") if one["kind"] == "ClusterRole"]
    assert role["rules"] == in_manifest["rules"]
