"""Objects that agents find targets by, pages behind all their addresses, and agents that look for them."""

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
# What vmagent tells and Prometheus does not, or the other way round.
APART = ("agent", "k8s_pod_container_image", "k8s_service_cluster_ip", "k8s_service_type")


def endpoint(port: int | str) -> Json:
    return {"port": str(port), "path": "/metrics", "interval": "1s", "scheme": "http"}


def monitor(name: str, namespaces: list[str] | None, selector: Json, *endpoints: Json, **more: Any) -> Json:
    target = {"targetName": name, "type": "PodMonitor", "enabled": True, "selector": selector, **more}
    if namespaces is not None:
        target["namespaceSelector"] = {"matchNames": namespaces}
    return {**target, "endpoints": list(endpoints)}


class Everywhere:
    """One page on two ports of every address of this machine, IPv6 included on the first, and a receiver of
    whatever is delivered.
    """

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.authorizations: dict[str, str] = {}
        everywhere = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                host = self.headers.get("Host", "")
                everywhere.authorizations[host] = self.headers.get("Authorization", "")
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(PAGE)))
                self.end_headers()
                self.wfile.write(PAGE)
                everywhere.asked[host] += 1

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_: object) -> None:
                """Agents that end leave connections behind."""

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
    """Objects of one test, made by an administrator and gone with it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._made: list[str] = []

    def make(self, path: str, body: Json) -> Json:
        made = self._client.call("POST", path, body)
        self._made.append(f"{path}/{body['metadata']['name']}")
        return made

    def namespace(self, name: str, **labels: str) -> None:
        # They end slowly without a controller manager, so that they stay for other tests.
        answer = self._client.ask("POST", "api/v1/namespaces", {"metadata": {"name": name}})
        assert answer.status_code in (201, 409), answer.text
        # Which a controller manager would make.
        account = {"metadata": {"name": "default"}}
        self._client.ask("POST", f"api/v1/namespaces/{name}/serviceaccounts", account)
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
        self.make(
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

    def change(self, path: str, body: Json) -> Json:
        return self._client.call("PATCH", path, body)

    def forget(self, path: str) -> None:
        self._client.ask("DELETE", path, gracePeriodSeconds="0")
        self._made = [made for made in self._made if made != path]

    def forget_all(self) -> None:
        for path in reversed(tuple(self._made)):
            self.forget(path)


class Agent:
    """A running `gpuledger agent`."""

    def __init__(self, program: Program, url: str) -> None:
        self.program = program
        self.url = url

    def page(self) -> str:
        return get(f"{self.url}/", timeout=30).text

    def targets(self) -> dict[str, dict[str, str]]:
        """The labels of each target by its URL."""
        return {
            url: dict(pair.split("=", 1) for pair in title.split(" ") if pair)
            for title, url in _ROW.findall(self.page())
        }

    def is_ready(self) -> bool:
        return get(f"{self.url}/-/ready", timeout=30).is_success

    def metrics(self) -> str:
        return get(f"{self.url}/metrics", timeout=30).text

    def wait_targets(self, *hosts: str, patience: float = 60.0) -> dict[str, dict[str, str]]:
        """Wait for exactly these `HOST:PORT`s to be the targets."""
        wanted = sorted(hosts)
        wait_until(lambda: self.hosts() == wanted, f"targets {wanted}, not {self.hosts()}", patience)
        return self.targets()

    def hosts(self) -> list[str]:
        return sorted(url.partition("://")[2].partition("/")[0] for url in self.targets())


class Agents:
    """Starts agents that know the cluster by the ServiceAccount of deploy/agent-rbac.yaml."""

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
        """A token of another ServiceAccount of the agent's namespace."""
        file = self._folder / f"token-{account}"
        file.write_text(self._plane.token_of("gpuledger", account))
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
        self._stack.callback(_end, program)
        program.wait_line("listening on")
        return Agent(program, f"http://127.0.0.1:{port}")


def _end(program: Program) -> None:
    if program.process.poll() is None:
        program.stop()


@contextmanager
def agents(plane: ControlPlane, folder: Path) -> Iterator[Agents]:
    token = folder / "agent-token"
    token.write_text(plane.token_of("gpuledger", "gpuledger-agent"))
    with ExitStack() as stack:
        yield Agents(plane, token, folder, stack)
