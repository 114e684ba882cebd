"""Reload settings while the node runs: new parts are built beside the old, and swapped between two ticks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from os import environ
from pathlib import Path
from typing import Any

from gpuledger.app.logs import configure_logging
from gpuledger.app.node_assembly import build_dialects
from gpuledger.app.node_listeners import Listeners, build_listeners, default_page_dialects, web_quantities
from gpuledger.app.node_parts import NodeParts
from gpuledger.app.serving import open_web_security
from gpuledger.app.user_services import open_readers
from gpuledger.config.access import AccessSettings
from gpuledger.config.node import configured_node_name
from gpuledger.config.settings import LogSettings
from gpuledger.host.files import FileStates, FileWatch, file_states
from gpuledger.host.settings import configured_time_zone
from gpuledger.http.settings import HttpSettings
from gpuledger.kubernetes.settings import KubernetesSettings
from gpuledger.ledger.settings import LedgerSettings, StoreSettings
from gpuledger.ledger.store.store_factory import retention_limits
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.node_state import ReloadHealth
from gpuledger.model.settings import build_settings, declared_settings, reload_policy
from gpuledger.model.source import Source
from gpuledger.node.loop import NodeChange, TickHangs
from gpuledger.node.settings import NodeSettings, ReloadSettings
from gpuledger.outputs.metrics_pages import MetricsPages
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.web.settings import WebSettings
from gpuledger.workloads.owner_index_setup import OWNER_INDEX_GROUPS
from gpuledger.workloads.owner_indexes import OwnerIndexes


@dataclass(frozen=True)
class SettingsChanges:
    """The difference between two sets of settings.

    `values` are the values to run with: the new ones, except for the keys in `pending`, which need a restart
    and keep their old values. `taken` are the keys that change now. Both are in the order of the groups.
    """

    values: Mapping[str, Any]
    taken: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


def compare_settings(
    groups: Iterable[type],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    fixed: Collection[type] = (),
) -> SettingsChanges:
    """Compare parsed values by key. A key set to its default equals a key that is not set.

    All keys of the groups in `fixed` need a restart, regardless of their `reload`.
    """
    values = dict(after)
    taken: list[str] = []
    pending: list[str] = []
    for group in groups:
        old: Any = build_settings(group, before)
        new: Any = build_settings(group, after)
        restart = reload_policy(group).restart
        for name, item, _ in declared_settings(group):
            if getattr(old, name) == getattr(new, name):
                continue
            if group not in fixed and item.key not in restart:
                taken.append(item.key)
                continue
            pending.append(item.key)
            values.pop(item.key, None)
            if item.key in before:
                values[item.key] = before[item.key]
    return SettingsChanges(values, tuple(taken), tuple(pending))


def files_named_in(groups: Iterable[type], values: Mapping[str, Any]) -> tuple[Path, ...]:
    """The files that these settings name; each group declares which of its keys are files."""
    found: list[Path] = []
    for group in groups:
        made: Any = build_settings(group, values)
        files = reload_policy(group).files
        for name, item, _ in declared_settings(group):
            value = getattr(made, name) if item.key in files else None
            paths = value if isinstance(value, list | tuple) else (value,)
            found += [Path(path) for path in paths if path]
    return tuple(found)


log = logging.getLogger("gpuledger.reload")

# The source, and the owner indexes, are created again if a setting of these groups changes.
SOURCE_GROUPS = (SourceSettings, SmiSettings)
OWNER_GROUPS = (KubernetesSettings, *OWNER_INDEX_GROUPS.values())


class Reloader:
    """Applies changed settings to a running node. Used by one thread, not that of the ticks.

    `read` returns parsed values by key and raises GpuledgerError for invalid ones; `values` are those that
    the node was assembled from. `files` are the files that `read` reads; files that settings name are found
    here. The routes of `listeners` are replaced in place: connections stay open, but event streams end when
    the API is turned off.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, Any]],
        values: Mapping[str, Any],
        groups: Iterable[type],
        files: Iterable[Path],
        parts: NodeParts,
        listeners: Listeners,
    ) -> None:
        self._read = read
        self._values = values
        self._groups = tuple(groups)
        self._files = tuple(files)
        self._parts = parts
        self._listeners = listeners
        self._watch = FileWatch(self._all_files(values))
        # States of the files when the current settings were read.
        self._good = file_states(self._all_files(values))
        self._health = ReloadHealth(success=True, last_success=parts.clock.unix())
        self._pending: Mapping[str, Any] = {}
        self._retry = False
        parts.node.set_reload_health(self._health)

    @property
    def period(self) -> float | None:
        """Seconds between two checks for changes; None disables the checks."""
        return build_settings(ReloadSettings, self._values).interval or None

    def reload_if_changed(self) -> None:
        """Reload the settings when a file has changed and is no longer being written."""
        if self._watch.has_changed() or self._retry:
            self.reload()

    def reload(self) -> None:
        """Read the settings and apply the changes. After an error the last good settings stay in force."""
        states = file_states(self._all_files(self._values))
        try:
            after = self._read()
            states |= file_states(self._all_files(after))
            # A new simulator or replay source would restart its data from the beginning.
            fixed = SOURCE_GROUPS if self._parts.source.info.simulated else ()
            found = compare_settings(self._groups, self._values, after, fixed)
            if "web.config.file" in found.pending:
                # One that the next start would refuse is refused now.
                open_web_security(build_settings(HttpSettings, after).web_config)
            self._apply(found, states)
        except TickHangs as error:
            # The settings are valid: retry at the next check, when the tick may have ended.
            self._retry = True
            self._reject(str(error), once=True)
            return
        except GpuledgerError as error:
            self._reject(str(error))
        except Exception as error:
            log.exception("cannot apply the settings")
            self._reject(f"internal error in gpuledger, please report it: {type(error).__name__}: {error}")
        else:
            touched = [
                str(file)
                for file, state in states.items()
                if file not in self._files and self._good.get(file) != state
            ]
            self._good = states
            self._report(found, after, touched)
        self._retry = False
        self._watch.set_baseline(states)

    def _all_files(self, values: Mapping[str, Any]) -> list[Path]:
        return list(dict.fromkeys((*self._files, *files_named_in(self._groups, values))))

    def _apply(self, found: SettingsChanges, states: FileStates) -> None:
        values, parts = found.values, self._parts
        dialects = build_dialects(values)
        pages = MetricsPages(
            dialects,
            parts.clock,
            parts.pages.state,
            default_page_dialects(values, dialects),
            web_quantities(values),
        )
        listeners = build_listeners(values, dialects, pages, parts)
        touched = {file for file, state in states.items() if self._good.get(file) != state}
        source = self._new_source(values, touched)
        owner_indexes = self._new_owner_indexes(values, touched)
        before = parts.owner_indexes
        try:
            with parts.node.between_ticks():
                pages.continue_from(parts.pages)
                parts.node.apply_change(self._node_change(values, source, owner_indexes))
                parts.ledger.apply_settings(build_settings(LedgerSettings, values))
                if parts.store is not None:
                    zone = configured_time_zone(values)
                    parts.store.limits = retention_limits(build_settings(StoreSettings, values), zone)
                    parts.store.node = configured_node_name(values, environ)
                parts.source, parts.pages = source or parts.source, pages
                # OwnerIndexes without an index is falsy: compare with None.
                parts.owner_indexes = before if owner_indexes is None else owner_indexes
                for (_, routes), (_, now) in zip(self._listeners, listeners, strict=True):
                    routes.replace_with(now)
                parts.values, parts.readers = values, open_readers(values)
                if parts.api is not None and self._ends_streams(values):
                    parts.api.events.close_all()
        except BaseException:
            if owner_indexes is not None:
                owner_indexes.stop()
            raise
        if owner_indexes is not None:
            before.stop()
        if build_settings(LogSettings, values) != build_settings(LogSettings, self._values):
            configure_logging(values)
        self._values = values

    def _ends_streams(self, values: Mapping[str, Any]) -> bool:
        """Whether clients may no longer read what they read: the API is off, or access has changed."""
        before, after = (build_settings(AccessSettings, one) for one in (self._values, values))
        return before != after or build_settings(WebSettings, values).page != "full"

    def _node_change(
        self, values: Mapping[str, Any], source: Source | None, owner_indexes: OwnerIndexes | None
    ) -> NodeChange:
        host = self._parts.host_context
        interval = build_settings(NodeSettings, values).interval
        return NodeChange(
            source=source,
            name=None if owner_indexes is None else host.namer(owner_indexes, self._parts.ledger),
            interval=None if interval == build_settings(NodeSettings, self._values).interval else interval,
        )

    def _differ(self, groups: Collection[type], values: Mapping[str, Any], touched: set[Path]) -> bool:
        """Whether `values` have other settings of these groups, or name a file in `touched`."""
        changed = any(
            build_settings(group, values) != build_settings(group, self._values) for group in groups
        )
        return changed or not touched.isdisjoint(files_named_in(groups, values))

    def _new_source(self, values: Mapping[str, Any], touched: set[Path]) -> Source | None:
        if not self._differ(SOURCE_GROUPS, values, touched):
            return None
        # The source found at start: `auto` could choose another one during a driver upgrade.
        settings = replace(build_settings(SourceSettings, values), source=self._parts.source.info.name)
        return self._parts.host_context.open_source(settings, build_settings(SmiSettings, values))

    def _new_owner_indexes(self, values: Mapping[str, Any], touched: set[Path]) -> OwnerIndexes | None:
        renamed = configured_node_name(values, environ) != configured_node_name(self._values, environ)
        if not renamed and not self._differ(OWNER_GROUPS, values, touched):
            return None
        owner_indexes = self._parts.host_context.open_owner_indexes(values, self._parts.source)
        owner_indexes.read_once()
        return owner_indexes

    def _reject(self, error: str, *, once: bool = False) -> None:
        if not once or error != self._health.error:
            log.error("settings not reloaded: %s", error)
        self._set_health(replace(self._health, success=False, error=error))

    def _report(self, found: SettingsChanges, after: Mapping[str, Any], touched: Iterable[str]) -> None:
        pending = {key: after.get(key) for key in found.pending}
        if pending and pending != self._pending:
            log.warning("changed settings that need a restart of gpuledger: %s", ", ".join(pending))
        self._pending = pending
        # The content of a file that a setting names may have changed.
        what = ", ".join(found.taken) or ", ".join(touched) or "nothing has changed"
        log.info("settings reloaded: %s", what)
        now = self._parts.clock.unix()
        self._set_health(ReloadHealth(success=True, last_success=now, pending=found.pending))

    def _set_health(self, health: ReloadHealth) -> None:
        self._health = health
        self._parts.node.set_reload_health(health)
