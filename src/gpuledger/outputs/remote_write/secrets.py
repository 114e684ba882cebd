"""Secrets as they are now, for whoever sends them: texts, and files that are read anew when they change."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from typing import Final

from gpuledger.host.files import read_at_most
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.source import Clock
from gpuledger.outputs.files import signature
from gpuledger.outputs.remote_write.settings import Login, Secret

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
