"""Secrets and certificates as they are now: files are read again when they have changed."""

from __future__ import annotations

import os
import ssl
from base64 import b64encode
from pathlib import Path
from typing import Final

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.outputs.remote_write.settings import ClientTls, Login, ReceiverSettings, Secret

_VERSIONS: Final = {12: ssl.TLSVersion.TLSv1_2, 13: ssl.TLSVersion.TLSv1_3}
_EVERY: Final = 1.0
_Signature = tuple[int, ...] | None


class Secrets:
    """What one receiver's requests need. `look` is called before each, and looks once a second at most.

    Raises GpuledgerError, one line that names the file and not what is in it; what was read before is not
    used on then, for a file that is taken away may be meant so.
    """

    def __init__(self, settings: ReceiverSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._looked = -_EVERY
        self._signatures: dict[Path, _Signature] = {}
        self._files = tuple(secret.file for secret in _secrets_of(settings) if secret.file is not None)
        self._headers: tuple[tuple[str, str], ...] = ()
        self._context: ssl.SSLContext | None = None
        self._trouble: GpuledgerError | None = None
        # Grows whenever something is different: a connection made before it is not used on.
        self.generation = 0

    def look(self) -> None:
        """Read anew when a file has changed."""
        now = self._clock.elapsed()
        if now - self._looked >= _EVERY:
            self._looked = now
            found = {file: _signature(file) for file in self._files}
            if not self.generation or found != self._signatures:
                # Signatures first: what changes while it is read is seen the next time.
                self._signatures = found
                self._read()
        if self._trouble is not None:
            raise self._trouble

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The receiver's own headers and the login, by name and value."""
        return self._headers

    @property
    def context(self) -> ssl.SSLContext | None:
        """For https."""
        return self._context

    def _read(self) -> None:
        self.generation += 1
        try:
            self._headers = _headers(self._settings)
            if self._settings.url.startswith("https:"):
                self._context = tls_context(self._settings.tls)
            self._trouble = None
        except GpuledgerError as error:
            self._trouble = error


def tls_context(tls: ClientTls) -> ssl.SSLContext:
    """A context that believes and shows what is set. Raises GpuledgerError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.maximum_version = _VERSIONS[tls.max_version]
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca.absent:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(cadata=_text(tls.ca, "ca"))
        except (ssl.SSLError, ValueError):
            raise GpuledgerError(f"{_named(tls.ca, 'ca')} holds no certificates in PEM form") from None
    if not tls.certificate.absent:
        _show(context, tls)
    return context


def _show(context: ssl.SSLContext, tls: ClientTls) -> None:
    """Load certificate and key; OpenSSL takes them from a file only, so this one is in memory."""
    content = f"{_text(tls.certificate, 'cert')}\n{_text(tls.key, 'key')}\n"
    handle = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with open(handle, "w", encoding="ascii", errors="replace", closefd=False) as file:
            file.write(content)
        # A password, or OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(f"/proc/self/fd/{handle}", password="")
    except OSError as error:
        why = (getattr(error, "reason", "") or "not understood").lower().replace("_", " ")
        names = f"{_named(tls.certificate, 'cert')} and {_named(tls.key, 'key')}"
        raise GpuledgerError(f"{names} cannot be used as client certificate and key: {why}") from None
    finally:
        os.close(handle)


def _headers(settings: ReceiverSettings) -> tuple[tuple[str, str], ...]:
    found = [(name, _line(secret, name)) for name, secret in settings.headers]
    if settings.login is not None:
        found.append(("Authorization", _authorization(settings.login)))
    return tuple(found)


def _authorization(login: Login) -> str:
    if login.scheme == "Basic" and not login.user.absent:
        password = "" if login.credentials.absent else _text(login.credentials, "password").strip()
        pair = f"{_text(login.user, 'username').strip()}:{password}"
        return f"Basic {b64encode(pair.encode()).decode()}"
    return f"{login.scheme} {_line(login.credentials, 'credentials')}"


def _line(secret: Secret, what: str) -> str:
    """A header's value."""
    text = _text(secret, what).strip()
    if not text.isprintable() or not text.isascii():
        raise GpuledgerError(f"{_named(secret, what)}: one line of ASCII is wanted")
    return text


def _text(secret: Secret, what: str) -> str:
    if secret.file is None:
        return secret.text
    try:
        return secret.file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise GpuledgerError(f"the {what} file {secret.file} cannot be read: {why}") from None


def _named(secret: Secret, what: str) -> str:
    return str(secret.file) if secret.file is not None else f"the inline {what}"


def _secrets_of(settings: ReceiverSettings) -> list[Secret]:
    tls, login = settings.tls, settings.login
    found = [tls.ca, tls.certificate, tls.key, *(secret for _, secret in settings.headers)]
    return found + ([login.user, login.credentials] if login else [])


def _signature(file: Path) -> _Signature:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
