"""Clean up before `helm uninstall`: delete the operator's resources, wait until it has removed their objects,
then delete the CRDs. Argument: seconds to wait. From resources that still exist then, the script removes the
operator's finalizer; Kubernetes garbage-collects their objects.
"""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
KINDS = (
    ("/apis/gpuledger.dev/v1alpha1/gpumonitors", "gpumonitors.gpuledger.dev"),
    ("/apis/monitoring.whatap.com/v2alpha1/whatapagents", "whatapagents.monitoring.whatap.com"),
)
FINALIZER = "gpuledger.dev/operator"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def log(text):
    """Write a line to the Job's log."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class ApiClient:
    """Client of the API server with the token of a ServiceAccount."""

    def __init__(self, url, token, context):
        self.url, self.token, self.context = url, token, context

    def request(self, method, path, body=None):
        """JSON response; None for HTTP 404. A body is sent as a merge patch."""
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/merge-patch+json")
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.context) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise


def uninstall(api, patience, pause=1.0):
    """Delete the resources, then the CRDs. Leaves CRDs of other operators alone."""
    ours = [(path, name) for path, name in KINDS if is_ours(api.request("GET", f"{CRDS}/{name}"))]
    for path, _ in ours:
        for metadata in list_metadata(api, path):
            log(f"deleting {path}/{metadata['name']}")
            api.request("DELETE", f"{path}/{metadata['name']}")
    deadline = time.monotonic() + patience
    for path, _ in ours:
        while list_metadata(api, path) and time.monotonic() < deadline:
            time.sleep(pause)
        for metadata in list_metadata(api, path):
            name, finalizers = metadata["name"], metadata.get("finalizers") or ()
            log(f"{name} still exists after {patience:g} s: no operator is running; removing its finalizer")
            others = [finalizer for finalizer in finalizers if finalizer != FINALIZER]
            api.request("PATCH", f"{path}/{name}", {"metadata": {"finalizers": others}})
    for _, name in ours:
        log(f"deleting the CRD {name}")
        api.request("DELETE", f"{CRDS}/{name}")


def is_ours(crd):
    """True if the chart created this CRD. `crd` is None if the CRD does not exist."""
    labels = (crd or {}).get("metadata", {}).get("labels") or {}
    return labels.get("app.kubernetes.io/part-of") == "gpuledger"


def list_metadata(api, path):
    """Metadata of the resources at a path."""
    response = api.request("GET", path)
    return [item["metadata"] for item in (response or {}).get("items") or ()]


if __name__ == "__main__":
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    token = Path(f"{ACCOUNT}/token").read_text(encoding="utf-8")
    context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    uninstall(ApiClient(f"https://{host}:{port}", token, context), float(sys.argv[1]))
