"""Settings of the container name lookup outside Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from gpuledger.model.settings import ReloadPolicy, option, text


@dataclass(frozen=True)
class ContainerSettings:
    """The sockets that are queried for container names. A socket that does not exist is skipped."""

    reload: ClassVar[ReloadPolicy] = ReloadPolicy()

    docker_socket: str = option(
        "containers.docker_socket",
        text,
        "/var/run/docker.sock",
        "socket of Docker, queried for the names of containers; '' disables it",
        metavar="PATH",
    )
    podman_socket: str = option(
        "containers.podman_socket",
        text,
        "/run/podman/podman.sock",
        "socket of Podman (`systemctl enable --now podman.socket`), queried for the names of containers; '' "
        "disables it. Sockets of rootless users are not searched for",
        metavar="PATH",
    )

    def sockets(self) -> Iterator[tuple[str, str, str]]:
        """Index name, path and command-line flag of each enabled socket."""
        if self.docker_socket:
            yield "docker", self.docker_socket, "--docker-socket"
        if self.podman_socket:
            yield "podman", self.podman_socket, "--podman-socket"
