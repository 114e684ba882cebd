"""What the requests to targets show and believe, as the files of it are now."""

from __future__ import annotations

import ssl
from dataclasses import replace

from gpuledger.model.source import Clock
from gpuledger.outputs.remote_write.access import FileAccess
from gpuledger.outputs.remote_write.settings import ClientTls, Login, Secret
from gpuledger.outputs.remote_write.tls import tls_context


class TargetAccess(FileAccess):
    """Shared by all targets with the same login and certificates. `elsewhere` is for https where a redirect
    leads away from the target: it believes the same, and shows no certificate.
    """

    def __init__(self, tls: ClientTls, login: Login | None, clock: Clock, *, encrypted: bool) -> None:
        super().__init__(tls, login, clock)
        self._tls = tls
        self._login = login
        self._encrypted = encrypted
        self.elsewhere: ssl.SSLContext | None = None

    def _read(self) -> None:
        self._show((), self._login)
        if self._encrypted:
            self.context = self.elsewhere = tls_context(self._tls)
            if not self._tls.certificate.absent:
                self.elsewhere = tls_context(replace(self._tls, certificate=Secret(), key=Secret()))
