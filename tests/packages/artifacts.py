"""The executables and packages of this checkout, made by the scripts of a release. Needs root.

They are kept in ~/.cache/gpuledger until a file changes that they are made of.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from gpuledger import __version__

CHECKOUT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpuledger" / "frozen"
_PACKAGES = CHECKOUT / "deploy" / "packages"
_FREEZE = "freeze.sh"
_FREEZE_FOR_OLD_GLIBC = "freeze_for_old_glibc.sh"


def executables(old_glibc: bool = False) -> Path:
    """Folder of `gpuledger/gpuledger` and `gpuledger-onefile`, for this machine's glibc or for old ones."""
    script = _FREEZE_FOR_OLD_GLIBC if old_glibc else _FREEZE
    return _kept(script, _made_of(CHECKOUT / "src", *CHECKOUT.glob("requirements*.lock"), _PACKAGES))


def packages(built: Path, version: str = __version__) -> dict[str, Path]:
    """`deb` and `rpm` of the executable folder in `built`, with this version."""
    out = built / f"packages-{version}"
    nfpm = Path(sys.executable).with_name("nfpm")
    command = [_PACKAGES / "make_packages.sh", built, out, nfpm, version, "amd64", "tests <tests@localhost>"]
    subprocess.run(command, check=True)
    return {file.suffix[1:]: file for file in out.iterdir()}


def _kept(script: str, identity: str) -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    kept = CACHE / f"{script}-{identity}"
    with (CACHE / f"{script}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            for older in CACHE.glob(f"{script}-*"):
                shutil.rmtree(older)
            making = CACHE / f"making-{script}"
            shutil.rmtree(making, ignore_errors=True)
            flags = [sys.executable] if script == _FREEZE else []
            subprocess.run(["nice", _PACKAGES / script, *flags, making], check=True)
            making.rename(kept)
    return kept


def _made_of(*places: Path) -> str:
    """Hash of these files and of all in these folders."""
    digest = hashlib.sha256()
    for place in places:
        files = [place] if place.is_file() else sorted(place.rglob("*"))
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(CHECKOUT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]
