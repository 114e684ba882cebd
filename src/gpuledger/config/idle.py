"""The settings of `gpuledger idle`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gpuledger.ledger.report.mail_addresses import MAIL_DOMAIN, MAIL_SENDER
from gpuledger.ledger.report.report_keys import DIGEST_KEYS, LABEL, TEAM
from gpuledger.model.settings import choice, duration, option, text

TABLE, JSON, TEXT, MAIL, SLACK = "table", "json", "text", "mail", "slack-json"


def _matching(pattern: str, expected: str) -> Callable[[object], str]:
    """A parser of texts that match, or are empty."""

    def parse(value: object) -> str:
        found = text(value).strip()
        if found and not re.fullmatch(pattern, found):
            raise ValueError(f"expected {expected}")
        return found

    return parse


@dataclass(frozen=True)
class IdleSettings:
    """What counts as held without use, and how it is shown."""

    least: float = option(
        "idle.for",
        duration("s", lowest=0.0, highest=366 * 86_400.0),
        1800.0,
        "list what has been held without use for at least this time",
    )
    digest: str = option(
        "idle.digest",
        text,
        "",
        f"print a digest of a period instead, with an entry for each {', '.join(DIGEST_KEYS)}, {TEAM} or "
        f"{LABEL}NAME",
        metavar="KEY",
    )
    period: str = option(
        "idle.in",
        text,
        "last week",
        "the period of --digest: a week (2026-W48), month (2026-11), day, 'last week' or 'this month'",
        metavar="PERIOD",
    )
    only: str = option(
        "idle.only", text, "", "of --digest, only the entry with this name, such as ann", metavar="NAME"
    )
    format: str = option(
        "idle.format",
        choice(TABLE, JSON, TEXT, MAIL, SLACK),
        TABLE,
        "table or json; of --digest also text, mail (mbox with one message per entry) or slack-json (one "
        "line per entry for an incoming webhook)",
        metavar="FORM",
    )
    mail_domain: str = option(
        "idle.mail_domain",
        _matching(MAIL_DOMAIN, "a domain such as example.org"),
        "",
        "with --format mail: address each message of one user to USER@DOMAIN",
        metavar="DOMAIN",
    )
    mail_from: str = option(
        "idle.mail_from",
        _matching(MAIL_SENDER, "an address such as gpus@example.org or GPUs <gpus@example.org>"),
        "",
        "with --format mail: the address of the sender",
        metavar="ADDRESS",
    )
