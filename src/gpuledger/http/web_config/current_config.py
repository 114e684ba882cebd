"""The web config in force: read at start, and again whenever one of its files changes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.host.files import file_signature
from gpuledger.http.web_config.model import WebConfig
from gpuledger.http.web_config.parser import read_web_config
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.source import Clock

if TYPE_CHECKING:
    from gpuledger.http.web_config.tls_contexts import TlsContexts


_LOG = logging.getLogger(__name__)


class CurrentWebConfig:
    """The last valid content of a web config file and of the files that it names.

    `refresh` is called per handshake and per request, and checks the files at most once in `every` seconds.
    Raises UsageError when the first reading fails; a later failure keeps the previous content and is logged
    once. `generation` counts the reloads that may change which clients are allowed. Used by the event loop's
    thread only.
    """

    def __init__(self, file: Path, clock: Clock, every: float = 1.0) -> None:
        self._file = file
        self._clock = clock
        self._every = every
        self._checked = clock.elapsed()
        self._logged = ""
        self.generation = 0
        self._signatures = _signatures((file,))
        self.config, self.contexts = self._read()
        if self.config.http2:
            _LOG.warning("%s: http_server_config.http2: HTTP/2 is not served, HTTP/1.1 is", file)

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted; a reload cannot change it."""
        return self.contexts is not None

    def refresh(self) -> None:
        """Read the files again if one has changed."""
        now = self._clock.elapsed()
        if now - self._checked < self._every:
            return
        self._checked = now
        if _signatures(self._signatures) == self._signatures:
            return
        try:
            config, contexts = self._read()
            if (contexts is not None) is not self.tls:
                raise UsageError(f"{self._file}: tls_server_config: turning TLS on or off needs a restart")
        except GpuledgerError as error:
            if str(error) != self._logged:
                _LOG.error("%s; the previous web config remains in force", error)
            self._logged = str(error)
        else:
            # With TLS on every reload, because the content of its files is not compared.
            if contexts is not None or config.users != self.config.users:
                self.generation += 1
            self.config, self.contexts = config, contexts
            self._logged = ""
            _LOG.info("web config %s reloaded", self._file)

    def _read(self) -> tuple[WebConfig, TlsContexts | None]:
        # Signatures first: a file that changes during the read counts as changed at the next refresh.
        self._signatures = _signatures(self._signatures)
        config = read_web_config(self._file)
        if config.users:
            _check_bcrypt(self._file)
        named = () if config.tls is None else config.tls.files
        self._signatures = {self._file: self._signatures[self._file], **_signatures(named)}
        if config.tls is None:
            return config, None
        from gpuledger.http.web_config.tls_contexts import TlsContexts

        return config, TlsContexts(config.tls)


def _signatures(files: Iterable[Path]) -> dict[Path, tuple[int, ...] | None]:
    return {file: file_signature(file) for file in files}


def _check_bcrypt(file: Path) -> None:
    try:
        import bcrypt  # noqa: F401  (checks whether it is installed)
    except ImportError:
        raise UsageError(
            f"{file}: basic_auth_users needs the Python package bcrypt: `pip install bcrypt`"
        ) from None
