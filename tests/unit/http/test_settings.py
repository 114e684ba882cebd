from __future__ import annotations

import pytest

from gpuledger.http.addresses import Address
from gpuledger.http.settings import HttpSettings, Listen, listens, metrics_path
from gpuledger.model.settings import build, declared


def test_defaults_are_every_interface_on_9400_and_slash_metrics():
    settings = build(HttpSettings, {})
    assert settings.listen_address == (Listen(Address("", 9400), ()),)
    assert settings.metrics_path == "/metrics"


def test_flags_and_keys_are_those_documented():
    found = {item.key: (item.flags, item.repeatable) for _, item, _ in declared(HttpSettings)}
    assert found == {
        "listen_address": (("--listen-address",), True),
        "metrics_path": (("--metrics-path",), False),
        "web.config.file": (("--web.config.file", "--web.config-file"), False),
    }


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (":9400", [Listen(Address("", 9400))]),
        (":9400=dcgm", [Listen(Address("", 9400), ("dcgm",))]),
        ("[::1]:1=process, session,process", None),
        ("[::1]:1=process,session,process", [Listen(Address("::1", 1), ("process", "session"))]),
        ([":1=dcgm", ":2=smi"], [Listen(Address("", 1), ("dcgm",)), Listen(Address("", 2), ("smi",))]),
        (":1=dcgm :2", [Listen(Address("", 1), ("dcgm",)), Listen(Address("", 2))]),
        ((Listen(Address("", 3)),), [Listen(Address("", 3))]),
        (["127.0.0.1:0=a, b"], [Listen(Address("127.0.0.1", 0), ("a", "b"))]),
    ],
)
def test_addresses_with_their_dialects(value, found):
    if found is None:
        with pytest.raises(ValueError, match="an address such as"):
            listens(value)
    else:
        assert listens(value) == tuple(found)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("", "at least one address"),
        ([], "at least one address"),
        (":9400=", "at least one dialect"),
        (":9400=,", "at least one dialect"),
        ("9400", "an address such as"),
        (9400, "an address such as"),
        (True, "a text is wanted"),
        ({"a": 1}, "a text is wanted"),
    ],
)
def test_what_is_no_address_is_told_what_is_wanted(value, wanted):
    with pytest.raises(ValueError, match=wanted):
        listens(value)


@pytest.mark.parametrize("path", ["/metrics", "/probe", "/federate/gpu", "/metrics-gpu", "/scrape/"])
def test_a_metrics_path_is_any_free_path(path):
    assert metrics_path(path) == path


@pytest.mark.parametrize("path", ["", "metrics", "/a?b", "/a#b", "/a b", "/%61", "/größe"])
def test_a_metrics_path_must_be_a_plain_absolute_path(path):
    with pytest.raises(ValueError, match="a path such as /metrics is wanted"):
        metrics_path(path)


@pytest.mark.parametrize("path", ["/", "/-/healthy", "/-/ready", "/health", "/metrics/process", "/api/v1"])
def test_a_metrics_path_must_not_be_another_page(path):
    with pytest.raises(ValueError, match="is another page of gpuledger"):
        metrics_path(path)
