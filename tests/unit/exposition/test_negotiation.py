from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.exposition.negotiation import FORMATS, OPENMETRICS, TEXT, accepts_gzip, choose_format

PROMETHEUS_2_42 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_PROTOBUF_FIRST = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;q=0.6,"
    "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
VMAGENT = "text/plain;version=0.0.4;q=1,*/*;q=0.1"


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (PROMETHEUS_2_42, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
        (PROMETHEUS_PROTOBUF_FIRST, OPENMETRICS),
        (VMAGENT, TEXT),
        (BROWSER, TEXT),
        ("*/*", TEXT),
        ("", TEXT),
        ("text/plain", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        ("application/openmetrics-text", OPENMETRICS),
        ("application/openmetrics-text; version=0.0.1", OPENMETRICS),
        ('application/openmetrics-text; version="1.0.0"; charset=utf-8', OPENMETRICS),
        ("APPLICATION/OpenMetrics-Text", OPENMETRICS),
        ("application/*", OPENMETRICS),
        ("application/openmetrics-text, */*", OPENMETRICS),
        ("text/*;q=0.2, application/*;q=0.3", OPENMETRICS),
        # Everything is equal: the first one.
        ("application/openmetrics-text, text/plain", OPENMETRICS),
        ("text/plain, application/openmetrics-text", TEXT),
        # The most specific range decides, regardless of its quality.
        ("*/*;q=1, application/openmetrics-text;q=0.1, text/plain;q=0.2", TEXT),
        ("application/openmetrics-text;q=0.1, */*;q=0.5", TEXT),
        # Zero excludes.
        ("application/openmetrics-text;q=0, */*;q=0.1", TEXT),
        ("text/plain;q=0, */*;q=0.1", OPENMETRICS),
        (
            "application/openmetrics-text;version=0.0.1;q=0, application/openmetrics-text;version=1.0.0",
            OPENMETRICS,
        ),
        # No supported format: text, because a scraper that cannot parse it then reports an error.
        ("*/*;q=0", TEXT),
        ("application/json", TEXT),
        ("application/openmetrics-text;version=2.0.0", TEXT),
        ("text/plain;version=1.0.0", TEXT),
        # Invalid headers.
        (";;;,,q=,=;q=x", TEXT),
        ("application/openmetrics-text;q=high", TEXT),
        ("application/openmetrics-text;q=nan", TEXT),
        ("application/openmetrics-text;q=-1, application/openmetrics-text;q=2", TEXT),
        ("*/*;q", TEXT),
    ],
)
def test_the_format_is_the_one_that_the_scraper_prefers(accept, chosen):
    assert choose_format(accept).media_type == chosen.media_type


@pytest.mark.parametrize(
    ("accept_encoding", "zipped"),
    [
        ("", False),
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("gzip, deflate, br", True),
        ("deflate, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("*", True),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("gzip, *;q=0", True),
        ("identity", False),
        ("br", False),
        ("gzip;q=nonsense", False),
        ("notgzip", False),
    ],
)
def test_gzip_is_used_only_if_the_client_accepts_it(accept_encoding, zipped):
    assert accepts_gzip(accept_encoding) is zipped


@given(st.text(alphabet='*/;,=q01. "\tapplication/openmetrics-text\x00é', max_size=80) | st.text(max_size=40))
def test_no_header_raises_an_error(header):
    assert choose_format(header) in FORMATS
    assert accepts_gzip(header) in (True, False)
