"""CRDs and their resources on an API server, as its users write and delete them."""

import json
from typing import Any

from cluster.control_plane import Client
from gpuledger.host.clock import SystemClock
from gpuledger.kubernetes.object_client import ObjectClient
from gpuledger.operator.apply import Applier
from gpuledger.operator.counts import OperatorCounts
from gpuledger.operator.events import EventRecorder
from gpuledger.operator.kinds import GPU_MONITOR_KIND, owner_reference_of
from gpuledger.operator.managed_objects import ManagedObjects
from gpuledger.operator.monitors import Monitors
from gpuledger.operator.object_lists import list_objects
from gpuledger.operator.reconcile import DelayQueue, Reconciler
from gpuledger.operator.render.objects import render_objects
from gpuledger.operator.render_context import RenderContext
from release.crd_server import CrdServer, Json
from running import wait_until

CRDS = "apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GPU_MONITORS = "gpumonitors.gpuledger.dev"
WHATAP_AGENTS = "whatapagents.monitoring.whatap.com"
PATHS = {
    "GpuMonitor": "apis/gpuledger.dev/v1alpha1/gpumonitors",
    "WhatapAgent": "apis/monitoring.whatap.com/v2alpha1/whatapagents",
}
GPUS = f"/{PATHS['GpuMonitor']}/gpus"


def apply_crd(client: Client, crd: Json) -> Json:
    """Create the CRD or replace it, and wait until the server serves its schema."""
    name = crd["metadata"]["name"]
    path = f"{CRDS}/{name}"
    existing = client.request("GET", path)
    if existing.status_code == 404:
        response = client.request("POST", CRDS, crd, fieldValidation="Strict")
    else:
        version = existing.json()["metadata"]["resourceVersion"]
        changed = {**crd, "metadata": {**crd["metadata"], "resourceVersion": version}}
        response = client.request("PUT", path, changed, fieldValidation="Strict")
    assert response.is_success, response.text
    assert "warning" not in response.headers
    (served,) = crd["spec"]["versions"]
    document = f"openapi/v3/apis/{crd['spec']['group']}/{served['name']}"
    properties = served["schema"]["openAPIV3Schema"]["properties"]

    def is_served() -> bool:
        # Empty while it is written.
        found = client.request("GET", document).content
        schemas = json.loads(found)["components"]["schemas"].values() if found.startswith(b"{") else ()
        return properties["spec"] in [one.get("properties", {}).get("spec") for one in schemas]

    wait_until(is_served, f"the schema of {name}")
    return client.call("GET", path)


def delete_crd(client: Client, name: str) -> None:
    client.request("DELETE", f"{CRDS}/{name}")
    wait_until(lambda: client.request("GET", f"{CRDS}/{name}").status_code == 404, f"{name} to be deleted")


def delete_all(client: Client, path: str) -> None:
    found = client.request("GET", path)
    for item in found.json()["items"] if found.is_success else ():
        one = f"{path}/{item['metadata']['name']}"
        client.request("PATCH", one, {"metadata": {"finalizers": []}})
        client.request("DELETE", one)


def try_create(client: Client, resource: Json, validation: str = "Strict") -> Any:
    """The response to a dry run that creates the resource."""
    return client.request("POST", PATHS[resource["kind"]], resource, dryRun="All", fieldValidation=validation)


def reconcile(server: CrdServer) -> Json:
    """Reconcile the resource `gpus` as the operator does; returns it from the server."""

    async def once(api: ObjectClient) -> Json:
        clock, counts, owned = SystemClock(), OperatorCounts(), ManagedObjects()
        monitors = Monitors(
            lambda body, monitor: render_objects(monitor, RenderContext(owner_reference_of(body), "n")),
            600.0,
            lambda _: None,
        )
        monitors.apply_listing(GPU_MONITOR_KIND.kind, *await list_objects(api, GPU_MONITOR_KIND))
        reconciler = Reconciler(
            api,
            monitors,
            owned,
            Applier(api, owned, ["n"], counts),
            EventRecorder(api, "operator", clock, counts),
            DelayQueue(),
            clock,
            counts,
            10.0,
        )
        (monitor,) = monitors
        await reconciler.reconcile(monitor)
        return await api.get(GPUS)

    return server.as_operator(once)
