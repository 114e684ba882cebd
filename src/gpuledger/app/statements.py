"""Files of statements: makes, writes and reads them, and checks a file and its chain."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from gpuledger import __version__
from gpuledger.host.files import read_at_most, sync_directory
from gpuledger.host.time_zone import MachineTimeZone, machine_time_zone, time_zone_name
from gpuledger.ledger.report.moments import format_local_time
from gpuledger.ledger.report.ranges import RequestedRange
from gpuledger.ledger.report.statement.content import (
    VERSION,
    VERSION_KEY,
    PreviousStatement,
    RequestedPeriod,
    Statement,
    statement_as_json,
)
from gpuledger.ledger.report.statement.digests import (
    HASH,
    find_alterations,
    seal_statement,
    statement_hash,
)
from gpuledger.ledger.report.statement.laws import find_contradictions
from gpuledger.ledger.report.statement.parsed import MalformedStatement, parse_statement
from gpuledger.ledger.report.statement.terms import StatementTerms
from gpuledger.ledger.report.teams import Team
from gpuledger.ledger.report.usage_report import UsageReport
from gpuledger.ledger.watched_time import MICRO
from gpuledger.model.errors import GpuledgerError, UsageError

# A note of statements.
SIMULATED = "Data of a simulator or a recording, not of hardware."
# Bytes of a file: a month of thousands of GPUs and owners.
_LARGEST = 1 << 30
# Digits of an integer, which Python limits too.
_LONGEST_INTEGER = 400
# Alterations that a message names.
_NAMED = 8
_PLACE = re.compile(r"(?P<section>\w+)\[(?P<number>\d+)\]")
# A number of JSON has no leading 0, and an altered digit can give it one.
_TEXT_OR_NUMBER = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+')
# Errors of file systems without hard links.
_NO_LINKS = frozenset((errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK))


class UnreadableStatement(GpuledgerError):
    """A file that is no statement, or one of a later version. Exit code 2."""

    exit_code = 2


class MadeReport(NamedTuple):
    """A report, the range that was requested, and from what it was made (`content.LEDGER`, ...).

    `notes` are sentences that only a statement has.
    """

    report: UsageReport
    requested: RequestedRange
    source: str
    origin: str
    notes: tuple[str, ...] = ()


def make_statement(made: MadeReport, by: str, every: str, teams: Sequence[Team]) -> Statement:
    """The statement of a report. Raises UsageError if its time zone has no name that others know."""
    report, requested = made.report, made.requested
    zone = machine_time_zone() if report.zone is None else report.zone
    if isinstance(zone, MachineTimeZone):
        zone = _named_zone(zone, report)
    terms = StatementTerms(by, every, report.prices, tuple(teams), zone)
    text = " ".join(dict.fromkeys((requested.since_text, requested.until_text)))
    until = None if requested.until is None else round(requested.until * MICRO)
    nodes = {gpu.uuid: report.grouping.node_of(gpu.uuid) for gpu in report.gpus}
    return Statement(
        replace(report, zone=zone, fingerprint=terms.fingerprint, notes=(*made.notes, *report.notes)),
        terms,
        RequestedPeriod(text, round(requested.since * MICRO), until),
        made.source,
        made.origin,
        nodes,
        __version__,
        int(time.time()) * MICRO,
    )


def _named_zone(zone: MachineTimeZone, report: UsageReport) -> tzinfo:
    """UTC for a machine without the name of a zone that is at UTC, as most containers are."""
    begins = datetime.fromtimestamp(report.period.since, zone).replace(tzinfo=None)
    offsets = {zone.utcoffset(begins + timedelta(days=91 * number)) for number in range(4)}
    if offsets != {timedelta(0)}:
        raise UsageError(
            f"the time zone of this machine ({time_zone_name(zone)}) has no name that other machines know: "
            "set report.timezone to its IANA name, such as Europe/Berlin"
        )
    return UTC


def follow_statement(statement: Statement, file: str) -> tuple[Statement, list[str]]:
    """The statement with the hash of the previous one, and sentences on a gap or overlap between them.

    The sentences are in its notes, too. Raises GpuledgerError if the file is not an intact statement.
    """
    previous = read_statement(file)
    if previous.problems:
        raise GpuledgerError(f"--after {file}: {previous.problems[0]}; a chain needs an intact statement")
    before = _require_parsed(previous, file)
    link = PreviousStatement(previous.sha256, before.since, before.until)
    notes = list(_seams(statement, before))
    report = replace(statement.report, notes=(*statement.report.notes, *notes))
    return replace(statement, report=report, previous=link), notes


def _seams(statement: Statement, before: Statement) -> Iterator[str]:
    """Sentences on how a statement joins the previous one."""
    zone = statement.terms.zone
    if before.until < statement.since:
        yield (
            f"GAP: the previous statement ends at {_at(before.until, zone)} and this one begins at "
            f"{_at(statement.since, zone)}: the time between is in neither."
        )
    elif before.since >= statement.until:
        yield (
            f"ORDER: the previous statement begins at {_at(before.since, zone)} and this one ends at "
            f"{_at(statement.until, zone)}: the previous statement is the later one."
        )
    elif before.until > statement.since:
        both = (max(before.since, statement.since), min(before.until, statement.until))
        begins, ends = (_at(unix, zone) for unix in both)
        yield f"OVERLAP: the time from {begins} to {ends} is in the previous statement and in this one."
    for what, one, other in (
        ("nodes", sorted(set(before.nodes.values())), sorted(set(statement.nodes.values()))),
        ("currency", [before.terms.prices.currency], [statement.terms.prices.currency]),
        ("basis", [before.report.basis], [statement.report.basis]),
    ):
        if one != other:
            texts = [", ".join(names) or "none" for names in (one, other)]
            yield f"The previous statement has the {what} {texts[0]}, this one {texts[1]}."


def _at(microseconds: int, zone: tzinfo) -> str:
    return format_local_time(microseconds / MICRO, zone)


def statement_text(statement: Statement) -> str:
    """The file of a statement: JSON with a line for each section and each row."""
    sealed = seal_statement(statement_as_json(statement))
    return (
        "{\n" + ",\n".join(f"{json.dumps(key)}: {_section(part)}" for key, part in sealed.items()) + "\n}\n"
    )


def _section(part: object) -> str:
    if isinstance(part, list) and part and isinstance(part[0], dict):
        return "[\n" + ",\n".join(map(json.dumps, part)) + "\n]"
    return json.dumps(part)


def require_new_file(file: str) -> None:
    """Raise UsageError if there is such a file: a statement that was sent is never overwritten."""
    # Unlike that of Path, it raises nothing for a name that is too long.
    if os.path.isdir(file) or file.endswith(os.sep):  # noqa: PTH112
        raise UsageError(f"--statement {file} is a directory: add the name of a file")
    if os.path.lexists(file):
        _refuse_file(file)


def _refuse_file(file: str) -> NoReturn:
    raise UsageError(f"--statement {file} exists, and a statement is never overwritten: choose another name")


def write_new_file(file: str, text: str) -> None:
    """Write a file that does not exist yet: all of it or nothing. Raises GpuledgerError."""
    path = Path(file)
    temporary = path.with_name(f".gpuledger-{os.getpid()}-{time.time_ns()}.tmp")
    try:
        with temporary.open("x", encoding="ascii") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        _publish(temporary, path)
        sync_directory(path.parent)
    except FileExistsError:
        _refuse_file(file)
    except OSError as error:
        raise GpuledgerError(
            f"cannot write the statement {file}: {error.strerror}; check the directory and its disk"
        ) from None
    finally:
        # It fails where the file could not be written, such as in a directory that may not be entered.
        with suppress(OSError):
            temporary.unlink()


def _publish(temporary: Path, path: Path) -> None:
    try:
        # Fails if the file has appeared since: a rename would replace it.
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        temporary.rename(path)


@dataclass(frozen=True, slots=True)
class StatementFile:
    """A statement as read. `problems` say where it is not as it was written; `statement` is None if these
    leave nothing to read.
    """

    sha256: str
    statement: Statement | None
    problems: Sequence[str]


def read_statement(file: str) -> StatementFile:
    """Read and check a file. Raises UnreadableStatement if it is no statement of this version."""
    content = _read_json(file)
    alterations = find_alterations(content)
    found = content.get(VERSION_KEY)
    # Another version may have other digests of parts.
    if found != VERSION and statement_hash(content) == content.get(HASH):
        raise UnreadableStatement(
            f"{file} is a statement of version {found}, and this gpuledger reads version {VERSION}: use the "
            f"gpuledger that wrote it ({content.get('program', 'version unknown')}), or a newer one"
        )
    sha256 = str(content.get(HASH, ""))
    try:
        statement = parse_statement(content)
    except MalformedStatement as error:
        if not alterations:
            raise UnreadableStatement(f"{file} is intact, and cannot be read here: {error}") from None
        return StatementFile(sha256, None, _alteration_texts(content, alterations))
    problems = _alteration_texts(content, alterations)
    if not problems:
        try:
            found_wrong = find_contradictions(content, statement)
        except ValueError:
            # Sums of crafted fractions can have more digits than Python prints.
            found_wrong = {"total": "cannot be computed: amounts have too many digits"}
        problems = [f"{_place_text(content, place)} {wrong}" for place, wrong in found_wrong.items()]
    return StatementFile(sha256, statement, problems)


def _read_json(file: str) -> dict[str, Any]:
    try:
        text = read_at_most(file, _LARGEST)
        try:
            content = _parse_json(text)
        except ValueError:
            content = _parse_json(_TEXT_OR_NUMBER.sub(_quoted, text))
    except OSError as error:
        remedy = (
            "name a file in it"
            if error.errno == errno.EISDIR
            else "check the name and the permissions of the file"
        )
        raise UnreadableStatement(f"cannot read the statement {file}: {error.strerror}; {remedy}") from None
    except (ValueError, RecursionError) as error:
        raise UnreadableStatement(
            f"{file} is not a statement: it is not JSON ({error}); name a file of `report --statement`"
        ) from None
    if not isinstance(content, dict) or VERSION_KEY not in content:
        raise UnreadableStatement(f"{file} is not a statement of gpuledger: it has no {VERSION_KEY}")
    return content


def _parse_json(text: bytes) -> Any:
    return json.loads(
        text,
        parse_float=OtherNumber,
        parse_int=_parse_integer,
        parse_constant=_refuse_constant,
        object_pairs_hook=_unique,
    )


@dataclass(frozen=True, slots=True)
class OtherNumber:
    """A number that no statement has: with a decimal point or an exponent, or with too many digits."""

    text: str


def _parse_integer(digits: str) -> int | OtherNumber:
    return int(digits) if len(digits) <= _LONGEST_INTEGER else OtherNumber(digits)


def _quoted(found: re.Match[bytes]) -> bytes:
    token = found[0]
    return b'"%b"' % token if re.match(rb"-?0\d", token) else token


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise ValueError(f"an object has {twice} twice")
    return found


def _alteration_texts(content: Mapping[str, Any], places: Sequence[str]) -> list[str]:
    texts = [f"{_place_text(content, place)} is not as it was written" for place in places[:_NAMED]]
    if len(places) > _NAMED:
        texts.append(f"and {len(places) - _NAMED} more places")
    if places == [HASH]:
        texts = [f"{HASH} is not that of the contents, which is {statement_hash(content)}"]
    return texts


def _place_text(content: Mapping[str, Any], place: str) -> str:
    """A place, and the name of its row or GPU."""
    match = _PLACE.match(place)
    section = content.get(match["section"]) if match else None
    number = int(match["number"]) if match else 0
    row = section[number] if isinstance(section, list) and number < len(section) else None
    if not isinstance(row, dict):
        return place
    names = row.get("name")
    words = list(names.values()) if isinstance(names, dict) else [row.get("uuid", row.get("team", names))]
    name = "/".join(str(word) for word in words if word) or row.get("account")
    return f"{place} ({name})" if name else place


def _require_parsed(found: StatementFile, file: str) -> Statement:
    if found.statement is None:
        raise UnreadableStatement(f"{file} cannot be read")
    return found.statement


def check_chain(found: StatementFile, after: str) -> tuple[list[str], list[str]]:
    """Problems of a statement's link to the previous one, and sentences on a gap or overlap."""
    statement = found.statement
    if statement is None:
        return [], []
    if statement.previous is None:
        return [f"it follows no statement: it was written without --after {after}"], []
    previous = read_statement(after)
    if previous.problems or previous.statement is None:
        return [f"{after}: {problem}" for problem in previous.problems], []
    if previous.sha256 != statement.previous.sha256:
        return [
            f"it follows the statement with the SHA-256 {statement.previous.sha256}, and {after} has "
            f"{previous.sha256}"
        ], []
    return [], list(_seams(statement, previous.statement))
