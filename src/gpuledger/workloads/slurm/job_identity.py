"""The user and the facts of a Slurm job, from its processes. Pure.

A user can change the environment of a process, and run processes of other users in a job (sudo). Therefore a
variable is believed only from a process of the job's user, if the variables name that uid. Those that
slurmstepd started itself decide, else all others together, and only if they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from gpuledger.model.text import clean_name

# Variables of slurmstepd, by the field of SlurmJob.
_FACTS: Final = {
    "account": "SLURM_JOB_ACCOUNT",
    "partition": "SLURM_JOB_PARTITION",
    "name": "SLURM_JOB_NAME",
    "array_job": "SLURM_ARRAY_JOB_ID",
    "array_task": "SLURM_ARRAY_TASK_ID",
}
_NUMBER, _USER, _UID = "SLURM_JOB_ID", "SLURM_JOB_USER", "SLURM_JOB_UID"
IDENTITY_VARIABLES: Final = (_NUMBER, _USER, _UID, *_FACTS.values())

Environment = Mapping[str, str]
NO_VARIABLES: Final[Environment] = MappingProxyType({})


class ProcessIdentity(NamedTuple):
    """The real uid of a process of a job, None if unreadable, and its variables, empty if unreadable.

    `first` marks a process that slurmstepd started itself.
    """

    uid: int | None
    environment: Environment = NO_VARIABLES
    first: bool = False

    @property
    def agrees(self) -> bool:
        """Whether the variables name the user of the process."""
        return self.uid is not None and self.environment.get(_UID) == str(self.uid)

    def is_of(self, uid: int | None) -> bool:
        """Whether this is a process of the user with this uid, and its variables do not contradict."""
        return uid is not None and self.uid == uid and self.environment.get(_UID, str(uid)) == str(uid)


def find_job_uid(processes: Sequence[ProcessIdentity]) -> int | None:
    """The uid of the job's user; None if the processes do not show it.

    The best evidence are processes that slurmstepd started with variables of the same user, then any process
    with such variables, then any. Root counts only if the variables name root: it runs processes in the jobs
    of other users. Evidence for two users shows none.
    """
    for group in (
        [one for one in processes if one.first and one.agrees],
        [one for one in processes if one.agrees],
    ):
        uids = {one.uid for one in group}
        if found := uids - {0} or uids:
            return found.pop() if len(found) == 1 else None
    others = {one.uid for one in processes} - {0, None}
    return others.pop() if len(others) == 1 else None


def find_user(
    uid: int | None,
    processes: Iterable[ProcessIdentity],
    user_name: Callable[[int], str],
    uid_of: Callable[[str], int | None],
) -> str:
    """The name of the job's user: the machine's, else the job's own, else the uid; empty without a uid.

    `user_name` returns the number as text for a user that this machine does not know. A name that belongs to
    another user of this machine (`uid_of`) is not believed.
    """
    if uid is None:
        return ""
    known = user_name(uid)
    if known != str(uid):
        return known
    name = agreed_variable(processes, uid, _USER)
    return name if name and uid_of(name) in (None, uid) else known


def job_facts(uid: int | None, processes: Sequence[ProcessIdentity]) -> dict[str, Any]:
    """The account, partition, name and array of the job, by field of SlurmJob; empty if not known."""
    return {field: agreed_variable(processes, uid, variable) for field, variable in _FACTS.items()}


def job_number(uid: int | None, processes: Iterable[ProcessIdentity]) -> str:
    """The job's number by its own variables."""
    return agreed_variable(processes, uid, _NUMBER)


def agreed_variable(processes: Iterable[ProcessIdentity], uid: int | None, variable: str) -> str:
    """The value that the deciding processes agree on, else empty."""
    deciding = deciding_processes(processes, uid)
    values = {one.environment[variable] for one in deciding if variable in one.environment}
    return clean_name(values.pop()) if len(values) == 1 else ""


def deciding_processes(processes: Iterable[ProcessIdentity], uid: int | None) -> list[ProcessIdentity]:
    """The processes with variables of the job's user that slurmstepd started itself, else all others."""
    own = [one for one in processes if one.environment and one.is_of(uid)]
    return [one for one in own if one.first] or own
