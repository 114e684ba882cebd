"""What one receiver's requests show and believe, as its files are now."""

from __future__ import annotations

import ssl

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.outputs.remote_write.secrets import Watched, authorization, line_of
from gpuledger.outputs.remote_write.settings import ReceiverSettings
from gpuledger.outputs.remote_write.tls import tls_context


class Access:
    """`headers` are the receiver's own and the login, `context` is for https, once `look` was called.

    `generation` grows whenever something is different: a connection made before that is not used on.
    """

    def __init__(self, settings: ReceiverSettings, clock: Clock) -> None:
        self._settings = settings
        tls, login = settings.tls, settings.login
        secrets = [tls.ca, tls.certificate, tls.key, *(secret for _, secret in settings.headers)]
        self._watched = Watched([*secrets, *((login.user, login.credentials) if login else ())], clock)
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

    def _read(self) -> None:
        settings = self._settings
        found = [(name, line_of(secret, f"header {name}")) for name, secret in settings.headers]
        if settings.login is not None:
            found.append(("Authorization", authorization(settings.login)))
        self.headers = tuple(found)
        if settings.url.startswith("https:"):
            self.context = tls_context(settings.tls)
