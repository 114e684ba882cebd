"""Upgrades and rollbacks of the chart's CRDs, on the CRD server of Kubernetes 1.36."""

import subprocess
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import yaml

from cluster.control_plane import Client
from documentation import ROOT
from gpuledger.operator.monitor_parser import parse_monitor
from gpuledger.operator.schema.nodes import ObjectNode
from gpuledger.operator.spec import SPEC
from release.crd_requests import GPU_MONITORS, GPUS, PATHS, apply_crd, delete_crd, reconcile
from release.crd_server import CrdServer, Json
from running import wait_until
from unit.operator.schemas import sample, without_cel_rules
from unit.operator.support import gpu_monitor

KEPT = ROOT / "deploy/helm/gpuledger/files/crds" / f"{GPU_MONITORS}.yaml"
pytestmark = pytest.mark.group("crd-server")


@cache
def earlier_crds() -> dict[str, Json]:
    """The CRDs in the history of the repository by commit, without those that only have other texts."""
    path = KEPT.relative_to(ROOT)

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout

    found: dict[str, Json] = {}
    for commit in git("log", "--reverse", "--format=%h", "--", str(path)).split():
        if text := git("show", f"{commit}:{path}"):
            crd = without_descriptions(yaml.safe_load(text))
            if crd not in found.values():
                found[commit] = crd
    return found


def without_descriptions(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: without_descriptions(item)
            for key, item in value.items()
            if key != "description" or not isinstance(item, str)
        }
    return [without_descriptions(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("commit", "earlier"), earlier_crds().items(), ids=list(earlier_crds()))
def test_a_resource_of_an_earlier_crd_remains_valid(
    api: Client, crds: Mapping[str, Json], commit: str, earlier: Json
) -> None:
    delete_crd(api, GPU_MONITORS)
    # The samples break rules.
    apply_crd(api, without_cel_rules(earlier))
    (version,) = earlier["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    full = {}
    for name in ("exporter", "agent"):
        section = SPEC.keys[name]
        assert isinstance(section, ObjectNode)
        full[name] = {key: sample(section.keys[key], key) for key in schema["properties"][name]["properties"]}
    # The sample of extraPorts has the sample of port, and contradicts that of mode.
    full["exporter"]["port"] = 9500
    full["exporter"].pop("mode", None)
    # Samples are the newest choice.
    full["exporter"]["dialects"] = ["dcgm"]
    for port in full["exporter"].get("extraPorts", ()):
        port["dialects"] = ["dcgm"]
    stored = api.call("POST", PATHS["GpuMonitor"], gpu_monitor(full), fieldValidation="Strict")
    status = apply_crd(api, crds[GPU_MONITORS])["status"]
    assert status["storedVersions"] == [version["name"]], commit
    upgraded = api.call("GET", GPUS)
    assert upgraded["spec"] == stored["spec"]
    assert parse_monitor(upgraded).problems == ()
    upgraded["spec"]["exporter"]["followGpuOperator"] = {"enabled": True}
    assert api.call("PUT", GPUS, upgraded, fieldValidation="Strict")["metadata"]["generation"] == 2


def test_a_rollback_drops_only_the_fields_that_the_earlier_crd_lacks(
    api: Client, crds: Mapping[str, Json]
) -> None:
    exporter = {"port": 9500, "webConfig": {"secret": "web", "scheme": "https"}}
    api.call("POST", PATHS["GpuMonitor"], gpu_monitor({"exporter": exporter}))
    earlier = without_cel_rules(deepcopy(crds[GPU_MONITORS]))
    (version,) = earlier["spec"]["versions"]
    sections = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del sections["exporter"]["properties"]["webConfig"]
    apply_crd(api, earlier)
    wait_until(lambda: api.call("GET", GPUS)["spec"] == {"exporter": {"port": 9500}}, "the earlier schema")
    apply_crd(api, crds[GPU_MONITORS])
    # Not lost until the resource is written.
    wait_until(lambda: api.call("GET", GPUS)["spec"] == {"exporter": exporter}, "the schema")


def test_a_stored_value_that_a_newer_crd_refuses_blocks_no_other_change(
    server: CrdServer, api: Client, crds: Mapping[str, Json]
) -> None:
    wider = deepcopy(crds[GPU_MONITORS])
    (version,) = wider["spec"]["versions"]
    exporter = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["exporter"]
    exporter["properties"]["webPage"]["enum"].append("removed")
    apply_crd(api, wider)
    api.call("POST", PATHS["GpuMonitor"], gpu_monitor({"exporter": {"webPage": "removed"}}))
    apply_crd(api, crds[GPU_MONITORS])
    problem = "spec.exporter.webPage: expected one of landing, full, off, not 'removed'"
    assert reconcile(server)["status"]["lastError"] == problem
    api.call("PATCH", GPUS, {"spec": {"exporter": {"port": 9500}}})
    refused = api.request("PATCH", GPUS, {"spec": {"exporter": {"webPage": "other"}}})
    assert refused.status_code == 422
    assert 'supported values: "landing", "full", "off"' in refused.json()["message"]
