"""What the requests to targets show and believe, as the files of it are now."""

from __future__ import annotations

from gpuledger.model.source import Clock
from gpuledger.outputs.remote_write.access import FileAccess
from gpuledger.outputs.remote_write.secrets import authorization
from gpuledger.outputs.remote_write.settings import ClientTls, Login
from gpuledger.outputs.remote_write.tls import tls_context


class TargetAccess(FileAccess):
    """Shared by all targets with the same login and certificates."""

    def __init__(self, tls: ClientTls, login: Login | None, clock: Clock, *, encrypted: bool) -> None:
        super().__init__(tls, login, clock)
        self._tls = tls
        self._login = login
        self._encrypted = encrypted

    def _read(self) -> None:
        if self._login is not None:
            self.headers = (("Authorization", authorization(self._login)),)
        if self._encrypted:
            self.context = tls_context(self._tls)
