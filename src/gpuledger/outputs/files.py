"""What several outputs ask of files."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def signature(file: Path) -> tuple[int, ...] | None:
    """Another one whenever the file is another or has changed; None for one that cannot be looked at.

    Links are followed, so that a Secret that the kubelet swaps is a change.
    """
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def sync_directory(directory: Path) -> None:
    """Bring the names of its files to the disk. Raises OSError."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems know no such thing; what was done there stands.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)
