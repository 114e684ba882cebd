"""Request credentials and TLS contexts, reloaded when their files or Secrets change."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpuledger.agent.deliver.settings import ClientTls, Login, Secret
from gpuledger.host.files import read_at_most
from gpuledger.host.yaml_nodes import YamlNode
from gpuledger.http.client_messages import HttpRequestFailed, basic_authorization
from gpuledger.http.openssl import NO_PAIR, VERSIONS, client_context, load_cert_chain, ssl_reason
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock

# Size limit of a secret: the CA bundle of an operating system has some hundred KiB.
_LONGEST: Final = 1 << 20
# Seconds between two checks of the files.
_CHECK_SECONDS: Final = 1.0


def authorization_value(login: Login) -> str:
    """Return the value of the Authorization header. Raises GpuledgerError."""
    if login.scheme == "Basic" and not login.user.absent:
        password = "" if login.credentials.absent else secret_text(login.credentials, "password").strip()
        return basic_authorization(f"{secret_text(login.user, 'username').strip()}:{password}")
    return f"{login.scheme} {secret_header_value(login.credentials, 'credentials')}"


def secret_header_value(secret: Secret, what: str) -> str:
    """Return a secret as a header value. `what` names it in errors. Raises GpuledgerError."""
    text = secret_text(secret, what).strip()
    if not _is_line(text):
        raise GpuledgerError(f"{secret_location(secret, what)}: expected one line of ASCII text")
    return text


def check_header_value(node: YamlNode, secret: Secret) -> Secret:
    """Return the secret. Raises UsageError if it is inline and no valid header value.

    Files and providers are checked when they are sent, by `secret_header_value`.
    """
    if not _is_line(secret.text.strip()):
        raise node.error("expected one line of ASCII text")
    return secret


def _is_line(text: str) -> bool:
    return text.isprintable() and text.isascii()


def secret_text(secret: Secret, what: str) -> str:
    """Return the current text of a secret. Raises GpuledgerError with the file's name, not its content."""
    if secret.provider is not None:
        return secret.provider.text()
    if secret.file is None:
        return secret.text
    try:
        return read_at_most(secret.file, _LONGEST).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise GpuledgerError(f"cannot read the {what} file {secret.file}: {why}") from None


def secret_location(secret: Secret, what: str) -> str:
    """Return the location of a secret, for errors; never its text."""
    if secret.provider is not None:
        return secret.provider.name
    return str(secret.file) if secret.file is not None else f"the inline {what}"


def tls_context(tls: ClientTls) -> ssl.SSLContext:
    """Build a TLS client context, reading its files now. Raises GpuledgerError."""
    context = client_context(verify=tls.verify)
    context.minimum_version = VERSIONS[tls.min_version]
    context.maximum_version = VERSIONS[tls.max_version]
    if tls.verify and tls.ca.absent:
        context.load_default_certs()
    elif tls.verify:
        try:
            context.load_verify_locations(cadata=secret_text(tls.ca, "ca"))
        except (ssl.SSLError, ValueError):
            raise GpuledgerError(f"{secret_location(tls.ca, 'ca')} contains no PEM certificates") from None
    if tls.certificate.absent:
        return context
    try:
        load_cert_chain(context, secret_text(tls.certificate, "cert"), secret_text(tls.key, "key"))
    except OSError as error:
        names = f"{secret_location(tls.certificate, 'cert')} and {secret_location(tls.key, 'key')}"
        raise GpuledgerError(
            f"{names} cannot be used as client certificate and key: {ssl_reason(error, NO_PAIR)}"
        ) from None
    return context


# Shorter secrets are not redacted: they can be ordinary words such as a user's name.
_MIN_REDACTED: Final = 6
_HIDDEN: Final = "<hidden>"


class ReloadedCredentials:
    """Request headers and, if `encrypted`, TLS contexts; all valid after `reload`.

    `headers` are added to the requests. `elsewhere` is the TLS context for redirects to another origin: same
    CA, no client certificate. `generation` increases with every change: connections of an older generation
    must not be reused.
    """

    def __init__(
        self,
        tls: ClientTls,
        login: Login | None,
        clock: Clock,
        *,
        encrypted: bool,
        headers: Sequence[tuple[str, Secret]] = (),
    ) -> None:
        self._tls = tls
        self._login = login
        self._clock = clock
        self._encrypted = encrypted
        self._more_headers = headers
        secrets = [tls.ca, tls.certificate, tls.key, *(secret for _, secret in headers)]
        self._secrets = [*secrets, login.user, login.credentials] if login else secrets
        self._checked_at = -_CHECK_SECONDS
        self._revisions: list[object] = []
        self._error: str | None = None
        self._hidden: tuple[str, ...] = ()
        self.headers: tuple[tuple[str, str], ...] = ()
        self.context: ssl.SSLContext | None = None
        self.elsewhere: ssl.SSLContext | None = None
        self.generation = 0

    def reload(self) -> None:
        """Reload changed secrets. Raises HttpRequestFailed (`credentials`) while one cannot be read.

        The old secrets are not used then: a file may have been removed to revoke access.
        """
        if self._changed():
            self.generation += 1
            try:
                self._read()
                self._error = None
            except GpuledgerError as error:
                self._error = str(error.args[0])
        if self._error is not None:
            # A new exception each time: the traceback of one that is raised again grows.
            raise HttpRequestFailed(self._error, "credentials")

    def redact(self, text: str) -> str:
        """Return the text without our secrets, which a server may quote, possibly truncated."""
        for secret in self._hidden:
            for spelled in (secret, repr(secret)[1:-1]):
                text = _without(text, spelled)
        return text

    def _changed(self) -> bool:
        """Return whether the secrets must be read: the first time, and after a change."""
        now = self._clock.elapsed()
        if self._revisions and now - self._checked_at < _CHECK_SECONDS:
            return False
        self._checked_at = now
        # Taken before the caller reads: a change during the read is detected the next time.
        before, self._revisions = self._revisions, [secret.revision() for secret in self._secrets]
        return self._revisions != before

    def _read(self) -> None:
        """Set headers, secrets for `redact`, and contexts. Raises GpuledgerError."""
        found = [(name, secret_header_value(secret, f"header {name}")) for name, secret in self._more_headers]
        secrets = [value for _, value in found]
        login = self._login
        if login is not None:
            value = authorization_value(login)
            found.append(("Authorization", value))
            secrets += [value, value.partition(" ")[2], secret_text(login.credentials, "password").strip()]
        self.headers = tuple(found)
        self._hidden = tuple(secret for secret in secrets if len(secret) >= _MIN_REDACTED)
        if self._encrypted:
            self.context = self.elsewhere = tls_context(self._tls)
            if not self._tls.certificate.absent:
                self.elsewhere = tls_context(replace(self._tls, certificate=Secret(), key=Secret()))


def _without(text: str, secret: str) -> str:
    """Return the text without the secret or the longest beginning of it."""
    for length in range(len(secret), _MIN_REDACTED - 1, -1):
        if secret[:length] in text:
            return text.replace(secret[:length], _HIDDEN)
    return text
