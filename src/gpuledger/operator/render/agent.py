"""Renders the StatefulSet of the agent, for either engine, with its ConfigMap and Service."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from re import search
from typing import Any, Final

from gpuledger.model.settings import duration
from gpuledger.model.text import format_duration
from gpuledger.operator.render.naming import ENGINE, Manifest, Naming
from gpuledger.operator.render.pods import (
    RESTRICTED_SECURITY,
    field_variable,
    image_of,
    merge_environment,
    pod_placement,
    pod_template,
    probes,
    to_plain,
    variable,
)
from gpuledger.operator.render.program import to_yaml
from gpuledger.operator.render.secrets import SecretFiles
from gpuledger.operator.render.targets import agent_targets
from gpuledger.operator.render_context import RenderContext
from gpuledger.operator.spec import AgentSpec
from gpuledger.operator.spec_sections import Plain

_PROMETHEUS_FILE: Final = "/etc/prometheus-made/prometheus.yml"
# The shard is the ordinal in the pod's name and the number of replicas.
_PRINT_CONFIG: Final = (
    'exec gpuledger agent --config="$0" --engine=prometheus --shard="${POD_NAME##*-}/$1" > "$2"'
)


def config_init_container(
    image: Manifest, file: str, replicas: int, env: list[Manifest], mounts: list[Manifest]
) -> Manifest:
    """The init container that writes the configuration of Prometheus."""
    return {
        "name": "configuration",
        **image,
        "command": ["sh", "-c", _PRINT_CONFIG, file, str(replicas), _PROMETHEUS_FILE],
        "env": env,
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": RESTRICTED_SECURITY,
        "volumeMounts": mounts,
    }


def prometheus_container(agent: AgentSpec, context: RenderContext, main: Manifest, queue: str) -> Manifest:
    """The Prometheus container in agent mode."""
    image = agent.prometheus_image or context.prometheus_image
    return {
        "name": "agent",
        "image": image,
        "imagePullPolicy": agent.image_pull_policy or context.image_pull_policy,
        "args": [
            # Prometheus 2 has another flag for agent mode.
            "--enable-feature=agent" if search(r":v?2\.[^/]*$", image) else "--agent",
            f"--config.file={_PROMETHEUS_FILE}",
            f"--storage.agent.path={queue}",
            f"--web.listen-address=:{agent.port}",
            *agent.args,
        ],
        **main,
    }


_QUEUE_KEYS: Final = {
    "capacity": "capacity",
    "minShards": "min_shards",
    "maxShards": "max_shards",
    "maxSamplesPerSend": "max_samples_per_send",
    "batchSendDeadline": "batch_send_deadline",
    "minBackoff": "min_backoff",
    "maxBackoff": "max_backoff",
    "retryOnRateLimit": "retry_on_http_429",
    "sampleAgeLimit": "sample_age_limit",
}
_QUEUE_DURATIONS: Final = ("batchSendDeadline", "minBackoff", "maxBackoff", "sampleAgeLimit")
_RELABEL_KEYS: Final = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
_seconds: Final = duration()


def receiver_configs(receivers: Iterable[Plain], secrets: SecretFiles, path: str) -> list[Manifest]:
    """The remote_write configuration of each receiver; `path` is the path of the list in the resource."""
    return [
        _receiver_config(receiver, secrets, f"{path}[{index}]") for index, receiver in enumerate(receivers)
    ]


def relabel_rules(rules: Iterable[Plain]) -> list[Manifest]:
    """Relabeling rules with the keys of Prometheus."""
    return [
        # A rule with both spellings of a key is not changed; the agent refuses it.
        {
            _RELABEL_KEYS.get(key, key) if _RELABEL_KEYS.get(key, key) not in rule else key: value
            for key, value in rule.items()
        }
        for rule in to_plain(tuple(rules))
    ]


def _receiver_config(receiver: Plain, secrets: SecretFiles, path: str) -> Manifest:
    secrets.check_url(receiver["url"], f"{path}.url")
    config: Manifest = {"url": receiver["url"]}
    if receiver.get("name"):
        config["name"] = receiver["name"]
    if receiver.get("remoteTimeout"):
        config["remote_timeout"] = _prometheus_duration(receiver["remoteTimeout"])
    if receiver.get("headers"):
        config["headers"] = to_plain(receiver["headers"])
    config |= secrets.receiver_config(receiver, path)
    if receiver.get("writeRelabelConfigs"):
        config["write_relabel_configs"] = relabel_rules(receiver["writeRelabelConfigs"])
    if receiver.get("queueConfig"):
        config["queue_config"] = {
            _QUEUE_KEYS[key]: _prometheus_duration(value) if key in _QUEUE_DURATIONS else value
            for key, value in to_plain(receiver["queueConfig"]).items()
        }
    queue = to_plain(receiver.get("queue") or {})
    keys = {"maxBytes": "max_bytes", "maxAge": "max_age"}
    if queue:
        config["queue"] = {keys[key]: value for key, value in queue.items()}
    return config


def _prometheus_duration(value: Any) -> str:
    try:
        return format_duration(_seconds(value))
    except ValueError:
        # The agent's own check reports it.
        return str(value)


CONFIG: Final = "/etc/gpuledger-agent"
QUEUE: Final = "/var/lib/gpuledger-agent"
_NOBODY: Final = 65534
_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}


def agent_config(naming: Naming, secrets: SecretFiles) -> Manifest:
    """The agent's configuration; the receivers are those of the resource, else those of the operator."""
    agent, context = naming.monitor.agent, naming.context
    targets, automatic = agent_targets(naming, secrets)
    open_agent: Manifest = {
        "globalInterval": agent.global_interval,
        "globalPath": agent.global_path,
        "extraScrapeMetrics": agent.extra_scrape_metrics,
        "targets": targets,
        "autoTargets": automatic,
    }
    # Unset keys are omitted: the agent's defaults apply.
    section = {key: value for key, value in open_agent.items() if value not in (None, "")}
    if targets is None:
        del section["autoTargets"]
    if agent.remote_write:
        receivers = receiver_configs(agent.remote_write, secrets, f"{naming.monitor.agent_path}.remoteWrite")
    else:
        receivers = receiver_configs(context.default_remote_write, secrets, "operator.defaultRemoteWrite")
    external = {**context.external_labels, **agent.external_labels}
    return {
        "features": {"openAgent": section},
        **({"global": {"external_labels": external}} if external else {}),
        "remote_write": receivers,
    }


def agent_config_map(naming: Naming, config: Plain) -> Manifest:
    """The ConfigMap with the configuration file; it contains paths of mounted Secrets, not their content."""
    names = naming.names
    data = {names.agent_file: to_yaml(config)}
    return naming.object("v1", "ConfigMap", names.agent_config, "agent", data=data)


def agent_service(naming: Naming) -> Manifest:
    """The headless Service that the StatefulSet requires."""
    port = naming.monitor.agent.port
    spec = {
        "clusterIP": "None",
        "ports": [{"name": "metrics", "port": port, "targetPort": "metrics", "protocol": "TCP"}],
        "selector": naming.selector("agent"),
    }
    return naming.object("v1", "Service", naming.names.agent, "agent", spec=spec)


def stateful_set(naming: Naming, config: Plain, secrets: SecretFiles) -> Manifest:
    """The StatefulSet."""
    agent = naming.monitor.agent
    labels = naming.labels("agent")
    mounts = [_config_mount(naming), *secrets.volumes()]
    if agent.engine == "prometheus":
        mounts.append(
            ({"name": "made", "mountPath": "/etc/prometheus-made"}, {"name": "made", "emptyDir": {}})
        )
    volumes = [volume for _, volume in mounts]
    if agent.persistence is None:
        volumes.append({"name": "queue", "emptyDir": {}})
    spec: Manifest = {
        "serviceAccountName": naming.names.agent_account,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
            "runAsGroup": _NOBODY,
            "fsGroup": _NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **pod_placement(naming.monitor, naming.context, agent),
        **_containers(naming, [mount for mount, _ in mounts]),
        "volumes": volumes,
    }
    # The builtin engine reloads its configuration; that of Prometheus is written when a pod starts.
    annotations = {}
    if agent.engine == "prometheus":
        annotations["gpuledger/restart-on"] = sha256(to_yaml(config).encode()).hexdigest()
    return naming.object(
        "apps/v1",
        "StatefulSet",
        naming.names.agent,
        "agent",
        labels={ENGINE: agent.engine},
        spec={
            "serviceName": naming.names.agent,
            "replicas": agent.replicas,
            # The shards are independent of each other.
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": naming.selector("agent")},
            "template": pod_template({**labels, ENGINE: agent.engine}, agent, annotations, spec),
            **_volume_claims(naming),
        },
    )


def _containers(naming: Naming, mounts: list[Manifest]) -> Manifest:
    agent, context = naming.monitor.agent, naming.context
    file = f"{CONFIG}/{naming.names.agent_file}"
    own = [
        field_variable("POD_NAME", "metadata.name"),
        field_variable("POD_NAMESPACE", "metadata.namespace"),
        # The container runtime must not allocate a GPU to the agent.
        variable("NVIDIA_VISIBLE_DEVICES", "void"),
    ]
    env = merge_environment(own, agent.env)
    queue = {"name": "queue", "mountPath": QUEUE}
    main: Manifest = {
        "env": env,
        "ports": [{"name": "metrics", "containerPort": agent.port, "protocol": "TCP"}],
        **probes(),
        "resources": to_plain(agent.resources) or _RESOURCES,
        "securityContext": RESTRICTED_SECURITY,
        "volumeMounts": [*mounts, queue],
    }
    if agent.engine == "prometheus":
        image = image_of(agent, context)
        return {
            "initContainers": [config_init_container(image, file, agent.replicas, env, mounts)],
            "containers": [prometheus_container(agent, context, main, QUEUE)],
        }
    args = [
        "agent",
        f"--config={file}",
        f"--listen-address=:{agent.port}",
        f"--queue-directory={QUEUE}",
        *agent.args,
    ]
    return {"containers": [{"name": "agent", **image_of(agent, context), "args": args, **main}]}


def _config_mount(naming: Naming) -> tuple[Manifest, Manifest]:
    return (
        {"name": "config", "mountPath": CONFIG, "readOnly": True},
        {"name": "config", "configMap": {"name": naming.names.agent_config}},
    )


def _volume_claims(naming: Naming) -> Manifest:
    persistence = naming.monitor.agent.persistence
    if persistence is None:
        return {}
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        **({"storageClassName": persistence.storage_class} if persistence.storage_class else {}),
        "resources": {"requests": {"storage": persistence.size}},
    }
    return {"volumeClaimTemplates": [{"metadata": {"name": "queue"}, "spec": spec}]}
