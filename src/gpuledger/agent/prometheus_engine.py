"""The same work for a Prometheus in agent mode: its configuration, made of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from gpuledger.agent.config.file import AgentConfig
from gpuledger.agent.deliver.settings import ClientTls, Login, ReceiverSettings, Secret
from gpuledger.agent.discovery.meta import META, NODE, PORT_NAME, PORT_NUMBER, PORT_PROTOCOL, sanitized
from gpuledger.agent.discovery.places import RUNNING
from gpuledger.agent.discovery.selection import POD_MONITOR, EndpointSettings, Selection
from gpuledger.agent.discovery.sharding import Shard
from gpuledger.agent.relabel.rule import Relabelling, Rule
from gpuledger.agent.scrape.settings import ScrapeSettings, Target
from gpuledger.host.yaml_nodes import TLS_VERSIONS
from gpuledger.kubernetes.access import Access
from gpuledger.model.errors import UsageError
from gpuledger.model.text import as_prometheus

Yaml = dict[str, Any]


def tls_config(tls: ClientTls) -> Yaml:
    """The key tls_config where there is anything to say. Raises UsageError for what is in no file."""
    found: Yaml = {
        "ca_file": _file(tls.ca, "tlsConfig"),
        "cert_file": _file(tls.certificate, "tlsConfig"),
        "key_file": _file(tls.key, "tlsConfig"),
        "server_name": tls.server_name,
        "insecure_skip_verify": not tls.verify,
    }
    found = {name: value for name, value in found.items() if value}
    return {"tls_config": found} if found else {}


def login_config(login: Login | None) -> Yaml:
    """The key basic_auth or authorization. Raises UsageError for what is in no file, but for usernames."""
    if login is None:
        return {}
    if login.scheme == "Basic":
        return {
            "basic_auth": {
                "username": _username(login),
                "password_file": _file(login.credentials, "basicAuth"),
            }
        }
    return {
        "authorization": {
            "type": login.scheme,
            "credentials_file": _file(login.credentials, "authorization"),
        }
    }


def _username(login: Login) -> str:
    """As text, which a password never is: Prometheus 2.42 knows no file for it."""
    alone = "basicAuth: Prometheus takes a username from its configuration alone"
    if login.user.held is not None:
        raise UsageError(f"{alone}; give username")
    if login.user.file is None:
        return login.user.text
    try:
        return login.user.file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"{alone}, and {login.user.file} cannot be read; give username") from None


def _file(secret: Secret, what: str) -> str:
    if secret.absent:
        return ""
    if secret.held is not None:
        raise UsageError(f"{what}: {secret.held.name} is not a file; mount it where Prometheus will run")
    if secret.file is None:
        raise UsageError(f"{what}: secrets are not printed; give the file in which Prometheus will find it")
    return str(secret.file.absolute())


# What means the same there, whatever is written after it.
_SAME: Final = (
    *("name", "remote_timeout", "write_relabel_configs", "metadata_config"),
    *("follow_redirects", "enable_http2"),
)
# Of `queue_config`, what came after 2.42; our own queue has bounds of its own besides.
_LATER: Final = frozenset({"sample_age_limit"})
# The one usual header that is no secret: whose the samples are, where a store has several tenants.
_TENANT: Final = "x-scope-orgid"
_VERSIONS: Final = {number: word for word, number in TLS_VERSIONS.items()}


def receiver_config(receiver: ReceiverSettings, written: Mapping[str, Any]) -> Yaml:
    """An entry of remote_write; `written` is ours as YAML has it.

    Raises UsageError for secrets, which are not repeated, and for what Prometheus has no words for.
    """
    queue = {name: value for name, value in (written.get("queue_config") or {}).items() if name not in _LATER}
    return {
        "url": receiver.url,
        **{key: written[key] for key in _SAME if written.get(key) is not None},
        **({"headers": _headers(receiver)} if receiver.headers else {}),
        **login_config(receiver.login),
        **_tls(receiver),
        **({"queue_config": queue} if queue else {}),
    }


def _headers(receiver: ReceiverSettings) -> Yaml:
    for name, value in receiver.headers:
        if name.lower() != _TENANT or value.file is not None:
            raise UsageError(
                f"{receiver.name}: what the header {name} says may be a secret and is not printed; leave it "
                "out here, and add it to what is printed"
            )
    return {name: value.text for name, value in receiver.headers}


def _tls(receiver: ReceiverSettings) -> Yaml:
    found = tls_config(receiver.tls)
    if receiver.tls.min_version > 12:
        found.setdefault("tls_config", {})["min_version"] = _VERSIONS[receiver.tls.min_version]
    if receiver.tls.max_version < 13:
        raise UsageError(f"{receiver.name}: Prometheus 2.42 knows no tls_config.max_version; leave it out")
    return found


_SLICE: Final = f"{META}endpointslice_"


def prometheus_config(
    config: AgentConfig, written: Mapping[str, Any], access: Access | None, shard: Shard
) -> Yaml:
    """A configuration for Prometheus 2.42 and newer. `written` is our own file as YAML has it: much of what
    it says of receivers and external labels is in Prometheus's words already.

    Raises UsageError for what Prometheus has no words for, and for secrets, which are not repeated.
    """
    jobs = [_static(target, number, shard) for number, target in enumerate(config.targets)]
    for selection in config.selections:
        for number, endpoint in enumerate(selection.endpoints):
            jobs.append(_selected(selection, endpoint, number, access, shard))
    external = (written.get("global") or {}).get("external_labels") or {}
    receivers = [
        receiver_config(one, told)
        for one, told in zip(config.receivers, written["remote_write"], strict=True)
    ]
    return {
        **({"global": {"external_labels": external}} if external else {}),
        "scrape_configs": jobs,
        "remote_write": receivers,
    }


def _static(target: Target, number: int, shard: Shard) -> Yaml:
    parts = urlsplit(target.url)
    labels = dict(target.labels)
    if labels.get("instance") == parts.netloc:
        del labels["instance"]
    where = EndpointSettings(
        "",
        parts.scheme,
        parts.path,
        {name: tuple(values) for name, values in parse_qs(parts.query, keep_blank_values=True).items()},
        target.settings,
    )
    return {
        "job_name": f"{target.group}/static/{number}",
        **_scraping(where),
        "static_configs": [{"targets": [parts.netloc], "labels": labels}],
        **_rules("relabel_configs", _sharing(shard)),
    }


def _selected(
    selection: Selection, endpoint: EndpointSettings, number: int, access: Access | None, shard: Shard
) -> Yaml:
    if selection.namespaces.selector:
        raise UsageError(
            f"{selection.name}: Prometheus cannot select namespaces by their labels; give matchNames, or "
            "leave the engine as it is"
        )
    pods = selection.kind == POD_MONITOR
    role = "pod" if pods else "endpointslice"
    sd: Yaml = {"role": role}
    if selection.namespaces.names:
        sd["namespaces"] = {"names": sorted(selection.namespaces.names)}
    if selection.selector:
        sd["selectors"] = [{"role": "pod" if pods else "service", "label": str(selection.selector)}]
    if endpoint.add_node_label and selection.mentions(NODE):
        sd["attach_metadata"] = {"node": True}
    if access is not None:
        sd |= _api_server(access)
    rules = [
        Rule(target_label="job", replacement=selection.name.replace("$", "$$")),
        *_of_job(selection),
        *(_of_pods(endpoint) if pods else _of_services(endpoint)),
        *selection.rules.rules,
        *_sharing(shard),
    ]
    return {
        "job_name": selection.name if not number else f"{selection.name}/{number}",
        **_scraping(endpoint),
        "kubernetes_sd_configs": [sd],
        **_rules("relabel_configs", rules),
    }


def _of_job(selection: Selection) -> Iterable[Rule]:
    if selection.job_label:
        kind = "pod" if selection.kind == POD_MONITOR else "service"
        label = f"{META}{kind}_label_{sanitized(selection.job_label)}"
        yield Rule(source_labels=(label,), regex="(.+)", target_label="job")


def _of_pods(endpoint: EndpointSettings) -> Iterable[Rule]:
    yield Rule("keep", (f"{META}pod_phase",), regex=RUNNING)
    if endpoint.number:
        # Every container of the pod is a target then, all equal: Prometheus makes one of equal targets.
        for regex, replacement in (("([^:]+)", "$1"), ("(.*:.*)", "[$1]")):
            yield Rule(
                source_labels=(f"{META}pod_ip",),
                regex=regex,
                target_label="__address__",
                replacement=f"{replacement}:{endpoint.number}",
            )
    elif endpoint.port:
        yield Rule("keep", (PORT_NAME, PORT_PROTOCOL), regex=f"{re.escape(endpoint.port)};TCP")
    else:
        yield Rule("keep", (PORT_NUMBER, PORT_PROTOCOL), regex=".+;TCP")
    if endpoint.add_node_label:
        yield Rule(source_labels=(f"{META}pod_node_name",), target_label="node")


def _of_services(endpoint: EndpointSettings) -> Iterable[Rule]:
    yield Rule("keep", (f"{META}service_name",), regex=".+")
    yield Rule("drop", (f"{META}pod_phase",), regex="Succeeded|Failed")
    yield Rule("drop", (f"{_SLICE}address_type",), regex="FQDN")
    if endpoint.number:
        # Prometheus knows the number behind the service alone, not the service's own.
        yield Rule("keep", (f"{_SLICE}port", f"{_SLICE}port_protocol"), regex=f"{endpoint.number};TCP")
    else:
        name = re.escape(endpoint.port) if endpoint.port else ".*"
        yield Rule("keep", (f"{_SLICE}port_name", f"{_SLICE}port_protocol"), regex=f"{name};TCP")
    if endpoint.add_node_label:
        for label in (f"{META}pod_node_name", f"{_SLICE}endpoint_topology_kubernetes_io_hostname"):
            yield Rule(source_labels=(label,), regex="(.+)", target_label="node")


def _sharing(shard: Shard) -> tuple[Rule, ...]:
    if shard.count == 1:
        return ()
    label = "__tmp_shard"
    return (
        Rule("hashmod", ("__address__",), modulus=shard.count, target_label=label),
        Rule("keep", (label,), regex=str(shard.index)),
    )


def _scraping(endpoint: EndpointSettings) -> Yaml:
    settings = endpoint.settings
    return {
        "scrape_interval": as_prometheus(settings.interval),
        "scrape_timeout": as_prometheus(settings.timeout),
        "scheme": endpoint.scheme,
        "metrics_path": endpoint.path,
        **(
            {"params": {key: list(values) for key, values in endpoint.params.items()}}
            if endpoint.params
            else {}
        ),
        # Ours decides by the page where nothing is said, which is for honoring wherever there are GPUs.
        "honor_labels": settings.honor_labels is not False,
        "honor_timestamps": settings.honor_timestamps,
        **_limits(settings),
        **({} if settings.follow_redirects else {"follow_redirects": False}),
        **tls_config(settings.tls),
        **login_config(settings.login),
        **_rules("metric_relabel_configs", settings.relabelling.rules),
    }


def _limits(settings: ScrapeSettings) -> Yaml:
    limits = settings.label_limits
    found = {
        "body_size_limit": f"{settings.body_limit}B" if settings.body_limit else 0,
        "sample_limit": settings.sample_limit,
        "label_limit": limits.labels,
        "label_name_length_limit": limits.name_length,
        "label_value_length_limit": limits.value_length,
    }
    return {name: limit for name, limit in found.items() if limit}


def _api_server(access: Access) -> Yaml:
    found: Yaml = {"api_server": access.url}
    if access.token_file is not None:
        found["authorization"] = {"credentials_file": str(access.token_file)}
    tls: Yaml = {"ca_file": str(access.ca_file)} if access.ca_file is not None else {}
    if not access.verify:
        tls["insecure_skip_verify"] = True
    return {**found, "tls_config": tls} if tls else found


def _rules(key: str, rules: Iterable[Rule]) -> Yaml:
    told = [_rule(rule) for rule in Relabelling(rules).rules]
    return {key: told} if told else {}


def _rule(rule: Rule) -> Yaml:
    plain = Rule()
    found: Yaml = {"source_labels": list(rule.source_labels)} if rule.source_labels else {}
    for name in ("separator", "regex", "modulus", "target_label", "replacement"):
        if getattr(rule, name) != getattr(plain, name):
            found[name] = getattr(rule, name)
    return {**found, "action": rule.action}
