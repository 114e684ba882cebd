"""Conversion of the agent's configuration to one for Prometheus in agent mode (`--engine prometheus`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from gpuledger.agent.config.agent_config import AgentConfig
from gpuledger.agent.deliver.protocol import VERSION_2
from gpuledger.agent.deliver.settings import ClientTls, Login, ReceiverSettings, Secret
from gpuledger.agent.discovery.addresses import RUNNING
from gpuledger.agent.discovery.meta_labels import (
    META,
    NODE,
    PORT_NAME,
    PORT_NUMBER,
    PORT_PROTOCOL,
    sanitize_label_name,
)
from gpuledger.agent.discovery.selection import POD_MONITOR, EndpointSettings, Selection
from gpuledger.agent.discovery.sharding import Shard
from gpuledger.agent.relabel.rules import RelabelRule
from gpuledger.agent.scrape.settings import Target
from gpuledger.host.yaml_nodes import TLS_VERSIONS
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.model.errors import UsageError, raise_errors
from gpuledger.model.text import format_duration

Yaml = dict[str, Any]
_VERSIONS: Final = {number: word for word, number in TLS_VERSIONS.items()}


def _without_empty(found: Yaml) -> Yaml:
    """Return the entries with a value: empty and false ones are Prometheus's defaults."""
    return {name: value for name, value in found.items() if value}


def tls_config(tls: ClientTls) -> Yaml:
    """Return the key tls_config, or {} for defaults. Raises UsageError for a secret that is not in a file."""
    found = {
        "ca_file": _file(tls.ca, "tlsConfig"),
        "cert_file": _file(tls.certificate, "tlsConfig"),
        "key_file": _file(tls.key, "tlsConfig"),
        "server_name": tls.server_name,
        "insecure_skip_verify": not tls.verify,
        "min_version": _VERSIONS[tls.min_version] if tls.min_version > 12 else "",
    }
    return _without_empty({"tls_config": _without_empty(found)})


def login_config(login: Login | None) -> Yaml:
    """Return the key basic_auth or authorization. Raises UsageError for a secret that is not in a file."""
    if login is None:
        return {}
    if login.scheme == "Basic":
        user, password = _username(login), _file(login.credentials, "basicAuth")
        return {"basic_auth": {"username": user, "password_file": password}}
    credentials = _file(login.credentials, "authorization")
    return {"authorization": {"type": login.scheme, "credentials_file": credentials}}


def _username(login: Login) -> str:
    """Return the username as text: Prometheus 2.42 has no username_file."""
    inline_only = "basicAuth: Prometheus only supports an inline username"
    if login.user.provider is not None:
        raise UsageError(f"{inline_only}; set username")
    if login.user.file is None:
        return login.user.text
    try:
        return login.user.file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"{inline_only}, and {login.user.file} cannot be read; set username") from None


def _file(secret: Secret, what: str) -> str:
    if secret.absent:
        return ""
    if secret.provider is not None:
        raise UsageError(f"{what}: {secret.provider.name} is not a file; mount it into Prometheus's pod")
    if secret.file is None:
        raise UsageError(f"{what}: inline secrets are not printed; use a file that Prometheus can read")
    return str(secret.file.absolute())


# Keys with the same meaning in Prometheus; copied as written.
_SAME: Final = (
    *("name", "remote_timeout", "write_relabel_configs", "metadata_config"),
    *("follow_redirects", "enable_http2"),
)
# Keys of `queue_config` that Prometheus 2.42 does not have.
_LATER: Final = frozenset({"sample_age_limit"})
# The only common header that is not a secret: the tenant of the samples.
_TENANT: Final = "x-scope-orgid"


def receiver_config(receiver: ReceiverSettings, written: Mapping[str, Any]) -> Yaml:
    """Return Prometheus's remote_write entry; `written` is our entry as parsed YAML.

    Raises UsageError for inline secrets, which are not printed, and for settings that Prometheus lacks.
    """
    if receiver.tls.max_version < 13:
        raise UsageError("tls_config.max_version: Prometheus 2.42 has no such key; remove it")
    queue = {name: value for name, value in (written.get("queue_config") or {}).items() if name not in _LATER}
    message = {"protobuf_message": "io.prometheus.write.v2.Request"} if receiver.protocol == VERSION_2 else {}
    return {
        "url": receiver.url,
        **message,
        **{key: written[key] for key in _SAME if written.get(key) is not None},
        **_without_empty({"headers": _headers(receiver)}),
        **login_config(receiver.login),
        **tls_config(receiver.tls),
        **_without_empty({"queue_config": queue}),
    }


def _headers(receiver: ReceiverSettings) -> Yaml:
    for name, value in receiver.headers:
        if name.lower() != _TENANT or value.file is not None:
            raise UsageError(
                f"headers.{name}: may be a secret and is not printed; remove it here and add it to the "
                "printed configuration"
            )
    return {name: value.text for name, value in receiver.headers}


_SLICE: Final = f"{META}endpointslice_"


def prometheus_config(
    config: AgentConfig, written: Mapping[str, Any], access: ApiServerAccess | None, shard: Shard
) -> Yaml:
    """Return a configuration for Prometheus 2.42 and newer.

    `written` is our file as parsed YAML: its receivers and external labels are mostly in Prometheus's format.
    Raises UsageError for settings that Prometheus lacks and for inline secrets, which are not printed.
    """
    jobs = [_static_job(target, number, shard) for number, target in enumerate(config.targets)]
    for selection in config.selections:
        for number, endpoint in enumerate(selection.endpoints):
            jobs.append(_discovery_job(selection, endpoint, number, access, shard))
    external = (written.get("global") or {}).get("external_labels") or {}
    receivers, errors = [], list[UsageError]()
    for number, (receiver, entry) in enumerate(zip(config.receivers, written["remote_write"], strict=True)):
        try:
            receivers.append(receiver_config(receiver, entry))
        except UsageError as error:
            errors.append(UsageError(f"remote_write[{number}].{error}"))
    raise_errors(errors)
    return {
        **_without_empty({"global": _without_empty({"external_labels": external})}),
        "scrape_configs": jobs,
        "remote_write": receivers,
    }


def _static_job(target: Target, number: int, shard: Shard) -> Yaml:
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
        **_scrape_options(where),
        "static_configs": [{"targets": [parts.netloc], "labels": labels}],
        **_without_empty({"relabel_configs": _relabel_configs(_shard_rules(shard))}),
    }


def _discovery_job(
    selection: Selection,
    endpoint: EndpointSettings,
    number: int,
    access: ApiServerAccess | None,
    shard: Shard,
) -> Yaml:
    if selection.namespaces.selector:
        raise UsageError(
            f"{selection.name}: Prometheus cannot select namespaces by labels; set matchNames, or use the "
            "builtin engine"
        )
    pods = selection.kind == POD_MONITOR
    kind = "pod" if pods else "service"
    sd: Yaml = {"role": "pod" if pods else "endpointslice"}
    if selection.namespaces.names:
        sd["namespaces"] = {"names": sorted(selection.namespaces.names)}
    if selection.selector:
        sd["selectors"] = [{"role": kind, "label": str(selection.selector)}]
    if endpoint.add_node_label and selection.mentions(NODE):
        sd["attach_metadata"] = {"node": True}
    if access is not None:
        sd |= _api_server(access)
    rules = [RelabelRule(target_label="job", replacement=selection.name.replace("$", "$$"))]
    if selection.job_label:
        label = f"{META}{kind}_label_{sanitize_label_name(selection.job_label)}"
        rules.append(RelabelRule(source_labels=(label,), regex="(.+)", target_label="job"))
    rules += _pod_rules(endpoint) if pods else _service_rules(endpoint)
    rules += (*selection.rules.rules, *_shard_rules(shard))
    return {
        "job_name": selection.name if not number else f"{selection.name}/{number}",
        **_scrape_options(endpoint),
        "kubernetes_sd_configs": [sd],
        "relabel_configs": _relabel_configs(rules),
    }


def _pod_rules(endpoint: EndpointSettings) -> Iterable[RelabelRule]:
    yield RelabelRule("keep", (f"{META}pod_phase",), regex=RUNNING)
    if endpoint.number:
        # Each container of the pod gives an equal target; Prometheus deduplicates them.
        for regex, replacement in (("([^:]+)", "$1"), ("(.*:.*)", "[$1]")):
            yield RelabelRule(
                source_labels=(f"{META}pod_ip",),
                regex=regex,
                target_label="__address__",
                replacement=f"{replacement}:{endpoint.number}",
            )
    elif endpoint.port:
        yield RelabelRule("keep", (PORT_NAME, PORT_PROTOCOL), regex=f"{re.escape(endpoint.port)};TCP")
    else:
        yield RelabelRule("keep", (PORT_NUMBER, PORT_PROTOCOL), regex=".+;TCP")
    if endpoint.add_node_label:
        yield RelabelRule(source_labels=(f"{META}pod_node_name",), target_label="node")


def _service_rules(endpoint: EndpointSettings) -> Iterable[RelabelRule]:
    yield RelabelRule("keep", (f"{META}service_name",), regex=".+")
    yield RelabelRule("drop", (f"{META}pod_phase",), regex="Succeeded|Failed")
    yield RelabelRule("drop", (f"{_SLICE}address_type",), regex="FQDN")
    if endpoint.number:
        # Prometheus knows only the endpoint's port number, not the service's.
        yield RelabelRule("keep", (f"{_SLICE}port", f"{_SLICE}port_protocol"), regex=f"{endpoint.number};TCP")
    else:
        name = re.escape(endpoint.port) if endpoint.port else ".*"
        yield RelabelRule("keep", (f"{_SLICE}port_name", f"{_SLICE}port_protocol"), regex=f"{name};TCP")
    if endpoint.add_node_label:
        for label in (f"{META}pod_node_name", f"{_SLICE}endpoint_topology_kubernetes_io_hostname"):
            yield RelabelRule(source_labels=(label,), regex="(.+)", target_label="node")


def _shard_rules(shard: Shard) -> tuple[RelabelRule, ...]:
    if shard.count == 1:
        return ()
    label = "__tmp_shard"
    return (
        RelabelRule("hashmod", ("__address__",), modulus=shard.count, target_label=label),
        RelabelRule("keep", (label,), regex=str(shard.index)),
    )


def _scrape_options(endpoint: EndpointSettings) -> Yaml:
    settings, limits = endpoint.settings, endpoint.settings.label_limits
    return {
        "scrape_interval": format_duration(settings.interval),
        # Prometheus refuses a longer one.
        "scrape_timeout": format_duration(min(settings.timeout, settings.interval)),
        "scheme": endpoint.scheme,
        "metrics_path": endpoint.path,
        **_without_empty({"params": {key: list(values) for key, values in endpoint.params.items()}}),
        # The builtin engine's default decides by the page; for GPU exporters that is true.
        "honor_labels": settings.honor_labels is not False,
        "honor_timestamps": settings.honor_timestamps,
        **_without_empty(
            {
                "body_size_limit": f"{settings.body_limit}B" if settings.body_limit else 0,
                "sample_limit": settings.sample_limit,
                "label_limit": limits.labels,
                "label_name_length_limit": limits.name_length,
                "label_value_length_limit": limits.value_length,
            }
        ),
        **({} if settings.follow_redirects else {"follow_redirects": False}),
        **tls_config(settings.tls),
        **login_config(settings.login),
        **_without_empty({"metric_relabel_configs": _relabel_configs(settings.metric_relabeling.rules)}),
    }


def _api_server(access: ApiServerAccess) -> Yaml:
    token = {"credentials_file": str(access.token_file or "")}
    tls = {"ca_file": str(access.ca_file or ""), "insecure_skip_verify": not access.verify}
    more = {"authorization": _without_empty(token), "tls_config": _without_empty(tls)}
    return {"api_server": access.url, **_without_empty(more)}


def _relabel_configs(rules: Iterable[RelabelRule]) -> list[Yaml]:
    return [_relabel_config(rule) for rule in rules]


def _relabel_config(rule: RelabelRule) -> Yaml:
    plain = RelabelRule()
    found: Yaml = {"source_labels": list(rule.source_labels)} if rule.source_labels else {}
    for name in ("separator", "regex", "modulus", "target_label", "replacement"):
        if getattr(rule, name) != getattr(plain, name):
            found[name] = getattr(rule, name)
    return {**found, "action": rule.action}
