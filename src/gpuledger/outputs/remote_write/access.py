"""What requests show and believe, as the files of it are now."""

from __future__ import annotations

import ssl
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.outputs.remote_write.secrets import Watched, authorization, line_of, text_of
from gpuledger.outputs.remote_write.settings import ClientTls, Login, ReceiverSettings, Secret
from gpuledger.outputs.remote_write.tls import tls_context

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
