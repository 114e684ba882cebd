"""Names of Docker and Podman containers, parsed from the JSON of their API. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger.model.text import clean_name

# Names of the running containers by id.
Containers = Mapping[str, str]

# Docker and Podman show 12 digits to users; shorter ids are rejected.
_MIN_ID_LENGTH = 12


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
