"""Strict parser of web config files, in the format of Prometheus's exporter-toolkit."""

from __future__ import annotations

import logging
from pathlib import Path
from re import fullmatch
from typing import Final

from gpuledger.host.yaml_nodes import (
    YamlNode,
    exclusive_key,
    parse_tls_versions,
    read_yaml_root,
    resolve_path,
)
from gpuledger.http.web_config.model import (
    CIPHERS,
    CURVES,
    HEADERS,
    TLS_1_3_CIPHERS,
    ClientAuth,
    Pem,
    RateLimit,
    TlsConfig,
    WebConfig,
)
from gpuledger.model.errors import unknown_name_error
from gpuledger.model.settings import boolean, choice, duration, integer

_LOG = logging.getLogger(__name__)

_SECTIONS: Final = ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
_TLS_KEYS: Final = (
    *("cert", "cert_file", "key", "key_file"),
    *("client_auth_type", "client_ca", "client_ca_file", "client_allowed_sans"),
    *("min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites", "curve_preferences"),
)
# Python cannot request a certificate without verifying it. RequestClientCert ignores what it requests, so not
# requesting it is the same. RequireClientCert is the old name of RequireAnyClientCert in exporter-toolkit.
_NOT_REQUESTED: Final = "RequestClientCert"
_UNVERIFIED: Final = ("RequireAnyClientCert", "RequireClientCert")

# The cost is the binary logarithm of the rounds: 2^10 take 50 ms of a core, 2^18 some 15 s.
_LOWEST_COST, _HIGHEST_COST = 4, 18
# The salt's 128 bits end within its 22nd character, which therefore has only four values.
_BCRYPT = r"\$2[abxy]\$([0-9]{2})\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}"


def read_web_config(file: Path) -> WebConfig:
    """Read a web config file. Paths in it are relative to its folder; the files behind them are not read yet.

    Raises UsageError with one line that names the file, the key path and the expected value.
    """
    sections = read_yaml_root(file).section(_SECTIONS)
    http = sections["http_server_config"].section(("http2", "headers"))
    return WebConfig(
        tls=_tls(sections["tls_server_config"], file.parent),
        http2=http["http2"].parse(boolean, None),
        headers=tuple(_header(name, node) for name, node in http["headers"].items() if not node.absent),
        users={name: _hash(name, node) for name, node in sections["basic_auth_users"].items()},
        rate_limit=_rate_limit(sections["rate_limit"]),
    )


def _tls(section: YamlNode, folder: Path) -> TlsConfig | None:
    if section.absent:
        return None
    keys = section.section(_TLS_KEYS)
    if all(node.absent for node in keys.values()):
        return None
    certificate = _pem(keys, "cert", folder)
    key = _pem(keys, "key", folder)
    if certificate is None or key is None:
        missing = "cert" if certificate is None else "key"
        raise keys[f"{missing}_file"].error(f"is missing; TLS needs {missing}_file, or {missing} inline")
    low, high = parse_tls_versions(keys)
    ciphers = _ciphers(keys["cipher_suites"])
    if ciphers == () and high == 12:
        raise keys["cipher_suites"].error("has none for TLS 1.2, and max_version is TLS12")
    auth = keys["client_auth_type"].parse(_client_auth, ClientAuth.NONE)
    authority = _pem(keys, "client_ca", folder)
    sans = frozenset(node.text() for node in keys["client_allowed_sans"].elements())
    _check_client_auth(keys, auth, authority, sans)
    return TlsConfig(
        certificate,
        key,
        auth,
        authority,
        sans,
        low,
        high,
        ciphers,
        keys["prefer_server_cipher_suites"].parse(boolean, True),
        _curve(keys["curve_preferences"]),
    )


def _pem(keys: dict[str, YamlNode], name: str, folder: Path) -> Pem | None:
    given = exclusive_key(keys, f"{name}_file", name)
    if given is None:
        return None
    node = keys[given]
    return (
        Pem(node.place, None, node.text()) if given == name else Pem(node.place, resolve_path(node, folder))
    )


def _client_auth(written: object) -> ClientAuth:
    if written in _UNVERIFIED:
        raise ValueError(
            "expected RequireAndVerifyClientCert with client_ca_file: gpuledger requires no certificate "
            "that it does not verify"
        )
    if written == _NOT_REQUESTED:
        return ClientAuth.NONE
    return ClientAuth(choice(*(word.value for word in ClientAuth))(written))


def _check_client_auth(
    keys: dict[str, YamlNode], auth: ClientAuth, authority: Pem | None, sans: frozenset[str]
) -> None:
    """Reject combinations that look like protection but provide none."""
    word = keys["client_auth_type"]
    if authority is not None and auth is ClientAuth.NONE:
        given = auth.value if word.absent else word.text()
        raise word.error(f"is {given} with a client CA; expected RequireAndVerifyClientCert")
    if authority is None and auth is ClientAuth.REQUIRE_AND_VERIFY:
        raise keys["client_ca_file"].error(
            f"is missing; {auth.value} needs the CA of the client certificates"
        )
    if sans and auth is not ClientAuth.REQUIRE_AND_VERIFY:
        raise keys["client_allowed_sans"].error(
            f"needs client_auth_type RequireAndVerifyClientCert; with {auth.value} a certificate is optional"
        )


def _curve(node: YamlNode) -> str:
    """The first listed curve: Python can set one or all."""
    names = [element.parse(choice(*CURVES), "") for element in node.elements()]
    if len(names) > 1:
        _LOG.warning("%s: only the first curve is used: %s", node.place, names[0])
    return CURVES[names[0]] if names else ""


def _ciphers(node: YamlNode) -> tuple[str, ...] | None:
    known = (*CIPHERS, *TLS_1_3_CIPHERS)
    names = []
    for element in node.elements():
        names.append(element.text())
        if names[-1] not in known:
            raise element.error(str(unknown_name_error("cipher suite", names[-1], known)))
    if not names:
        return None
    return tuple(dict.fromkeys(CIPHERS[name] for name in names if name in CIPHERS))


def _header(name: str, node: YamlNode) -> tuple[str, str]:
    if name not in HEADERS:
        raise node.error(f"this header cannot be set; valid: {', '.join(HEADERS)}")
    bound = HEADERS[name]
    value = node.parse(choice(*bound), "") if bound else node.text()
    # h11 refuses to send any other value, so every response would fail.
    if not fullmatch(r"[\x20-\x7e]*", value) or value != value.strip():
        raise node.error("expected printable ASCII without leading or trailing spaces")
    return name, value


def _hash(name: str, node: YamlNode) -> bytes:
    """A bcrypt hash; error messages do not repeat it."""
    if not name or ":" in name:
        raise node.error("expected a user name without a colon: basic auth cannot transmit one")
    match = fullmatch(_BCRYPT, node.text())
    if match is None:
        raise node.error("expected a bcrypt hash ($2y$10$..., as printed by `htpasswd -nBC 10 USER`)")
    if not _LOWEST_COST <= int(match[1]) <= _HIGHEST_COST:
        raise node.error(
            f"expected a bcrypt cost from {_LOWEST_COST} to {_HIGHEST_COST}, not {int(match[1])}"
        )
    return node.text().encode("ascii")


def _rate_limit(section: YamlNode) -> RateLimit | None:
    keys = section.section(("interval", "burst"))
    interval = keys["interval"].parse(duration("ns"), 0.0)
    burst = keys["burst"].parse(integer(0, 1_000_000_000), 0)
    if not interval:
        return None
    if not burst:
        raise keys["burst"].error("expected a whole number of at least 1, or every request is rejected")
    return RateLimit(interval, burst)
