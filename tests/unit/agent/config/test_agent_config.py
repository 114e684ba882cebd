"""The parser of the agent's configuration file: targets, and errors in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuledger.agent.config.agent_config import AgentConfig, read_agent_config
from gpuledger.agent.scrape.settings import AdaptiveTimeout, Target
from gpuledger.model.errors import UsageError

WRITE = [{"url": "http://127.0.0.1:1/write"}]


def parse_config(folder: Path, open_agent: dict[str, Any], **more: Any) -> AgentConfig:
    file = folder / "agent.yaml"
    file.write_text(yaml.safe_dump({"features": {"openAgent": open_agent}, "remote_write": WRITE, **more}))
    return read_agent_config(file, {"TOKEN": "s3cret"})


def parse_target(folder: Path, endpoint: dict[str, Any], **target: Any) -> Target:
    static = {"targetName": "t", "type": "StaticEndpoints", "endpoints": [endpoint], **target}
    (found,) = parse_config(folder, {"targets": [static]}).targets
    return found


def test_all_errors_of_a_file_are_named_in_one_line(tmp_path: Path) -> None:
    rules = [{"regex": "("}, {"action": "retain"}, {"action": "hashmod", "target_label": "a"}]
    static = {"targetName": "s", "type": "StaticEndpoints"}
    pods = {"targetName": "p", "type": "PodMonitor", "selector": {}, "endpoints": [{"port": "m"}]}
    targets = [
        {**static, "endpoints": [{"address": "a:1"}, {"address": "http://a:1"}, {"address": "a:1", "x": 1}]},
        {**static, "endpoints": [{"address": "a:1"}], "relabelConfigs": rules, "jobLabel": "l"},
        {**static, "endpoints": []},
        pods,
        {**pods, "selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}},
        {"type": "Ingress", "enabled": "perhaps"},
        {"targetName": "off", "type": "PodMonitor", "enabled": False},
    ]
    receivers = [{"url": "a"}, {"url": "http://b/"}]
    external = {"external_labels": {"a-b": "c"}}
    with pytest.raises(UsageError) as raised:
        parse_config(tmp_path, {"targets": targets}, remote_write=receivers, **{"global": external})
    prefix = f"{tmp_path / 'agent.yaml'}: "
    found = [str(one).removeprefix(prefix).partition(": ")[0] for one in raised.value.errors]
    below = "features.openAgent.targets"
    unknown = f"unknown key '{below}[0].endpoints[2].x'; valid"
    assert found == [
        *("global.external_labels.a-b", unknown, f"{below}[0].endpoints[1]"),
        *(f"{below}[1].relabelConfigs[0].regex", f"{below}[1].relabelConfigs[1].action"),
        *(f"{below}[1].relabelConfigs[2]", f"{below}[1].jobLabel", f"{below}[2].endpoints"),
        *(f"{below}[4].targetName", f"{below}[4].selector.matchExpressions[0].operator"),
        *(f"{below}[5].targetName", f"{below}[5].type", f"{below}[5].enabled", "remote_write[0].url"),
    ]
    line = str(raised.value)
    assert line.startswith(prefix)
    assert line.count(prefix) == 1
    assert "\n" not in line


URLS: list[tuple[dict[str, Any], str]] = [
    ({"address": "a:1"}, "http://a:1/metrics"),
    ({"address": "a"}, "http://a:80/metrics"),
    ({"address": "a", "port": "9400"}, "http://a:9400/metrics"),
    ({"address": "[::1]", "port": "9400"}, "http://[::1]:9400/metrics"),
    ({"address": "a:9401", "port": "9401"}, "http://a:9401/metrics"),
    ({"address": "a:8443", "port": "https"}, "https://a:8443/metrics"),
    ({"address": "a", "scheme": "https"}, "https://a:443/metrics"),
    ({"address": "a:1", "tlsConfig": {"insecureSkipVerify": True}}, "https://a:1/metrics"),
    ({"address": "a:1", "path": "x/y z".replace(" ", "")}, "http://a:1/x/yz"),
    ({"address": "a:1", "params": {"collect[]": ["cpu"]}}, "http://a:1/metrics?collect%5B%5D=cpu"),
    ({"address": "a:1", "params": {"m": ["b", "c d"], "a": ["1"]}}, "http://a:1/metrics?a=1&m=b&m=c+d"),
]


@pytest.mark.parametrize(("endpoint", "url"), URLS, ids=[url for _, url in URLS])
def test_the_url_of_an_endpoint(endpoint: dict[str, Any], url: str, tmp_path: Path) -> None:
    assert parse_target(tmp_path, endpoint).url == url


def test_the_body_size_limit_has_a_default_and_can_be_changed(tmp_path: Path) -> None:
    limits = [{}, {"bodySizeLimit": "1MB"}, {"bodySizeLimit": "0"}]
    found = [parse_target(tmp_path, {"address": "a:1", **limit}).settings.body_limit for limit in limits]
    assert found == [256 << 20, 1 << 20, 0]


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ({"interval": "5s"}, (5.0, None)),
        ({"interval": "5s", "timeout": "1m"}, (60.0, None)),
        ({"adaptiveTimeout": {}}, (10.0, AdaptiveTimeout(2, 2.0))),
        ({"adaptiveTimeout": {"enabled": True}}, (10.0, AdaptiveTimeout(2, 2.0))),
        ({"adaptiveTimeout": {"failureThreshold": 3, "multiplier": 1.5}}, (10.0, AdaptiveTimeout(3, 1.5))),
        ({"adaptiveTimeout": {"enabled": False, "multiplier": 3}}, (10.0, None)),
        ({"adaptiveTimeout": None}, (10.0, None)),
    ],
)
def test_timeouts(
    endpoint: dict[str, Any], expected: tuple[float, AdaptiveTimeout | None], tmp_path: Path
) -> None:
    found = parse_target(tmp_path, {"address": "a:1", **endpoint}).settings
    assert (found.timeout, found.adaptive_timeout) == expected


def test_a_target_gets_job_and_instance_and_no_hidden_labels(tmp_path: Path) -> None:
    assert dict(parse_target(tmp_path, {"address": "a:1"}).labels) == {"job": "t", "instance": "a:1"}


def test_relabeling_changes_the_url_of_a_target(tmp_path: Path) -> None:
    rules = [
        {"target_label": "__address__", "replacement": "b:2"},
        {"target_label": "__scheme__", "replacement": "https"},
        {"target_label": "__param_m", "replacement": "x"},
        {"target_label": "__scrape_interval__", "replacement": "30s"},
        {"target_label": "job", "replacement": "other"},
    ]
    found = parse_target(tmp_path, {"address": "a:1", "params": {"m": ["y", "z"]}}, relabelConfigs=rules)
    assert found.url == "https://b:2/metrics?m=x&m=z"
    assert (dict(found.labels), found.settings.interval) == ({"job": "other", "instance": "b:2"}, 30.0)


def test_rules_see_interval_and_timeout_in_prometheus_format(tmp_path: Path) -> None:
    rules = [
        {"source_labels": ["__scrape_interval__"], "target_label": "every"},
        {"source_labels": ["__scrape_timeout__"], "target_label": "within"},
    ]
    endpoint = {"address": "a:1", "interval": "90s", "timeout": "1500ms"}
    labels = dict(parse_target(tmp_path, endpoint, relabelConfigs=rules).labels)
    assert (labels["every"], labels["within"]) == ("1m30s", "1s500ms")


def test_an_invalid_label_name_from_relabeling_is_rejected(tmp_path: Path) -> None:
    rules = [{"action": "labelmap", "regex": "__param_(.*)"}]
    with pytest.raises(UsageError, match=r"produced the invalid label name 'collect\[\]'"):
        parse_target(tmp_path, {"address": "a:1", "params": {"collect[]": ["cpu"]}}, relabelConfigs=rules)


def test_targets_dropped_by_relabeling_are_counted(tmp_path: Path) -> None:
    static = {
        "targetName": "t",
        "type": "StaticEndpoints",
        "relabelConfigs": [{"source_labels": ["__address__"], "regex": "a:.*", "action": "drop"}],
        "endpoints": [{"address": "a:1"}, {"address": "b:1"}],
    }
    found = parse_config(tmp_path, {"targets": [static]})
    assert ([target.url for target in found.targets], found.dropped) == (["http://b:1/metrics"], 1)


def test_the_targets_rules_precede_those_of_the_endpoint(tmp_path: Path) -> None:
    first, second = {"regex": "a", "action": "labeldrop"}, {"regex": "b", "action": "labeldrop"}
    found = parse_target(
        tmp_path, {"address": "a:1", "metricRelabelConfigs": [second]}, metricRelabelConfigs=[first]
    )
    assert [rule.regex for rule in found.settings.metric_relabeling.rules] == ["a", "b"]


def test_credentials_from_a_variable_are_not_shown(tmp_path: Path) -> None:
    found = parse_target(
        tmp_path, {"address": "a", "scheme": "https", "authorization": {"credentialsEnv": "TOKEN"}}
    )
    assert found.settings.login is not None
    assert found.settings.login.credentials.text == "s3cret"
    assert "s3cret" not in repr(found)


def test_a_disabled_monitor_is_ignored(tmp_path: Path) -> None:
    monitor = {"targetName": "m", "type": "PodMonitor", "enabled": False, "endpoints": [{"port": "metrics"}]}
    assert parse_config(tmp_path, {"targets": [monitor]}).targets == []


def test_receivers_with_equal_rules_share_a_relabeling(tmp_path: Path) -> None:
    drop = [{"source_labels": ["x"], "regex": "1", "action": "drop"}]
    urls = ("http://a/w", "http://b/w", "http://c/w")
    entries = [{"url": url, "name": url[7], "write_relabel_configs": drop} for url in urls]
    alone = parse_config(tmp_path, {"targets": []}, remote_write=entries).routing
    assert (alone.receivers, alone.others) == (None, ())
    del entries[0]["write_relabel_configs"]
    parted = parse_config(tmp_path, {"targets": []}, remote_write=entries).routing
    assert parted.receivers == {"a"}
    assert [names for _, names in parted.others] == [{"b", "c"}]


WRONG: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {}, "has no address"),
    ({"address": "http://a:1"}, {}, "expected an address such as 10.0.0.1:9400"),
    ({"address": "a:99999"}, {}, "expected an address such as"),
    (
        {"address": "a:1", "tlsConfig": {"serverName": ".a"}},
        {},
        r"tlsConfig.serverName: expected a host name such as gpu-1.example.com, or an IP address, not '.a'",
    ),
    ({"address": "a:1", "port": "2"}, {}, "has port 2 and address a:1; set the port only once"),
    ({"address": "a:1", "intervall": "1s"}, {}, r"endpoints\[0\].intervall'; did you mean"),
    ({"address": "a:1", "timeout": "6ms"}, {}, "timeout: expected a duration of at least"),
    ({"address": "a:1", "adaptiveTimeout": {"multiplier": 0.5}}, {}, "multiplier: expected"),
    ({"address": "a:1", "adaptiveTimeout": {"failureThreshold": 0}}, {}, "failureThreshold: expected"),
    ({"address": "a:1", "path": "/m?x=1"}, {}, "set query parameters in params"),
    ({"address": "a:1", "basicAuth": {"username": "u"}}, {}, "basicAuth: is not sent over plain http"),
    (
        {"address": "a:1", "basicAuth": {"username": {"name": "s", "key": "k"}}},
        {},
        "refers to a Kubernetes Secret, but no cluster is configured",
    ),
    (
        {"address": "a:1", "authorization": {"credentialsEnv": "NO"}},
        {},
        "the environment variable NO is not set",
    ),
    ({"address": "a:1", "tlsConfig": {"certFile": "c"}}, {}, "keyFile: is missing"),
    ({"address": "a:1", "tlsConfig": {"caSecret": {"name": "s"}}}, {}, "caSecret.key: is missing"),
    ({"address": "a:1", "addNodeLabel": True}, {}, "the node of a static address is unknown"),
    ({"address": "a:1"}, {"type": "PodMonitor"}, "selector: is missing"),
    ({"port": "70000"}, {"type": "PodMonitor", "selector": {"a": "b"}}, "key.*selector.a"),
    ({"port": "70000"}, {"type": "PodMonitor", "selector": {"matchLabels": {}}}, r"port: .*65535"),
    ({"port": "0"}, {"type": "ServiceMonitor", "selector": {"matchLabels": {}}}, r"port: .*from 1 to"),
    ({"address": "a:1"}, {"type": "Static"}, "did you mean 'StaticEndpoints'"),
    ({"address": "a:1"}, {"selector": {"matchLabels": {"a": "b"}}}, "has no effect for StaticEndpoints"),
    ({"address": "a:1"}, {"targetName": ""}, "targetName: is missing"),
    (
        {"address": "a:1", "basicAuth": {"username": "u", "password": "p", "passwordFile": "f"}},
        {},
        "passwordFile: is given together with password",
    ),
    (
        {
            "address": "a:1",
            "authorization": {"credentials": "c", "credentialsSecret": {"name": "s", "key": "k"}},
        },
        {},
        "credentialsSecret: is given together with credentials",
    ),
    (
        {"address": "a:1", "authorization": {"credentials": "a\nb"}},
        {},
        "credentials: expected one line of ASCII",
    ),
    ({"address": "a:1"}, {"interval": "5s"}, r"targets\[0\].interval'; valid: enabled, endpoints"),
    ({"address": "a:1", "bodySizeLimit": "10 apples"}, {}, "a size such as 512MB"),
]


@pytest.mark.parametrize(("endpoint", "target", "complaint"), WRONG, ids=[case[2] for case in WRONG])
def test_an_invalid_target_is_rejected_in_one_line(
    endpoint: dict[str, Any], target: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        parse_target(tmp_path, endpoint, **target)
    assert str(caught.value).startswith(str(tmp_path / "agent.yaml"))
    assert "\n" not in str(caught.value)


def test_a_configuration_without_a_receiver_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="remote_write: is empty"):
        parse_config(tmp_path, {"targets": []}, remote_write=[])


def test_endpoints_can_share_settings_by_yaml_merge_keys(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("""\
features:
  openAgent:
    targets:
      - targetName: t
        type: StaticEndpoints
        endpoints:
          - &first {address: "a:1", path: /x, interval: 9s}
          - {<<: *first, path: /y}
          - {path: /z, <<: [{interval: 8s}, *first]}
remote_write: [{url: "http://127.0.0.1:1/write"}]
""")
    found = read_agent_config(file, {}).targets
    assert [(one.url, one.settings.interval) for one in found] == [
        ("http://a:1/x", 9.0),
        ("http://a:1/y", 9.0),
        ("http://a:1/z", 8.0),
    ]


def test_a_quoted_null_is_a_name(tmp_path: Path) -> None:
    assert parse_target(tmp_path, {"address": "a:1"}, targetName="null").group == "null"


@pytest.mark.parametrize(
    ("merged", "wrong"),
    [
        ("5", "features: expected a mapping or a list of mappings after <<"),
        ("[5]", "features: expected a mapping or a list of mappings after <<"),
        ("{[a]: b}", "features: expected plain keys"),
        ("{openagent: {}}", "unknown key 'features.openagent'; did you mean 'features.openAgent'"),
    ],
)
def test_an_invalid_merge_is_rejected(merged: str, wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(f"features: {{<<: {merged}}}")
    with pytest.raises(UsageError, match=wrong):
        read_agent_config(file, {})


def test_recursive_and_exponential_merges_are_parsed_in_time(tmp_path: Path) -> None:
    lines = ["features:", "  openAgent: &a0 {<<: *a0, globalInterval: 7s}"]
    lines += ["remote_write: [{url: 'http://x/', <<: &b0 {name: x}}]"]
    lines += ["global:", "  external_labels:"]
    lines += [f"    l{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}'] * 9)}]}}" for n in range(1, 30)]
    lines += ["    <<: *b29"]
    file = tmp_path / "agent.yaml"
    file.write_text("\n".join(lines))
    with pytest.raises(UsageError, match=r"external_labels\.l1: expected a text"):
        read_agent_config(file, {})


def test_a_second_yaml_document_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("features: {}\n---\nfeatures: {}\n")
    with pytest.raises(
        UsageError, match="expected a single document in the stream, but found another document"
    ):
        read_agent_config(file, {})


def test_long_durations_without_a_unit_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    endpoint = {"address": "a:1", "interval": 300, "timeout": "20"}
    receiver = {"url": "http://b/", "remote_timeout": 3000, "queue_config": {"batch_send_deadline": "500ms"}}
    static = {"targetName": "t", "type": "StaticEndpoints", "endpoints": [endpoint]}
    parse_config(tmp_path, {"globalInterval": 500, "targets": [static]}, remote_write=[receiver])
    prefix = f"{tmp_path / 'agent.yaml'}: "
    found = [record.getMessage().removeprefix(prefix).partition(";")[0] for record in caplog.records]
    assert found == [
        "features.openAgent.globalInterval: 500 has no unit and means 8m20s",
        "features.openAgent.targets[0].endpoints[0].interval: 300 has no unit and means 5m",
        "remote_write[0].remote_timeout: 3000 has no unit and means 50m",
    ]
