"""Addresses of nodes as people write them, and what must never be one."""

from __future__ import annotations

import pytest

from gpuledger.fleet.node_address import NodeAddress, parse_node_address
from gpuledger.model.errors import UsageError


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("gpu-1", "http://gpu-1:9400"),
        ("gpu-1:9500", "http://gpu-1:9500"),
        ("http://gpu-1", "http://gpu-1:80"),
        ("https://gpu-1", "https://gpu-1:443"),
        ("https://gpu-1:9400/", "https://gpu-1:9400"),
        ("http://proxy/gpu-1/", "http://proxy:80/gpu-1"),
        ("[2001:db8::1]:9400", "http://[2001:db8::1]:9400"),
        ("10.0.0.7", "http://10.0.0.7:9400"),
    ],
)
def test_an_address_gets_the_scheme_and_port_that_it_lacks(written: str, url: str) -> None:
    assert parse_node_address(written, "--node").url == url


def test_the_defaults_are_those_of_the_list() -> None:
    assert parse_node_address("gpu-1", "x", scheme="https", port=9443).url == "https://gpu-1:9443"
    assert parse_node_address("http://gpu-1", "x", scheme="https", port=9443).url == "http://gpu-1:80"


def test_a_login_is_kept_apart_from_the_url_and_out_of_messages() -> None:
    found = parse_node_address("http://ann:s%40crt@gpu-1:9400", "--node")
    assert (found.login, found.url) == ("ann:s@crt", "http://gpu-1:9400")
    assert "s@crt" not in repr(found)


@pytest.mark.parametrize(
    "written",
    ["", "http://", "ftp://gpu-1", "gpu 1", "gpu-1:0", "gpu-1:70000", "http://x:y\x01@gpu-1", "a\nb"],
)
def test_other_texts_are_refused_with_the_place(written: str) -> None:
    with pytest.raises(UsageError, match=r"^nodes, line 3"):
        parse_node_address(written, "nodes, line 3")


def test_a_refused_url_shows_no_password() -> None:
    with pytest.raises(UsageError) as refused:
        parse_node_address("http://ann:secret@gpu-1:0", "--node")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("page", ["javascript:alert(1)", "data:text/html,x", "//evil", "gpu-1"])
def test_a_page_is_a_link_that_cannot_run_a_script(page: str) -> None:
    with pytest.raises(UsageError, match="must be a URL of http"):
        parse_node_address("gpu-1", "--node", page=page)
    assert parse_node_address("gpu-1", "x", page="https://gw/gpu-1").page == "https://gw/gpu-1"


def test_equal_addresses_are_equal() -> None:
    assert parse_node_address("gpu-1", "a") == NodeAddress("http", "gpu-1", 9400)


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("gpu-1", "gpu-1"),
        ("https://gpu-1:9400", "gpu-1"),
        ("gpu-1:9401", "gpu-1:9401"),
        ("[::1]:80", "[::1]:80"),
    ],
)
def test_a_node_without_a_name_is_its_host_with_an_unusual_port(written: str, place: str) -> None:
    assert parse_node_address(written, "--node").place == place
