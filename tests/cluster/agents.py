"""Kubernetes objects for target discovery, fake exporters at their addresses, and agents that scrape them."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from cluster.control_plane import Client, ControlPlane, Json
from running import Program, free_port, get, wait_until

_ROW = re.compile(r'<th scope="row"[^>]* title="([^"]*)">(https?://[^<]+)</th>')
PAGE = b"""\
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",namespace="team-a",pod="train",container="main"} 7
# TYPE gpu_process_count gauge
gpu_process_count{gpu="0"} 1
"""
WHATAP = {"name": "whatap-node-agent"}
CUSTOM = {"app": "custom-dcgm", "component": "gpu-exporter"}
# Labels that differ between the agent and vmagent.
IGNORED_LABELS = ("agent", "k8s_pod_container_image", "k8s_service_cluster_ip", "k8s_service_type")


def endpoint(port: int | str) -> Json:
    return {"port": str(port), "path": "/metrics", "interval": "1s", "scheme": "http"}


def monitor(name: str, namespaces: list[str] | None, selector: Json, *endpoints: Json, **more: Any) -> Json:
    target = {"targetName": name, "type": "PodMonitor", "enabled": True, "selector": selector, **more}
    if namespaces is not None:
        target["namespaceSelector"] = {"matchNames": namespaces}
    return {**target, "endpoints": list(endpoints)}


class FakeExporters:
    """Serves the same metrics on two ports of every address of this machine (the first also on IPv6), and
    receives remote-write requests.
    """

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.authorizations: dict[str, str] = {}
        exporters = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                host = self.headers.get("Host", "")
                exporters.authorizations[host] = self.headers.get("Authorization", "")
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(PAGE)))
                self.end_headers()
                self.wfile.write(PAGE)
                exporters.requests[host] += 1

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_: object) -> None:
                """Ignore connections that stopped agents leave open."""

        class Server6(Server):
            address_family = socket.AF_INET6

        self._servers = [Server(("0.0.0.0", 0), Handler), Server(("0.0.0.0", 0), Handler)]
        self.port, self.second_port = (int(server.server_address[1]) for server in self._servers)
        self._servers.append(Server6(("::1", self.port), Handler))
        self._threads = [
            Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            for server in self._servers
        ]
        for thread in self._threads:
            thread.start()

    @property
    def receiver(self) -> str:
        return f"http://127.0.0.1:{self.port}/write"

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join()


class Objects:
    """Objects of one test, created as an administrator and deleted after it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._made: list[str] = []

    def create(self, path: str, body: Json) -> Json:
        made = self._client.call("POST", path, body)
        self._made.append(f"{path}/{body['metadata']['name']}")
        return made

    def namespace(self, name: str, **labels: str) -> None:
        # Without a controller manager, deletion of a namespace never finishes, so other tests reuse it.
        answer = self._client.request("POST", "api/v1/namespaces", {"metadata": {"name": name}})
        assert answer.status_code in (201, 409), answer.text
        # A controller manager would create this account.
        account = {"metadata": {"name": "default"}}
        self._client.request("POST", f"api/v1/namespaces/{name}/serviceaccounts", account)
        self._client.call("PATCH", f"api/v1/namespaces/{name}", {"metadata": {"labels": labels}})

    def pod(
        self,
        namespace: str,
        name: str,
        ip: str,
        labels: Mapping[str, str],
        *,
        ports: Mapping[str, int] | None = None,
        node: str = "gpu-1",
        phase: str = "Running",
        host_network: bool = False,
        **metadata: Any,
    ) -> None:
        declared = [{"name": key, "containerPort": port} for key, port in (ports or {}).items()]
        self.create(
            f"api/v1/namespaces/{namespace}/pods",
            {
                "metadata": {"name": name, "labels": dict(labels), **metadata},
                "spec": {
                    "nodeName": node,
                    "hostNetwork": host_network,
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "containers": [{"name": "exporter", "image": "exporter:1", "ports": declared}],
                },
            },
        )
        self.status(namespace, name, phase=phase, podIP=ip, hostIP="10.0.0.1")

    def status(self, namespace: str, name: str, **status: Any) -> None:
        path = f"api/v1/namespaces/{namespace}/pods/{name}/status"
        self._client.call("PATCH", path, {"status": status})

    def patch(self, path: str, body: Json) -> Json:
        return self._client.call("PATCH", path, body)

    def delete_now(self, path: str) -> None:
        self._client.request("DELETE", path, gracePeriodSeconds="0")
        self._made = [made for made in self._made if made != path]

    def delete_all(self) -> None:
        for path in reversed(tuple(self._made)):
            self.delete_now(path)


class Agent:
    """A running `gpuledger agent`."""

    def __init__(self, program: Program, url: str) -> None:
        self.program = program
        self.url = url

    def page(self) -> str:
        return get(f"{self.url}/").text

    def targets(self) -> dict[str, dict[str, str]]:
        """Labels of each target on the status page, by URL."""
        return {
            url: dict(pair.split("=", 1) for pair in title.split(" ") if pair)
            for title, url in _ROW.findall(self.page())
        }

    def is_ready(self) -> bool:
        return get(f"{self.url}/-/ready").is_success

    def metrics(self) -> str:
        return get(f"{self.url}/metrics").text

    def wait_targets(self, *hosts: str, patience: float = 60.0) -> dict[str, dict[str, str]]:
        """Wait until the targets are exactly these `HOST:PORT`s."""
        expected = sorted(hosts)
        wait_until(lambda: self.hosts() == expected, f"targets {expected}, not {self.hosts()}", patience)
        return self.targets()

    def hosts(self) -> list[str]:
        return sorted(url.partition("://")[2].partition("/")[0] for url in self.targets())


class Agents:
    """Starts agents with the ServiceAccount of deploy/agent-rbac.yaml."""

    def __init__(self, plane: ControlPlane, token_file: Path, folder: Path, stack: ExitStack) -> None:
        self.flags = (
            *("--kubernetes-api", plane.url),
            *("--kubernetes-ca-file", str(plane.ca_file)),
            *("--kubernetes-token-file", str(token_file)),
            *("--namespace", "gpuledger"),
        )
        self._plane = plane
        self._folder = folder
        self._stack = stack
        self._number = 0

    def token(self, account: str) -> Path:
        """File with a token of another ServiceAccount in the agent's namespace."""
        file = self._folder / f"token-{account}"
        file.write_text(self._plane.create_token("gpuledger", account))
        return file

    def file(self, open_agent: Json, *receivers: str, labels: Mapping[str, str] | None = None) -> Path:
        self._number += 1
        file = self._folder / f"agent-{self._number}.yaml"
        config = {
            "features": {"openAgent": open_agent},
            "global": {"external_labels": dict(labels or {})},
            "remote_write": [
                {"url": url, "queue_config": {"batch_send_deadline": "200ms"}} for url in receivers
            ],
        }
        # JSON is YAML.
        file.write_text(json.dumps(config))
        return file

    def start(self, file: Path, *flags: str, **environment: str) -> Agent:
        self._number += 1
        port = free_port()
        program = Program(
            [
                *(sys.executable, "-m", "gpuledger", "agent", "--config", str(file)),
                *("--listen-address", f"127.0.0.1:{port}", "--look-interval", "100ms", "--drain", "100ms"),
                *("--queue-directory", str(self._folder / f"queue-{self._number}")),
                *(*self.flags, *flags),
            ],
            env={"GPULEDGER_STATE_DIR": "none", **environment},
        )
        self._stack.callback(_stop_if_running, program)
        program.wait_line("listening on")
        return Agent(program, f"http://127.0.0.1:{port}")


def _stop_if_running(program: Program) -> None:
    if program.process.poll() is None:
        program.stop()


@contextmanager
def agents(plane: ControlPlane, folder: Path) -> Iterator[Agents]:
    token = folder / "agent-token"
    token.write_text(plane.create_token("gpuledger", "gpuledger-agent"))
    with ExitStack() as stack:
        yield Agents(plane, token, folder, stack)
