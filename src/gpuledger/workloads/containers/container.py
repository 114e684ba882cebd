"""Names of Docker and Podman containers, parsed from the JSON of their API. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from gpuledger.model.text import clean_name

# Names of the running containers by id.
Containers = Mapping[str, str]

# Docker and Podman show 12 digits to users; shorter ids are rejected.
_MIN_ID_LENGTH = 12
# Runtimes with a socket that lists containers.
LISTED_RUNTIMES = ("docker", "podman")
# Seconds after the start of a process in which a list can miss its container: the runtime needs a moment, and
# the clocks of the list and of the start differ.
_LIST_LAG = 2.0


class RuntimeList(NamedTuple):
    """The running containers that one socket lists.

    `read_at` is the unix time of the last successful read, None if there was none. `tried` is False before
    the first read; `success` is whether the last one succeeded. `is_rootless` if the socket is that of a
    login, which lists only containers of that login.
    """

    names: Containers
    read_at: float | None = None
    tried: bool = True
    success: bool = True
    runtime: str = "docker"
    is_rootless: bool = False

    def can_know(self, started: float) -> bool:
        """Whether the list is new enough to have a container with a process that started at this time."""
        return self.read_at is not None and self.read_at >= started + _LIST_LAG


class Listing(Enum):
    """What the sockets of container runtimes can say about a container that none of them names."""

    PENDING = "a read that could name it is due"
    UNLISTED = "no socket has it"
    UNREADABLE = "a socket cannot be read"
    NO_SOCKET = "there is no socket"


def find_listing(runtimes: Iterable[RuntimeList], started: float) -> Listing:
    """The state of the sockets for a container that none names; its process started at unix `started`."""
    found = Listing.NO_SOCKET
    for one in runtimes:
        if not one.tried or (one.success and not one.can_know(started)):
            return Listing.PENDING
        if not one.success and not one.can_know(started):
            found = Listing.UNREADABLE
        elif found is Listing.NO_SOCKET:
            found = Listing.UNLISTED
    return found


def listing_runtimes(runtimes: Iterable[RuntimeList], *, in_login: bool) -> list[RuntimeList]:
    """The lists that can have a container of a login, or else one of the machine."""
    return [one for one in runtimes if one.is_rootless == in_login]


def short_id(container_id: str) -> str:
    """The id of a container as Docker and Podman show it: 12 digits; longer forms (ECS) are kept."""
    return container_id[:_MIN_ID_LENGTH] if len(container_id) == 64 else container_id


def find_container_name(containers: Containers, container_id: str) -> str:
    """The name of the container with this id, or of the only one with this id prefix; empty if not known."""
    name = containers.get(container_id, "")
    if not name and _MIN_ID_LENGTH <= len(container_id) < 64:
        matches = [name for known, name in containers.items() if known.startswith(container_id)]
        return matches[0] if len(matches) == 1 else ""
    return name


def parse_containers(response: object) -> Containers:
    """Parse the JSON response of `GET /containers/json`; entries without id or name are skipped.

    Raises ValueError if the response is not a list.
    """
    if not isinstance(response, list):
        raise ValueError("expected a list of containers")
    found: dict[str, str] = {}
    for entry in response:
        container_id, name = _id_and_name(entry) if isinstance(entry, dict) else ("", "")
        if name and len(container_id) >= _MIN_ID_LENGTH:
            found[container_id] = clean_name(name)
    return found


def _id_and_name(entry: dict[str, object]) -> tuple[str, str]:
    names = entry.get("Names")
    # A container that other containers link to has additional names such as /web/db.
    own = [_text(name).removeprefix("/") for name in names] if isinstance(names, list) else []
    return _text(entry.get("Id")), next((name for name in own if name and "/" not in name), "")


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
