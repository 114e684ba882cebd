from __future__ import annotations

import pytest

from gpuledger.http.addresses import Address
from gpuledger.http.settings import HttpSettings, ListenAddress, parse_listen_addresses, parse_metrics_path
from gpuledger.model.settings import build_settings, declared_settings


def test_defaults_are_all_interfaces_on_port_9400_and_the_path_metrics():
    settings = build_settings(HttpSettings, {})
    assert settings.listen_address == (ListenAddress(Address("", 9400), ()),)
    assert settings.metrics_path == "/metrics"


def test_flags_and_keys_are_the_documented_ones():
    found = {item.key: (item.flags, item.repeatable) for _, item, _ in declared_settings(HttpSettings)}
    assert found == {
        "listen_address": (("--listen-address",), True),
        "metrics_path": (("--metrics-path",), False),
        "web.config.file": (("--web.config.file", "--web.config-file"), False),
    }


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (":9400", [ListenAddress(Address("", 9400))]),
        (":9400=dcgm", [ListenAddress(Address("", 9400), ("dcgm",))]),
        ("[::1]:1=process, session,process", None),
        ("[::1]:1=process,session,process", [ListenAddress(Address("::1", 1), ("process", "session"))]),
        (
            [":1=dcgm", ":2=smi"],
            [ListenAddress(Address("", 1), ("dcgm",)), ListenAddress(Address("", 2), ("smi",))],
        ),
        (":1=dcgm :2", [ListenAddress(Address("", 1), ("dcgm",)), ListenAddress(Address("", 2))]),
        ((ListenAddress(Address("", 3)),), [ListenAddress(Address("", 3))]),
        (["127.0.0.1:0=a, b"], [ListenAddress(Address("127.0.0.1", 0), ("a", "b"))]),
    ],
)
def test_listen_addresses_are_parsed_with_their_dialects(value, found):
    if found is None:
        with pytest.raises(ValueError, match="an address such as"):
            parse_listen_addresses(value)
    else:
        assert parse_listen_addresses(value) == tuple(found)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", "at least one address"),
        ([], "at least one address"),
        (":9400=", "at least one dialect"),
        (":9400=,", "at least one dialect"),
        ("9400", "an address such as"),
        (9400, "an address such as"),
        (True, "expected text"),
        ({"a": 1}, "expected text"),
    ],
)
def test_a_malformed_address_is_an_error_with_the_expected_form(value, expected):
    with pytest.raises(ValueError, match=expected):
        parse_listen_addresses(value)


@pytest.mark.parametrize("path", ["/metrics", "/probe", "/federate/gpu", "/metrics-gpu", "/scrape/"])
def test_any_unused_path_is_a_valid_metrics_path(path):
    assert parse_metrics_path(path) == path


@pytest.mark.parametrize("path", ["", "metrics", "/a?b", "/a#b", "/a b", "/%61", "/größe"])
def test_a_metrics_path_must_be_a_plain_absolute_path(path):
    with pytest.raises(ValueError, match="expected a path such as /metrics"):
        parse_metrics_path(path)


@pytest.mark.parametrize("path", ["/", "/-/healthy", "/-/ready", "/health", "/metrics/process", "/api/v1"])
def test_a_metrics_path_must_not_be_another_page(path):
    with pytest.raises(ValueError, match="is another page of gpuledger"):
        parse_metrics_path(path)
