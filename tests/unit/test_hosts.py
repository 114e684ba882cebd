"""Hosts of URLs: what a server is told of them, and how patiently their addresses are tried."""

from __future__ import annotations

import pytest

from gpuledger.outputs.hosts import host_field, next_address_after

FIELDS = [
    ("gpu-node:9400", "gpu-node:9400"),
    ("user:secret@gpu-node", "gpu-node"),
    ("[::1]:9400", "[::1]:9400"),
    ("b\N{LATIN SMALL LETTER U WITH DIAERESIS}cher.example:9400", "xn--bcher-kva.example:9400"),
]


@pytest.mark.parametrize(("netloc", "field"), FIELDS, ids=[field for _, field in FIELDS])
def test_the_host_header_has_no_login_and_is_ascii(netloc: str, field: str) -> None:
    assert host_field(netloc) == field


def test_a_name_that_cannot_be_in_the_dns_is_refused() -> None:
    with pytest.raises(UnicodeError):
        host_field("\N{CJK UNIFIED IDEOGRAPH-4E2D}..node")


@pytest.mark.parametrize(("host", "has_others"), [("gpu-node", True), ("10.0.0.1", False), ("::1", False)])
def test_only_a_name_has_a_next_address(host: str, has_others: bool) -> None:
    assert (next_address_after(host) is not None) is has_others
