"""The chart's CRDs on the CRD server of Kubernetes 1.36, with real etcd and kubectl."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from cluster.control_plane import Client
from documentation import DOCS
from gpuledger.operator.crd_definitions import foreign_definition
from gpuledger.operator.monitor_parser import parse_monitor
from gpuledger.operator.schema.nodes import ListNode, ObjectNode, SchemaNode
from gpuledger.operator.spec import SPEC
from gpuledger.operator.whatap_spec import WHATAP_SPEC
from release.crd_requests import (
    CRDS,
    GPU_MONITORS,
    PATHS,
    WHATAP_AGENTS,
    apply_crd,
    try_create,
)
from release.crd_server import CrdServer, Json
from unit.operator.schemas import leaf_fields, sample, values, without_cel_rules
from unit.operator.support import EXAMPLES, gpu_monitor, whatap
from unit.operator.test_crd_definitions import WRONG

pytestmark = pytest.mark.group("crd-server")


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def examples() -> list[Json]:
    """The resources in the documentation and in the manual of Whatap."""
    found = [yaml.safe_load(text) for text in EXAMPLES.values()]
    for page in sorted(DOCS.rglob("*.md")):
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            documents = yaml.safe_load_all(block)
            found += [one for one in documents if isinstance(one, dict) and one.get("kind") in PATHS]
    return found


# Installing the CRDs


def test_the_charts_crds_are_accepted_and_served(api: Client, crds: Mapping[str, Json]) -> None:
    assert set(crds) == {GPU_MONITORS, WHATAP_AGENTS}
    for name in crds:
        status = api.call("GET", f"{CRDS}/{name}")["status"]
        # There would be a condition NonStructuralSchema.
        assert {one["type"]: one["status"] for one in status["conditions"]} == {
            "NamesAccepted": "True",
            "Established": "True",
        }


def test_the_server_stores_the_schemas_unchanged(api: Client, crds: Mapping[str, Json]) -> None:
    for name, crd in crds.items():
        stored = api.call("GET", f"{CRDS}/{name}")
        assert stored["spec"]["versions"] == crd["spec"]["versions"]


def test_the_operator_recognizes_its_crds_on_the_server(api: Client, crds: Mapping[str, Json]) -> None:
    assert [foreign_definition(api.call("GET", f"{CRDS}/{name}")) for name in crds] == ["", ""]


def test_kubectl_explain_lists_all_keys_and_their_descriptions(server: CrdServer, api: Client) -> None:
    listed = server.kubectl("explain", "gpumonitor.spec", "--recursive")
    assert listed.returncode == 0, listed.stderr
    keys = set(re.findall(r"^ +(\S+)\t<", listed.stdout, re.MULTILINE))
    assert keys >= {part for path, _ in leaf_fields(SPEC) for part in path if part != "[]"}
    one = server.kubectl("explain", "gpumonitor.spec.exporter.port")
    assert "Port of the metrics page; 9400 by default." in one.stdout


# What is accepted


@pytest.mark.parametrize("resource", examples(), ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_kubectl_applies_the_examples_of_the_documentation(
    server: CrdServer, api: Client, resource: Json
) -> None:
    applied = server.kubectl("apply", manifests=[resource])
    assert (applied.returncode, applied.stderr) == (0, "")
    stored = api.call("GET", f"{PATHS[resource['kind']]}/{resource['metadata']['name']}")
    # No default is stored: it would persist after an upgrade that changes the default.
    assert stored["spec"] == resource["spec"]


_properties = settings(
    max_examples=150, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize(
    "resources",
    [values(SPEC).map(gpu_monitor), values(WHATAP_SPEC).map(lambda spec: {**whatap(), "spec": spec})],
    ids=PATHS,
)
def test_the_server_accepts_what_the_schema_allows_and_prunes_nothing(
    api: Client, crds: Mapping[str, Json], resources: Any
) -> None:
    # Arbitrary values break rules.
    for crd in crds.values():
        apply_crd(api, without_cel_rules(crd))

    @_properties
    @given(resources)
    def check(resource: Json) -> None:
        response = try_create(api, resource)
        assert response.is_success, response.text
        assert response.json()["spec"] == without_nulls(resource["spec"])

    check()


def test_a_null_or_an_empty_text_is_accepted(api: Client) -> None:
    spec = {"exporter": {"stateDir": "", "port": None}, "agent": {"targets": None}}
    response = try_create(api, gpu_monitor(spec))
    assert response.json()["spec"] == {"exporter": {"stateDir": ""}, "agent": {}}


def test_other_fields_of_a_whatap_agent_are_stored(api: Client) -> None:
    resource = whatap(apm={"enabled": True, "other": [1]}, unknown={"a": "b"})
    assert try_create(api, resource).json()["spec"] == resource["spec"]


# What is refused


@pytest.mark.parametrize(("spec", "problem"), WRONG, ids=[case[1].partition(":")[0] for case in WRONG])
def test_a_wrong_value_is_refused_with_its_path(api: Client, spec: Json, problem: str) -> None:
    response = try_create(api, gpu_monitor(spec))
    message = response.json()["message"]
    assert response.status_code in (400, 422)
    path = problem.partition(":")[0]
    # A rule names the mapping of a wrong key or amount, or the section of two that contradict each other.
    parts = (path.rpartition(".")[0], path.partition(".req")[0])
    assert path in message or any(f"{part}: " in message for part in parts)
    assert "\n" not in message


@pytest.mark.parametrize("name", ["x" * 33, "a.b", "9-"])
def test_a_name_that_objects_cannot_contain_is_refused(api: Client, name: str) -> None:
    response = try_create(api, gpu_monitor(name=name))
    assert response.status_code == 422
    assert "metadata.name" in response.json()["message"]


def test_kubectl_refuses_an_unknown_key_with_its_path(server: CrdServer, api: Client) -> None:
    applied = server.kubectl("apply", manifests=[gpu_monitor({"exporter": {"prt": 9400}})])
    assert applied.returncode == 1
    assert 'unknown field "spec.exporter.prt"' in applied.stderr


def test_an_unknown_key_is_dropped_with_a_warning_unless_validation_is_strict(api: Client) -> None:
    response = try_create(api, gpu_monitor({"exporter": {"prt": 9400, "port": 9500}}), "Warn")
    assert response.json()["spec"] == {"exporter": {"port": 9500}}
    assert 'unknown field \\"spec.exporter.prt\\"' in response.headers["warning"]


# Wrong for most types, and some right for one.
_VALUES: tuple[Any, ...] = (
    -1,
    1.0,
    1.5,
    2**31,
    2**63,
    "",
    "a b",
    "a\n",
    "é" * 70,
    [None],
    {"a b": "c"},
    True,
)


@pytest.mark.parametrize(("schema", "resource"), [(SPEC, gpu_monitor()), (WHATAP_SPEC, whatap())], ids=PATHS)
def test_the_operator_reads_all_that_the_server_stores(
    api: Client, schema: ObjectNode, resource: Json
) -> None:
    """Except for what a schema cannot express: names of labels, and credentials in the resource."""
    problems: dict[str, list[str]] = defaultdict(list)
    accepted = 0
    for path, _ in leaf_fields(schema):
        for value in _VALUES:
            response = try_create(api, {**resource, "spec": spec_with(schema, path, value)})
            if response.is_success:
                accepted += 1
                for problem in parse_monitor(response.json()).problems:
                    # The operator judges each target.
                    if ".targets[" in problem.path:
                        continue
                    problems[str(problem)].append(repr(value))
    expected = ("expected the name of a label", "exposes the credential")
    assert {one: of for one, of in problems.items() if not any(text in one for text in expected)} == {}
    assert accepted > len(_VALUES)


def spec_with(node: SchemaNode, path: tuple[str, ...], value: Any) -> Any:
    """A value of the schema in which only the field at the path, and required fields, are set."""
    if not path:
        return value
    if isinstance(node, ListNode):
        return [spec_with(node.item, path[1:], value)]
    assert isinstance(node, ObjectNode)
    required = {name: sample(node.keys[name], name) for name in node.required}
    return {**required, path[0]: spec_with(node.keys[path[0]], path[1:], value)}
