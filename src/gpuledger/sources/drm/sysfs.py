"""Read values of sysfs and hwmon: numbers, tables and texts, absent where the file is."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from typing import Final

from gpuledger.host.files import ReadFile, read_whole
from gpuledger.model.text import decode_utf8

# Digits of the largest number of 64 bits.
_LONGEST_NUMBER: Final = 20
_ASLEEP: Final = frozenset({"suspended", "suspending"})
# Answers of a driver that has the file, but not the value: not a failure of the card.
_NO_VALUE: Final = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENODATA, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY}
)


class SysfsFolder:
    """The files of one folder. A file that cannot be read is absent; `errors` holds why, by path.

    A missing file is no error. Copies of sysfs can be padded with NUL: text ends at the first one.
    """

    def __init__(
        self, path: str, read: ReadFile = read_whole, errors: dict[str, OSError] | None = None
    ) -> None:
        self.path = path
        self.errors: dict[str, OSError] = {} if errors is None else errors
        self._read = read

    def folder(self, name: str) -> SysfsFolder:
        """A folder in this one, with the same `errors`."""
        return SysfsFolder(f"{self.path}/{name}", self._read, self.errors)

    def raw(self, name: str) -> bytes | None:
        """The bytes of a file, read to its end in one pass."""
        path = f"{self.path}/{name}"
        try:
            return self._read(path)
        except OSError as error:
            if error.errno not in _NO_VALUE:
                self.errors[path] = error
            return None

    def text(self, name: str) -> str:
        """The text of a file without surrounding blanks; empty if it is absent."""
        return decode_utf8((self.raw(name) or b"").split(b"\0", 1)[0]).strip()

    def number(self, name: str, base: int = 10) -> int | None:
        """The number in a file; None if it is absent or no number."""
        text = self.text(name)
        try:
            # One more for a sign.
            return int(text, base) if len(text) <= _LONGEST_NUMBER + 1 else None
        except ValueError:
            return None

    def inode(self) -> int:
        """The inode of the folder itself, another one if it was made again; 0 if it is absent."""
        try:
            return os.stat(self.path).st_ino  # noqa: PTH116  (avoids a Path object per device and tick)
        except OSError:
            return 0

    def pairs(self, name: str) -> Mapping[str, str]:
        """The lines of a file as pairs of key and value, separated by `=`, `:` or blanks."""
        found: dict[str, str] = {}
        for line in self.text(name).splitlines():
            key, equals, value = line.partition("=")
            if not equals:
                key, _, value = line.replace(":", " ", 1).partition(" ")
            found[key.strip()] = value.strip()
        return found

    def names(self) -> list[str]:
        """The sorted names of everything in the folder; none if it is absent."""
        try:
            return sorted(os.listdir(self.path))  # noqa: PTH208  (avoids a Path object per device and tick)
        except OSError as error:
            if error.errno not in _NO_VALUE:
                self.errors[self.path] = error
            return []


def is_asleep(device: SysfsFolder) -> bool:
    """Whether the kernel has suspended the device to save power. Any other file can wake it."""
    return device.text("power/runtime_status") in _ASLEEP


def whole_number(text: str) -> int | None:
    """The number that a text of digits stands for; None for any other text."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER
    return int(text) if is_number else None


def labelled_files(hwmon: SysfsFolder, kind: str) -> Mapping[str, str]:
    """The prefix of each sensor of a kind by its label: {"edge": "temp1"}; without label, `temp1` itself.

    A sensor with a label that could not be read is omitted: it may be any of them.
    """
    prefixes = {
        name.partition("_")[0]
        for name in hwmon.names()
        if name.startswith(kind) and name[len(kind) : len(kind) + 1].isdigit() and "_" in name
    }
    labels = {prefix: hwmon.text(f"{prefix}_label") for prefix in sorted(prefixes)}
    return {
        label or prefix: prefix
        for prefix, label in labels.items()
        if f"{hwmon.path}/{prefix}_label" not in hwmon.errors
    }


def first_label(labels: Mapping[str, str], wanted: Iterable[str]) -> str | None:
    """The prefix of the first of these labels that exists."""
    return next((labels[label] for label in wanted if label in labels), None)
