"""The output of `gpuledger idle` from a ledger: in the command, and in `serve` for other users."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import tzinfo
from typing import TYPE_CHECKING, Any, Final

from gpuledger.app.flag_checks import ONE_NODE, require_once, require_words
from gpuledger.app.idle_text import digest_mail, digest_slack, digest_text, idle_table
from gpuledger.app.ledger_file import current_time_of, node_of_ledger
from gpuledger.config.idle import JSON, MAIL, SLACK, TABLE, TEXT, IdleSettings
from gpuledger.config.load import load_values
from gpuledger.host.settings import configured_time_zone
from gpuledger.ledger.report.grouping import find_grouping
from gpuledger.ledger.report.idle.digest import digest_json
from gpuledger.ledger.report.idle.holds import idle_json
from gpuledger.ledger.report.ranges import parse_range
from gpuledger.ledger.report.report_keys import DIGEST_KEYS, LABEL, TEAM
from gpuledger.ledger.report.settings import Prices, TeamSettings
from gpuledger.ledger.store.idle_query import IdleScope, find_idle_holds
from gpuledger.ledger.store.report_query import build_report
from gpuledger.ledger.store.watched_range import require_watched_time, resolve_watched_range
from gpuledger.model.errors import GpuledgerError, UsageError, unknown_name_error
from gpuledger.model.settings import build_settings
from gpuledger.workloads.pods.placeholder import is_placeholder

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History

# Parameters of a request, and the settings that they are.
IDLE_PARAMETERS: Final = {
    name: f"idle.{name}" for name in ("for", "digest", "in", "only", "format", "mail_domain", "mail_from")
}


def check_digest_key(key: str) -> None:
    """Raise UsageError for a key that names no people or groups."""
    valid = (*DIGEST_KEYS, TEAM, f"{LABEL}NAME")
    if key not in valid and not key.startswith(LABEL):
        raise unknown_name_error("--digest", key, valid)


def answer_idle(history: History, parameters: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request with the settings of the command as texts: `text` and `notes`.

    Raises GpuledgerError.
    """
    unknown = sorted(parameters.keys() - IDLE_PARAMETERS.keys())
    if unknown:
        raise unknown_name_error("parameter", unknown[0], IDLE_PARAMETERS)
    flags = {IDLE_PARAMETERS[name]: [text] for name, text in parameters.items()}
    settings = build_settings(IdleSettings, load_values((IdleSettings,), flags, {}, None))
    text, notes = write_idle(history, check_idle(settings, flags), values)
    return {"text": text, "notes": notes, "user": history.reader.name}


def check_idle(settings: IdleSettings, flags: Mapping[str, Sequence[str]]) -> IdleSettings:
    """The settings with the format that counts. Raises UsageError for flags without an effect or a value."""
    words = {"idle.in": "a period", "idle.only": "a name", "idle.digest": "a key"}
    require_words(flags, {**words, "node.url": "a URL", "state_dir": "a directory"})
    require_once(flags, ONE_NODE)
    if settings.digest:
        check_digest_key(settings.digest)
        if settings.format != TABLE:
            return settings
        if "idle.format" in flags:
            formats = f"{TEXT}, {JSON}, {MAIL} or {SLACK}"
            raise UsageError(f"--format {TABLE} is not for --digest; use {formats}")
        return replace(settings, format=TEXT)
    if settings.format in (TEXT, MAIL, SLACK):
        raise UsageError(f"--format {settings.format} needs --digest, such as --digest user")
    for key in ("idle.in", "idle.only"):
        if key in flags:
            raise UsageError(f"--{key.partition('.')[2]} needs --digest, such as --digest user")
    return settings


def write_idle(history: History, settings: IdleSettings, values: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The output, and notes for stderr where the output has none. Raises GpuledgerError."""
    if settings.digest:
        body = digest_of(history, settings.digest, settings.period, settings.least, values)
    else:
        body = idle_of(history, settings.least, values)
    if settings.only:
        body = _only(body, settings.only)
    text = _render(body, settings, configured_time_zone(values))
    return text, body["notes"] if settings.format in (JSON, MAIL, SLACK) else []


def _only(body: dict[str, Any], name: str) -> dict[str, Any]:
    entries = [one for one in body["entries"] if name in (one["name"], *one["key"])]
    if not entries:
        raise GpuledgerError(
            f"the digest has no entry '{name}': nothing was held without use under that name"
        )
    return {**body, "entries": entries}


def _render(body: Mapping[str, Any], settings: IdleSettings, zone: tzinfo) -> str:
    if settings.format == JSON:
        return json.dumps(body, indent=2) + "\n"
    if settings.format == MAIL:
        return digest_mail(body, zone, settings.mail_domain, settings.mail_from)
    renderers: dict[str, Callable[[Mapping[str, Any], tzinfo | None], str]] = {
        TABLE: idle_table,
        TEXT: digest_text,
        SLACK: digest_slack,
    }
    return renderers[settings.format](body, zone)


def idle_of(history: History, least: float, values: Mapping[str, Any]) -> dict[str, Any]:
    """What is held without use now, for at least so many seconds, by the reader of the ledger.

    Raises GpuledgerError if the ledger has no watched second.
    """
    require_watched_time(history)
    return idle_json(find_idle_holds(history, _scope(history, least, values)))


def digest_of(
    history: History, key: str, period: str, least: float, values: Mapping[str, Any]
) -> dict[str, Any]:
    """The digest of a period with an entry for each name of the key. Raises GpuledgerError."""
    check_digest_key(key)
    scope = _scope(history, least, values)
    requested = parse_range("", "now", period, current_time_of(history), scope.zone)
    grouping = find_grouping(key, history.devices, teams=scope.teams, node_of=lambda _: scope.node)
    within = resolve_watched_range(history, requested)
    report = build_report(history, grouping, scope.prices, within, node=scope.node)
    return digest_json(report, find_idle_holds(history, scope))


def _scope(history: History, least: float, values: Mapping[str, Any]) -> IdleScope:
    return IdleScope(
        build_settings(Prices, values),
        least,
        build_settings(TeamSettings, values).teams,
        node_of_ledger(history, values),
        configured_time_zone(values),
        is_placeholder,
    )
