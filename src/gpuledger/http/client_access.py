"""Login and TLS of a client that reads nodes: from a URL, or from the files that the user named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from gpuledger.model.errors import UsageError
from gpuledger.model.settings import option, text
from gpuledger.model.text import to_short_line

if TYPE_CHECKING:
    from ssl import SSLContext


# By name of a setting; {at} and {of} are the servers and their certificates.
_HELP: Final = {
    "user": "user for basic auth{at}",
    "password_file": "file with the password of --user",
    "ca_file": "CA certificates to verify the {of} (PEM; default: the system's)",
    "cert_file": "client certificate (PEM)",
    "key_file": "key of the client certificate, if in another file (PEM)",
}


def access_option(key: str, *, of_nodes: bool = False) -> str:
    """Declare one of the settings below under the key of a command, which reads one server or all nodes."""
    name = key.partition(".")[2]
    at, of = (" at the nodes", "nodes' certificates") if of_nodes else ("", "server's certificate")
    is_user = name == "user"
    metavar = "NAME" if is_user else "FILE"
    return option(key, text, "", _HELP[name].format(at=at, of=of), metavar=metavar, as_written=is_user)


@dataclass(frozen=True)
class ClientAccessSettings:
    """The login and the TLS files for other nodes, or for a fleet. A user in a URL wins."""

    user: str = access_option("top.user")
    password_file: str = access_option("top.password_file")
    ca_file: str = access_option("top.ca_file")
    cert_file: str = access_option("top.cert_file")
    key_file: str = access_option("top.key_file")


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
    if ":" in access.user:
        raise UsageError(
            "--user: expected a name without ':'; the password is in the file of --password-file"
        )
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

    from gpuledger.http.openssl import NO_PAIR, client_context, ssl_reason

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
            # Without a password OpenSSL would prompt on the terminal for that of an encrypted key.
            context.load_cert_chain(access.cert_file, access.key_file or None, password="")
        except OSError as error:
            is_tls = isinstance(error, ssl.SSLError)
            why = to_short_line(ssl_reason(error, NO_PAIR) if is_tls else error.strerror or error)
            files, remedy = f"{access.cert_file} with the key {access.key_file}", ""
            if not access.key_file:
                files, remedy = access.cert_file, "; a key in another file needs --key-file"
            raise UsageError(f"--cert-file: cannot use {files}: {why}{remedy}") from None
    return context
