"""Login and TLS of a client that reads nodes: from a URL, or from the files that the user named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from gpuledger.model.errors import UsageError
from gpuledger.model.settings import option, text
from gpuledger.model.text import to_short_line

if TYPE_CHECKING:
    from ssl import SSLContext


@dataclass(frozen=True)
class ClientAccessSettings:
    """The login and the TLS files for other nodes, or for a fleet. A user in a URL wins."""

    user: str = option("top.user", text, "", "user for basic auth", metavar="NAME", as_written=True)
    password_file: str = option(
        "top.password_file", text, "", "file with the password of --user", metavar="FILE"
    )
    ca_file: str = option(
        "top.ca_file",
        text,
        "",
        "CA certificates to verify the server's certificate (PEM; default: the system's)",
        metavar="FILE",
    )
    cert_file: str = option("top.cert_file", text, "", "client certificate (PEM)", metavar="FILE")
    key_file: str = option(
        "top.key_file", text, "", "key of the client certificate, if in another file (PEM)", metavar="FILE"
    )


def find_login(user: str | None, password: str | None, access: ClientAccessSettings) -> str | None:
    """The text `user:password` of basic auth; None without a user.

    `user` and `password` are those of a URL, still quoted, and win. Raises UsageError.
    """
    if user is not None:
        return f"{unquote(user)}:{unquote(password or '')}"
    if not access.user:
        if access.password_file:
            raise UsageError("--password-file needs --user too")
        return None
    if not access.password_file:
        raise UsageError("--user needs --password-file, the file with the password")
    try:
        secret = Path(access.password_file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise UsageError(f"--password-file: cannot read {access.password_file}: {why}") from None
    return f"{access.user}:{secret}"


def create_client_context(access: ClientAccessSettings) -> SSLContext:
    """The TLS context of a client. Raises UsageError for files that cannot be used."""
    # Imported lazily: a client of http needs no OpenSSL.
    import ssl

    from gpuledger.http.openssl import client_context

    try:
        context = client_context(verify=True)
        if access.ca_file:
            context.load_verify_locations(access.ca_file)
        else:
            context.load_default_certs()
    except (OSError, ssl.SSLError) as error:
        why = to_short_line(error.strerror or "it has no certificate")
        raise UsageError(f"--ca-file: cannot use {access.ca_file}: {why}") from None
    if access.key_file and not access.cert_file:
        raise UsageError("--key-file needs --cert-file, the certificate of the key")
    if access.cert_file:
        try:
            context.load_cert_chain(access.cert_file, access.key_file or None)
        except (OSError, ssl.SSLError) as error:
            why = to_short_line(error.strerror or error)
            raise UsageError(f"--cert-file: cannot use {access.cert_file} with its key: {why}") from None
    return context
