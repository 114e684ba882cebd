"""What is held without use, as a table, and digests as text, mail and Slack messages. Nothing is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from decimal import Decimal
from email.generator import Generator
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from io import StringIO
from typing import Any, Final

from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.settings import SECONDS_PER_HOUR
from gpuledger.model.text import escape_to_one_line, format_duration

Row = Mapping[str, Any]

_HEAD: Final = ("owner", "GPU", "idle for", "since", "cost", "to release it")
_MINUTE: Final = 60
# Characters of a block: an incoming webhook refuses more than 3,000.
_SLACK_LONGEST: Final = 2900
_UNPRICED: Final = "+ without what no entry of the price list matches"
_PRIVATE: Final = "gpuledger takes no action: it only reports."


def idle_table(body: Row, zone: tzinfo | None) -> str:
    """The table of what is held without use now."""
    holds: Sequence[Row] = body["holds"]
    least = format_duration(body["least_seconds"])
    if not holds:
        who = f"{body['reader']} has not" if body["reader"] else "Nobody has"
        lines = [escape_to_one_line(f"{who} held a GPU without use for {least} or longer.")]
    else:
        lines = _aligned([_HEAD, *(_cells(one, body, zone) for one in holds)])
        lines += ["", *_total(body, holds)]
    lines += _remarks(body, holds, zone)
    return "".join(f"{line}\n" for line in lines)


def _cells(one: Row, body: Row, zone: tzinfo | None) -> tuple[str, ...]:
    return (
        escape_to_one_line(owner_name(one)),
        place_name(one),
        _rounded(one["idle_seconds"]),
        format_local_time(one["idle_since"], zone)[:16] + (" or earlier" if one["idle_earlier"] else ""),
        cost_text(one, body),
        escape_to_one_line(one["release"] or f"({one['release_note']})"),
    )


def _total(body: Row, holds: Sequence[Row]) -> Iterator[str]:
    count = len(holds)
    what = f"{count} held without use"
    if body["total_cost"] is not None:
        hours = Decimal(body["total_gpu_microseconds"]) / MICROSECONDS_PER_HOUR
        mark = "+" if any(map(_has_unpriced, holds)) else ""
        what += f", {hours:,.2f} GPU-hours for {_money(body['total_cost'], body)}{mark} so far"
    yield f"{what}."


def _remarks(body: Row, holds: Sequence[Row], zone: tzinfo | None) -> Iterator[str]:
    if any(one["cost"] is not None for one in holds):
        yield (
            "Costs are those of `gpuledger report`, from the first quarter of an hour after the last use; "
            f"basis: {body['basis']}."
        )
    elif holds and not body["has_price"]:
        yield "Without prices: set price.gpu_hour and price.kwh to see costs."
    if any(_has_unpriced(one) for one in holds):
        yield f"{_UNPRICED}."
    notes = dict.fromkeys((one["release"], one["release_note"]) for one in holds if one["release_note"])
    for command, note in notes:
        if command:
            yield escape_to_one_line(f"{command}: {note}.")
    if body["unjudged"]:
        count = body["unjudged"]
        yield (
            f"{count} owner{'' if count == 1 else 's'} of GPUs not judged: the driver does not say whether "
            "they use them."
        )
    yield f"As of {format_local_time(body['until'], zone)}. {_PRIVATE}"
    yield from body["notes"]


def owner_name(one: Row) -> str:
    """The owner for people: namespace and pod, job with its user, container or user."""
    name = "/".join(part for part in (one["namespace"], one["owner"]) if part)
    kind = {"slurm": "job ", "job": "job ", "container": "container "}.get(one["kind"], "")
    user = f" ({one['user']})" if one["user"] and one["user"] != one["owner"] else ""
    return f"{kind}{name}{user}" if name else "(owner not known)"


def place_name(one: Row) -> str:
    """The GPU's index, with `GI_CI` of an instance."""
    return f"{one['gpu']}/{one['instance']}" if one["instance"] else str(one["gpu"])


def cost_text(one: Row, body: Row) -> str:
    """The cost of a hold or an entry; `-` if there is none yet, or no price."""
    if one["cost"] is None:
        return "-"
    return _money(one["cost"], body) + ("+" if _has_unpriced(one) else "")


def _has_unpriced(one: Row) -> bool:
    return bool(one["unpriced_microseconds"] or one["unpriced_millijoules"])


def _money(text: str, body: Row) -> str:
    amount = f"{Decimal(text):,.2f}"
    return f"{amount} {body['currency']}" if body["currency"] else amount


def _rounded(seconds: float) -> str:
    """A duration to the minute; less than one in seconds."""
    whole = int(seconds)
    return format_duration(whole - whole % _MINUTE if whole >= _MINUTE else whole)


def _hours(seconds: float) -> str:
    return f"{seconds / SECONDS_PER_HOUR:,.1f}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    right = _HEAD.index("cost")
    return [
        "  ".join(
            cell.rjust(width) if place == right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def digest_subject(entry: Row, body: Row) -> str:
    """One line for an entry of a digest."""
    hours = _hours(entry["held_seconds"])
    return escape_to_one_line(f"{entry['name']}: GPUs held without use for {hours} hours on {body['node']}")


def digest_lines(entry: Row, body: Row, zone: tzinfo | None) -> list[str]:
    """The text of an entry of a digest."""
    begins, ends = (format_local_time(body[end], zone)[:16] for end in ("since", "until"))
    lines = [f"{entry['name']} on {body['node']}, {begins} to {ends}:", ""]
    lines.append(f"  held without use   {_hours(entry['held_seconds'])} h")
    for key, what in (("active_seconds", "in use           "), ("unknown_seconds", "use not known    ")):
        if entry[key]:
            lines.append(f"  {what}  {_hours(entry[key])} h")
    if entry["gpu_microseconds"] is not None:
        billed = Decimal(entry["gpu_microseconds"]) / MICROSECONDS_PER_HOUR
        lines.append(f"  GPU-hours billed   {billed:,.2f}, by {body['basis']}")
    if entry["cost"] is not None:
        lines.append(f"  cost of all that   {cost_text(entry, body)}")
        if _has_unpriced(entry):
            lines.append(f"  {_UNPRICED}")
    holds: Sequence[Row] = entry["holds"]
    if holds:
        lines += ["", f"Held without use now ({format_local_time(body['now'], zone)}):"]
        for one in holds:
            cost = "" if one["cost"] is None else f", {cost_text(one, body)} so far"
            model = " ".join(part for part in (one["name"], one["profile"]) if part)
            lines.append(
                f"  GPU {place_name(one)} ({model}) by {owner_name(one)} "
                f"for {_rounded(one['idle_seconds'])}{cost}"
            )
            if one["release"]:
                lines.append(f"    to release it: {one['release']}")
            if one["release_note"]:
                lines.append(f"    {one['release_note']}")
    return [escape_to_one_line(line) for line in lines]


def digest_text(body: Row, zone: tzinfo | None) -> str:
    """The whole digest as text."""
    entries: Sequence[Row] = body["entries"]
    parts = ["\n".join(digest_lines(one, body, zone)) for one in entries]
    if not parts:
        begins, ends = (format_local_time(body[end], zone)[:16] for end in ("since", "until"))
        who = f"{body['reader']} did not hold" if body["reader"] else "Nobody held"
        parts = [escape_to_one_line(f"{who} a GPU without use from {begins} to {ends}.")]
    return "\n\n".join([*parts, "\n".join([_PRIVATE, *body["notes"]])]) + "\n"


def digest_mail(body: Row, zone: tzinfo | None, domain: str, sender: str) -> str:
    """An mbox with a message for each entry, which has a recipient if it has one user and a domain is set."""
    out = StringIO()
    writer = Generator(out, mangle_from_=True, policy=SMTP.clone(linesep="\n"))
    for entry in body["entries"]:
        message = EmailMessage()
        message["Subject"] = digest_subject(entry, body)
        message["Date"] = format_datetime(datetime.fromtimestamp(body["now"]).astimezone(zone))
        if sender:
            message["From"] = sender
        if domain and _is_address_part(entry["user"]):
            message["To"] = f"{entry['user']}@{domain}"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content("\n".join([*digest_lines(entry, body, zone), "", _PRIVATE]) + "\n", cte="8bit")
        stamp = datetime.fromtimestamp(body["now"]).strftime("%a %b %d %H:%M:%S %Y")
        out.write(f"From gpuledger {stamp}\n")
        writer.flatten(message)
        out.write("\n")
    return out.getvalue()


def _is_address_part(user: str) -> bool:
    """Whether a user's name is safe as the local part of an address."""
    return bool(user) and all(sign.isalnum() or sign in "._-+" for sign in user)


def digest_slack(body: Row, zone: tzinfo | None) -> str:
    """One line of JSON for each entry, as an incoming webhook takes it."""
    lines = []
    for entry in body["entries"]:
        title, text = digest_subject(entry, body), "\n".join(digest_lines(entry, body, zone))
        shown = _shorten_slack(_escape_slack(text))
        block = {"type": "section", "text": {"type": "mrkdwn", "text": f"```{shown}```"}}
        lines.append(json.dumps({"text": _escape_slack(title), "blocks": [block]}, ensure_ascii=False))
    return "".join(f"{line}\n" for line in lines)


def _shorten_slack(escaped: str) -> str:
    if len(escaped) <= _SLACK_LONGEST:
        return escaped
    # Not within an escape.
    return re.sub(r"&[a-z]*$", "", escaped[:_SLACK_LONGEST]) + "\n..."


def _escape_slack(text: str) -> str:
    """Without the characters of links, mentions and the end of a code block."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("```", "'''")
