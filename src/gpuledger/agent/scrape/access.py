"""What the requests to targets show and believe, as the files of it are now."""

from __future__ import annotations

import ssl

from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.outputs.remote_write.secrets import Watched, authorization
from gpuledger.outputs.remote_write.settings import ClientTls, Login
from gpuledger.outputs.remote_write.tls import tls_context


class TargetAccess:
    """Shared by all targets with the same login and certificates. `headers` are the login, and `context` is
    for https, once `look` was called.

    `generation` grows whenever something is different: a connection made before that is not used on.
    """

    def __init__(self, tls: ClientTls, login: Login | None, clock: Clock, *, encrypted: bool) -> None:
        self._tls = tls
        self._login = login
        self._encrypted = encrypted
        secrets = [tls.ca, tls.certificate, tls.key, *((login.user, login.credentials) if login else ())]
        self._watched = Watched(secrets, clock)
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
                if self._login is not None:
                    self.headers = (("Authorization", authorization(self._login)),)
                if self._encrypted:
                    self.context = tls_context(self._tls)
                self._trouble = None
            except GpuledgerError as error:
                self._trouble = error
        if self._trouble is not None:
            raise self._trouble
