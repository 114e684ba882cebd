"""What a user sets about names of containers outside Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from gpuledger.model.settings import Reload, setting, text


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """Which services are asked for the names of their containers. A socket that is not there is not asked."""

    reload: ClassVar[Reload] = Reload()

    docker_socket: str = setting(
        "containers.docker_socket",
        text,
        "/var/run/docker.sock",
        "socket of Docker, which is asked for the names of containers; '' asks nobody",
        flags=("--docker-socket",),
        metavar="PATH",
    )
    podman_socket: str = setting(
        "containers.podman_socket",
        text,
        "/run/podman/podman.sock",
        "socket of Podman (`systemctl enable --now podman.socket`), asked for the same; '' asks nobody. "
        "Sockets of rootless users are not searched for",
        flags=("--podman-socket",),
        metavar="PATH",
    )

    def sockets(self) -> Iterator[tuple[str, str, str]]:
        """Name of the map, path and flag of each socket that is to be asked."""
        if self.docker_socket:
            yield "docker", self.docker_socket, "--docker-socket"
        if self.podman_socket:
            yield "podman", self.podman_socket, "--podman-socket"
