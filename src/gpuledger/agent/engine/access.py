"""Logins and certificates in Prometheus's words: files alone, for a secret is not printed."""

from __future__ import annotations

from typing import Any

from gpuledger.model.errors import UsageError
from gpuledger.outputs.remote_write.settings import ClientTls, Login, Secret

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
