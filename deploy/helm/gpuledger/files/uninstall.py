"""Before `helm uninstall`: delete the operator's resources, wait until it has taken them apart, then their
definitions. Argument: seconds to wait; resources that are still there then are let go without the operator,
since Kubernetes deletes what belongs to them by itself.
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


def say(text):
    """A line for the Job's log."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Api:
    """The API server, asked as one account."""

    def __init__(self, url, token, context):
        self.url, self.token, self.context = url, token, context

    def ask(self, method, path, body=None):
        """The answer; None where there is nothing at the path."""
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/merge-patch+json")
        try:
            with urllib.request.urlopen(request, timeout=30, context=self.context) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise


def uninstall(api, patience, pause=1.0):
    """Resources first; what is another operator's is left alone."""
    ours = [(path, name) for path, name in KINDS if is_ours(api.ask("GET", f"{CRDS}/{name}"))]
    for path, _ in ours:
        for one in resources(api, path):
            say(f"deleting {path}/{one['name']}")
            api.ask("DELETE", f"{path}/{one['name']}")
    end = time.monotonic() + patience
    for path, _ in ours:
        while resources(api, path) and time.monotonic() < end:
            time.sleep(pause)
        for one in resources(api, path):
            name, held = one["name"], one.get("finalizers") or ()
            say(f"{name} is still there after {patience:g} s: no operator takes it apart; letting it go")
            others = [finalizer for finalizer in held if finalizer != FINALIZER]
            api.ask("PATCH", f"{path}/{name}", {"metadata": {"finalizers": others}})
    for _, name in ours:
        say(f"deleting the definition {name}")
        api.ask("DELETE", f"{CRDS}/{name}")


def is_ours(definition):
    """Whether the chart made this CRD; None is none."""
    labels = (definition or {}).get("metadata", {}).get("labels") or {}
    return labels.get("app.kubernetes.io/part-of") == "gpuledger"


def resources(api, path):
    """The metadata of those at a path."""
    found = api.ask("GET", path)
    return [one["metadata"] for one in (found or {}).get("items") or ()]


if __name__ == "__main__":
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    token = Path(f"{ACCOUNT}/token").read_text(encoding="utf-8")
    context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    uninstall(Api(f"https://{host}:{port}", token, context), float(sys.argv[1]))
