"""Settings read anew while the node runs: what they make is built beside the old, swapped between ticks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpuledger.app.logs import set_up
from gpuledger.app.wiring import (
    Listeners,
    Parts,
    listeners_of,
    shown_beside,
    told_unasked,
    vocabularies,
)
from gpuledger.config.node import owner_index_settings
from gpuledger.config.settings import LogSettings
from gpuledger.host.files import FileStates, FileWatch
from gpuledger.kubernetes.settings import KubernetesSettings
from gpuledger.ledger.settings import LedgerSettings, StoreSettings
from gpuledger.ledger.store.open import limits_of
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.node_state import ReloadHealth
from gpuledger.model.settings import build, declared, reload_of
from gpuledger.model.source import Source
from gpuledger.node.loop import Refit, TickHangs
from gpuledger.node.settings import NodeSettings, ReloadSettings
from gpuledger.outputs.metrics_pages import MetricsPages
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.web.settings import WebSettings
from gpuledger.workloads.containers.settings import ContainerSettings
from gpuledger.workloads.job_map.settings import JobMapSettings
from gpuledger.workloads.owner_indexes import OwnerIndexes
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings
from gpuledger.workloads.slurm.settings import SlurmSettings


@dataclass(frozen=True, slots=True)
class Changes:
    """`values` are those to run with: the new ones, but the old ones of `pending`, which need a restart.

    `taken` are the keys that change now. Both are in the order of the groups.
    """

    values: Mapping[str, Any]
    taken: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


def changes(
    groups: Iterable[type],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    fixed: Collection[type] = (),
) -> Changes:
    """Parsed values by key compared: a key that says its default is like one that says nothing.

    Groups in `fixed` need a restart here, whatever they say of themselves.
    """
    values = dict(after)
    taken: list[str] = []
    pending: list[str] = []
    for group in groups:
        old: Any = build(group, before)
        new: Any = build(group, after)
        restart = reload_of(group).restart
        for name, item, _ in declared(group):
            if getattr(old, name) == getattr(new, name):
                continue
            if group not in fixed and item.key not in restart:
                taken.append(item.key)
                continue
            pending.append(item.key)
            values.pop(item.key, None)
            if item.key in before:
                values[item.key] = before[item.key]
    return Changes(values, tuple(taken), tuple(pending))


def files_of(groups: Iterable[type], values: Mapping[str, Any]) -> tuple[Path, ...]:
    """The files that these settings name, as their groups declare."""
    found: list[Path] = []
    for group in groups:
        made: Any = build(group, values)
        files = reload_of(group).files
        for name, item, _ in declared(group):
            value = getattr(made, name) if item.key in files else None
            paths = value if isinstance(value, list | tuple) else (value,)
            found += [Path(path) for path in paths if path]
    return tuple(found)


log = logging.getLogger("gpuledger.reload")

_OF_SOURCES = (SourceSettings, SmiSettings)
_OF_MAPS = (
    KubernetesSettings,
    PodResourcesSettings,
    SlurmSettings,
    JobMapSettings,
    ContainerSettings,
)


class Reloader:
    """Takes changed settings into a running node. Used by one thread, not the tick's.

    `read` gives parsed values by key and raises GpuledgerError for what is wrong in them; `values` are those
    that the node was assembled from. `files` are read by it; those that settings name are found here.
    `listeners` are told to answer otherwise in place: open connections stay,
    but streams of events end where the API is taken away.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, Any]],
        values: Mapping[str, Any],
        groups: Iterable[type],
        files: Iterable[Path],
        parts: Parts,
        listeners: Listeners,
    ) -> None:
        self._read = read
        self._values = values
        self._groups = tuple(groups)
        self._files = tuple(files)
        self._parts = parts
        self._listeners = listeners
        self._watch = FileWatch(self._all_files(values))
        # How files stood when the settings in force were read.
        self._good = self._watch.states(self._all_files(values))
        self._health = ReloadHealth(success=True, last_success=parts.clock.unix())
        self._pending: Mapping[str, Any] = {}
        self._owed = False
        parts.node.note_reload(self._health)

    @property
    def period(self) -> float | None:
        """Seconds between two looks, None to look never."""
        return build(ReloadSettings, self._values).interval or None

    def look(self) -> None:
        """Take changed settings when a file has changed, and stands still."""
        if self._watch.look() or self._owed:
            self.reload()

    def reload(self) -> None:
        """Read the settings, and take what has changed. Whatever is wrong leaves the last good ones."""
        states = self._watch.states(self._all_files(self._values))
        try:
            after = self._read()
            states |= self._watch.states(self._all_files(after))
            found = changes(self._groups, self._values, after, self._fixed())
            self._take(found, states)
        except TickHangs as error:
            # Nothing is wrong with them: they are taken when it ends, by the next look.
            self._owed = True
            self._refuse(str(error), once=True)
            return
        except GpuledgerError as error:
            self._refuse(str(error))
        except Exception as error:
            log.exception("the settings could not be taken")
            self._refuse(f"internal error in gpuledger, please report it: {type(error).__name__}: {error}")
        else:
            touched = [
                str(file)
                for file, state in states.items()
                if file not in self._files and self._good.get(file) != state
            ]
            self._good = states
            self._tell(found, after, touched)
        self._owed = False
        self._watch.take(states)

    def _all_files(self, values: Mapping[str, Any]) -> list[Path]:
        return list(dict.fromkeys((*self._files, *files_of(self._groups, values))))

    def _fixed(self) -> tuple[type, ...]:
        # What makes data up, or plays them back, would begin anew.
        return _OF_SOURCES if self._parts.source.info.simulated else ()

    def _take(self, found: Changes, states: FileStates) -> None:
        values, parts = found.values, self._parts
        every = vocabularies(values)
        pages = MetricsPages(
            every, parts.clock, parts.pages.page, told_unasked(values, every), shown_beside(values)
        )
        listeners = listeners_of(values, every, pages, parts)
        touched = {file for file, state in states.items() if self._good.get(file) != state}
        source = self._new_source(values, touched)
        maps = self._new_maps(values, touched)
        before = parts.maps
        try:
            with parts.node.between_ticks():
                pages.follow(parts.pages)
                parts.node.refit(self._refit(values, source, maps))
                parts.ledger.adopt(build(LedgerSettings, values))
                if parts.store is not None:
                    parts.store.limit(limits_of(build(StoreSettings, values)))
                parts.source, parts.pages = source or parts.source, pages
                # Without any in it, Maps are empty, not none.
                parts.maps = before if maps is None else maps
                for (_, routes), (_, now) in zip(self._listeners, listeners, strict=True):
                    routes.become(now)
                if parts.api is not None and build(WebSettings, values).page != "full":
                    parts.api.events.end_all()
        except BaseException:
            if maps is not None:
                maps.stop()
            raise
        if maps is not None:
            before.stop()
        if build(LogSettings, values) != build(LogSettings, self._values):
            set_up(build(LogSettings, values))
        self._values = values

    def _refit(self, values: Mapping[str, Any], source: Source | None, maps: OwnerIndexes | None) -> Refit:
        interval = build(NodeSettings, values).interval
        return Refit(
            source=source,
            name=None if maps is None else self._parts.ground.naming(maps),
            interval=None if interval == build(NodeSettings, self._values).interval else interval,
        )

    def _new_source(self, values: Mapping[str, Any], touched: set[Path]) -> Source | None:
        before = [build(group, self._values) for group in _OF_SOURCES]
        same = before == [build(group, values) for group in _OF_SOURCES]
        if same and touched.isdisjoint(files_of(_OF_SOURCES, values)):
            return None
        # What `auto` found at the start it would perhaps not find again in the middle of a driver's upgrade.
        settings = replace(build(SourceSettings, values), source=self._parts.source.info.name)
        return self._parts.ground.source(settings, build(SmiSettings, values))

    def _new_maps(self, values: Mapping[str, Any], touched: set[Path]) -> OwnerIndexes | None:
        same = owner_index_settings(values) == owner_index_settings(self._values)
        if same and touched.isdisjoint(files_of(_OF_MAPS, values)):
            return None
        maps = self._parts.ground.maps(values, self._parts.source.info)
        maps.read_once()
        return maps

    def _refuse(self, error: str, *, once: bool = False) -> None:
        if not once or error != self._health.error:
            log.error("the settings stay as they were: %s", error)
        self._note(replace(self._health, success=False, error=error))

    def _tell(self, found: Changes, after: Mapping[str, Any], touched: Iterable[str]) -> None:
        pending = {key: after.get(key) for key in found.pending}
        if pending and pending != self._pending:
            log.warning("changed, but only a restart makes it so: %s", ", ".join(pending))
        self._pending = pending
        # A file that a setting names may have changed under the same name.
        what = ", ".join(found.taken) or ", ".join(touched) or "nothing has changed"
        log.info("settings read anew: %s", what)
        now = self._parts.clock.unix()
        self._note(ReloadHealth(success=True, last_success=now, pending=found.pending))

    def _note(self, health: ReloadHealth) -> None:
        self._health = health
        self._parts.node.note_reload(health)
