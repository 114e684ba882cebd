"""Telling the gpuledger that runs on this machine what to do."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Iterable, Mapping
from os import environ
from pathlib import Path
from typing import Any, Final

from gpuledger.cli.doorway import usual_places
from gpuledger.ledger.settings import MEMORY_ONLY, StoreSettings
from gpuledger.ledger.store.place import usual_dirs
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.settings import build
from gpuledger.node.settings import NO_SOCKET, ControlSettings

# The other side waits up to half a minute for a reading that is under way, and after a pause for the next.
_PATIENCE: Final = 90.0
_NOBODY: Final = frozenset({errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR})
_FORBIDDEN: Final = frozenset({errno.EACCES, errno.EPERM})


def ask(values: Mapping[str, Any], request: Mapping[str, object]) -> str:
    """What the running gpuledger answers, in words for a person.

    Raises GpuledgerError when none runs here, it cannot be reached, or it could not do it.
    """
    settings = build(ControlSettings, values)
    if settings.socket == NO_SOCKET:
        raise UsageError(
            "--control.socket none: so gpuledger hears nobody; name the socket of the running one"
        )
    asked_for = [Path(settings.socket)] if settings.socket else _usual(build(StoreSettings, values))
    return ask_at(asked_for, request)


def ask_at(places: Iterable[Path], request: Mapping[str, object], patience: float = _PATIENCE) -> str:
    """As `ask`, of the first of these sockets on which somebody hears."""
    places, forbidden = list(places), []
    for place in places:
        try:
            return _told(_exchange(place, request, patience), place)
        except TimeoutError:
            raise GpuledgerError(
                f"no answer on {place} for {patience:g} s: see what `/health` of gpuledger and its log say"
            ) from None
        except OSError as error:
            if error.errno in _FORBIDDEN:
                forbidden.append(place)
            elif error.errno not in _NOBODY:
                raise GpuledgerError(f"cannot reach {place}: {error.strerror or error}") from None
    if forbidden:
        raise GpuledgerError(
            f"no permission for {forbidden[0]}: run this as root, or as the user that gpuledger runs as"
        )
    raise GpuledgerError(
        f"no gpuledger runs here: nobody hears on {' or '.join(map(str, places))}; run this where `gpuledger"
        " serve` runs (on that node, in its container: kubectl exec POD -- gpuledger ..., as its user), with"
        " the --control.socket or --config that it was given"
    )


def _usual(store: StoreSettings) -> list[Path]:
    beside = [None] if store.state_dir == MEMORY_ONLY else usual_dirs(store.state_dir, environ)
    return list(dict.fromkeys(place for folder in beside for place in usual_places(environ, folder)))


def _exchange(place: Path, request: Mapping[str, object], patience: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.settimeout(patience)
        door.connect(str(place))
        door.sendall(json.dumps(dict(request)).encode() + b"\n")
        said = b""
        while more := door.recv(4096):
            said += more
    return said


def _told(said: bytes, place: Path) -> str:
    try:
        answer = json.loads(said)
        if "ok" in answer:
            return str(answer["ok"])
        error = str(answer["error"])
    except (ValueError, KeyError, TypeError):
        raise GpuledgerError(f"what hears on {place} is no gpuledger, or it has just ended") from None
    raise GpuledgerError(error)
