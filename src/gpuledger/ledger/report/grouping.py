"""Report groupings: the columns that name a row, and the row key of each party."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuledger.ledger.owners import kubernetes_job, user_of
from gpuledger.ledger.report.party import Party
from gpuledger.ledger.report.report_keys import GATEWAY, GROUPINGS, LABEL, NODE, SERVED_MODEL, TEAM
from gpuledger.ledger.report.teams import Team, find_team
from gpuledger.model.devices import Device
from gpuledger.model.errors import UsageError, unknown_name_error
from gpuledger.model.workload import FACTS, KEY_FACTS

Key = tuple[str, ...]
# A key of files: JSON of the labels of a pod, and of what else is known of an owner, by `gpuledger_tag`.
OWNER_TAGS = "tags"
# Kinds of owners that have one user.
_JOBS = frozenset(("slurm", "job"))
NameOfParty = Callable[[Party], str]
NameOfGpu = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Grouping:
    """`columns` name the parts of a key. Its texts are empty for parties without such a name.

    `own_key` is the key of a Gpu's own accounts (idle, unattributed, ...) by the Gpu's uuid: what the Gpu has
    (gpu, model, node), and empty texts for the rest. `teams` are the entries of the key `team`, if it is one
    of the keys; `node_of` returns the node of a Device, by which they match.
    """

    name: str
    columns: tuple[str, ...]
    key: Callable[[Party], Key]
    own_key: Callable[[str], Key]
    teams: Sequence[Team] = ()
    node_of: NameOfGpu = lambda _: ""


@dataclass(frozen=True, slots=True)
class _Column:
    """One column of a key. `of_gpu` is the name that a Gpu's own accounts have, None if they have none."""

    name: str
    of_party: NameOfParty
    of_gpu: NameOfGpu | None = None


def find_grouping(
    by: str,
    devices: Mapping[str, Device],
    *,
    teams: Sequence[Team] = (),
    node_of: NameOfGpu | None = None,
    served_model_of: NameOfParty | None = None,
) -> Grouping:
    """The grouping by these keys, separated by commas: GROUPINGS, `label:NAME` for a pod label, team, node,
    served_model.

    `node_of` returns the node of a Device by its uuid, `served_model_of` the model that a party serves.
    Raises UsageError for an unknown or repeated key, and for those that need what is not known.
    """
    sources = _KeySources(devices, teams, node_of, served_model_of)
    kinds = [word.strip() for word in by.split(",")]
    for place, kind in enumerate(kinds):
        if not kind:
            raise UsageError(f"--by '{by}' has an empty key: write keys as in --by team,gpu")
        if kind in kinds[:place]:
            raise UsageError(f"--by {by}: {kind} is given twice")
    columns = _merge_columns({kind: sources.columns_of(kind) for kind in kinds})
    of_gpus = [column.of_gpu or _no_name for column in columns]
    return Grouping(
        ",".join(kinds),
        tuple(column.name for column in columns),
        _key_function([column.of_party for column in columns]),
        lambda uuid: tuple(of_gpu(uuid) for of_gpu in of_gpus),
        teams if TEAM in kinds else (),
        node_of or _no_name,
    )


def _key_function(names: Sequence[NameOfParty]) -> Callable[[Party], Key]:
    return lambda party: tuple(name(party) for name in names)


def _no_name(_: str) -> str:
    return ""


def _merge_columns(by_kind: Mapping[str, Sequence[_Column]]) -> list[_Column]:
    """The columns of all keys, each once: `pod,container` has the columns namespace, pod, container.

    The namespace of a job or controller is empty for pods without one, that of the other keys is not.
    """
    found: dict[str, _Column] = {}
    for kind, columns in by_kind.items():
        for column in columns:
            name = column.name
            if kind.startswith(LABEL) and (name in found or name in _names_of_others(kind, by_kind)):
                name = kind
            if name not in found or _covers(column, found[name]):
                found[name] = replace(column, name=name)
    return list(found.values())


def _names_of_others(kind: str, by_kind: Mapping[str, Sequence[_Column]]) -> set[str]:
    return {column.name for other, columns in by_kind.items() if other != kind for column in columns}


@dataclass(frozen=True, slots=True)
class _KeySources:
    """What is known beside the party itself."""

    devices: Mapping[str, Device]
    teams: Sequence[Team]
    node_of: NameOfGpu | None
    served_model_of: NameOfParty | None

    def columns_of(self, kind: str) -> Sequence[_Column]:
        """The columns of one key. Raises UsageError."""
        if kind.startswith(LABEL):
            return [_label_column(kind)]
        if kind in _BY_OWNER:
            return _BY_OWNER[kind]
        if kind == "gpu":
            return [self._gpu_column(place, name) for place, name in enumerate(("uuid", "gpu", "model"))]
        if kind == "model":
            return [self._gpu_column(2, "model")]
        if kind == NODE:
            return [self._node_column()]
        if kind == TEAM:
            return [self._team_column()]
        if kind == SERVED_MODEL:
            return [self._served_model_column()]
        if kind.startswith(GATEWAY):
            raise UsageError(f"--by {kind} needs --prometheus: the token counters of gateways are there")
        if kind == OWNER_TAGS:
            return [_Column(OWNER_TAGS, _owner_tags)]
        raise unknown_name_error(
            "--by", kind, (*GROUPINGS, TEAM, NODE, SERVED_MODEL, "label:NAME", "gateway:LABEL")
        )

    def _gpu_column(self, place: int, name: str) -> _Column:
        def of_gpu(uuid: str) -> str:
            return gpu_key(uuid, self.devices)[place]

        return _Column(name, lambda party: of_gpu(party.device), of_gpu)

    def _node_column(self) -> _Column:
        node_of = self.node_of
        if node_of is None:
            raise UsageError("--by node needs --prometheus: a ledger is of one node")
        return _Column(NODE, lambda party: node_of(party.device), node_of)

    def _served_model_column(self) -> _Column:
        if self.served_model_of is None:
            raise UsageError(
                "--by served_model needs --prometheus: the token counters of inference servers are there, "
                "not in a ledger"
            )
        return _Column(SERVED_MODEL, self.served_model_of)

    def _team_column(self) -> _Column:
        if not self.teams:
            raise UsageError(
                "--by team: no teams are set; list them in the configuration file, such as teams: [{team: "
                "vision, namespace: 'vision-*'}]"
            )
        node_of = self.node_of or _no_name
        return _Column(TEAM, lambda party: find_team(self.teams, party.owner, node_of(party.device)))


def gpuledger_tag(name: str) -> str:
    """The tag of a fact that gpuledger knows: labels of pods, which users define, have no prefix."""
    return f"gpuledger/{name}"


def _owner_tags(party: Party) -> str:
    """Empty without tags. The user is only that of jobs: processes of another owner may differ in it."""
    owner = party.owner
    facts = {fact: str(getattr(owner, fact)) for fact in FACTS}
    facts["user"] = owner.user if owner.kind in _JOBS else ""
    tags = {**dict(owner.labels), **{gpuledger_tag(fact): text for fact, text in facts.items() if text}}
    return json.dumps(tags, sort_keys=True, ensure_ascii=False) if tags else ""


def _label_column(kind: str) -> _Column:
    name = kind.removeprefix(LABEL)
    if not name:
        raise UsageError("--by label: requires a pod label's name, such as --by label:team")
    return _Column(
        kind if name in _REPORT_COLUMNS else name, lambda party: dict(party.owner.labels).get(name, "")
    )


def gpu_key(uuid: str, devices: Mapping[str, Device]) -> tuple[str, str, str]:
    """Uuid, index and model of a Device's Gpu."""
    device = devices.get(uuid)
    if device is None:
        return (uuid, "", "")
    gpu = device.gpu
    return (gpu.uuid, str(gpu.index), gpu.name)


def _name(party: Party) -> str:
    """The most specific known name of the owner."""
    owner = party.owner
    names = {
        "pod": owner.pod or owner.pod_uid,
        "container": owner.container or owner.container_id,
        "slurm": owner.job,
        "job": owner.job,
        "unit": owner.unit,
        "user": owner.user,
    }
    return names.get(owner.kind, "")


def _job_namespace(party: Party) -> str:
    return party.owner.namespace if kubernetes_job(party.owner) else ""


def _controller_namespace(party: Party) -> str:
    return party.owner.namespace if party.owner.controller else ""


# The namespace of a job is empty for other pods, that of a controller for pods without one.
_PARTLY_NAMESPACES = (_job_namespace, _controller_namespace)


def _covers(column: _Column, other: _Column) -> bool:
    """Whether a column of the same name has a text where the other has none."""
    ranks = [
        _PARTLY_NAMESPACES.index(one.of_party) if one.of_party in _PARTLY_NAMESPACES else 2
        for one in (column, other)
    ]
    return ranks[0] > ranks[1]


def _fact_column(fact: str) -> _Column:
    return _Column(fact, lambda party: str(getattr(party.owner, fact)))


_NAMESPACE = _Column("namespace", lambda party: party.owner.namespace)
_POD = _Column("pod", lambda party: party.owner.pod)
_BY_OWNER: dict[str, tuple[_Column, ...]] = {
    "owner": (_Column("kind", lambda party: party.owner.kind), _NAMESPACE, _Column("owner", _name)),
    "namespace": (_NAMESPACE,),
    "pod": (_NAMESPACE, _POD),
    "container": (_NAMESPACE, _POD, _Column("container", lambda party: party.owner.container)),
    "controller": (
        _Column("namespace", _controller_namespace),
        _fact_column("controller_kind"),
        _fact_column("controller"),
    ),
    "user": (_Column("user", lambda party: user_of(party.owner)),),
    # The job of a batch system, or the Kubernetes Job that created the pod.
    "job": (
        _Column("namespace", _job_namespace),
        _Column("job", lambda party: party.owner.job or kubernetes_job(party.owner)),
    ),
    **{fact: (_fact_column(fact),) for fact in KEY_FACTS},
    "unit": (_Column("unit", lambda party: party.owner.unit),),
    "command": (_Column("command", lambda party: party.command),),
}
# Columns of the files of reports beside those of the key.
_REPORT_COLUMNS = frozenset(("account", "period"))
