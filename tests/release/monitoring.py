"""Releases of Prometheus and VictoriaMetrics that are newer than this machine's: Prometheus 3.5 of Debian
sid, VictoriaMetrics of Debian trixie.

Their programs run on this machine, started by the dynamic linker of their Debian root with its libraries.
That needs no privileges; making the roots does.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from debian_root import debian_root

# Suite, package, and the package's programs that tests start.
PACKAGES = (
    ("sid", "prometheus", ("prometheus", "promtool")),
    ("trixie", "victoria-metrics", ("victoria-metrics", "vmalert")),
)


@contextmanager
def newer_programs() -> Iterator[None]:
    """In this context, programs of `PACKAGES` are started in their newer release. Making the roots takes two
    minutes, once.
    """
    before = os.environ["PATH"]
    with tempfile.TemporaryDirectory(prefix="gpuledger-newer-") as folder:
        for suite, package, programs in PACKAGES:
            root = debian_root(suite, [package]).path
            for name in programs:
                _write_starter(Path(folder, name), root)
        os.environ["PATH"] = f"{folder}:{before}"
        try:
            yield
        finally:
            os.environ["PATH"] = before


def _write_starter(file: Path, root: Path) -> None:
    linker = root / "usr/lib64/ld-linux-x86-64.so.2"
    libraries = root / "usr/lib/x86_64-linux-gnu"
    program = root / "usr/bin" / file.name
    file.write_text(f'#!/bin/sh\nexec {linker} --library-path {libraries} {program} "$@"\n')
    file.chmod(0o755)


@pytest.fixture(scope="module", autouse=True)
def newer() -> Iterator[None]:
    """A module that imports this fixture runs with the newer programs."""
    with newer_programs():
        yield
