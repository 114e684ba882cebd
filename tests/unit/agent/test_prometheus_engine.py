"""What `--engine prometheus` prints, and what Prometheus has no words for."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuledger.agent.config.file import read_agent_config
from gpuledger.agent.discovery.sharding import Shard
from gpuledger.agent.prometheus_engine import prometheus_config
from gpuledger.cli.main import main
from gpuledger.model.errors import UsageError

POD = {
    "targetName": "t",
    "type": "PodMonitor",
    "namespaceSelector": {"matchNames": ["b", "a"]},
    "selector": {"matchLabels": {"app": "x"}},
    "endpoints": [{"port": "metrics"}],
}


RECEIVER: dict[str, Any] = {"url": "http://store/write", "queue": {"max_bytes": "1GiB"}}


def printed(
    folder: Path,
    *targets: dict[str, Any],
    shard: Shard | None = None,
    receiver: dict[str, Any] = RECEIVER,
) -> dict[str, Any]:
    file = folder / "agent.yaml"
    written = {"features": {"openAgent": {"targets": list(targets)}}, "remote_write": [receiver]}
    file.write_text(json.dumps(written))
    return prometheus_config(read_agent_config(file, {}), written, None, shard or Shard())


def test_namespaces_and_labels_are_asked_of_the_api_server(tmp_path: Path) -> None:
    (job,) = printed(tmp_path, POD)["scrape_configs"]
    assert job["kubernetes_sd_configs"] == [
        {
            "role": "pod",
            "namespaces": {"names": ["a", "b"]},
            "selectors": [{"role": "pod", "label": "app=x"}],
        }
    ]


def test_receivers_are_as_written_but_for_our_own_queue(tmp_path: Path) -> None:
    assert printed(tmp_path, POD)["remote_write"] == [{"url": "http://store/write"}]


def test_a_receiver_is_printed_as_prometheus_reads_it(tmp_path: Path) -> None:
    receiver = {
        "url": "https://store/write",
        "name": "store",
        "remote_timeout": "7s",
        "headers": {"X-Scope-OrgID": "team-a"},
        "basic_auth": {"username": "me", "password_file": "pw"},
        "tls_config": {"ca_file": "ca.crt", "min_version": "TLS13"},
        "queue_config": {"max_shards": 3, "sample_age_limit": "1h"},
        "write_relabel_configs": [{"regex": "go_.*", "source_labels": ["__name__"], "action": "drop"}],
        "protobuf_message": "prometheus.WriteRequest",
        "round_robin_dns": False,
    }
    told = printed(tmp_path, POD, receiver=receiver)
    # What is not absolute would be looked for beside Prometheus's own file.
    assert told["remote_write"] == [
        {
            "url": "https://store/write",
            "name": "store",
            "remote_timeout": "7s",
            "headers": {"X-Scope-OrgID": "team-a"},
            "basic_auth": {"username": "me", "password_file": str(tmp_path / "pw")},
            "tls_config": {"ca_file": str(tmp_path / "ca.crt"), "min_version": "TLS13"},
            "queue_config": {"max_shards": 3},
            "write_relabel_configs": receiver["write_relabel_configs"],
        }
    ]
    for name in ("pw", "ca.crt"):
        (tmp_path / name).touch()
    (tmp_path / "prometheus.yml").write_text(json.dumps({"remote_write": told["remote_write"]}))
    done = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_file_beside_a_configuration_that_is_named_from_here_is_printed_from_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    receiver = {"url": "https://store/write", "authorization": {"credentials_file": "token"}}
    told = printed(Path(), POD, receiver=receiver)["remote_write"][0]
    assert told["authorization"]["credentials_file"] == str(tmp_path / "token")


SECRETS: list[tuple[str, dict[str, Any]]] = [
    ("a password", {"basic_auth": {"username": "me", "password": "s3cret"}}),
    ("a password in the URL", {"url": "http://me:s3cret@store/write"}),
    ("a token", {"authorization": {"credentials": "s3cret"}}),
    ("a bearer token", {"bearer_token": "s3cret"}),
    ("a header", {"headers": {"X-Token": "s3cret"}}),
    ("a header of the newer form", {"http_headers": {"X-Token": {"secrets": ["s3cret"]}}}),
    ("a key", {"tls_config": {"cert_file": "c", "key": "s3cret"}}),
]


@pytest.mark.parametrize("more", [case[1] for case in SECRETS], ids=[case[0] for case in SECRETS])
def test_a_secret_of_a_receiver_is_not_printed(more: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not printed") as caught:
        printed(tmp_path, POD, receiver={"url": "http://store/write", **more})
    assert "s3cret" not in str(caught.value)


def test_a_username_is_printed_where_a_file_has_it(tmp_path: Path) -> None:
    """Prometheus 2.42 has no key for such a file; the password stays in its own."""
    (tmp_path / "user").write_text("scraper\n")
    secured = SECURED | {"basicAuth": {"usernameFile": "user", "passwordFile": "/p"}}
    (job,) = printed(tmp_path, POD | {"endpoints": [secured]})["scrape_configs"]
    assert job["basic_auth"] == {"username": "scraper", "password_file": "/p"}


def test_so_is_a_receivers(tmp_path: Path) -> None:
    (tmp_path / "user").write_text("writer\n")
    receiver = {
        "url": "https://store/write",
        "basic_auth": {"username_file": "user", "password_file": "/p"},
    }
    file = tmp_path / "agent.yaml"
    written = {"features": {"openAgent": {"targets": [POD]}}, "remote_write": [receiver]}
    file.write_text(json.dumps(written))
    made = prometheus_config(read_agent_config(file, {}), written, None, Shard())
    assert made["remote_write"][0]["basic_auth"] == {"username": "writer", "password_file": "/p"}


def test_a_shard_is_kept_by_the_hash_of_the_address(tmp_path: Path) -> None:
    (job,) = printed(tmp_path, POD, shard=Shard(1, 3))["scrape_configs"]
    assert job["relabel_configs"][-2:] == [
        {
            "source_labels": ["__address__"],
            "modulus": 3,
            "target_label": "__tmp_shard",
            "action": "hashmod",
        },
        {"source_labels": ["__tmp_shard"], "regex": "1", "action": "keep"},
    ]


SECURED = {"port": "metrics", "scheme": "https"}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"namespaceSelector": {"matchLabels": {"team": "x"}}}, "cannot select namespaces by their labels"),
    (
        {"endpoints": [SECURED | {"authorization": {"credentials": "s3cret"}}]},
        "secrets are not printed; give the file",
    ),
    (
        {"endpoints": [SECURED | {"basicAuth": {"usernameFile": "user", "passwordFile": "p"}}]},
        "Prometheus takes a username from its configuration alone",
    ),
]


@pytest.mark.parametrize(("more", "complaint"), WRONG, ids=[case[1] for case in WRONG])
def test_what_prometheus_has_no_words_for_is_refused(
    more: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        printed(tmp_path, POD | more)
    assert "s3cret" not in str(caught.value)


def test_a_value_that_yaml_cannot_take_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agent itself takes labels as they are written; what is printed must be a value."""
    file = tmp_path / "agent.yaml"
    file.write_text(
        "global: {external_labels: {day: 2001-99-99}}\nremote_write: [{url: 'http://receiver/write'}]\n"
    )
    assert main(["agent", "--config", str(file), "--engine", "prometheus"]) == 2
    told = capsys.readouterr()
    assert told.err == (
        f"gpuledger: {file} is not YAML: it has a value that does not fit its form (ValueError)\n"
    )
    assert told.out == ""
