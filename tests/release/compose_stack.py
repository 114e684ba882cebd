"""The stack of deploy/compose, started by a real Docker with Compose 2 of Debian trixie. Needs root.

No registry is used. `docker compose up` builds the exporter's image from the Dockerfile, on a Debian made by
mmdebstrap. Prometheus is Debian sid's, in an image with the name and the paths of upstream's. There is no
package of Grafana, so it does not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from containers.engines import Docker
from containers.product_image import CACHE, caching_docker, ensure_base
from debian_root import debian_root
from running import get, wait_until
from stack import COMPOSE, compose

SERVICES = ("nvidiaexport", "prometheus")
# Like upstream's image: its user owns the folder of the data, from which Docker makes the volume.
_PROMETHEUS = """\
FROM {base}
RUN install -d -o nobody -g nogroup /prometheus
USER nobody
WORKDIR /prometheus
VOLUME /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
"""
# Differs from what users run: where the base image is, and what other programs of this machine could notice.
_HERE = """\
services:
  nvidiaexport:
    build:
      network: host
      args:
        DEBIAN: {base}
    pull_policy: never
    restart: "no"
    ports: !override ["127.0.0.1::9835"]
  prometheus:
    pull_policy: never
    restart: "no"
    ports: !override ["127.0.0.1::9090"]
"""


@dataclass(frozen=True)
class ComposeStack:
    """The stack with simulated GPUs. `here` is a file of Compose that is added to those of users."""

    docker: Docker
    here: Path

    def run(self, *command: str) -> str:
        """Standard output of a command of `docker compose`."""
        files = (COMPOSE / "docker-compose.yaml", COMPOSE / "simulator.yaml", self.here)
        return self.docker.run("compose", "--ansi=never", *(f"--file={file}" for file in files), *command)

    def url(self, service: str, port: int) -> str:
        """Where a published port of a service answers on this machine."""
        return f"http://{self.run('port', service, str(port)).strip()}"

    def left(self) -> str:
        """Containers, volumes and networks that `down` should have removed."""
        of_the_stack = "--filter=label=com.docker.compose.project"
        listings = (("ps", "--all"), ("volume", "ls"), ("network", "ls"))
        return "".join(self.docker.run(*listing, "--quiet", of_the_stack) for listing in listings)


@dataclass(frozen=True)
class ScrapingPrometheus:
    """The Prometheus of the stack."""

    url: str

    def data(self, path: str, **parameters: str | float) -> Any:
        """What its API answers; fails with the error of a request that fails."""
        answer = get(f"{self.url}/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", answer
        return answer["data"]


@contextmanager
def running_stack(folder: Path, logs: Path) -> Iterator[ComposeStack]:
    """In this context the stack runs and is healthy. Nothing of it is left afterwards."""
    with caching_docker(folder, logs) as docker:
        images = {name: service["image"] for name, service in compose()["services"].items()}
        _add_compose(docker)
        _make_prometheus(docker, images["prometheus"])
        # Else `up` would not build it. Its layers are kept, so that building takes seconds.
        docker.attempt("image", "rm", "--force", "--no-prune", images["nvidiaexport"])
        here = folder / "here.yaml"
        here.write_text(_HERE.format(base=ensure_base(docker, debian_root("bookworm"))))
        stack = ComposeStack(docker, here)
        try:
            stack.run("up", "--detach", "--wait", *SERVICES)
            yield stack
        finally:
            (logs / "services.log").write_text(stack.run("logs", "--no-color"))
            stack.run("down", "--volumes")
        assert stack.left() == ""
    wait_until(lambda: not _mounts(folder, CACHE), "all file systems to be unmounted")
    wait_until(lambda: not _processes(folder), f"the processes of {folder} to end")


def _add_compose(docker: Docker) -> None:
    (plugin,) = debian_root("trixie", ["docker-compose"]).path.glob(
        "usr/lib*/docker/cli-plugins/docker-compose"
    )
    plugins = docker.folder / "cli-plugins"
    plugins.mkdir()
    (plugins / plugin.name).symlink_to(plugin)


def _make_prometheus(docker: Docker, name: str) -> None:
    # wget is for the health check.
    base = ensure_base(docker, debian_root("sid", ["prometheus", "wget"]))
    context = docker.folder / "prometheus"
    context.mkdir()
    (context / "Dockerfile").write_text(_PROMETHEUS.format(base=base))
    docker.run("build", "--network=host", f"--tag={name}", context)


def _mounts(*folders: Path) -> list[str]:
    """Mount points below the folders."""
    places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [place for place in places if any(place.startswith(f"{folder}/") for folder in folders)]


def _processes(folder: Path) -> list[list[str]]:
    """Command lines of processes that name a path below the folder."""
    lines = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return [line for line in lines if any(word.startswith(f"{folder}/") for word in line)]
