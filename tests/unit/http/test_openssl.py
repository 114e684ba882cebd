"""TLS settings that all clients share."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

import gpuledger
from gpuledger.http.openssl import certificate_remedy

SOURCES = Path(gpuledger.__file__).parent


def test_all_clients_verify_certificates_alike_on_every_python() -> None:
    """From Python 3.13 on, `create_default_context` rejects certificate authorities of existing clusters."""
    files = [file for file in SOURCES.rglob("*.py") if "create_default_context(" in file.read_text("utf-8")]
    assert files == []


@pytest.mark.parametrize(
    ("code", "remedy"), [(9, "renew it"), (10, "renew it"), (62, "in the URL"), (18, "CA")]
)
def test_a_new_ca_is_no_remedy_for_an_expired_certificate_or_another_name(code: int, remedy: str) -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code = code
    assert remedy in certificate_remedy(error, "name the CA")
