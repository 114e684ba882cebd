"""User names from a passwd file, else from the machine's name service."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import partial

from gpuledger.host.container import find_container
from gpuledger.host.files import ReadFile, read_at_most
from gpuledger.host.name_service import NameService, read_name_service, read_uid
from gpuledger.host.settings import HostSettings
from gpuledger.model.text import clean_name, decode_utf8

_MOST_NAMES = 1024
# Bytes: some hundred thousand users of a directory server.
_LONGEST = 64 * 1024 * 1024


_read_file = partial(read_at_most, longest=_LONGEST)


class PasswdUsers:
    """User names from a file in passwd(5) format, which can be the output of `getent passwd`.

    The file comes first: in a container the name service has other users than the host, and a directory
    server that hangs must not block the tick. The file is searched once per uid, and again after a change;
    only names of requested uids are cached. A `name_service` is used for users that the file does not have.
    """

    def __init__(
        self,
        path: str = "/etc/passwd",
        read: ReadFile = _read_file,
        name_service: NameService | None = None,
    ) -> None:
        self._path = path
        self._read = read
        self._service = name_service
        self._version = self._stamp()
        self._versions = 0
        # Empty for users that the file does not have.
        self._names: dict[int, str] = {}

    @property
    def changes(self) -> int:
        """A number that grows whenever a user can have got a name."""
        return self._versions + (self._service.changes if self._service else 0)

    def name(self, uid: int) -> str:
        """The user's name, or the number as text as long as nobody knows it."""
        version = self._stamp()
        if version != self._version or len(self._names) >= _MOST_NAMES:
            self._names.clear()
            self._versions += version != self._version
            self._version = version
        if uid not in self._names:
            self._names[uid] = self._search(rb"^([^:\n]+):[^:\n]*:%d:" % uid)
        return self._names[uid] or (self._service.name(uid) if self._service else "") or str(uid)

    def wait_for_name(self, uid: int) -> str:
        """As `name`, but waits for the name service, which can take as long as a directory server does."""
        found = self.name(uid)
        if found != str(uid) or self._service is None:
            return found
        return read_name_service(uid) or found

    def uid_of(self, name: str) -> int | None:
        """The uid of the user with this name in the file; None if it has none. Searches each time."""
        found = self._search(rb"^%s:[^:\n]*:(\d{1,10}):" % re.escape(name.encode("utf-8", "replace")))
        return int(found) if found else None

    def wait_for_uid(self, name: str) -> int | None:
        """As `uid_of`, also by the name service, which can take as long as a directory server does."""
        found = self.uid_of(name)
        return read_uid(name) if found is None and self._service is not None else found

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)  # noqa: PTH116  (avoids a Path object per lookup)
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_ino)

    def _search(self, pattern: bytes) -> str:
        """The group of the first line that matches, empty without one."""
        try:
            text = self._read(self._path)
        except OSError:
            return ""
        found = re.search(pattern, text, re.MULTILINE)
        return clean_name(decode_utf8(found[1])) if found else ""


PASSWD_KEY = "passwd_file"


def open_users(
    settings: HostSettings, values: Mapping[str, object], environment: Mapping[str, str]
) -> PasswdUsers:
    """The names of this machine's users. `values` are the settings that the user has set, by key."""
    in_container = bool(find_container("/", settings.procfs, environment))
    is_used = settings.uses_name_service(is_named=PASSWD_KEY in values, in_container=in_container)
    return PasswdUsers(settings.passwd, name_service=NameService() if is_used else None)
