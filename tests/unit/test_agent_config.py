"""The agent's configuration: what it makes of targets, and one line for whatever cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuledger.agent.config.model import AgentConfig
from gpuledger.agent.config.reading import read_agent_config
from gpuledger.agent.scrape.settings import Target
from gpuledger.model.errors import UsageError

WRITE = [{"url": "http://127.0.0.1:1/write"}]


def read(folder: Path, open_agent: dict[str, Any], **more: Any) -> AgentConfig:
    file = folder / "agent.yaml"
    file.write_text(yaml.safe_dump({"features": {"openAgent": open_agent}, "remote_write": WRITE, **more}))
    return read_agent_config(file, {"TOKEN": "s3cret"})


def one(folder: Path, endpoint: dict[str, Any], **target: Any) -> Target:
    static = {"targetName": "t", "type": "StaticEndpoints", "endpoints": [endpoint], **target}
    (found,) = read(folder, {"targets": [static]}).targets
    return found


URLS: list[tuple[dict[str, Any], str]] = [
    ({"address": "a:1"}, "http://a:1/metrics"),
    ({"address": "a"}, "http://a:80/metrics"),
    ({"address": "a", "port": "9400"}, "http://a:9400/metrics"),
    ({"address": "[::1]", "port": "9400"}, "http://[::1]:9400/metrics"),
    ({"address": "a", "scheme": "https"}, "https://a:443/metrics"),
    ({"address": "a:1", "tlsConfig": {"insecureSkipVerify": True}}, "https://a:1/metrics"),
    ({"address": "a:1", "path": "x/y z".replace(" ", "")}, "http://a:1/x/yz"),
    ({"address": "a:1", "params": {"m": ["b", "c d"], "a": ["1"]}}, "http://a:1/metrics?a=1&m=b&m=c+d"),
]


@pytest.mark.parametrize(("endpoint", "url"), URLS, ids=[url for _, url in URLS])
def test_where_an_endpoint_is(endpoint: dict[str, Any], url: str, tmp_path: Path) -> None:
    assert one(tmp_path, endpoint).url == url


def test_a_target_gets_job_and_instance_and_no_hidden_labels(tmp_path: Path) -> None:
    assert dict(one(tmp_path, {"address": "a:1"}).labels) == {"job": "t", "instance": "a:1"}


def test_relabelling_moves_a_target(tmp_path: Path) -> None:
    rules = [
        {"target_label": "__address__", "replacement": "b:2"},
        {"target_label": "__scheme__", "replacement": "https"},
        {"target_label": "__param_m", "replacement": "x"},
        {"target_label": "__scrape_interval__", "replacement": "30s"},
        {"target_label": "job", "replacement": "other"},
    ]
    found = one(tmp_path, {"address": "a:1", "params": {"m": ["y", "z"]}}, relabelConfigs=rules)
    assert found.url == "https://b:2/metrics?m=x&m=z"
    assert (dict(found.labels), found.settings.interval) == ({"job": "other", "instance": "b:2"}, 30.0)


def test_a_target_that_relabelling_drops_is_counted(tmp_path: Path) -> None:
    static = {
        "targetName": "t",
        "type": "StaticEndpoints",
        "relabelConfigs": [{"source_labels": ["__address__"], "regex": "a:.*", "action": "drop"}],
        "endpoints": [{"address": "a:1"}, {"address": "b:1"}],
    }
    found = read(tmp_path, {"targets": [static]})
    assert ([target.url for target in found.targets], found.dropped) == (["http://b:1/metrics"], 1)


def test_the_targets_rules_stand_before_the_endpoints(tmp_path: Path) -> None:
    first, second = {"regex": "a", "action": "labeldrop"}, {"regex": "b", "action": "labeldrop"}
    found = one(tmp_path, {"address": "a:1", "metricRelabelConfigs": [second]}, metricRelabelConfigs=[first])
    assert [rule.regex for rule in found.settings.relabelling.rules] == ["a", "b"]


def test_a_login_can_come_from_a_variable_and_is_not_shown(tmp_path: Path) -> None:
    found = one(tmp_path, {"address": "a", "scheme": "https", "authorization": {"credentialsEnv": "TOKEN"}})
    assert found.settings.login is not None
    assert found.settings.login.credentials.text == "s3cret"
    assert "s3cret" not in repr(found)


def test_a_monitor_that_is_switched_off_is_passed_over(tmp_path: Path) -> None:
    monitor = {"targetName": "m", "type": "PodMonitor", "enabled": False, "endpoints": [{"port": "metrics"}]}
    assert read(tmp_path, {"targets": [monitor]}).targets == ()


def test_receivers_with_equal_rules_share_a_delivery(tmp_path: Path) -> None:
    drop = [{"source_labels": ["x"], "regex": "1", "action": "drop"}]
    urls = ("http://a/w", "http://b/w", "http://c/w")
    entries = [{"url": url, "name": url[7], "write_relabel_configs": drop} for url in urls]
    alone = read(tmp_path, {"targets": []}, remote_write=entries).deliveries
    assert (alone.receivers, alone.others) == (None, ())
    del entries[0]["write_relabel_configs"]
    parted = read(tmp_path, {"targets": []}, remote_write=entries).deliveries
    assert parted.receivers == {"a"}
    assert [names for _, names in parted.others] == [{"b", "c"}]


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, "has no address"),
    ({"address": "http://a:1"}, {}, "an address such as 10.0.0.1:9400"),
    ({"address": "a:99999"}, {}, "an address such as"),
    ({"address": "a:1", "intervall": "1s"}, {}, r"endpoints\[0\].intervall'; did you mean"),
    ({"address": "a:1", "interval": "5s", "timeout": "6s"}, {}, "longer than the interval of 5 s"),
    ({"address": "a:1", "path": "/m?x=1"}, {}, "goes into params"),
    ({"address": "a:1", "basicAuth": {"username": "u"}}, {}, "basicAuth: is not sent over plain http"),
    (
        {"address": "a:1", "basicAuth": {"username": {"name": "s", "key": "k"}}},
        {},
        "there is none to look in",
    ),
    ({"address": "a:1", "authorization": {"credentialsEnv": "NO"}}, {}, "the variable NO is not set"),
    ({"address": "a:1", "tlsConfig": {"certFile": "c"}}, {}, "keyFile: is missing"),
    ({"address": "a:1", "tlsConfig": {"caSecret": {"name": "s"}}}, {}, "caSecret.key: is missing"),
    ({"address": "a:1", "addNodeLabel": True}, {}, "on no node"),
    ({"address": "a:1"}, {"type": "PodMonitor"}, "selector: is missing"),
    ({"port": "70000"}, {"type": "PodMonitor", "selector": {"a": "b"}}, "key.*selector.a"),
    ({"port": "70000"}, {"type": "PodMonitor", "selector": {"matchLabels": {}}}, r"port: .*65535"),
    ({"port": "0"}, {"type": "ServiceMonitor", "selector": {"matchLabels": {}}}, r"port: .*from 1 to"),
    ({"address": "a:1"}, {"type": "Static"}, "did you mean 'StaticEndpoints'"),
    ({"address": "a:1"}, {"selector": {"matchLabels": {"a": "b"}}}, "selects nothing"),
    ({"address": "a:1"}, {"targetName": ""}, "targetName: is missing"),
    ({"address": "a:1", "bodySizeLimit": "10 apples"}, {}, "a size such as 10MB"),
]


@pytest.mark.parametrize(("endpoint", "target", "complaint"), WRONG, ids=[case[2] for case in WRONG])
def test_what_cannot_be_is_refused_in_one_line(
    endpoint: dict[str, Any], target: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        one(tmp_path, endpoint, **target)
    assert str(caught.value).startswith(str(tmp_path / "agent.yaml"))
    assert "\n" not in str(caught.value)


def test_an_agent_without_a_receiver_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="remote_write: is empty"):
        read(tmp_path, {"targets": []}, remote_write=[])
