"""The engines of the agent: gpuledger's own, or Prometheus with a printed configuration."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from unit.operator.support import (
    agent_file,
    container,
    gpu_monitor,
    only_object,
    rendered,
    rendered_objects,
)


def test_a_changed_configuration_does_not_restart_the_builtin_agent() -> None:
    def template(interval: str) -> object:
        return only_object("StatefulSet", gpu_monitor({"agent": {"globalInterval": interval}}))["spec"][
            "template"
        ]

    assert template("15s") == template("30s")


def test_the_builtin_agent_knows_its_shard_and_keeps_its_queue() -> None:
    one = only_object("StatefulSet", gpu_monitor({"agent": {"replicas": 3, "persistence": {"size": "5Gi"}}}))
    assert one["spec"]["replicas"] == 3
    assert one["spec"]["serviceName"] == "gpumonitor-gpus-agent"
    (claim,) = one["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi"
    (agent,) = one["spec"]["template"]["spec"]["containers"]
    assert agent["args"] == [
        "agent",
        "--config=/etc/gpuledger-agent/agent.yaml",
        "--listen-address=:9401",
        "--queue-directory=/var/lib/gpuledger-agent",
    ]
    assert {one["name"] for one in agent["env"]} == {"POD_NAME", "POD_NAMESPACE", "NVIDIA_VISIBLE_DEVICES"}


PROMETHEUS = {"agent": {"engine": "prometheus", "replicas": 2}}


@pytest.mark.parametrize(
    ("image", "mode"),
    [
        ("prometheus:v2.53.1", "--enable-feature=agent"),
        ("registry:5000/prometheus:2.42.0", "--enable-feature=agent"),
        ("prometheus:v3.5.0", "--agent"),
        ("registry:2.5/prometheus@sha256:1234", "--agent"),
        ("prometheus", "--agent"),
    ],
)
def test_the_agent_mode_flag_depends_on_the_version_of_prometheus(image: str, mode: str) -> None:
    one = container(gpu_monitor({"agent": {"engine": "prometheus", "prometheusImage": image}}), "StatefulSet")
    assert (one["image"], one["args"][0]) == (image, mode)


def test_a_changed_configuration_restarts_the_pods_of_prometheus() -> None:
    def template(interval: str) -> object:
        agent = {**PROMETHEUS["agent"], "globalInterval": interval}
        return only_object("StatefulSet", gpu_monitor({"agent": agent}))["spec"]["template"]

    assert template("15s") != template("30s")


def test_the_init_container_prints_the_configuration_of_prometheus(tmp_path: Path) -> None:
    """Runs the command of the init container unchanged."""
    resource = gpu_monitor(PROMETHEUS)
    spec = only_object("StatefulSet", resource)["spec"]["template"]["spec"]
    (init,) = spec["initContainers"]
    shell, flag, script, file, replicas, target_file = init["command"]
    assert target_file in spec["containers"][0]["args"][1]
    (tmp_path / "agent.yaml").write_text(yaml.safe_dump(agent_file(resource)))
    program = tmp_path / "gpuledger"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpuledger "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    done = subprocess.run(
        [shell, flag, script, str(tmp_path / Path(file).name), replicas, str(tmp_path / "prometheus.yml")],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "POD_NAME": "gpumonitor-gpus-agent-1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    printed = yaml.safe_load((tmp_path / "prometheus.yml").read_text())
    (job,) = printed["scrape_configs"]
    assert job["job_name"] == "gpus"
    assert {"source_labels": ["__tmp_shard"], "regex": "1", "action": "keep"} in job["relabel_configs"]
    assert printed["remote_write"] == [{"url": "http://store:8428/api/v1/write"}]


def test_both_engines_have_the_same_account_port_and_configuration() -> None:
    builtin, prometheus = (
        rendered_objects(gpu_monitor({"agent": {"engine": name}})) for name in ("builtin", "prometheus")
    )
    assert builtin.keys() == prometheus.keys()
    name = "StatefulSet/gpumonitor-gpus-agent"
    for one, engine in ((builtin[name], "builtin"), (prometheus[name], "prometheus")):
        assert one["metadata"]["labels"]["gpuledger.dev/engine"] == engine
        (main,) = one["spec"]["template"]["spec"]["containers"]
        assert main["ports"] == [{"name": "metrics", "containerPort": 9401, "protocol": "TCP"}]
        assert "--web.listen-address=:9401" in main["args"] or "--listen-address=:9401" in main["args"]
    same = {key for key in builtin if key != name}
    assert {key: builtin[key] for key in same} == {key: prometheus[key] for key in same}


def test_a_missing_receiver_is_reported_and_only_omits_the_agent() -> None:
    found = rendered(gpu_monitor(), default_remote_write=())
    assert found.receiver_missing
    kinds = [one["kind"] for one in found.objects]
    assert "DaemonSet" in kinds
    assert "StatefulSet" not in kinds
    assert not rendered(gpu_monitor({"agent": {"enabled": False}}), default_remote_write=()).receiver_missing


def test_agent_pods_have_minimal_permissions() -> None:
    for resource in (gpu_monitor(), gpu_monitor(PROMETHEUS)):
        pod = only_object("StatefulSet", resource)["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        for one in (*pod["containers"], *pod.get("initContainers", ())):
            assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert one["securityContext"]["readOnlyRootFilesystem"] is True
            assert set(one["resources"]["limits"]) == {"memory"}
