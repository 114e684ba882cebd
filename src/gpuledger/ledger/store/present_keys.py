"""Finds the keys by which a report of a range has names, and how many: what a user can choose between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from gpuledger.ledger.owners import kubernetes_job, user_of
from gpuledger.ledger.report.gpu_time import NONE_RUNNING
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.report.report_keys import LABEL, TEAM
from gpuledger.ledger.report.teams import Team, find_team

if TYPE_CHECKING:
    from gpuledger.ledger.store.history import History

# Parties of which the names are known to be counted.
_CACHED = 256
_SPLITS = "SELECT DISTINCT split FROM time_spans WHERE quarter >= ? AND quarter < ?"
_FOLDED = (
    "SELECT DISTINCT party FROM hour_gpu_time WHERE quarter >= ? AND quarter < ? AND party > 0",
    "SELECT DISTINCT party FROM hour_times WHERE quarter >= ? AND quarter < ?",
)
# Detail from before the time books.
_SESSIONS = (
    "SELECT DISTINCT session FROM spans JOIN shares ON span = number WHERE quarter >= ? AND quarter < ?"
)


class PresentKey(NamedTuple):
    """A key of reports, and the number of its names in the range."""

    by: str
    names: int


def present_keys(
    history: History, since: int, until: int, teams: Sequence[Team] = (), node: str = ""
) -> list[PresentKey]:
    """The keys with names in the quarters from `since` to before `until`, in the order to offer them.

    Keys of bills come before those of single workloads and of hardware. Raises sqlite3.Error.
    """
    of_bill: dict[str, Callable[[Party], str]] = {
        "job": lambda party: party.owner.job or kubernetes_job(party.owner),
        "slurm_account": lambda party: party.owner.slurm_account,
        TEAM: lambda party: find_team(teams, party.owner, node),
        "user": lambda party: user_of(party.owner),
        "namespace": lambda party: party.owner.namespace,
        "queue": lambda party: party.owner.queue,
    }
    of_workload: dict[str, Callable[[Party], str]] = {
        "pod": lambda party: party.owner.pod,
        "job_name": lambda party: party.owner.job_name,
        "array_job": lambda party: party.owner.array_job,
        # The containers of pods and the units of users add little to the pods and users.
        "container": _name_of_kind("container", lambda party: party.owner.container),
        "unit": _name_of_kind("unit", lambda party: party.owner.unit),
    }
    names: dict[str, set[str]] = defaultdict(set)

    # Only the names are kept: a week can have many more parties than names.
    @lru_cache(_CACHED)
    def add(party: Party) -> None:
        if history.is_own(party):
            for by, name in (*of_bill.items(), *of_workload.items()):
                names[by].add(name(party))
            names["command"].add(party.command)
            for label, value in party.owner.labels:
                names[LABEL + label].add(value)

    for party in _parties(history, since, until):
        add(party)
    names["gpu"] = {device.gpu.uuid for device in history.devices.values()}
    names["command"].discard(NONE_RUNNING)
    labels = sorted(by for by in names if by.startswith(LABEL))
    keys = (*of_bill, *labels, *of_workload, "gpu", "command")
    found = [PresentKey(by, len(names[by] - {""})) for by in keys]
    return [key for key in found if key.names]


def best_key(keys: Sequence[PresentKey]) -> str:
    """The first key with several names, else the first one."""
    return next((key.by for key in keys if key.names > 1), keys[0].by if keys else "owner")


def _name_of_kind(kind: str, name: Callable[[Party], str]) -> Callable[[Party], str]:
    return lambda party: name(party) if party.owner.kind == kind else ""


def _parties(history: History, since: int, until: int) -> Iterator[Party]:
    """The parties with time in these quarters."""
    connection, within = history.connection, (since, until)
    for query in _FOLDED:
        for (number,) in connection.execute(query, within):
            yield history.party(number)
    reader = history.time_reader
    for (number,) in connection.execute(_SPLITS, within):
        for split in reader.split(number):
            for entry in split.entries:
                party = reader.entry_party(entry.session, entry.owner)
                if party is not None:
                    yield party
    if history.time_from is None or since < history.time_from:
        for (session,) in connection.execute(_SESSIONS, within):
            yield history.session(session)
