"""What Docker and Podman say of their containers: values, and their reading from JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuledger.model.text import clean_name

# Shorter ids are no ids: 12 digits are what people are shown.
_SHORTEST_ID = 12


@dataclass(frozen=True, slots=True)
class Container:
    """One container."""

    id: str
    name: str


class Containers:
    """The containers of one moment, by id. Immutable."""

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
        """The container of this id, or of an id that begins so, where it is one alone."""
        found = self._by_id.get(container_id)
        if found is None and _SHORTEST_ID <= len(container_id) < 64:
            near = [item for item in self if item.id.startswith(container_id)]
            return near[0] if len(near) == 1 else None
        return found


NO_CONTAINERS = Containers()


def containers_of(answer: object) -> Containers:
    """Containers by the answer of `GET /containers/json`; an entry without id or name is left out.

    Raises ValueError for what is no such answer.
    """
    if not isinstance(answer, list):
        raise ValueError("a list of containers is wanted")
    return Containers(item for entry in answer if isinstance(entry, dict) and (item := _container(entry)))


def _container(entry: dict[str, object]) -> Container | None:
    names = entry.get("Names")
    # A container that others link to has names such as /web/db besides its own.
    own = [_text(name).removeprefix("/") for name in names] if isinstance(names, list) else []
    name = next((name for name in own if name and "/" not in name), "")
    identity = _text(entry.get("Id"))
    if not name or len(identity) < _SHORTEST_ID:
        return None
    return Container(identity, clean_name(name))


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
