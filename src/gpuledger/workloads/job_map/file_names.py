"""Names of files in a job-mapping directory: anything that CUDA_VISIBLE_DEVICES can hold. Pure.

Prologs write a file for each word of that variable. Since Slurm 25.11 the words are UUIDs.
"""

from __future__ import annotations

import re
from typing import Final

from gpuledger.workloads.device_index import UUID_FORM, DeviceRef

_NUMBER: Final = re.compile(r"(\d{1,4})(?:\.(\d{1,4}))?", re.ASCII)
# Shortened, too: CUDA accepts the beginning of a UUID while only one device has it.
_UUID: Final = re.compile(r"(?:GPU|MIG)-[0-9a-f][0-9a-f-]{0,35}", re.ASCII | re.IGNORECASE)
# A file name cannot have the slashes of `MIG-GPU-UUID/GI/CI`: they are directories or another character.
_OLD_MIG: Final = re.compile(
    rf"(MIG-GPU-{UUID_FORM})([/_.:-])(\d{{1,3}})\2(\d{{1,3}})", re.ASCII | re.IGNORECASE
)
_OLD_MIG_FOLDER: Final = re.compile(rf"MIG-GPU-{UUID_FORM}(?:/\d{{1,3}})?", re.ASCII | re.IGNORECASE)
# Hidden files, and what editors, packages and interrupted writers leave behind.
_LEFTOVER: Final = re.compile(
    r"\..*|.*~|#.*#|.*\.(?:sw[a-p]|bak|orig|old|save|tmp|temp|new|lock|rpm(?:new|save|orig)|dpkg-\w+)|lost\+found",
    re.DOTALL | re.IGNORECASE,
)


def parse_file_name(name: str) -> tuple[DeviceRef, ...]:
    """The devices in the name of a file, a path below the directory; empty for any other name.

    Of several words, separated by commas, all must be devices.
    """
    refs = [_parse_word(word) for word in name.split(",")]
    return tuple(ref for ref in refs if ref is not None) if all(refs) else ()


def _parse_word(word: str) -> DeviceRef | None:
    if number := _NUMBER.fullmatch(word):
        minor, gi = str(int(number[1])), number[2]
        return DeviceRef("minor", minor) if gi is None else DeviceRef("mig", f"{minor}/{int(gi)}")
    if old := _OLD_MIG.fullmatch(word):
        return DeviceRef("uuid", f"{old[1]}/{int(old[3])}/{int(old[4])}")
    return DeviceRef("uuid", word) if _UUID.fullmatch(word) else None


def is_leftover(name: str) -> bool:
    """Whether a file or directory has nothing to do with jobs: hidden, or left by an editor."""
    return bool(_LEFTOVER.fullmatch(name))


def is_device_folder(path: str) -> bool:
    """Whether a directory is the beginning of `MIG-GPU-UUID/GI/CI`."""
    return bool(_OLD_MIG_FOLDER.fullmatch(path))
