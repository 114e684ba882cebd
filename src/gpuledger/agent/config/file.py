"""The agent's configuration file: `features.openAgent`, and Prometheus's `remote_write`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuledger.agent.config.access import AccessReader
from gpuledger.agent.config.open_agent import read_open_agent
from gpuledger.agent.deliver.configuration import read_receivers
from gpuledger.agent.deliver.settings import ReceiverSettings
from gpuledger.agent.discovery.selection import Selection
from gpuledger.agent.relabel.reading import read_rules
from gpuledger.agent.relabel.rule import LABEL_NAME, Relabelling
from gpuledger.agent.scrape.labelling import Delivery
from gpuledger.agent.scrape.loop import Deliveries
from gpuledger.agent.scrape.settings import Target
from gpuledger.agent.secrets import Vault
from gpuledger.host.yaml_nodes import Node, read_nodes


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The targets in the file's order, without those that relabelling drops, which are counted; and to whom
    their samples go. `selections` are to be looked for in a cluster; `automatic` says that nobody asked for
    them by name.
    """

    targets: tuple[Target, ...]
    dropped: int
    receivers: tuple[ReceiverSettings, ...]
    deliveries: Deliveries
    selections: tuple[Selection, ...] = ()
    automatic: bool = False


def read_agent_config(file: Path, environment: Mapping[str, str], vault: Vault | None = None) -> AgentConfig:
    """What the file says. Paths in it are relative to its folder; the files at them are not read yet.

    Raises UsageError with one line that names the file, the key path and what is wanted.
    """
    sections = read_nodes(file, "configuration").section(("features", "global", "remote_write"))
    features = sections["features"].section(("openAgent",))
    external = _external_labels(sections["global"].section(("external_labels",))["external_labels"])
    found = read_open_agent(features["openAgent"], AccessReader(file.parent, environment, vault))
    receivers = read_receivers(sections["remote_write"], file.parent)
    if not receivers:
        raise sections["remote_write"].wrong("is empty: at least one receiver's url is wanted")
    return AgentConfig(
        tuple(found.targets),
        found.dropped,
        receivers,
        deliveries_of(receivers, external),
        tuple(found.selections),
        found.automatic,
    )


def deliveries_of(
    receivers: Sequence[ReceiverSettings], external: tuple[tuple[str, str], ...] = ()
) -> Deliveries:
    """One delivery for all where all have the same write_relabel_configs; else one for each that differs."""
    by_rules: dict[Relabelling, list[str]] = {}
    for receiver in receivers:
        rules = Relabelling(()) if receiver.write_relabel is None else read_rules(receiver.write_relabel)
        by_rules.setdefault(rules, []).append(receiver.name)
    if len(by_rules) == 1:
        return Deliveries(Delivery(external, next(iter(by_rules))))
    plain = frozenset(by_rules.pop(Relabelling(()), ()))
    others = tuple((Delivery(external, rules), frozenset(names)) for rules, names in by_rules.items())
    return Deliveries(Delivery(external), plain, others)


def _external_labels(node: Node) -> tuple[tuple[str, str], ...]:
    found = {}
    for name, value in node.items():
        if not LABEL_NAME.fullmatch(name):
            raise value.wrong("is no label name")
        if value.text():
            found[name] = value.text()
    return tuple(sorted(found.items()))
