"""The `remote_write` parser: supported keys, errors, and that errors contain no secrets."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from gpuledger.agent.deliver.remote_write_config import read_receivers
from gpuledger.agent.deliver.settings import (
    ClientTls,
    DiskQueueLimits,
    Login,
    MetadataConfig,
    QueueConfig,
    ReceiverSettings,
    Secret,
)
from gpuledger.host.yaml_nodes import read_yaml_root
from gpuledger.model.errors import UsageError

URL = "https://metrics.example/api/v1/write"


def parse_receivers(folder: Path, text: str) -> tuple[ReceiverSettings, ...]:
    file = folder / "agent.yaml"
    file.write_text(text, encoding="utf-8")
    return read_receivers(
        read_yaml_root(file, "configuration").section(["remote_write"])["remote_write"], folder
    )


def parse_receiver(folder: Path, text: str, url: str = URL) -> ReceiverSettings:
    (found,) = parse_receivers(folder, f"remote_write:\n  - url: {url}\n{indent(text, '    ')}\n")
    return found


def test_only_the_url_is_required(tmp_path: Path) -> None:
    found = parse_receiver(tmp_path, "")
    assert found == ReceiverSettings(name=found.name, url=URL)
    assert found.name.startswith("metrics.example-")
    assert parse_receiver(tmp_path, "").name == found.name


def test_an_empty_list_has_no_receivers(tmp_path: Path) -> None:
    assert parse_receivers(tmp_path, "remote_write:\n") == ()


def test_all_supported_keys(tmp_path: Path) -> None:
    found = parse_receiver(
        tmp_path,
        """\
name: far
remote_timeout: 10s
headers: {X-Scope-OrgID: team}
http_headers: {X-More: {values: [a], secrets: [b], files: [c]}}
basic_auth: {username: me, password_file: secrets/password}
tls_config: {ca_file: ca.crt, cert_file: a.crt, key_file: a.key, server_name: b, insecure_skip_verify: true,
  min_version: TLS13, max_version: TLS13}
queue_config: {capacity: 5, min_shards: 2, max_shards: 3, max_samples_per_send: 4, batch_send_deadline: 1m,
  min_backoff: 10ms, max_backoff: 1s, retry_on_http_429: false, sample_age_limit: 1h}
metadata_config: {send: false, send_interval: 2m, max_samples_per_send: 7}
queue: {max_bytes: 512MB, max_age: 2d, memory_bytes: 1MiB, sync_interval: 0}
send_exemplars: false
send_native_histograms: false
protobuf_message: prometheus.WriteRequest
follow_redirects: false
enable_http2: true
write_relabel_configs: [{action: drop}]
""",
    )
    assert found == ReceiverSettings(
        name="far",
        url=URL,
        remote_timeout=10.0,
        headers=(
            ("X-Scope-OrgID", Secret("team")),
            ("X-More", Secret("a")),
            ("X-More", Secret("b")),
            ("X-More", Secret(file=tmp_path / "c")),
        ),
        login=Login("Basic", Secret(file=tmp_path / "secrets/password"), Secret("me")),
        tls=ClientTls(
            Secret(file=tmp_path / "ca.crt"),
            Secret(file=tmp_path / "a.crt"),
            Secret(file=tmp_path / "a.key"),
            "b",
            False,
            13,
            13,
        ),
        queue_config=QueueConfig(5, 2, 3, 4, 60.0, 0.01, 1.0, False),
        queue=DiskQueueLimits(512 << 20, 3600.0, 1 << 20, 0.0),
        metadata=MetadataConfig(False, 120.0, 7),
    )
    assert found.write_relabel is not None
    assert found.write_relabel.place == f"{tmp_path}/agent.yaml: remote_write[0].write_relabel_configs"


@pytest.mark.parametrize(
    ("text", "login"),
    [
        ("authorization: {credentials: abc}", Login("Bearer", Secret("abc"))),
        ("authorization: {type: Token, credentials: abc}", Login("Token", Secret("abc"))),
        ("bearer_token: abc", Login("Bearer", Secret("abc"))),
        ("basic_auth: {username: me}", Login("Basic", Secret(), Secret("me"))),
    ],
)
def test_each_authentication_method(tmp_path: Path, text: str, login: Login) -> None:
    assert parse_receiver(tmp_path, text).login == login


@pytest.mark.parametrize(
    ("text", "protocol"),
    [
        ("", "1.0"),
        ("protocol: auto", "auto"),
        ("protocol: 2.0", "2.0"),
        ("protobuf_message: io.prometheus.write.v2.Request", "2.0"),
        ("protocol: '1.0'\nprotobuf_message: prometheus.WriteRequest", "1.0"),
    ],
)
def test_each_protocol(tmp_path: Path, text: str, protocol: str) -> None:
    assert parse_receiver(tmp_path, text).protocol == protocol


def test_credentials_in_the_url_become_basic_auth_and_are_removed_from_it(tmp_path: Path) -> None:
    found = parse_receiver(tmp_path, "", "https://me:p%40ss@metrics.example/write?x=1")
    assert found.url == "https://metrics.example/write?x=1"
    assert found.login == Login("Basic", Secret("p@ss"), Secret("me"))
    assert "p@ss" not in repr(found)
    assert found.shown_url == "https://metrics.example/write"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("urll: x", r"unknown key 'remote_write\[0\].urll'; did you mean 'remote_write\[0\].url'\?"),
        (
            "queue_config: {max_shard: 2}",
            r"unknown key 'remote_write\[0\].queue_config.max_shard'; did you mean",
        ),
        ("queue: {max_bytes: 5}", r"queue.max_bytes: expected at least 1MiB, not '5'"),
        ("metadata_config: {send: maybe}", r"metadata_config.send: expected true or false"),
        ("queue: {max_bytes: many}", r"queue.max_bytes: expected a size such as 512MB or 2GiB"),
        ("queue_config: {min_shards: 3, max_shards: 2}", r"queue_config.max_shards: is below min_shards"),
        (
            "queue_config: {min_backoff: 3s, max_backoff: 2s}",
            r"queue_config.max_backoff: is below min_backoff",
        ),
        ("remote_timeout: soon", r"remote_timeout: expected a duration such as"),
        ("proxy_url: http://x", r"remote_write\[0\].proxy_url: not supported; remove it"),
        ("oauth2: {client_id: x}", r"oauth2: not supported"),
        ("send_exemplars: true", r"send_exemplars: true is not supported: exemplars are not sent"),
        ("follow_redirects: true", r"follow_redirects: true is not supported: redirects could"),
        ("protobuf_message: other", r"protobuf_message: expected one of prometheus.WriteRequest"),
        ("protocol: 3.0", r"protocol: expected one of auto, 1.0, 2.0"),
        (
            "protobuf_message: io.prometheus.write.v2.Request\nprotocol: auto",
            r"protocol: contradicts protobuf_message; set only one of them",
        ),
        ("metadata_config: {send_interval: 1ms}", r"metadata_config.send_interval: expected a duration"),
        ("headers: {Content-Type: x}", r"headers.Content-Type: this header cannot be set"),
        ("headers: {Authorization: secret}", r"cannot be set; use basic_auth or authorization"),
        ("headers: {'a b': x}", r"not a valid header name"),
        ("basic_auth: {password: secret}", r"basic_auth: expected username or username_file"),
        (
            "basic_auth: {username: a, password: secret, password_file: b}",
            r"password: is given together with",
        ),
        ('bearer_token: "secret\\nb"', r"\[0\].bearer_token: expected one line of ASCII text"),
        (
            "authorization: {credentials: secr\u00e9t}",
            r"authorization.credentials: expected one line of ASCII text",
        ),
        ('headers: {X: "secret\\r\\nY: z"}', r"headers.X: expected one line of ASCII text"),
        (
            'http_headers: {X: {values: ["secret\\nb"]}}',
            r"http_headers.X.values\[0\]: expected one line of ASCII text",
        ),
        ("queue: {max_age: 9999d}", r"queue.max_age: expected a duration of at most 366d"),
        ("authorization: {type: Bearer}", r"authorization: expected credentials or credentials_file"),
        ("authorization: {type: basic, credentials: secret}", r"use basic_auth for Basic"),
        (
            "bearer_token: secret\nbasic_auth: {username: a}",
            r"bearer_token: is given together with basic_auth",
        ),
        (
            "tls_config: {cert_file: a}",
            r"tls_config.key_file: missing; a client certificate",
        ),
        ("tls_config: {server_name: .a}", r"tls_config.server_name: expected a host name such as"),
        ("tls_config: {min_version: TLS10}", r"tls_config.min_version: expected one of TLS12, TLS13"),
    ],
)
def test_an_unsupported_value_is_an_error_in_one_line_with_its_path(
    tmp_path: Path, text: str, wrong: str
) -> None:
    with pytest.raises(UsageError, match=wrong) as raised:
        parse_receiver(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path}/agent.yaml: ")
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "metrics.example",
        "ftp://x/",
        "https://",
        "https://x:0/",
        "'http://a b/'",
        "http://\N{CJK UNIFIED IDEOGRAPH-4E2D}..b/",
    ],
)
def test_an_invalid_url_is_rejected_and_not_quoted(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match=r"url: expected a URL such as https://host/api/v1/write$"):
        parse_receiver(tmp_path, "", url)


def test_duplicate_receiver_names_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"remote_write\[1\]: duplicate receiver name 'metrics.example-\w+'"):
        parse_receivers(tmp_path, f"remote_write: [{{url: {URL}}}, {{url: {URL}}}]")
