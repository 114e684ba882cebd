"""What requests show and believe, as the files of it are now."""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Iterable, Sequence
from typing import Final

from gpuledger.agent.deliver.settings import ClientTls, Login, ReceiverSettings, Secret
from gpuledger.host.files import read_at_most, signature
from gpuledger.http.openssl import VERSIONS, load_chain, reason_of
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock

# The authorities of an operating system are some hundred KiB; all else is a line.
_LONGEST: Final = 1 << 20
# Seconds between two looks at the files.
_EVERY: Final = 1.0


class Watched:
    """Files that somebody has read. `changed` is asked before each use, and looks once a second at most."""

    def __init__(self, secrets: Iterable[Secret], clock: Clock) -> None:
        given = tuple(secrets)
        self._files = tuple(secret.file for secret in given if secret.file is not None)
        self._held = tuple(secret.held for secret in given if secret.held is not None)
        self._clock = clock
        self._looked = -_EVERY
        self._signatures: tuple[object, ...] | None = None

    def changed(self) -> bool:
        """Whether they are to be read (anew): the first time, and whenever one of them is another file."""
        now = self._clock.elapsed()
        if self._signatures is not None and now - self._looked < _EVERY:
            return False
        self._looked = now
        # Before the reading: what changes meanwhile is seen the next time.
        found = (*map(signature, self._files), *(held.mark() for held in self._held))
        if found == self._signatures:
            return False
        self._signatures = found
        return True


def authorization(login: Login) -> str:
    """The value of the Authorization header. Raises GpuledgerError."""
    if login.scheme == "Basic" and not login.user.absent:
        password = "" if login.credentials.absent else text_of(login.credentials, "password").strip()
        pair = f"{text_of(login.user, 'username').strip()}:{password}"
        return f"Basic {b64encode(pair.encode()).decode()}"
    return f"{login.scheme} {line_of(login.credentials, 'credentials')}"


def line_of(secret: Secret, what: str) -> str:
    """A Secret as the value of a header. `what` it is called in errors. Raises GpuledgerError."""
    text = text_of(secret, what).strip()
    if not _is_line(text):
        raise GpuledgerError(f"{name_of(secret, what)}: one line of ASCII is wanted")
    return text


def fits_a_header(secret: Secret) -> bool:
    """Whether a text of the configuration can be the value of a header.

    Of what stands elsewhere that is not known before it is sent, by `line_of`.
    """
    return _is_line(secret.text.strip())


def _is_line(text: str) -> bool:
    return text.isprintable() and text.isascii()


def text_of(secret: Secret, what: str) -> str:
    """What the Secret is now. Raises GpuledgerError, which names the file and not what is in it."""
    if secret.held is not None:
        return secret.held.text()
    if secret.file is None:
        return secret.text
    try:
        return read_at_most(secret.file, _LONGEST).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise GpuledgerError(f"the {what} file {secret.file} cannot be read: {why}") from None


def name_of(secret: Secret, what: str) -> str:
    """The Secret in an error: where it is, not what it is."""
    if secret.held is not None:
        return secret.held.name
    return str(secret.file) if secret.file is not None else f"the inline {what}"


# What OpenSSL says of bytes that are no TLS at all.
_NOT_TLS: Final = frozenset({"wrong version number", "record layer failure", "packet length too long"})


def tls_context(tls: ClientTls) -> ssl.SSLContext:
    """A context that believes and shows what is set, its files read now. Raises GpuledgerError."""
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
            context.load_verify_locations(cadata=text_of(tls.ca, "ca"))
        except (ssl.SSLError, ValueError):
            raise GpuledgerError(f"{name_of(tls.ca, 'ca')} holds no certificates in PEM form") from None
    if not tls.certificate.absent:
        _show(context, tls)
    return context


def _show(context: ssl.SSLContext, tls: ClientTls) -> None:
    try:
        load_chain(context, text_of(tls.certificate, "cert"), text_of(tls.key, "key"))
    except OSError as error:
        names = f"{name_of(tls.certificate, 'cert')} and {name_of(tls.key, 'key')}"
        raise GpuledgerError(
            f"{names} cannot be used as client certificate and key: {reason_of(error)}"
        ) from None


def why_no_tls(error: ssl.SSLError) -> str:
    """OpenSSL's reason in words that name what is most often behind it."""
    reason = reason_of(error, str(error))
    if reason in _NOT_TLS:
        return f"it does not speak TLS there ({reason}); is it http?"
    return reason


# What is shorter is a word like any other: `team`, a user's name.
_TELLING: Final = 6
_HIDDEN: Final = "<hidden>"


class FileAccess(ABC):
    """`headers` are what is shown, and `context` is for https, once `look` was called.

    `generation` grows whenever something is different: a connection made before that is not used on.
    """

    def __init__(
        self, tls: ClientTls, login: Login | None, clock: Clock, more: Sequence[Secret] = ()
    ) -> None:
        credentials = (login.user, login.credentials) if login else ()
        self._watched = Watched([tls.ca, tls.certificate, tls.key, *more, *credentials], clock)
        self._trouble: GpuledgerError | None = None
        self._hidden: tuple[str, ...] = ()
        self.headers: tuple[tuple[str, str], ...] = ()
        self.context: ssl.SSLContext | None = None
        self.generation = 0

    def look(self) -> None:
        """Read anew what has changed. Raises GpuledgerError while a file cannot be read.

        What was read before is not used on then: a file that was taken away may be meant so.
        """
        if self._watched.changed():
            self.generation += 1
            try:
                self._read()
                self._trouble = None
            except GpuledgerError as error:
                self._trouble = error
        if self._trouble is not None:
            raise self._trouble

    def hide(self, text: str) -> str:
        """The text without what we showed: whom we ask may quote it, and what is quoted may be cut off."""
        for secret in self._hidden:
            for spelled in (secret, repr(secret)[1:-1]):
                text = _without(text, spelled)
        return text

    def _show(self, headers: Sequence[tuple[str, str]], login: Login | None) -> None:
        """Set `headers`, with that of the login, and what of them `hide` hides. Raises GpuledgerError."""
        found = list(headers)
        secrets = [value for _, value in found]
        if login is not None:
            value = authorization(login)
            found.append(("Authorization", value))
            secrets += [value, value.partition(" ")[2], text_of(login.credentials, "password").strip()]
        self.headers = tuple(found)
        self._hidden = tuple(secret for secret in secrets if len(secret) >= _TELLING)

    @abstractmethod
    def _read(self) -> None:
        """Set `headers` and `context`. Raises GpuledgerError."""


def _without(text: str, secret: str) -> str:
    """The text without the secret, and without as much of its beginning as ends or breaks off there."""
    for length in range(len(secret), _TELLING - 1, -1):
        if secret[:length] in text:
            return text.replace(secret[:length], _HIDDEN)
    return text


class Access(FileAccess):
    """One receiver's: its own headers and the login."""

    def __init__(self, settings: ReceiverSettings, clock: Clock) -> None:
        super().__init__(settings.tls, settings.login, clock, [secret for _, secret in settings.headers])
        self._settings = settings

    def _read(self) -> None:
        settings = self._settings
        found = [(name, line_of(secret, f"header {name}")) for name, secret in settings.headers]
        self._show(found, settings.login)
        if settings.url.startswith("https:"):
            self.context = tls_context(settings.tls)
