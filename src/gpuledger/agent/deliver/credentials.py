"""Request credentials and TLS contexts, reloaded when their files or Secrets change."""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Final

from gpuledger.agent.deliver.settings import ClientTls, Login, ReceiverSettings, Secret
from gpuledger.host.files import file_signature, read_at_most
from gpuledger.http.client_messages import HttpRequestFailed
from gpuledger.http.openssl import VERSIONS, load_cert_chain, ssl_reason
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock

# Size limit of a secret: the CA bundle of an operating system has some hundred KiB.
_LONGEST: Final = 1 << 20
# Seconds between two checks of the files.
_CHECK_SECONDS: Final = 1.0


class SecretChanges:
    """Detects changes of secrets. Call `changed` before each use; it checks at most once a second."""

    def __init__(self, secrets: Iterable[Secret], clock: Clock) -> None:
        given = tuple(secrets)
        self._files = tuple(secret.file for secret in given if secret.file is not None)
        self._providers = tuple(secret.provider for secret in given if secret.provider is not None)
        self._clock = clock
        self._checked_at = -_CHECK_SECONDS
        self._signatures: tuple[object, ...] | None = None

    def changed(self) -> bool:
        """Return whether the secrets must be read: the first time, and after a change."""
        now = self._clock.elapsed()
        if self._signatures is not None and now - self._checked_at < _CHECK_SECONDS:
            return False
        self._checked_at = now
        # Taken before the caller reads: a change during the read is detected the next time.
        found = (*map(file_signature, self._files), *(provider.revision() for provider in self._providers))
        if found == self._signatures:
            return False
        self._signatures = found
        return True


def authorization_value(login: Login) -> str:
    """Return the value of the Authorization header. Raises GpuledgerError."""
    if login.scheme == "Basic" and not login.user.absent:
        password = "" if login.credentials.absent else secret_text(login.credentials, "password").strip()
        pair = f"{secret_text(login.user, 'username').strip()}:{password}"
        return f"Basic {b64encode(pair.encode()).decode()}"
    return f"{login.scheme} {secret_header_value(login.credentials, 'credentials')}"


def secret_header_value(secret: Secret, what: str) -> str:
    """Return a secret as a header value. `what` names it in errors. Raises GpuledgerError."""
    text = secret_text(secret, what).strip()
    if not _is_line(text):
        raise GpuledgerError(f"{secret_location(secret, what)}: expected one line of ASCII text")
    return text


def is_header_value(secret: Secret) -> bool:
    """Return whether an inline secret can be a header value.

    Files and providers are checked when they are sent, by `secret_header_value`.
    """
    return _is_line(secret.text.strip())


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
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = VERSIONS[tls.min_version]
    context.maximum_version = VERSIONS[tls.max_version]
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca.absent:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(cadata=secret_text(tls.ca, "ca"))
        except (ssl.SSLError, ValueError):
            raise GpuledgerError(f"{secret_location(tls.ca, 'ca')} contains no PEM certificates") from None
    if not tls.certificate.absent:
        _load_client_certificate(context, tls)
    return context


def _load_client_certificate(context: ssl.SSLContext, tls: ClientTls) -> None:
    try:
        load_cert_chain(context, secret_text(tls.certificate, "cert"), secret_text(tls.key, "key"))
    except OSError as error:
        names = f"{secret_location(tls.certificate, 'cert')} and {secret_location(tls.key, 'key')}"
        raise GpuledgerError(
            f"{names} cannot be used as client certificate and key: {ssl_reason(error)}"
        ) from None


# Shorter secrets are not redacted: they can be ordinary words such as a user's name.
_MIN_REDACTED: Final = 6
_HIDDEN: Final = "<hidden>"


class ReloadedCredentials(ABC):
    """Request headers and TLS context (for https), valid after `reload`.

    `generation` increases with every change: connections of an older generation must not be reused.
    """

    def __init__(
        self, tls: ClientTls, login: Login | None, clock: Clock, more: Sequence[Secret] = ()
    ) -> None:
        credentials = (login.user, login.credentials) if login else ()
        self._watched = SecretChanges([tls.ca, tls.certificate, tls.key, *more, *credentials], clock)
        self._error: str | None = None
        self._hidden: tuple[str, ...] = ()
        self.headers: tuple[tuple[str, str], ...] = ()
        self.context: ssl.SSLContext | None = None
        self.generation = 0

    def reload(self) -> None:
        """Reload changed secrets. Raises HttpRequestFailed (`credentials`) while one cannot be read.

        The old secrets are not used then: a file may have been removed to revoke access.
        """
        if self._watched.changed():
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

    def _set_headers(self, headers: Sequence[tuple[str, str]], login: Login | None) -> None:
        """Set `headers`, including Authorization, and the secrets for `redact`. Raises GpuledgerError."""
        found = list(headers)
        secrets = [value for _, value in found]
        if login is not None:
            value = authorization_value(login)
            found.append(("Authorization", value))
            secrets += [value, value.partition(" ")[2], secret_text(login.credentials, "password").strip()]
        self.headers = tuple(found)
        self._hidden = tuple(secret for secret in secrets if len(secret) >= _MIN_REDACTED)

    @abstractmethod
    def _read(self) -> None:
        """Set `headers` and `context`. Raises GpuledgerError."""


def _without(text: str, secret: str) -> str:
    """Return the text without the secret or the longest beginning of it."""
    for length in range(len(secret), _MIN_REDACTED - 1, -1):
        if secret[:length] in text:
            return text.replace(secret[:length], _HIDDEN)
    return text


class RequestCredentials(ReloadedCredentials):
    """Headers, login and TLS context of one receiver."""

    def __init__(self, settings: ReceiverSettings, clock: Clock) -> None:
        super().__init__(settings.tls, settings.login, clock, [secret for _, secret in settings.headers])
        self._settings = settings

    def _read(self) -> None:
        settings = self._settings
        found = [(name, secret_header_value(secret, f"header {name}")) for name, secret in settings.headers]
        self._set_headers(found, settings.login)
        if settings.url.startswith("https:"):
            self.context = tls_context(settings.tls)
