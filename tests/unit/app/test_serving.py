"""What a start logs about its addresses."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from gpuledger.app.serving import log_addresses, page_url
from gpuledger.http.addresses import Address

ALL, LOCAL = Address("", 9400), Address("127.0.0.1", 9500)
WARNING = ", without a password; to serve only this machine: --listen-address 127.0.0.1:9400"


def security(*, authenticates: bool) -> Any:
    return SimpleNamespace(scheme="https", authenticates=authenticates)


@pytest.mark.parametrize(
    ("address", "web", "line"),
    [
        (ALL, None, f"listening on all addresses port 9400 (http){WARNING}"),
        (ALL, security(authenticates=False), f"listening on all addresses port 9400 (https){WARNING}"),
        (ALL, security(authenticates=True), "listening on all addresses port 9400 (https)"),
        (Address("0.0.0.0", 9400), None, f"listening on 0.0.0.0 port 9400 (http){WARNING}"),
        (Address("::", 9400), None, f"listening on :: port 9400 (http){WARNING}"),
        (LOCAL, None, "listening on 127.0.0.1 port 9500 (http)"),
        (Address("192.0.2.7", 80), None, "listening on 192.0.2.7 port 80 (http)"),
    ],
)
def test_all_addresses_without_a_password_name_the_flag_that_changes_it(
    address: Address, web: Any, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    server: Any = SimpleNamespace(addresses=(address,))
    with caplog.at_level("INFO"):
        log_addresses(logging.getLogger("gpuledger.serve"), server, web)
    assert caplog.messages == [line]


@pytest.mark.parametrize(
    ("address", "web", "url"),
    [
        (ALL, None, "http://localhost:9400/"),
        (Address("0.0.0.0", 9400), None, "http://localhost:9400/"),
        (LOCAL, security(authenticates=True), "https://127.0.0.1:9500/"),
        (Address("::1", 80), None, "http://[::1]:80/"),
    ],
)
def test_the_page_has_a_url_for_a_browser_here(address: Address, web: Any, url: str) -> None:
    server: Any = SimpleNamespace(addresses=(address, LOCAL))
    assert page_url(server, web) == url
