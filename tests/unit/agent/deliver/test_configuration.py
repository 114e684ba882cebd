"""`remote_write` as Prometheus has it: what is taken, what is refused, and that no secret is repeated."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from gpuledger.agent.deliver.configuration import read_receivers
from gpuledger.agent.deliver.settings import (
    ClientTls,
    DiskQueue,
    Login,
    QueueConfig,
    ReceiverSettings,
    Secret,
)
from gpuledger.host.yaml_nodes import read_nodes
from gpuledger.model.errors import UsageError

URL = "https://metrics.example/api/v1/write"


def read(folder: Path, text: str) -> tuple[ReceiverSettings, ...]:
    file = folder / "agent.yaml"
    file.write_text(text, encoding="utf-8")
    return read_receivers(read_nodes(file, "configuration").section(["remote_write"])["remote_write"], folder)


def one(folder: Path, text: str, url: str = URL) -> ReceiverSettings:
    (found,) = read(folder, f"remote_write:\n  - url: {url}\n{indent(text, '    ')}\n")
    return found


def test_a_url_is_enough(tmp_path: Path) -> None:
    found = one(tmp_path, "")
    assert found == ReceiverSettings(name=found.name, url=URL)
    assert found.name.startswith("metrics.example-")
    assert one(tmp_path, "").name == found.name


def test_nothing_is_no_receiver(tmp_path: Path) -> None:
    assert read(tmp_path, "remote_write:\n") == ()


def test_everything_that_can_be_said(tmp_path: Path) -> None:
    found = one(
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
        queue=DiskQueue(512 << 20, 3600.0, 1 << 20, 0.0),
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
def test_each_way_to_say_who_we_are(tmp_path: Path, text: str, login: Login) -> None:
    assert one(tmp_path, text).login == login


def test_credentials_in_the_url_are_basic_auth_and_no_part_of_the_url(tmp_path: Path) -> None:
    found = one(tmp_path, "", "https://me:p%40ss@metrics.example/write?x=1")
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
        ("queue: {max_bytes: 5}", r"queue.max_bytes: at least 1MiB is wanted, not '5'"),
        ("metadata_config: {send: maybe}", r"metadata_config.send: true or false is wanted"),
        ("queue: {max_bytes: many}", r"queue.max_bytes: a size such as 512MB or 2GiB is wanted"),
        ("queue_config: {min_shards: 3, max_shards: 2}", r"queue_config.max_shards: is below min_shards"),
        (
            "queue_config: {min_backoff: 3s, max_backoff: 2s}",
            r"queue_config.max_backoff: is below min_backoff",
        ),
        ("remote_timeout: soon", r"remote_timeout: a duration such as"),
        ("proxy_url: http://x", r"remote_write\[0\].proxy_url: is not supported here; leave it out"),
        ("oauth2: {client_id: x}", r"oauth2: is not supported here"),
        ("send_exemplars: true", r"send_exemplars: cannot be true: exemplars are not sent"),
        ("follow_redirects: true", r"follow_redirects: cannot be true: redirects are not followed"),
        ("protobuf_message: io.prometheus.write.v2.Request", r"one of prometheus.WriteRequest is wanted"),
        ("headers: {Content-Type: x}", r"headers.Content-Type: this header cannot be set"),
        ("headers: {Authorization: secret}", r"cannot be set; basic_auth and authorization say who we are"),
        ("headers: {'a b': x}", r"is no name of a header"),
        ("basic_auth: {password: secret}", r"basic_auth: username or username_file is wanted"),
        (
            "basic_auth: {username: a, password: secret, password_file: b}",
            r"password: is given together with",
        ),
        ('bearer_token: "secret\\nb"', r"\[0\].bearer_token: one line of ASCII is wanted"),
        (
            "authorization: {credentials: secr\u00e9t}",
            r"authorization.credentials: one line of ASCII is wanted",
        ),
        ('headers: {X: "secret\\r\\nY: z"}', r"headers.X: one line of ASCII is wanted"),
        (
            'http_headers: {X: {values: ["secret\\nb"]}}',
            r"http_headers.X.values\[0\]: one line of ASCII is wanted",
        ),
        ("queue: {max_age: 9999d}", r"queue.max_age: a duration of at most 366d is wanted"),
        ("authorization: {type: Bearer}", r"authorization: credentials or credentials_file is wanted"),
        ("authorization: {type: basic, credentials: secret}", r"for Basic there is basic_auth"),
        (
            "bearer_token: secret\nbasic_auth: {username: a}",
            r"bearer_token: is given together with basic_auth",
        ),
        ("tls_config: {cert_file: a}", r"tls_config.key_file: is missing; a client certificate needs both"),
        ("tls_config: {min_version: TLS10}", r"tls_config.min_version: one of TLS12, TLS13 is wanted"),
    ],
)
def test_what_cannot_be_honoured_is_one_line_with_its_path(tmp_path: Path, text: str, wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong) as raised:
        one(tmp_path, text)
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
def test_what_is_no_url_is_refused_and_not_repeated(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match=r"url: a URL such as https://host/api/v1/write is wanted$"):
        one(tmp_path, "", url)


def test_two_receivers_of_one_name_would_share_a_queue(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"remote_write\[1\]: has the name 'metrics.example-\w+' of another"):
        read(tmp_path, f"remote_write: [{{url: {URL}}}, {{url: {URL}}}]")
