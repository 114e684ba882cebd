"""The CustomResourceDefinitions of a Kubernetes API server newer than 1.20, with a real etcd.

Debian sid has the API server's module for CRDs as a Go package, without the rest of the API server: there are
no pods, namespaces, Leases, RBAC or webhooks. crd_server.go is its main function. sid also has kubectl of the
same version. Needs root.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import yaml

from cluster.control_plane import Client
from cluster.daemon import Daemon
from debian_root import CACHE, DebianRoot, debian_root
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.object_client import HttpApiTransport, ObjectClient
from running import free_port, get

T = TypeVar("T")
Json = dict[str, Any]
Kubectl = subprocess.CompletedProcess[str]
SOURCE = Path(__file__).with_name("crd_server.go")
_PACKAGE = "golang-k8s-apiextensions-apiserver-dev"
# The server requires the address of a core API server, which it calls only for webhooks.
_CORE = {"server": "http://127.0.0.1:9"}


def build_crd_server() -> Path:
    """The program, compiled for the Kubernetes version that sid has. Takes some ten minutes, once."""
    root = debian_root("sid", ["golang-go", _PACKAGE])
    package = root.run("dpkg-query", "--show", "--showformat=${Version}", _PACKAGE)
    # The modules of Kubernetes 1.N.P have the version 0.N.P.
    version = f"1.{package.partition('-')[0].partition('.')[2]}"
    source = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:8]
    folder = CACHE.parent / f"crd-server-{version}-{source}"
    with (CACHE.parent / "crd-server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(prefix="gpuledger-crd-server-") as work:
                built = _compile(root, Path(work), version)
                part = folder.with_name(f"{folder.name}.part")
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                shutil.move(built, part / built.name)
                part.rename(folder)
    return folder / "crd-server"


def kubectl_root(*binds: Path) -> DebianRoot:
    """A root with a kubectl of the server's version, in which the folders `binds` have the same path."""
    return debian_root("sid", ["kubectl"], binds=binds)


def _compile(root: DebianRoot, work: Path, version: str) -> Path:
    """Compile in `work`, which has the same path inside of the root."""
    shutil.copy(SOURCE, work)
    environment = {
        "GO111MODULE": "off",
        "GOPATH": "/usr/share/gocode",
        "GOFLAGS": "",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
        # Less frequent garbage collection costs memory and saves a tenth of the time.
        "GOGC": "400",
        "GOCACHE": str(work / "cache"),
    }
    flags = ("-o", "crd-server", "-ldflags", f"-X k8s.io/component-base/version.gitVersion=v{version}")
    root.run("nice", "go", "build", *flags, SOURCE.name, cwd=work, env=environment, timeout=3600)
    return work / "crd-server"


class CrdServer:
    """A running server and its etcd. `folder` has their data; an own one for each server."""

    def __init__(self, program: Path, folder: Path, logs: Path) -> None:
        etcd_url, peer_url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._etcd = Daemon(
            "etcd",
            [
                "etcd",
                f"--data-dir={folder / 'etcd'}",
                f"--listen-client-urls={etcd_url}",
                f"--advertise-client-urls={etcd_url}",
                f"--listen-peer-urls={peer_url}",
                "--unsafe-no-fsync",
            ],
            logs,
            ready=lambda: _answers(f"{etcd_url}/health"),
        )
        port = free_port()
        self.url = f"https://127.0.0.1:{port}"
        self.ca_file = folder / "certificates/apiserver.crt"
        _write_kubeconfig(folder / "core.kubeconfig", _CORE)
        self._folder = folder
        # Without a token, kubectl would ask for a password.
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        self._kubeconfig = _write_kubeconfig(folder / "kubeconfig", cluster, {"token": "none"})
        self._server = Daemon(
            "crd-server",
            [
                program,
                f"--etcd-servers={etcd_url}",
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--cert-dir={self.ca_file.parent}",
                f"--kubeconfig={folder / 'core.kubeconfig'}",
                "--enable-priority-and-fairness=false",
            ],
            logs,
            # Informers of core objects never start.
            ready=lambda: _answers(f"{self.url}/readyz?exclude=informer-sync"),
        )

    def start(self) -> None:
        self._etcd.start()
        self._server.start()

    def stop(self) -> None:
        self._server.stop()
        self._etcd.stop()

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def access(self) -> ApiServerAccess:
        """Access as gpuledger's programs use it."""
        return ApiServerAccess(self.url, ca_file=self.ca_file)

    def client(self) -> Client:
        """A client for JSON; the server authenticates nobody."""
        return Client(self.url, self.ca_file, "none")

    def kubectl(self, *arguments: str | Path, manifests: Sequence[Json] = ()) -> Kubectl:
        """Run kubectl. `manifests` are the content of the file that `-f` names."""
        file = self._folder / "manifests.yaml"
        file.write_text(yaml.safe_dump_all(manifests))
        command = [
            *("kubectl", f"--kubeconfig={self._kubeconfig}", f"--cache-dir={self._folder / 'kubectl'}"),
            *arguments,
            *(("-f", file) if manifests else ()),
        ]
        return subprocess.run(
            kubectl_root(self._folder).command(*command),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def as_operator(self, call: Callable[[ObjectClient], Coroutine[Any, Any, T]]) -> T:
        """The result of `call` with the operator's own client."""

        async def connected() -> T:
            api = ObjectClient(HttpApiTransport(self.access))
            try:
                return await call(api)
            finally:
                await api.close()

        return asyncio.run(connected())


def _write_kubeconfig(file: Path, cluster: Json, user: Json | None = None) -> Path:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "server", "cluster": cluster}],
        "users": [{"name": "user", "user": user or {}}],
        "contexts": [{"name": "server", "context": {"cluster": "server", "user": "user"}}],
        "current-context": "server",
    }
    file.write_text(yaml.safe_dump(content))
    return file


def _answers(url: str) -> bool:
    try:
        return get(url).is_success
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    print(build_crd_server())  # noqa: T201
