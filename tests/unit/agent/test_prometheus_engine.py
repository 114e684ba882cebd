"""The configuration that `--engine prometheus` prints, and settings that Prometheus lacks."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuledger.agent.config.agent_config import read_agent_config
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


def test_namespaces_and_labels_are_selected_by_the_api_server(tmp_path: Path) -> None:
    (job,) = printed(tmp_path, POD)["scrape_configs"]
    assert job["kubernetes_sd_configs"] == [
        {
            "role": "pod",
            "namespaces": {"names": ["a", "b"]},
            "selectors": [{"role": "pod", "label": "app=x"}],
        }
    ]


def test_receivers_are_printed_as_written_without_our_queue_section(tmp_path: Path) -> None:
    assert printed(tmp_path, POD)["remote_write"] == [{"url": "http://store/write"}]


@pytest.mark.parametrize(
    ("protocol", "message"), [("auto", None), ("1.0", None), ("2.0", "io.prometheus.write.v2.Request")]
)
def test_the_protocol_is_a_protobuf_message(protocol: str, message: str | None, tmp_path: Path) -> None:
    (found,) = printed(tmp_path, POD, receiver={**RECEIVER, "protocol": protocol})["remote_write"]
    assert found.get("protobuf_message") == message
    assert "protocol" not in found


def test_a_timeout_is_at_most_the_interval_that_prometheus_allows(tmp_path: Path) -> None:
    endpoint = {"port": "metrics", "interval": "5s", "timeout": "1m", "adaptiveTimeout": {}}
    (job,) = printed(tmp_path, {**POD, "endpoints": [endpoint]})["scrape_configs"]
    assert (job["scrape_interval"], job["scrape_timeout"]) == ("5s", "5s")


def test_a_receiver_is_printed_in_prometheus_format(tmp_path: Path) -> None:
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
    printed_config = printed(tmp_path, POD, receiver=receiver)
    # Relative paths would be resolved against Prometheus's configuration file.
    assert printed_config["remote_write"] == [
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
    (tmp_path / "prometheus.yml").write_text(json.dumps({"remote_write": printed_config["remote_write"]}))
    done = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_relative_files_are_printed_as_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    receiver = {"url": "https://store/write", "authorization": {"credentials_file": "token"}}
    receiver_config = printed(Path(), POD, receiver=receiver)["remote_write"][0]
    assert receiver_config["authorization"]["credentials_file"] == str(tmp_path / "token")


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


def test_a_username_in_a_file_is_printed(tmp_path: Path) -> None:
    """Prometheus 2.42 has no username_file; the password remains in its file."""
    (tmp_path / "user").write_text("scraper\n")
    secured = SECURED | {"basicAuth": {"usernameFile": "user", "passwordFile": "/p"}}
    (job,) = printed(tmp_path, POD | {"endpoints": [secured]})["scrape_configs"]
    assert job["basic_auth"] == {"username": "scraper", "password_file": "/p"}


def test_a_receivers_username_in_a_file_is_printed(tmp_path: Path) -> None:
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


def test_a_shard_is_selected_by_the_hash_of_the_address(tmp_path: Path) -> None:
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
    ({"namespaceSelector": {"matchLabels": {"team": "x"}}}, "cannot select namespaces by labels"),
    (
        {"endpoints": [SECURED | {"authorization": {"credentials": "s3cret"}}]},
        "inline secrets are not printed; use a file",
    ),
    (
        {"endpoints": [SECURED | {"basicAuth": {"usernameFile": "user", "passwordFile": "p"}}]},
        "Prometheus only supports an inline username",
    ),
]


@pytest.mark.parametrize(("more", "complaint"), WRONG, ids=[case[1] for case in WRONG])
def test_settings_that_prometheus_lacks_are_rejected(
    more: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        printed(tmp_path, POD | more)
    assert "s3cret" not in str(caught.value)


def test_an_invalid_yaml_value_is_rejected_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The agent uses labels as written, but the printed configuration needs a YAML value."""
    file = tmp_path / "agent.yaml"
    file.write_text(
        "global: {external_labels: {day: !!int abc}}\nremote_write: [{url: 'http://receiver/write'}]\n"
    )
    assert main(["agent", "--config", str(file), "--engine", "prometheus"]) == 2
    output = capsys.readouterr()
    assert output.err == (
        f"gpuledger: {file} is not YAML: it has an invalid value for its type (ValueError)\n"
    )
    assert output.out == ""
