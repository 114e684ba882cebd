"""Secrets, receivers and the check of the agent's configuration."""

from __future__ import annotations

import pytest
import yaml

from gpuledger.app.operator_checks import check_agent
from gpuledger.operator.render.objects import Rendered, render_objects
from unit.operator.support import (
    Json,
    agent_errors,
    agent_file,
    check_agent_config,
    context_of,
    gpu_monitor,
    only_object,
    rendered,
    target,
    valid_monitor,
    whatap,
)

SECRETS = {
    "scheme": "https",
    "tlsConfig": {
        "caSecret": {"name": "scrape", "key": "ca.crt"},
        "certSecret": {"name": "scrape", "key": "tls.crt"},
        "keySecret": {"name": "scrape", "key": "tls.key", "namespace": "gpuledger"},
        "serverName": "exporter",
    },
    "basicAuth": {"username": {"name": "login", "key": "user"}, "password": {"name": "login", "key": "word"}},
}


def test_secrets_are_mounted_and_referenced_as_files() -> None:
    resource = gpu_monitor({"agent": {"targets": [target(endpoints=[SECRETS])]}})
    (theirs, _) = agent_file(resource)["features"]["openAgent"]["targets"]
    assert theirs["endpoints"] == [
        {
            "scheme": "https",
            "tlsConfig": {
                "caFile": "/etc/gpuledger-secrets/scrape/ca.crt",
                "certFile": "/etc/gpuledger-secrets/scrape/tls.crt",
                "keyFile": "/etc/gpuledger-secrets/scrape/tls.key",
                "serverName": "exporter",
            },
            "basicAuth": {
                "usernameFile": "/etc/gpuledger-secrets/login/user",
                "passwordFile": "/etc/gpuledger-secrets/login/word",
            },
        }
    ]
    pod = only_object("StatefulSet", resource)["spec"]["template"]["spec"]
    (volume,) = [one["projected"] for one in pod["volumes"] if one["name"] == "secrets"]
    assert volume["sources"] == [
        # Optional: a missing Secret must not prevent the agent from scraping other targets.
        {
            "secret": {
                "name": "login",
                "items": [{"key": "user", "path": "login/user"}, {"key": "word", "path": "login/word"}],
                "optional": True,
            }
        },
        {
            "secret": {
                "name": "scrape",
                "items": [
                    {"key": name, "path": f"scrape/{name}"} for name in ("ca.crt", "tls.crt", "tls.key")
                ],
                "optional": True,
            }
        },
    ]
    assert {"name": "secrets", "mountPath": "/etc/gpuledger-secrets", "readOnly": True} in pod["containers"][
        0
    ]["volumeMounts"]


TOKEN = {"credentialsSecret": {"name": "token", "key": "t"}}
RECEIVER = {
    "url": "https://store/write",
    "name": "store",
    "remoteTimeout": "90",
    "protocol": "auto",
    "headers": {"X-Scope-OrgID": "a"},
    "authorization": TOKEN,
    "tlsConfig": {"caSecret": {"name": "ca", "key": "c"}, "insecureSkipVerify": False, "serverName": "s"},
    "writeRelabelConfigs": [
        {"sourceLabels": ["a"], "targetLabel": "b"},
        {"action": "labeldrop", "regex": "c"},
    ],
    "queueConfig": {
        "capacity": 10,
        "minShards": 1,
        "maxShards": 2,
        "maxSamplesPerSend": 3,
        "batchSendDeadline": "1.5s",
        "minBackoff": "30ms",
        "maxBackoff": "1m30s",
        "retryOnRateLimit": True,
        "sampleAgeLimit": "1h",
    },
    "queue": {"maxBytes": "512MB", "maxAge": "1h"},
}


def test_a_receiver_is_configured_with_the_keys_of_prometheus() -> None:
    config = agent_file(
        gpu_monitor({"agent": {"remoteWrite": [RECEIVER], "externalLabels": {"cluster": "a"}}})
    )
    assert config["global"] == {"external_labels": {"cluster": "a"}}
    assert config["remote_write"] == [
        {
            "url": "https://store/write",
            "name": "store",
            "remote_timeout": "1m30s",
            "protocol": "auto",
            "headers": {"X-Scope-OrgID": "a"},
            "authorization": {"credentials_file": "/etc/gpuledger-secrets/token/t"},
            "tls_config": {
                "ca_file": "/etc/gpuledger-secrets/ca/c",
                "insecure_skip_verify": False,
                "server_name": "s",
            },
            "write_relabel_configs": [
                {"source_labels": ["a"], "target_label": "b"},
                {"action": "labeldrop", "regex": "c"},
            ],
            "queue_config": {
                "capacity": 10,
                "min_shards": 1,
                "max_shards": 2,
                "max_samples_per_send": 3,
                "batch_send_deadline": "1s500ms",
                "min_backoff": "30ms",
                "max_backoff": "1m30s",
                "retry_on_http_429": True,
                "sample_age_limit": "1h",
            },
            "queue": {"max_bytes": "512MB", "max_age": "1h"},
        }
    ]
    assert agent_errors(config) == []


def test_a_receiver_of_the_resource_replaces_that_of_the_operator() -> None:
    own = agent_file(gpu_monitor({"agent": {"remoteWrite": [{"url": "http://own/write"}]}}))
    assert own["remote_write"] == [{"url": "http://own/write"}]
    usual = agent_file(gpu_monitor(), external_labels={"cluster": "a", "dc": "b"})
    assert usual["remote_write"] == [{"url": "http://store:8428/api/v1/write"}]
    assert usual["global"] == {"external_labels": {"cluster": "a", "dc": "b"}}


PROBLEMS: list[tuple[str, Json, str]] = [
    (
        "a Secret of another namespace",
        {
            "targets": [
                target(endpoints=[{"tlsConfig": {"caSecret": {"name": "a", "key": "b", "namespace": "x"}}}])
            ]
        },
        "spec.agent.targets[0].endpoints[0].tlsConfig.caSecret.namespace: expected gpuledger, the agent's "
        "namespace: Secrets of other namespaces cannot be mounted",
    ),
    (
        "Secret and file",
        {"remoteWrite": [{"url": "http://a", "authorization": {**TOKEN, "credentialsFile": "/f"}}]},
        "spec.agent.remoteWrite[0].authorization.credentialsSecret: conflicts with credentialsFile; "
        "set only one of them",
    ),
    (
        "a timeout that is too short",
        {
            "targets": [
                target(),
                target(targetName="b", endpoints=[{"port": "m"}, {"port": "n", "timeout": "20ms"}]),
            ]
        },
        "spec.agent.targets[1].endpoints[1].timeout: expected a duration of at least 0.1 s, not '20ms'",
    ),
    (
        "an invalid regular expression",
        {"targets": [target(relabelConfigs=[{"regex": "(", "target_label": "a"}])]},
        "spec.agent.targets[0].relabelConfigs[0].regex: is not a valid RE2 regular expression: "
        "missing ): ^(?:()$",
    ),
    (
        "credentials over http",
        {"targets": [target(endpoints=[{"port": "m", "authorization": TOKEN}])]},
        "spec.agent.targets[0].endpoints[0].authorization: is not sent over plain http; set scheme: https, "
        "or credentialsOverHttp: true to allow it",
    ),
    (
        "a target without an endpoint",
        {"targets": [{"targetName": "a", "type": "PodMonitor", "selector": {}}]},
        "spec.agent.targets[0].endpoints: is empty: expected at least one port",
    ),
    (
        "an invalid label name",
        {"externalLabels": {"a-b": "c"}},
        "spec.agent.externalLabels.a-b: is not a valid label name",
    ),
    (
        "namespaces by label for Prometheus",
        {"engine": "prometheus", "targets": [target(namespaceSelector={"matchLabels": {"a": "b"}})]},
        "spec.agent.targets[0].namespaceSelector: Prometheus cannot select namespaces by their labels; use "
        "matchNames, or engine: builtin",
    ),
]


@pytest.mark.parametrize(
    ("agent", "problem"), [one[1:] for one in PROBLEMS], ids=[one[0] for one in PROBLEMS]
)
def test_an_invalid_agent_is_reported_with_the_path(agent: Json, problem: str) -> None:
    monitor = valid_monitor(gpu_monitor({"agent": agent}))
    assert [
        str(one)
        for one in render_objects(monitor, context_of(monitor, check_agent=check_agent_config)).problems
    ] == [problem]


@pytest.mark.parametrize(
    ("agent", "problem"),
    [
        ({}, True),
        ({"targets": [target()]}, True),
        ({"targets": [target(selector={"matchLabels": {"gpuledger.dev/monitor": "gpus"}})]}, False),
        ({"autoTargets": False}, False),
    ],
    ids=["defaults", "other targets", "a target that selects them", "no automatic targets"],
)
def test_exporters_with_https_need_a_target_with_tls_settings(agent: Json, problem: bool) -> None:
    web = {"secret": "web", "scheme": "https"}
    found = rendered(gpu_monitor({"exporter": {"webConfig": web}, "agent": agent}))
    assert [one.path for one in found.problems] == (["spec.agent.targets"] if problem else [])


def test_a_problem_of_the_operators_receiver_has_the_path_of_the_operator() -> None:
    monitor = valid_monitor(gpu_monitor())
    context = context_of(
        monitor, check_agent=check_agent_config, default_remote_write=({"url": "http://a:0/"},)
    )
    (problem,) = render_objects(monitor, context).problems
    assert problem.path == "operator.defaultRemoteWrite[0].url"


def test_problems_of_a_whatap_agent_have_its_paths() -> None:
    resource = whatap(
        openAgent={"enabled": True, "targets": [target(endpoints=[{"port": "m", "timeout": "1ms"}])]}
    )
    monitor = valid_monitor(resource)
    (problem,) = render_objects(monitor, context_of(monitor, check_agent=check_agent_config)).problems
    assert problem.path == "spec.features.openAgent.targets[0].endpoints[0].timeout"


GOOD = {"url": "https://good/write", "name": "good"}
OTHER = {"url": "https://other/write"}
# Wrong receivers of the operator: what the schema of its file allows.
WRONG_RECEIVERS: dict[str, tuple[Json, str]] = {
    "a login in the URL": ({"url": "https://ann:hunter2@bad/write"}, ".url"),
    "a port": ({"url": "http://bad:0/"}, ".url"),
    "a header": ({"url": "https://header/write", "headers": {"Host": "x"}}, ".headers.Host"),
    "a rule": (
        {"url": "https://rule/write", "writeRelabelConfigs": [{"regex": "("}]},
        ".writeRelabelConfigs[0].regex",
    ),
    "a second one of the same name": ({"url": "https://twice/write", "name": "good"}, ""),
    "a Secret of another namespace": (
        {
            "url": "https://secret/write",
            "authorization": {"credentialsSecret": {"name": "a", "key": "b", "namespace": "theirs"}},
        },
        ".authorization.credentialsSecret.namespace",
    ),
    "two sources of a certificate": (
        {
            "url": "https://certificate/write",
            "tlsConfig": {"caFile": "/ca.crt", "caSecret": {"name": "a", "key": "b"}},
        },
        ".tlsConfig.caSecret",
    ),
}


@pytest.mark.parametrize("engine", ["builtin", "prometheus"])
@pytest.mark.parametrize("case", WRONG_RECEIVERS)
def test_a_wrong_receiver_of_the_operator_costs_no_other(case: str, engine: str) -> None:
    wrong, below = WRONG_RECEIVERS[case]
    monitor = valid_monitor(gpu_monitor({"agent": {"engine": engine}}))
    for receivers, number in (((GOOD, wrong, OTHER), 1), ((GOOD, OTHER, wrong), 2)):
        context = context_of(monitor, check_agent=check_agent, default_remote_write=receivers)
        found = render_objects(monitor, context)
        assert not found.refused
        path = f"operator.defaultRemoteWrite[{number}]"
        assert found.problems[0].path == f"{path}{below}"
        assert all(one.path.startswith(path) for one in found.problems)
        assert receiver_urls(found) == [GOOD["url"], OTHER["url"]]


def test_each_wrong_receiver_of_the_operator_has_its_own_number() -> None:
    monitor = valid_monitor(gpu_monitor())
    wrong = [one for one, _ in WRONG_RECEIVERS.values()]
    context = context_of(monitor, check_agent=check_agent, default_remote_write=(wrong[0], GOOD, *wrong[1:]))
    found = render_objects(monitor, context)
    numbers = [0, *range(2, len(wrong) + 1)]
    assert sorted(one.path for one in found.problems) == [
        f"operator.defaultRemoteWrite[{number}]{below}"
        for number, (_, below) in zip(numbers, WRONG_RECEIVERS.values(), strict=True)
    ]
    assert receiver_urls(found) == [GOOD["url"]]


def test_without_a_good_receiver_of_the_operator_the_agent_is_refused() -> None:
    monitor = valid_monitor(gpu_monitor())
    wrong = [WRONG_RECEIVERS[case][0] for case in ("a login in the URL", "a header")]
    context = context_of(monitor, check_agent=check_agent, default_remote_write=tuple(wrong))
    found = render_objects(monitor, context)
    assert found.refused
    assert [one.path for one in found.problems] == [
        "operator.defaultRemoteWrite[0].url",
        "operator.defaultRemoteWrite[1].headers.Host",
    ]


def receiver_urls(found: Rendered) -> list[str]:
    """The receivers in the agent's configuration."""
    (text,) = [one["data"]["agent.yaml"] for one in found.objects if "agent.yaml" in one.get("data", {})]
    return [receiver["url"] for receiver in yaml.safe_load(text)["remote_write"]]
