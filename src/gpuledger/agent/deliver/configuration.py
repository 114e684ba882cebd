"""Prometheus's `remote_write` list as it stands in a YAML file, read strictly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from re import fullmatch
from typing import Final
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from gpuledger.agent.deliver.credentials import fits_a_header
from gpuledger.agent.deliver.settings import (
    ClientTls,
    DiskQueue,
    Login,
    QueueConfig,
    ReceiverSettings,
    Secret,
    name_from,
)
from gpuledger.host.yaml_nodes import Node, one_of, path_of, tls_versions
from gpuledger.http.hosts import host_field
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import binary_size, boolean, choice, duration, integer

_KEYS: Final = (
    *("url", "name", "remote_timeout", "headers", "http_headers", "write_relabel_configs"),
    *("basic_auth", "authorization", "bearer_token", "bearer_token_file", "tls_config"),
    *("queue_config", "metadata_config", "queue"),
    *("send_exemplars", "send_native_histograms", "protobuf_message", "round_robin_dns"),
    *("follow_redirects", "enable_http2"),
    *("proxy_url", "no_proxy", "proxy_from_environment", "proxy_connect_header"),
    *("oauth2", "sigv4", "azuread", "google_iam"),
)
# What Prometheus has and we do not: better no start than samples that go another way than was asked for.
_NOT_HERE: Final = ("proxy_url", "proxy_from_environment", "oauth2", "sigv4", "azuread", "google_iam")
_NOT_TRUE: Final = {
    "send_exemplars": "exemplars are not sent",
    "send_native_histograms": "native histograms are not sent",
    "round_robin_dns": "the addresses of a name are tried in the resolver's order",
    "follow_redirects": "redirects are not followed, lest samples and credentials go elsewhere",
}
_QUEUE_KEYS: Final = (
    *("capacity", "min_shards", "max_shards", "max_samples_per_send", "batch_send_deadline"),
    *("min_backoff", "max_backoff", "retry_on_http_429", "sample_age_limit"),
)
_TLS_KEYS: Final = (
    *("ca", "ca_file", "cert", "cert_file", "key", "key_file"),
    *("server_name", "insecure_skip_verify", "min_version", "max_version"),
)
# What a header's name and a scheme of authorization may consist of (RFC 9110, 5.6.2).
_TOKEN: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# Ours to say, or another key's.
_RESERVED: Final = frozenset(
    {
        *("authorization", "host", "content-encoding", "content-length", "content-type", "user-agent"),
        *("x-prometheus-remote-write-version", "connection", "keep-alive", "transfer-encoding", "te"),
        *("trailer", "upgrade", "expect", "proxy-authenticate", "proxy-authorization"),
    }
)
_SMALLEST_QUEUE: Final = 1 << 20


def read_receivers(node: Node, folder: Path) -> tuple[ReceiverSettings, ...]:
    """What a `remote_write` list says; paths in it are relative to `folder`, and not read yet.

    Raises UsageError with one line that names the file, the key path and what is wanted, and repeats no
    secret.
    """
    found: dict[str, ReceiverSettings] = {}
    for element in node.elements():
        one = _receiver(element, folder)
        if one.name in found:
            raise element.wrong(
                f"has the name {one.name!r} of another receiver; give each its own, it names the queue"
            )
        found[one.name] = one
    return tuple(found.values())


def _receiver(node: Node, folder: Path) -> ReceiverSettings:
    keys = node.section(_KEYS)
    for key in _NOT_HERE:
        if not keys[key].absent and not _says_no(keys[key]):
            raise keys[key].wrong("is not supported here; leave it out")
    for key, why in _NOT_TRUE.items():
        if keys[key].parsed(boolean, False):
            raise keys[key].wrong(f"cannot be true: {why}")
    keys["protobuf_message"].parsed(choice("prometheus.WriteRequest"), "")
    keys["enable_http2"].parsed(boolean, True)
    _check_metadata(keys["metadata_config"])
    url, login = _url(keys["url"])
    age = keys["queue_config"].section(_QUEUE_KEYS)["sample_age_limit"].parsed(duration(), 0.0)
    return ReceiverSettings(
        name=keys["name"].text() or name_from(url),
        url=url,
        remote_timeout=keys["remote_timeout"].parsed(duration(lowest=0.001), 30.0),
        headers=tuple(_headers(keys, folder)),
        login=_login(keys, folder, login),
        tls=_tls(keys["tls_config"], folder),
        queue_config=_queue_config(keys["queue_config"]),
        queue=_queue(keys["queue"], age),
        write_relabel=None if keys["write_relabel_configs"].absent else keys["write_relabel_configs"],
    )


def _says_no(node: Node) -> bool:
    try:
        return node.text() == "false"
    except UsageError:
        return False


def _url(node: Node) -> tuple[str, Login | None]:
    """The URL without `user:password@`, and the login that this is."""
    given = node.text()
    try:
        parts = urlsplit(given)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        host_field(parts.netloc)
    except ValueError:
        usable = False
    if not usable or not given.isprintable() or " " in given:
        raise node.wrong("a URL such as https://host/api/v1/write is wanted")
    host = parts.netloc.rpartition("@")[2]
    path, query = (quote(part, safe="/%:@!$&'()*+,;=~?") for part in (parts.path or "/", parts.query))
    url = urlunsplit((parts.scheme, host, path, query, ""))
    if parts.username is None:
        return url, None
    user, password = Secret(unquote(parts.username)), Secret(unquote(parts.password or ""))
    return url, Login("Basic", password, user)


def _login(keys: dict[str, Node], folder: Path, by_url: Login | None) -> Login | None:
    given = one_of(keys, "basic_auth", "authorization", "bearer_token", "bearer_token_file")
    if given is None:
        return by_url
    node = keys[given]
    if given == "basic_auth":
        basic = node.section(("username", "username_file", "password", "password_file"))
        user = _secret(basic, "username", folder)
        if user.absent:
            raise node.wrong("username or username_file is wanted")
        return Login("Basic", _secret(basic, "password", folder), user)
    if given == "authorization":
        inner = node.section(("type", "credentials", "credentials_file"))
        scheme = inner["type"].text().strip() or "Bearer"
        if scheme.lower() == "basic" or not fullmatch(_TOKEN, scheme):
            raise inner["type"].wrong("a word such as Bearer is wanted; for Basic there is basic_auth")
        credentials = _secret(inner, "credentials", folder)
        if credentials.absent:
            raise node.wrong("credentials or credentials_file is wanted")
        return Login(scheme, _line(inner["credentials"], credentials))
    return Login("Bearer", _line(node, _secret(keys, "bearer_token", folder)))


def _secret(keys: dict[str, Node], name: str, folder: Path) -> Secret:
    if one_of(keys, f"{name}_file", name) == f"{name}_file":
        return Secret(file=path_of(keys[f"{name}_file"], folder))
    return Secret(keys[name].text())


def _line(node: Node, secret: Secret) -> Secret:
    """The same, fit for a header."""
    if not fits_a_header(secret):
        raise node.wrong("one line of ASCII is wanted")
    return secret


def _headers(keys: dict[str, Node], folder: Path) -> Iterator[tuple[str, Secret]]:
    for name, node in keys["headers"].items():
        _check_header(name, node)
        yield name, _line(node, Secret(node.text()))
    for name, node in keys["http_headers"].items():
        _check_header(name, node)
        given = node.section(("values", "secrets", "files"))
        for value in (*given["values"].elements(), *given["secrets"].elements()):
            yield name, _line(value, Secret(value.text()))
        for value in given["files"].elements():
            yield name, Secret(file=path_of(value, folder))


def _check_header(name: str, node: Node) -> None:
    if name.lower() in _RESERVED:
        other = "; basic_auth and authorization say who we are" if name.lower() == "authorization" else ""
        raise node.wrong(f"this header cannot be set{other}")
    if not fullmatch(_TOKEN, name):
        raise node.wrong("is no name of a header")


def _tls(node: Node, folder: Path) -> ClientTls:
    keys = node.section(_TLS_KEYS)
    certificate, key = _secret(keys, "cert", folder), _secret(keys, "key", folder)
    if certificate.absent is not key.absent:
        missing = "cert_file" if certificate.absent else "key_file"
        raise keys[missing].wrong("is missing; a client certificate needs both")
    low, high = tls_versions(keys)
    return ClientTls(
        _secret(keys, "ca", folder),
        certificate,
        key,
        keys["server_name"].text(),
        not keys["insecure_skip_verify"].parsed(boolean, False),
        low,
        high,
    )


def _queue_config(node: Node) -> QueueConfig:
    keys, usual = node.section(_QUEUE_KEYS), QueueConfig()
    wait, count = duration(highest=86_400.0), integer(1, 1_000_000)
    most = keys["max_samples_per_send"].parsed(count, usual.max_samples_per_send)
    low = keys["min_shards"].parsed(integer(1, 1_000), usual.min_shards)
    high = keys["max_shards"].parsed(integer(1, 1_000), max(usual.max_shards, low))
    if low > high:
        raise keys["max_shards"].wrong("is below min_shards")
    shortest = keys["min_backoff"].parsed(wait, usual.min_backoff)
    longest = keys["max_backoff"].parsed(wait, max(usual.max_backoff, shortest))
    if shortest > longest:
        raise keys["max_backoff"].wrong("is below min_backoff")
    return QueueConfig(
        capacity=keys["capacity"].parsed(count, usual.capacity),
        min_shards=low,
        max_shards=high,
        max_samples_per_send=most,
        batch_send_deadline=keys["batch_send_deadline"].parsed(wait, usual.batch_send_deadline),
        min_backoff=shortest,
        max_backoff=longest,
        retry_on_http_429=keys["retry_on_http_429"].parsed(boolean, usual.retry_on_http_429),
    )


def _queue(node: Node, sample_age_limit: float) -> DiskQueue:
    keys = node.section(("max_bytes", "max_age", "memory_bytes", "sync_interval"))
    usual = DiskQueue()
    age = keys["max_age"].parsed(duration(lowest=1.0), usual.max_age)
    return DiskQueue(
        max_bytes=keys["max_bytes"].parsed(_queue_size, usual.max_bytes),
        max_age=min(age, sample_age_limit or age),
        memory_bytes=keys["memory_bytes"].parsed(binary_size, usual.memory_bytes),
        sync_interval=keys["sync_interval"].parsed(duration(), usual.sync_interval),
    )


def _queue_size(value: object) -> int:
    found = binary_size(value)
    if found < _SMALLEST_QUEUE:
        raise ValueError(f"at least {_SMALLEST_QUEUE >> 20}MiB is wanted")
    return found


def _check_metadata(node: Node) -> None:
    """Read and let be: HELP and TYPE are not sent, which no receiver needs."""
    keys = node.section(("send", "send_interval", "max_samples_per_send"))
    keys["send"].parsed(boolean, True)
    keys["send_interval"].parsed(duration(lowest=1.0), 60.0)
    keys["max_samples_per_send"].parsed(integer(1, 1_000_000), 1)
