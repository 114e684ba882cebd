"""A control plane on loopback: etcd, kube-apiserver with TLS, RBAC and audit log, controllers, scheduler."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import randrange
from signal import SIGKILL
from typing import Any

import httpx
import yaml

from cluster.daemon import Daemon
from running import PATIENCE, free_port

Json = dict[str, Any]
# The accounts of deploy/rbac.yaml and deploy/agent-rbac.yaml.
ACCOUNT = "system:serviceaccount:gpuledger:gpuledger"
AGENT_ACCOUNT = f"{ACCOUNT}-agent"

_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
_PKI = """\
[req]
distinguished_name = dn
prompt = no
[dn]
CN = gpuledger-tests
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
authorityKeyIdentifier = keyid
extendedKeyUsage = serverAuth
subjectAltName = IP:127.0.0.1, IP:{address}, DNS:localhost
"""
_PLURALS = {
    "ServiceAccount": "api/v1/namespaces/{namespace}/serviceaccounts",
    "ClusterRole": "apis/rbac.authorization.k8s.io/v1/clusterroles",
    "Role": "apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "ClusterRoleBinding": "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}


class Client:
    """Client of the API server with the token of one user."""

    def __init__(self, url: str, ca_file: Path, token: str) -> None:
        self.token = token
        tls = ssl.create_default_context(cafile=str(ca_file))
        self._http = httpx.Client(
            base_url=url,
            verify=tls,
            headers={"Authorization": f"Bearer {token}"},
            timeout=PATIENCE,
            trust_env=False,
        )

    def request(self, method: str, path: str, body: Json | None = None, **parameters: str) -> httpx.Response:
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type}
        return self._http.request(method, path, content=content, params=parameters or None, headers=headers)

    def call(self, method: str, path: str, body: Json | None = None, **parameters: str) -> Json:
        """JSON response of a request that must succeed."""
        response = self.request(method, path, body, **parameters)
        assert response.is_success, f"{method} {path}: {response.status_code} {response.text}"
        decoded: Json = response.json()
        return decoded

    def apply(self, file: Path) -> None:
        """Create all objects of a manifest."""
        for document in yaml.safe_load_all(file.read_text()):
            path = _PLURALS[document["kind"]].format(**document["metadata"])
            self.call("POST", path, document)

    def close(self) -> None:
        self._http.close()


class ControlPlane:
    """`folder` contains keys and data, `logs` the output. The user `stranger` has no permissions."""

    def __init__(self, binaries: Path, folder: Path, logs: Path) -> None:
        self.folder = folder
        self.ca_file = folder / "ca.crt"
        self.audit_file = logs / "audit.log"
        # Without kube-proxy, the API server must listen at the address of the Service `kubernetes`, which
        # pods get in their environment: the first of a random loopback range, so that runs do not collide.
        self._services = f"127.{randrange(1, 255)}.{randrange(256)}"
        self.url = f"https://{self._services}.1:443"
        self._etcd_url = f"http://127.0.0.1:{free_port()}"
        self._make_keys()
        self._write_settings()
        self.admin = Client(self.url, self.ca_file, "admin-token")
        self.etcd = Daemon("etcd", self._etcd_command(), logs, ready=self._etcd_is_ready)
        # After SIGTERM it would wait a minute for open watches.
        self.server = Daemon(
            "kube-apiserver",
            self._server_command(binaries / "kube-apiserver"),
            logs,
            ready=self._server_is_ready,
            stop_signal=SIGKILL,
        )

    def create_namespace(self, name: str) -> None:
        """Create a namespace and its default account, which a controller manager would create."""
        self.admin.call("POST", "api/v1/namespaces", {"metadata": {"name": name}})
        path = f"api/v1/namespaces/{name}/serviceaccounts"
        self.admin.call("POST", path, {"metadata": {"name": "default"}})

    @contextmanager
    def controllers(self, binaries: Path, logs: Path) -> Iterator[None]:
        """Run a controller manager and a scheduler within."""
        kubeconfig = self.kubeconfig(self.admin.token)
        accounts = f"--service-account-private-key-file={self.folder / 'accounts.key'}"
        flags = {
            "kube-controller-manager": [
                accounts,
                f"--root-ca-file={self.ca_file}",
                # Fake nodes without a kubelet remain ready.
                "--node-monitor-grace-period=1h",
            ],
            "kube-scheduler": [],
        }
        with ExitStack() as running:
            for name, more in flags.items():
                address = f"127.0.0.1:{free_port()}"
                command = [
                    binaries / name,
                    f"--kubeconfig={kubeconfig}",
                    "--leader-elect=false",
                    "--port=0",
                    "--bind-address=127.0.0.1",
                    f"--secure-port={address.rpartition(':')[2]}",
                    f"--tls-cert-file={self.folder / 'server.crt'}",
                    f"--tls-private-key-file={self.folder / 'server.key'}",
                    *more,
                ]
                healthy = partial(self._is_healthy, address)
                daemon = Daemon(name, command, logs, ready=healthy, stop_signal=SIGKILL)
                running.callback(daemon.start().stop)
            yield

    def start(self) -> None:
        self.etcd.start()
        self.server.start()

    def stop(self) -> None:
        self.admin.close()
        self.server.stop()
        self.etcd.stop()

    @contextmanager
    def server_stopped(self) -> Iterator[None]:
        """Stop the API server within."""
        self.server.stop()
        try:
            yield
        finally:
            self.server.start()

    def create_token(self, namespace: str, account: str) -> str:
        """Create a bound token of a ServiceAccount, as the kubelet does."""
        path = f"api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        request = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}}
        return str(self.admin.call("POST", path, request)["status"]["token"])

    def recreate_account(self, namespace: str, account: str) -> None:
        """Delete and recreate a ServiceAccount, which invalidates its tokens."""
        path = f"api/v1/namespaces/{namespace}/serviceaccounts"
        self.admin.call("DELETE", f"{path}/{account}")
        self.admin.call("POST", path, {"metadata": {"name": account}})

    def latest_revision(self) -> int:
        """Latest resource version."""
        return int(self.admin.call("GET", "api/v1/namespaces")["metadata"]["resourceVersion"])

    def compact_etcd(self) -> None:
        """Delete all revisions except the latest from etcd."""
        response = httpx.post(
            f"{self._etcd_url}/v3/kv/compaction",
            json={"revision": self.latest_revision(), "physical": True},
            trust_env=False,
        )
        assert response.is_success, response.text

    def audit_events(self, user: str) -> list[Json]:
        """Audit events of a user's requests, oldest first."""
        events = [json.loads(line) for line in self.audit_file.read_text().splitlines() if line.endswith("}")]
        return [event for event in events if event["user"]["username"] == user]

    def kubectl(self, *command: str) -> str:
        """Output of a kubectl command, run as an administrator."""
        words = ["kubectl", f"--kubeconfig={self.kubeconfig(self.admin.token)}", *command]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def kubeconfig(self, token: str) -> Path:
        file = self.folder / "kubeconfig"
        authority = base64.b64encode(self.ca_file.read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [
                {
                    "name": "tests",
                    "cluster": {"server": self.url, "certificate-authority-data": authority},
                }
            ],
            "users": [{"name": "tests", "user": {"token": token}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        }
        file.write_text(yaml.safe_dump(config))
        return file

    def _make_keys(self) -> None:
        (self.folder / "pki.cnf").write_text(_PKI.format(address=f"{self._services}.1"))
        new = "req -x509 -config pki.cnf -newkey rsa:2048 -nodes -days 2"
        for command in (
            f"{new} -extensions ca -subj /CN=tests-ca -keyout ca.key -out ca.crt",
            f"{new} -extensions server -CA ca.crt -CAkey ca.key -keyout server.key -out server.crt",
            "genrsa -out accounts.key 2048",
        ):
            subprocess.run(["openssl", *command.split()], cwd=self.folder, check=True, capture_output=True)

    def _write_settings(self) -> None:
        users = ['admin-token,admin,1,"system:masters"', "stranger-token,stranger,2"]
        (self.folder / "tokens.csv").write_text("\n".join(users) + "\n")
        (self.folder / "audit.yaml").write_text(yaml.safe_dump(_AUDIT))

    def _etcd_command(self) -> list[str]:
        peer = f"http://127.0.0.1:{free_port()}"
        return [
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        ]

    def _server_command(self, binary: Path) -> list[str | Path]:
        accounts = self.folder / "accounts.key"
        return [
            binary,
            f"--etcd-servers={self._etcd_url}",
            f"--bind-address={self._services}.1",
            "--secure-port=443",
            f"--cert-dir={self.folder}",
            f"--tls-cert-file={self.folder / 'server.crt'}",
            f"--tls-private-key-file={self.folder / 'server.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={accounts}",
            f"--service-account-signing-key-file={accounts}",
            "--authorization-mode=RBAC",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            f"--audit-policy-file={self.folder / 'audit.yaml'}",
            f"--audit-log-path={self.audit_file}",
            f"--service-cluster-ip-range={self._services}.0/24",
            # Pods get bound tokens, which is the default from 1.21 on.
            "--feature-gates=EphemeralContainers=true,BoundServiceAccountTokenVolume=true",
            "--allow-privileged",
        ]

    def _etcd_is_ready(self) -> bool:
        return _responds(httpx.Client(base_url=self._etcd_url, trust_env=False), "health")

    def _is_healthy(self, address: str) -> bool:
        tls = ssl.create_default_context(cafile=str(self.ca_file))
        return _responds(httpx.Client(base_url=f"https://{address}", verify=tls, trust_env=False), "healthz")

    def _server_is_ready(self) -> bool:
        try:
            return self.admin.request("GET", "readyz").is_success
        except httpx.TransportError:
            return False


def _responds(client: httpx.Client, path: str) -> bool:
    with client:
        try:
            return client.get(path).is_success
        except httpx.TransportError:
            return False


def is_allowed(
    plane: ControlPlane,
    group: str,
    resource: str,
    verb: str,
    *,
    account: str = ACCOUNT,
    namespace: str = "",
    name: str = "",
) -> bool:
    """True if RBAC allows the request to the account. `resource` is RESOURCE or RESOURCE/SUBRESOURCE."""
    plural, _, subresource = resource.partition("/")
    attributes = {"group": group, "resource": plural, "subresource": subresource, "verb": verb}
    attributes |= {"namespace": namespace, "name": name}
    review = {"spec": {"user": account, "resourceAttributes": attributes}}
    response = plane.admin.call("POST", "apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(response["status"]["allowed"])
