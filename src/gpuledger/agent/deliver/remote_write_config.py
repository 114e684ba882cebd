"""Parser of the `remote_write` list in Prometheus's YAML format; unknown keys are errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from re import fullmatch
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from gpuledger.agent.deliver.credentials import check_header_value
from gpuledger.agent.deliver.protocol import PROTOCOLS, VERSION_1, VERSION_2
from gpuledger.agent.deliver.settings import (
    ClientTls,
    DiskQueueLimits,
    Login,
    MetadataConfig,
    QueueConfig,
    ReceiverSettings,
    Secret,
    default_receiver_name,
)
from gpuledger.host.yaml_nodes import YamlNode, exclusive_key, parse_tls_versions, resolve_path
from gpuledger.http.hosts import host_field, parse_server_name
from gpuledger.model.errors import UsageError, collect_errors, raise_errors
from gpuledger.model.settings import binary_size, boolean, choice, duration, integer

_KEYS: Final = (
    *("url", "name", "remote_timeout", "headers", "http_headers", "write_relabel_configs"),
    *("basic_auth", "authorization", "bearer_token", "bearer_token_file", "tls_config"),
    *("queue_config", "metadata_config", "queue", "protocol"),
    *("send_exemplars", "send_native_histograms", "protobuf_message", "round_robin_dns"),
    *("follow_redirects", "enable_http2"),
    *("proxy_url", "no_proxy", "proxy_from_environment", "proxy_connect_header"),
    *("oauth2", "sigv4", "azuread", "google_iam"),
)
# Unsupported keys of Prometheus. An error is safer than sending samples another way than configured.
_NOT_HERE: Final = ("proxy_url", "proxy_from_environment", "oauth2", "sigv4", "azuread", "google_iam")
_NOT_TRUE: Final = {
    "send_exemplars": "exemplars are not sent",
    "send_native_histograms": "native histograms are not sent",
    "round_robin_dns": "addresses are tried in the resolver's order",
    "follow_redirects": "redirects could send samples and credentials to another server",
}
_TLS_KEYS: Final = (
    *("ca", "ca_file", "cert", "cert_file", "key", "key_file"),
    *("server_name", "insecure_skip_verify", "min_version", "max_version"),
)
# A token: header name or authentication scheme (RFC 9110, 5.6.2).
_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# Headers that the client sets itself, or that another key sets.
_RESERVED: Final = frozenset(
    {
        *("authorization", "host", "content-encoding", "content-length", "content-type", "user-agent"),
        *("x-prometheus-remote-write-version", "connection", "keep-alive", "transfer-encoding", "te"),
        *("trailer", "upgrade", "expect", "proxy-authenticate", "proxy-authorization"),
    }
)
_SMALLEST_QUEUE: Final = 1 << 20


def _queue_size(value: object) -> int:
    found = binary_size(value)
    if found < _SMALLEST_QUEUE:
        raise ValueError(f"expected at least {_SMALLEST_QUEUE >> 20}MiB")
    return found


_WAIT: Final = duration(highest=86_400.0)
_COUNT: Final = integer(1, 1_000_000)
_SHARDS: Final = integer(1, 1_000)
# By key, which is also the name of the field.
_QUEUE_CONFIG: Final[dict[str, Callable[[object], Any]]] = {
    **dict.fromkeys(("capacity", "max_samples_per_send"), _COUNT),
    **dict.fromkeys(("min_shards", "max_shards"), _SHARDS),
    **dict.fromkeys(("batch_send_deadline", "min_backoff", "max_backoff"), _WAIT),
    "retry_on_http_429": boolean,
}
_QUEUE: Final[dict[str, Callable[[object], Any]]] = {
    "max_bytes": _queue_size,
    "max_age": duration(lowest=1.0),
    "memory_bytes": binary_size,
    "sync_interval": duration(),
}
_METADATA: Final[dict[str, Callable[[object], Any]]] = {
    "send": boolean,
    "send_interval": duration(lowest=1.0),
    "max_samples_per_send": _COUNT,
}
# Values of Prometheus's key protobuf_message, and the same as a protocol.
_MESSAGES: Final = {"prometheus.WriteRequest": VERSION_1, "io.prometheus.write.v2.Request": VERSION_2}


def read_receivers(node: YamlNode, folder: Path) -> tuple[ReceiverSettings, ...]:
    """Parse a `remote_write` list. Paths are relative to `folder`; their files are not read yet.

    Raises UsageError with one line that names the file, and of each bad receiver the key path and what is
    expected, without secrets.
    """
    found: dict[str, ReceiverSettings] = {}
    errors: list[UsageError] = []
    for element in node.elements():
        with collect_errors(errors):
            receiver = _parse_receiver(element, folder)
            if receiver.name in found:
                raise element.error(
                    f"duplicate receiver name {receiver.name!r}; each needs a unique name for its queue"
                )
            found[receiver.name] = receiver
    raise_errors(errors)
    return tuple(found.values())


def _parse_receiver(node: YamlNode, folder: Path) -> ReceiverSettings:
    keys = node.section(_KEYS)
    for key in _NOT_HERE:
        if not keys[key].absent and not _is_false(keys[key]):
            raise keys[key].error("not supported; remove it")
    for key, why in _NOT_TRUE.items():
        if keys[key].parse(boolean, False):
            raise keys[key].error(f"true is not supported: {why}")
    keys["enable_http2"].parse(boolean, True)
    url, login = _url(keys["url"])
    queue_config, age = _queue_config(keys["queue_config"])
    queue = DiskQueueLimits(**_parse_fields(keys["queue"].section(_QUEUE), _QUEUE, DiskQueueLimits()))
    return ReceiverSettings(
        name=keys["name"].text() or default_receiver_name(url),
        url=url,
        remote_timeout=keys["remote_timeout"].parse(duration(lowest=0.001), 30.0),
        headers=tuple(_headers(keys, folder)),
        login=_login(keys, folder, login),
        tls=_tls(keys["tls_config"], folder),
        queue_config=queue_config,
        queue=replace(queue, max_age=min(queue.max_age, age or queue.max_age)),
        protocol=_protocol(keys),
        metadata=MetadataConfig(
            **_parse_fields(keys["metadata_config"].section(_METADATA), _METADATA, MetadataConfig())
        ),
        write_relabel=None if keys["write_relabel_configs"].absent else keys["write_relabel_configs"],
    )


def _protocol(keys: Mapping[str, YamlNode]) -> str:
    """Return the protocol, which Prometheus's `protobuf_message` sets as well."""
    node, message = keys["protocol"], keys["protobuf_message"]
    found = _MESSAGES.get(message.parse(choice(*_MESSAGES), ""), VERSION_1)
    protocol = node.parse(choice(*PROTOCOLS), found)
    if protocol != found and not message.absent:
        raise node.error("contradicts protobuf_message; set only one of them")
    return protocol


def _is_false(node: YamlNode) -> bool:
    try:
        return node.text() == "false"
    except UsageError:
        return False


def _url(node: YamlNode) -> tuple[str, Login | None]:
    """Return the URL without `user:password@`, and the login that it contained."""
    given = node.text()
    try:
        parts = urlsplit(given)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        host_field(parts.netloc)
    except ValueError:
        usable = False
    if not usable or not given.isprintable() or " " in given:
        raise node.error("expected a URL such as https://host/api/v1/write")
    host = parts.netloc.rpartition("@")[2]
    path, query = (quote(part, safe="/%:@!$&'()*+,;=~?") for part in (parts.path or "/", parts.query))
    url = urlunsplit((parts.scheme, host, path, query, ""))
    if parts.username is None:
        return url, None
    user, password = Secret(unquote(parts.username)), Secret(unquote(parts.password or ""))
    return url, Login("Basic", password, user)


def _login(keys: dict[str, YamlNode], folder: Path, by_url: Login | None) -> Login | None:
    given = exclusive_key(keys, "basic_auth", "authorization", "bearer_token", "bearer_token_file")
    if given is None:
        return by_url
    node = keys[given]
    if given == "basic_auth":
        basic = node.section(("username", "username_file", "password", "password_file"))
        user = _secret(basic, "username", folder)
        if user.absent:
            raise node.error("expected username or username_file")
        return Login("Basic", _secret(basic, "password", folder), user)
    if given == "authorization":
        inner = node.section(("type", "credentials", "credentials_file"))
        scheme = inner["type"].text().strip() or "Bearer"
        if scheme.lower() == "basic" or not fullmatch(_TOKEN, scheme):
            raise inner["type"].error("expected a scheme such as Bearer; use basic_auth for Basic")
        credentials = _secret(inner, "credentials", folder)
        if credentials.absent:
            raise node.error("expected credentials or credentials_file")
        return Login(scheme, check_header_value(inner["credentials"], credentials))
    return Login("Bearer", check_header_value(node, _secret(keys, "bearer_token", folder)))


def _secret(keys: dict[str, YamlNode], name: str, folder: Path) -> Secret:
    if exclusive_key(keys, f"{name}_file", name) == f"{name}_file":
        return Secret(file=resolve_path(keys[f"{name}_file"], folder))
    return Secret(keys[name].text())


def _headers(keys: dict[str, YamlNode], folder: Path) -> Iterator[tuple[str, Secret]]:
    for name, node in keys["headers"].items():
        _check_header(name, node)
        yield name, check_header_value(node, Secret(node.text()))
    for name, node in keys["http_headers"].items():
        _check_header(name, node)
        given = node.section(("values", "secrets", "files"))
        for value in (*given["values"].elements(), *given["secrets"].elements()):
            yield name, check_header_value(value, Secret(value.text()))
        for value in given["files"].elements():
            yield name, Secret(file=resolve_path(value, folder))


def _check_header(name: str, node: YamlNode) -> None:
    if name.lower() in _RESERVED:
        remedy = "; use basic_auth or authorization" if name.lower() == "authorization" else ""
        raise node.error(f"this header cannot be set{remedy}")
    if not fullmatch(_TOKEN, name):
        raise node.error("not a valid header name")


def _tls(node: YamlNode, folder: Path) -> ClientTls:
    keys = node.section(_TLS_KEYS)
    certificate, key = _secret(keys, "cert", folder), _secret(keys, "key", folder)
    if certificate.absent is not key.absent:
        missing = "cert_file" if certificate.absent else "key_file"
        raise keys[missing].error("missing; a client certificate needs cert_file and key_file")
    low, high = parse_tls_versions(keys)
    return ClientTls(
        _secret(keys, "ca", folder),
        certificate,
        key,
        keys["server_name"].parse(parse_server_name, ""),
        not keys["insecure_skip_verify"].parse(boolean, False),
        low,
        high,
    )


def _parse_fields(
    keys: Mapping[str, YamlNode], parsers: Mapping[str, Callable[[object], Any]], usual: object
) -> dict[str, Any]:
    """Parse each field with its parser; absent ones are as in `usual`."""
    return {name: keys[name].parse(parser, getattr(usual, name)) for name, parser in parsers.items()}


def _queue_config(node: YamlNode) -> tuple[QueueConfig, float]:
    """Parse `queue_config`, and its `sample_age_limit` in seconds (0: no limit)."""
    keys = node.section((*_QUEUE_CONFIG, "sample_age_limit"))
    found = _parse_fields(keys, _QUEUE_CONFIG, QueueConfig())
    for low, high in (("min_shards", "max_shards"), ("min_backoff", "max_backoff")):
        if found[low] > found[high]:
            if not keys[high].absent:
                raise keys[high].error(f"is below {low}")
            found[high] = found[low]
    return QueueConfig(**found), keys["sample_age_limit"].parse(duration(), 0.0)
