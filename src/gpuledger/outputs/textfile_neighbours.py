"""Other files of the textfile directory that tell families of ours."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

# Enough for any textfile directory; what lies beyond costs a warning, not a sample.
_MOST_FILES = 256
_MOST_BYTES = 1 << 20

# The family or sample name that begins a line of text 0.0.4.
_NAME = re.compile(rb"^[ \t]*(?:#[ \t]+(?:HELP|TYPE)[ \t]+)?([a-zA-Z_:][a-zA-Z0-9_:]*)", re.MULTILINE)


class Neighbours:
    """Looks through the other `.prom` files of a directory, each once per change."""

    def __init__(self, own: Path, families: Iterable[str]) -> None:
        self._own = own
        self._families = frozenset(name.encode() for name in families)
        self._looked_at: dict[str, tuple[int, int, int]] = {}

    def clashes(self) -> list[tuple[Path, tuple[str, ...]]]:
        """Files new or changed since the last call that tell our families, and which.

        A file that cannot be read is passed over: node_exporter most likely cannot read it either, and
        says so itself.
        """
        before, self._looked_at = self._looked_at, {}
        found = []
        for path, signature in self._files():
            self._looked_at[path.name] = signature
            shared = self._families & _names(path) if before.get(path.name) != signature else None
            if shared:
                found.append((path, tuple(sorted(name.decode() for name in shared))))
        return found

    def _files(self) -> Iterator[tuple[Path, tuple[int, int, int]]]:
        looked = 0
        try:
            with os.scandir(self._own.parent) as entries:
                for entry in entries:
                    # A pipe among them would keep us waiting.
                    if (
                        not entry.name.endswith(".prom")
                        or entry.name == self._own.name
                        or not entry.is_file()
                    ):
                        continue
                    looked += 1
                    if looked > _MOST_FILES:
                        return
                    status = entry.stat()
                    yield Path(entry.path), (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            return


def _names(path: Path) -> set[bytes]:
    try:
        with path.open("rb") as file:
            return set(_NAME.findall(file.read(_MOST_BYTES)))
    except OSError:
        return set()
