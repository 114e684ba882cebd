"""Builds debian:bookworm-slim with debootstrap, like Docker's image: essential packages, no documentation."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

NAME = "debian:bookworm-slim"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
SECURITY = os.environ.get("DEBIAN_SECURITY_MIRROR", "http://deb.debian.org/debian-security")

_SOURCES = f"""\
deb {MIRROR} bookworm main
deb {MIRROR} bookworm-updates main
deb {SECURITY} bookworm-security main
"""
_SLIM = """\
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/groff/*
path-exclude /usr/share/info/*
path-exclude /usr/share/lintian/*
path-exclude /usr/share/linda/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
"""
_EXCLUDED = ("usr/share/groff", "usr/share/info", "usr/share/lintian", "usr/share/locale", "usr/share/man")
_CACHES = ("var/cache/apt/archives", "var/lib/apt/lists", "var/log")


def ensure_base_root(cache: Path) -> Path:
    """Root of the image, below the cache; builds it if missing, which takes a minute."""
    root = cache / "debian-bookworm-slim"
    if not root.exists():
        made = cache / "debian.part"
        shutil.rmtree(made, ignore_errors=True)
        command = ["debootstrap", "--variant=minbase", "bookworm", str(made), MIRROR]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr}"
        _slim(made)
        made.rename(root)
    return root


def _slim(root: Path) -> None:
    (root / "etc/apt/sources.list").write_text(_SOURCES)
    (root / "etc/dpkg/dpkg.cfg.d/docker").write_text(_SLIM)
    # debootstrap has already unpacked the excluded files.
    for folder in (*_EXCLUDED, *_CACHES):
        for found in (root / folder).iterdir() if (root / folder).exists() else ():
            shutil.rmtree(found) if found.is_dir() else found.unlink()
    for file in (root / "usr/share/doc").glob("*/*"):
        if file.name != "copyright":
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    (root / "etc/resolv.conf").write_text("")
