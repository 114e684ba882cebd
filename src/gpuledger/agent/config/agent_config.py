"""The agent's configuration file: `features.openAgent` and Prometheus's `global` and `remote_write`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuledger.agent.cluster_secrets import ClusterSecrets
from gpuledger.agent.config.client_auth import ClientAuthReader
from gpuledger.agent.config.open_agent_section import OpenAgentConfig, read_open_agent
from gpuledger.agent.deliver.remote_write_config import read_receivers
from gpuledger.agent.deliver.settings import ReceiverSettings
from gpuledger.agent.relabel.rule_parser import read_relabel_rules
from gpuledger.agent.relabel.rules import LABEL_NAME, RelabelRules
from gpuledger.agent.scrape.loop import ReceiverRouting
from gpuledger.agent.scrape.series_labels import WriteRelabeling
from gpuledger.host.yaml_nodes import YamlNode, read_yaml_root
from gpuledger.model.errors import UsageError, collect_errors, raise_errors


@dataclass(kw_only=True)
class AgentConfig(OpenAgentConfig):
    """Parsed configuration file, not modified afterwards."""

    receivers: tuple[ReceiverSettings, ...]
    routing: ReceiverRouting


def read_agent_config(
    file: Path, environment: Mapping[str, str], secrets: ClusterSecrets | None = None
) -> AgentConfig:
    """Parse the file. Paths in it are relative to its folder; the files at them are not read yet.

    Raises UsageError with one line that names the file, and of each error the key path and what is expected.
    """
    sections = read_yaml_root(file, "configuration").section(("features", "global", "remote_write"))
    errors: list[UsageError] = []
    external: tuple[tuple[str, str], ...] = ()
    found = OpenAgentConfig()
    receivers: tuple[ReceiverSettings, ...] = ()
    with collect_errors(errors):
        external = _external_labels(sections["global"].section(("external_labels",))["external_labels"])
    with collect_errors(errors):
        open_agent = sections["features"].section(("openAgent",))["openAgent"]
        found = read_open_agent(open_agent, ClientAuthReader(file.parent, environment, secrets))
    with collect_errors(errors):
        receivers = read_receivers(sections["remote_write"], file.parent)
        if not receivers:
            raise sections["remote_write"].error("is empty: expected at least one receiver with a url")
    with collect_errors(errors):
        routing = route_receivers(receivers, external)
    raise_errors(errors, f"{file}: ")
    return AgentConfig(receivers=receivers, routing=routing, **vars(found))


def route_receivers(
    receivers: Sequence[ReceiverSettings], external: tuple[tuple[str, str], ...] = ()
) -> ReceiverRouting:
    """Group receivers by write_relabel_configs: one relabeling for all if they are equal."""
    by_rules: dict[RelabelRules, list[str]] = {}
    for receiver in receivers:
        rules = (
            RelabelRules() if receiver.write_relabel is None else read_relabel_rules(receiver.write_relabel)
        )
        by_rules.setdefault(rules, []).append(receiver.name)
    if len(by_rules) == 1:
        return ReceiverRouting(WriteRelabeling(external, next(iter(by_rules))))
    plain = frozenset(by_rules.pop(RelabelRules(), ()))
    others = tuple((WriteRelabeling(external, rules), frozenset(names)) for rules, names in by_rules.items())
    return ReceiverRouting(WriteRelabeling(external), plain, others)


def _external_labels(node: YamlNode) -> tuple[tuple[str, str], ...]:
    found = {}
    errors: list[UsageError] = []
    for name, value in node.items():
        with collect_errors(errors):
            if not LABEL_NAME.fullmatch(name):
                raise value.error("is not a valid label name")
            if value.text():
                found[name] = value.text()
    raise_errors(errors)
    return tuple(sorted(found.items()))
