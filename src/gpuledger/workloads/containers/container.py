"""Containers of Docker and Podman, parsed from the JSON of their API. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuledger.model.text import clean_name

# Docker and Podman show 12 digits to users; shorter ids are rejected.
_MIN_ID_LENGTH = 12


@dataclass(frozen=True, slots=True)
class Container:
    """One container."""

    id: str
    name: str


class Containers:
    """The running containers at one moment, by id. Immutable."""

    def __init__(self, containers: Iterable[Container] = ()) -> None:
        self._by_id = {item.id: item for item in containers}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Container]:
        return iter(self._by_id.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Containers) and self._by_id == other._by_id

    def __hash__(self) -> int:
        return hash(frozenset(self._by_id))

    def get(self, container_id: str) -> Container | None:
        """The container with this id, or the only one with this id prefix."""
        found = self._by_id.get(container_id)
        if found is None and _MIN_ID_LENGTH <= len(container_id) < 64:
            matches = [item for item in self if item.id.startswith(container_id)]
            return matches[0] if len(matches) == 1 else None
        return found


NO_CONTAINERS = Containers()


def parse_containers(response: object) -> Containers:
    """Parse the JSON response of `GET /containers/json`; entries without id or name are skipped.

    Raises ValueError if the response is not a list.
    """
    if not isinstance(response, list):
        raise ValueError("expected a list of containers")
    return Containers(item for entry in response if isinstance(entry, dict) and (item := _container(entry)))


def _container(entry: dict[str, object]) -> Container | None:
    names = entry.get("Names")
    # A container that other containers link to has additional names such as /web/db.
    own = [_text(name).removeprefix("/") for name in names] if isinstance(names, list) else []
    name = next((name for name in own if name and "/" not in name), "")
    container_id = _text(entry.get("Id"))
    if not name or len(container_id) < _MIN_ID_LENGTH:
        return None
    return Container(container_id, clean_name(name))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
