"""TLS settings that all clients share."""

from __future__ import annotations

from pathlib import Path

import gpuledger

SOURCES = Path(gpuledger.__file__).parent


def test_all_clients_verify_certificates_alike_on_every_python() -> None:
    """From Python 3.13 on, `create_default_context` rejects certificate authorities of existing clusters."""
    files = [file for file in SOURCES.rglob("*.py") if "create_default_context(" in file.read_text("utf-8")]
    assert files == []
