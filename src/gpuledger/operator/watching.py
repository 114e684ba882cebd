"""Watches of the API server, by kopf: what has changed is put where it is known, and no more is done here.

Handlers of kopf that act (create, update, delete, daemons) are not used: they keep their progress in
annotations of the resource, one write each, and see one resource at a time. What is to be done here depends
on all resources and on all that was made (see reconcile.py), and nothing is written where nothing changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import kopf

from gpuledger.kubernetes.access import Access
from gpuledger.kubernetes.writing import Json
from gpuledger.model.errors import GpuledgerError
from gpuledger.operator.kinds import KINDS, OURS, Kind

# Tokens are rotated in their files: so often they are read anew.
_TOKEN_SECONDS: Final = 300.0
# A whole number: the API server takes no other.
_WATCH_SECONDS: Final = 300
_CONNECT_SECONDS: Final = 10.0
_PAGE: Final = 500

# Takes an object, and whether it was deleted.
Take = Callable[[Json, bool], None]


@dataclass(frozen=True, slots=True)
class Watched:
    """What is watched: resources of users everywhere, what was made for them in some namespaces."""

    resources: Sequence[Kind]
    namespaces: Sequence[str]


class Watch:
    """Watches until `stop`. Within one event loop, one at a time."""

    def __init__(self, access: Access, watched: Watched, resource: Take, made: Take) -> None:
        self._watched = watched
        self._registry = _registry(access, watched, resource, made)
        self._stop = asyncio.Event()

    async def run(self, begun: Callable[[], None] = lambda: None) -> None:
        """Watch until stopped. Raises GpuledgerError for what kopf cannot get over: a server that refuses, or
        is away for long.

        `begun` is called once kopf has taken the process's signals: who wants them takes them back.
        """
        before = asyncio.all_tasks()
        tasks = await kopf.spawn_tasks(
            registry=self._registry,
            settings=_settings(),
            namespaces=sorted(set(self._watched.namespaces)),
            standalone=True,
            stop_flag=self._stop,
        )
        begun()
        try:
            # It ends all tasks that were begun after it.
            await kopf.run_tasks(tasks, ignored=before)
        except Exception as error:
            if self._stop.is_set():
                return
            why = error.args[0] if error.args else type(error).__name__
            raise GpuledgerError(f"the API server cannot be watched: {why}") from error
        if not self._stop.is_set():
            raise GpuledgerError("the watches of the API server ended by themselves")

    def stop(self) -> None:
        """Have `run` return."""
        self._stop.set()


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    # Namespaces and definitions are known; to watch them would take more rights.
    settings.scanning.disabled = True
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = _CONNECT_SECONDS
    settings.watching.server_timeout = _WATCH_SECONDS
    settings.watching.chunk_size = _PAGE
    settings.process.ultimate_exiting_timeout = None
    for kind in KINDS:
        settings.watching.label_selectors[_selector(kind)] = OURS
    return settings


def _selector(kind: Kind) -> Any:
    return (kind.group, kind.version, kind.plural) if kind.group else (kind.version, kind.plural)


def _registry(access: Access, watched: Watched, resource: Take, made: Take) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def login(**_: object) -> kopf.ConnectionInfo:
        return _connection(access)

    kopf.on.login(registry=registry)(login)
    for kinds, take in ((watched.resources, resource), (KINDS, made)):
        for kind in kinds:
            kopf.on.event(*_selector(kind), registry=registry)(_handler(kind, take))
    return registry


def _handler(kind: Kind, take: Take) -> Callable[..., Any]:
    async def handle(event: Json, **_: object) -> None:
        # Items of a list do not say what they are.
        body = {"apiVersion": kind.api_version, "kind": kind.kind, **event["object"]}
        take(body, event["type"] == "DELETED")

    handle.__name__ = f"take_{kind.plural}"
    return handle


def _connection(access: Access) -> kopf.ConnectionInfo:
    token = access.read_token()
    return kopf.ConnectionInfo(
        server=access.url,
        ca_path=str(access.ca_file) if access.ca_file and not access.ca_data else None,
        ca_data=access.ca_data or None,
        insecure=not access.verify,
        scheme="Bearer" if token else None,
        token=token or None,
        certificate_path=str(access.certificate_file) if access.certificate_file else None,
        certificate_data=access.certificate_data or None,
        private_key_path=str(access.key_file) if access.key_file else None,
        private_key_data=access.key_data or None,
        expiration=datetime.now(UTC) + timedelta(seconds=_TOKEN_SECONDS),
    )


def quiet() -> None:
    """Leave to the operator's own words what kopf says of every step."""
    logging.getLogger("kopf").setLevel(logging.CRITICAL)
