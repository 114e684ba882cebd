"""Renders the StatefulSet of the agent, for either engine, with its ConfigMap and Service."""

from __future__ import annotations

from collections.abc import Iterable
from re import search
from typing import Any, Final

from gpuledger.model.settings import duration
from gpuledger.model.text import format_duration
from gpuledger.operator.render.naming import ENGINE, Manifest, Naming
from gpuledger.operator.render.pods import (
    RESTRICTED_SECURITY,
    container_port,
    field_variable,
    image_of,
    merge_environment,
    mount,
    pod_placement,
    pod_template,
    probes,
    service_port,
    snake_case,
    to_plain,
    variable,
)
from gpuledger.operator.render.program import restart_annotation, to_yaml
from gpuledger.operator.render.secrets import SecretFiles
from gpuledger.operator.render.targets import agent_targets
from gpuledger.operator.render_context import DEFAULT_RECEIVERS, RenderContext
from gpuledger.operator.spec import AgentSpec
from gpuledger.operator.spec_sections import Plain
from gpuledger.operator.target_parts import kept_items

CONFIG: Final = "/etc/gpuledger-agent"
QUEUE: Final = "/var/lib/gpuledger-agent"
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


def prometheus_container(agent: AgentSpec, context: RenderContext, main: Manifest) -> Manifest:
    """The Prometheus container in agent mode."""
    image = agent.prometheus_image or context.prometheus_image
    return {
        "name": "agent",
        **image_of(agent, context),
        "image": image,
        "args": [
            # Prometheus 2 has another flag for agent mode.
            "--enable-feature=agent" if search(r":v?2\.[^/]*$", image) else "--agent",
            f"--config.file={_PROMETHEUS_FILE}",
            f"--storage.agent.path={QUEUE}",
            f"--web.listen-address=:{agent.port}",
            *agent.args,
        ],
        **main,
    }


# All other keys differ only in their case.
_QUEUE_KEYS: Final = {"retryOnRateLimit": "retry_on_http_429"}
_QUEUE_DURATIONS: Final = ("batchSendDeadline", "minBackoff", "maxBackoff", "sampleAgeLimit")
_seconds: Final = duration()


def _relabel_rules(rules: Iterable[Plain]) -> list[Manifest]:
    """Relabeling rules with the keys of Prometheus."""
    return [
        # A rule with both spellings of a key is not changed; the agent refuses it.
        {key if snake_case(key) in rule else snake_case(key): value for key, value in rule.items()}
        for rule in to_plain(tuple(rules))
    ]


def _receiver_config(receiver: Plain, secrets: SecretFiles, path: str) -> Manifest:
    secrets.check_url(receiver["url"], f"{path}.url")
    queue = to_plain(receiver.get("queueConfig") or {})
    config: Manifest = {
        "url": receiver["url"],
        "name": receiver.get("name"),
        "remote_timeout": _prometheus_duration(receiver.get("remoteTimeout") or ""),
        "protocol": receiver.get("protocol"),
        "headers": to_plain(receiver.get("headers")),
        "write_relabel_configs": _relabel_rules(receiver.get("writeRelabelConfigs") or ()),
        "queue_config": {
            _QUEUE_KEYS.get(key) or snake_case(key): (
                _prometheus_duration(value) if key in _QUEUE_DURATIONS else value
            )
            for key, value in queue.items()
        },
        "queue": {snake_case(key): value for key, value in to_plain(receiver.get("queue") or {}).items()},
    }
    stated = {key: value for key, value in config.items() if value}
    return {**stated, **secrets.receiver_config(receiver, path)}


def _prometheus_duration(value: Any) -> str:
    try:
        return format_duration(_seconds(value))
    except ValueError:
        # The agent's own check reports it.
        return str(value)


_NOBODY: Final = 65534
_ID_FIELDS: Final = ("runAsUser", "runAsGroup", "fsGroup")
_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}


def receivers_of(naming: Naming) -> tuple[str, list[tuple[int, Plain]]]:
    """The receivers of the resource, else those of the operator: their path, and each with its number."""
    agent = naming.monitor.agent
    if agent.remote_write:
        return f"{naming.monitor.agent_path}.remoteWrite", kept_items(agent.remote_write)
    return DEFAULT_RECEIVERS, kept_items(naming.context.default_remote_write)


def agent_config(naming: Naming, secrets: SecretFiles) -> Manifest:
    """The agent's configuration."""
    agent, context = naming.monitor.agent, naming.context
    targets, automatic = agent_targets(naming, secrets)
    open_agent: Manifest = {
        "globalInterval": agent.global_interval,
        "globalPath": agent.global_path,
        "extraScrapeMetrics": agent.extra_scrape_metrics,
        "targets": targets,
        "autoTargets": None if targets is None else automatic,
    }
    # Unset keys are omitted: the agent's defaults apply.
    section = {key: value for key, value in open_agent.items() if value not in (None, "")}
    path, receivers = receivers_of(naming)
    external = {**context.external_labels, **agent.external_labels}
    return {
        "features": {"openAgent": section},
        **({"global": {"external_labels": external}} if external else {}),
        "remote_write": [
            _receiver_config(receiver, secrets, f"{path}[{index}]") for index, receiver in receivers
        ],
    }


def agent_config_map(naming: Naming, config: Plain) -> Manifest:
    """The ConfigMap with the configuration file; it contains paths of mounted Secrets, not their content."""
    names = naming.names
    data = {names.agent_file: to_yaml(config)}
    return naming.object("v1", "ConfigMap", names.agent_config, "agent", data=data)


def agent_service(naming: Naming) -> Manifest:
    """The headless Service that the StatefulSet requires."""
    spec = {
        "clusterIP": "None",
        "ports": [service_port("metrics", naming.monitor.agent.port)],
        "selector": naming.selector("agent"),
    }
    return naming.object("v1", "Service", naming.names.agent, "agent", spec=spec)


def stateful_set(naming: Naming, config: Plain, secrets: SecretFiles) -> Manifest:
    """The StatefulSet."""
    agent = naming.monitor.agent
    labels = naming.labels("agent")
    config_map = {"configMap": {"name": naming.names.agent_config}}
    mounts = [mount("config", CONFIG, config_map), *secrets.volumes()]
    # The builtin engine reloads its configuration; that of Prometheus is written when a pod starts.
    annotations = {}
    if agent.engine == "prometheus":
        annotations = restart_annotation(config)
        mounts.append(mount("made", "/etc/prometheus-made", {"emptyDir": {}}, writable=True))
    volumes = [volume for _, volume in mounts]
    if agent.persistence is None:
        volumes.append({"name": "queue", "emptyDir": {}})
    spec: Manifest = {
        "serviceAccountName": naming.names.agent_account,
        "securityContext": {
            "runAsNonRoot": True,
            # OpenShift chooses the ids from the range of the namespace, and refuses others.
            **({} if naming.context.scc_role else dict.fromkeys(_ID_FIELDS, _NOBODY)),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **pod_placement(naming.monitor, naming.context, agent),
        **_containers(naming, [mounted for mounted, _ in mounts]),
        "volumes": [*volumes, *to_plain(agent.extra_volumes)],
    }
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
        "ports": [container_port("metrics", agent.port)],
        **probes(),
        "resources": to_plain(agent.resources) or _RESOURCES,
        "securityContext": RESTRICTED_SECURITY,
        "volumeMounts": [*mounts, queue, *to_plain(agent.extra_volume_mounts)],
    }
    if agent.engine == "prometheus":
        image = image_of(agent, context)
        return {
            "initContainers": [config_init_container(image, file, agent.replicas, env, mounts)],
            "containers": [prometheus_container(agent, context, main)],
        }
    args = [
        "agent",
        f"--config={file}",
        f"--listen-address=:{agent.port}",
        f"--queue-directory={QUEUE}",
        *agent.args,
    ]
    return {"containers": [{"name": "agent", **image_of(agent, context), "args": args, **main}]}


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
