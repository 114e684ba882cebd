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

    @abstractmethod
    def _read(self) -> None:
        """Set `headers` and `context`. Raises GpuledgerError."""


class Access(FileAccess):
    """One receiver's: its own headers and the login."""

    def __init__(self, settings: ReceiverSettings, clock: Clock) -> None:
        super().__init__(settings.tls, settings.login, clock, [secret for _, secret in settings.headers])
        self._settings = settings
        self._hidden: tuple[str, ...] = ()

    def hide(self, text: str) -> str:
        """The text without what we showed: proxies like to quote a request that they refuse."""
        for secret in self._hidden:
            text = text.replace(secret, "<hidden>")
        return text

    def _read(self) -> None:
        settings = self._settings
        found = [(name, line_of(secret, f"header {name}")) for name, secret in settings.headers]
        if settings.login is not None:
            found.append(("Authorization", authorization(settings.login)))
        self.headers = tuple(found)
        secrets = [value for _, value in found]
        if settings.login is not None:
            secrets += [
                secrets[-1].partition(" ")[2],
                text_of(settings.login.credentials, "password").strip(),
            ]
        self._hidden = tuple(secret for secret in secrets if len(secret) >= _TELLING)
        if settings.url.startswith("https:"):
            self.context = tls_context(settings.tls)
