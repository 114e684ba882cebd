"""The web config in force: read at the start, and anew whenever one of its files has changed."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.host.files import signature
from gpuledger.http.web_config.model import WebConfig
from gpuledger.http.web_config.reading import read_web_config
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.source import Clock

if TYPE_CHECKING:
    from gpuledger.http.web_config.contexts import Contexts


_LOG = logging.getLogger(__name__)


class CurrentWebConfig:
    """The last good reading of a web config file and of the files that it names.

    `look` is called per handshake and per request, and looks at the files at most once in `every` seconds.
    Raises UsageError when the first reading fails; later failures leave what was read before in force and are
    said once. `era` counts the readings that may let other clients in than the one before. Used by the event
    loop's thread alone.
    """

    def __init__(self, file: Path, clock: Clock, every: float = 1.0) -> None:
        self._file = file
        self._clock = clock
        self._every = every
        self._looked = clock.elapsed()
        self._said = ""
        self.era = 0
        self._signatures = _signatures((file,))
        self.config, self.contexts = self._read()
        if self.config.http2:
            _LOG.warning("%s: http_server_config.http2: HTTP/2 is not served, HTTP/1.1 is", file)

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted: decided at the start, for good."""
        return self.contexts is not None

    def look(self) -> None:
        """Read anew when a file has changed."""
        now = self._clock.elapsed()
        if now - self._looked < self._every:
            return
        self._looked = now
        if _signatures(self._signatures) == self._signatures:
            return
        try:
            config, contexts = self._read()
            if (contexts is not None) is not self.tls:
                raise UsageError(f"{self._file}: tls_server_config: TLS is switched on and off by a restart")
        except GpuledgerError as error:
            if str(error) != self._said:
                _LOG.error("%s; what was read before stays in force", error)
            self._said = str(error)
        else:
            # Under TLS always: what its files say cannot be compared.
            if contexts is not None or config.users != self.config.users:
                self.era += 1
            self.config, self.contexts = config, contexts
            self._said = ""
            _LOG.info("web config %s was read anew", self._file)

    def _read(self) -> tuple[WebConfig, Contexts | None]:
        # Signatures first: what changes while it is read will be seen as changed at the next look.
        self._signatures = _signatures(self._signatures)
        config = read_web_config(self._file)
        if config.users:
            _check_bcrypt(self._file)
        if config.tls is None:
            self._signatures = {self._file: self._signatures[self._file]}
            return config, None
        named = _signatures(config.tls.files)
        self._signatures = {self._file: self._signatures[self._file], **named}
        from gpuledger.http.web_config.contexts import Contexts

        return config, Contexts(config.tls)


def _signatures(files: Iterable[Path]) -> dict[Path, tuple[int, ...] | None]:
    return {file: signature(file) for file in files}


def _check_bcrypt(file: Path) -> None:
    try:
        import bcrypt  # noqa: F401  (to find out whether it is there)
    except ImportError:
        raise UsageError(
            f"{file}: basic_auth_users: the Python package bcrypt is missing; `pip install bcrypt`"
        ) from None
