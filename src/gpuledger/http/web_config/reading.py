"""A web config file, in the format of Prometheus's exporter-toolkit, read strictly."""

from __future__ import annotations

from pathlib import Path
from re import fullmatch
from typing import Final

from gpuledger.host.yaml_nodes import Node, one_of, path_of, read_nodes, tls_versions
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
from gpuledger.model.errors import unknown
from gpuledger.model.settings import boolean, choice, duration, integer

_SECTIONS: Final = ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
_TLS_KEYS: Final = (
    *("cert", "cert_file", "key", "key_file"),
    *("client_auth_type", "client_ca", "client_ca_file", "client_allowed_sans"),
    *("min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites", "curve_preferences"),
)
# Go and exporter-toolkit took this word first, and files still have it.
_OLD_WORDS: Final = {"RequireClientCert": ClientAuth.REQUIRE_ANY}

# The cost is a power of two: a check of 2^10 rounds takes 50 ms of a core, one of 2^18 some 15 s.
_LOWEST_COST, _HIGHEST_COST = 4, 18
# The 128 bits of the salt end within its 22nd character, of which only these four can be.
_BCRYPT = r"\$2[abxy]\$([0-9]{2})\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}"


def read_web_config(file: Path) -> WebConfig:
    """What the file says. Paths in it are relative to its folder; the files at them are not read yet.

    Raises UsageError with one line that names the file, the key path and what is wanted.
    """
    sections = read_nodes(file).section(_SECTIONS)
    http = sections["http_server_config"].section(("http2", "headers"))
    return WebConfig(
        tls=_tls(sections["tls_server_config"], file.parent),
        http2=http["http2"].parsed(boolean, None),
        headers=tuple(_header(name, node) for name, node in http["headers"].items() if not node.absent),
        users={name: _hash(name, node) for name, node in sections["basic_auth_users"].items()},
        rate_limit=_rate_limit(sections["rate_limit"]),
    )


def _tls(section: Node, folder: Path) -> TlsConfig | None:
    if section.absent:
        return None
    keys = section.section(_TLS_KEYS)
    if all(node.absent for node in keys.values()):
        return None
    certificate = _pem(keys, "cert", folder)
    key = _pem(keys, "key", folder)
    if certificate is None or key is None:
        missing = "cert" if certificate is None else "key"
        raise keys[f"{missing}_file"].wrong(f"is missing; TLS needs {missing}_file, or {missing} inline")
    low, high = tls_versions(keys)
    ciphers = _ciphers(keys["cipher_suites"])
    if ciphers == () and high == 12:
        raise keys["cipher_suites"].wrong("has none for TLS 1.2, and max_version is TLS12")
    auth = keys["client_auth_type"].parsed(_client_auth, ClientAuth.NONE)
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
        keys["prefer_server_cipher_suites"].parsed(boolean, True),
        tuple(CURVES[node.parsed(choice(*CURVES), "")] for node in keys["curve_preferences"].elements()),
    )


def _pem(keys: dict[str, Node], name: str, folder: Path) -> Pem | None:
    given = one_of(keys, f"{name}_file", name)
    if given is None:
        return None
    node = keys[given]
    return Pem(node.place, None, node.text()) if given == name else Pem(node.place, path_of(node, folder))


def _client_auth(written: object) -> ClientAuth:
    if written in _OLD_WORDS:
        return _OLD_WORDS[str(written)]
    return ClientAuth(choice(*(word.value for word in ClientAuth))(written))


def _check_client_auth(
    keys: dict[str, Node], auth: ClientAuth, authority: Pem | None, sans: frozenset[str]
) -> None:
    """Refuse what would look like protection and be none."""
    word = keys["client_auth_type"]
    if authority is not None and auth is ClientAuth.NONE:
        raise word.wrong(f"is {auth.value}, but there is a client CA; RequireAndVerifyClientCert is wanted")
    if authority is None and auth is ClientAuth.REQUIRE_AND_VERIFY:
        raise keys["client_ca_file"].wrong(f"is missing; {auth.value} needs to know who signs certificates")
    if sans and not auth.requires:
        raise keys["client_allowed_sans"].wrong(
            f"needs client_auth_type RequireAndVerifyClientCert; with {auth.value} a client may show none"
        )


def _ciphers(node: Node) -> tuple[str, ...] | None:
    known = (*CIPHERS, *TLS_1_3_CIPHERS)
    names = []
    for element in node.elements():
        names.append(element.text())
        if names[-1] not in known:
            raise element.wrong(str(unknown("cipher suite", names[-1], known)))
    if not names:
        return None
    return tuple(dict.fromkeys(CIPHERS[name] for name in names if name in CIPHERS))


def _header(name: str, node: Node) -> tuple[str, str]:
    if name not in HEADERS:
        raise node.wrong(f"this header cannot be set; valid: {', '.join(HEADERS)}")
    bound = HEADERS[name]
    value = node.parsed(choice(*bound), "") if bound else node.text()
    # What h11 would refuse to send: it would take every page with it.
    if not fullmatch(r"[\x20-\x7e]*", value) or value != value.strip():
        raise node.wrong("printable ASCII without surrounding blanks is wanted")
    return name, value


def _hash(name: str, node: Node) -> bytes:
    """A bcrypt hash; no message repeats it."""
    if not name or ":" in name:
        raise node.wrong("a user name without a colon is wanted: basic auth cannot send another")
    match = fullmatch(_BCRYPT, node.text())
    if match is None:
        raise node.wrong("a bcrypt hash ($2y$10$..., as `htpasswd -nBC 10 USER` prints it) is wanted")
    if not _LOWEST_COST <= int(match[1]) <= _HIGHEST_COST:
        raise node.wrong(
            f"a bcrypt cost from {_LOWEST_COST} to {_HIGHEST_COST} is wanted, not {int(match[1])}"
        )
    return node.text().encode("ascii")


def _rate_limit(section: Node) -> RateLimit | None:
    keys = section.section(("interval", "burst"))
    interval = keys["interval"].parsed(duration("ns"), 0.0)
    burst = keys["burst"].parsed(integer(0, 1_000_000_000), 0)
    if not interval:
        return None
    if not burst:
        raise keys["burst"].wrong("a whole number of at least 1 is wanted, or no request is ever answered")
    return RateLimit(interval, burst)
