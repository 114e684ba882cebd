"""The StatefulSet that scrapes and delivers, by either engine, and what belongs to it."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from re import search
from typing import Any, Final

from gpuledger.model.settings import duration
from gpuledger.model.text import as_prometheus
from gpuledger.operator.facts import Facts
from gpuledger.operator.render.names import ENGINE, Manifest, Naming
from gpuledger.operator.render.pods import (
    LOCKED,
    environment,
    field,
    image_of,
    plain,
    pod,
    probes,
    template,
    variable,
)
from gpuledger.operator.render.program import written
from gpuledger.operator.render.secrets import Secrets
from gpuledger.operator.render.targets import targets_of
from gpuledger.operator.spec import Agent, Plain

_MADE: Final = "/etc/prometheus-made/prometheus.yml"
# The shell knows which of how many this pod is.
_PRINT: Final = 'exec gpuledger agent --config="$0" --engine=prometheus --shard="${POD_NAME##*-}/$1" > "$2"'


def init_container(
    image: Manifest, file: str, replicas: int, env: list[Manifest], mounts: list[Manifest]
) -> Manifest:
    """What writes the configuration."""
    return {
        "name": "configuration",
        **image,
        "command": ["sh", "-c", _PRINT, file, str(replicas), _MADE],
        "env": env,
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": LOCKED,
        "volumeMounts": mounts,
    }


def prometheus_container(agent: Agent, facts: Facts, main: Manifest, queue: str) -> Manifest:
    """What scrapes and delivers."""
    image = agent.prometheus_image or facts.prometheus_image
    return {
        "name": "agent",
        "image": image,
        "imagePullPolicy": agent.pods.image_pull_policy or facts.image_pull_policy,
        "args": [
            # Prometheus 2 knows the mode by another name.
            "--enable-feature=agent" if search(r":v?2\.[^/]*$", image) else "--agent",
            f"--config.file={_MADE}",
            f"--storage.agent.path={queue}",
            f"--web.listen-address=:{agent.port}",
            *agent.pods.args,
        ],
        **main,
    }


_QUEUE: Final = {
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
_DURATIONS: Final = ("batchSendDeadline", "minBackoff", "maxBackoff", "sampleAgeLimit")
_CAMEL: Final = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
_seconds: Final = duration()


def receivers_of(receivers: Iterable[Plain], secrets: Secrets, path: str) -> list[Manifest]:
    """Each receiver; `path` is where the list stands."""
    return [_receiver(one, secrets, f"{path}[{at}]") for at, one in enumerate(receivers)]


def rules_of(rules: Iterable[Plain]) -> list[Manifest]:
    """Relabel rules with Prometheus's own keys."""
    return [
        # A rule that has both forms of a key is left as it is, for the agent to refuse.
        {
            _CAMEL.get(key, key) if _CAMEL.get(key, key) not in rule else key: value
            for key, value in rule.items()
        }
        for rule in plain(tuple(rules))
    ]


def _receiver(said: Plain, secrets: Secrets, path: str) -> Manifest:
    secrets.look_at_url(said["url"], f"{path}.url")
    made: Manifest = {"url": said["url"]}
    if said.get("name"):
        made["name"] = said["name"]
    if said.get("remoteTimeout"):
        made["remote_timeout"] = _time(said["remoteTimeout"])
    if said.get("headers"):
        made["headers"] = plain(said["headers"])
    made |= secrets.receiver(said, path)
    if said.get("writeRelabelConfigs"):
        made["write_relabel_configs"] = rules_of(said["writeRelabelConfigs"])
    if said.get("queueConfig"):
        made["queue_config"] = {
            _QUEUE[key]: _time(value) if key in _DURATIONS else value
            for key, value in plain(said["queueConfig"]).items()
        }
    queue = plain(said.get("queue") or {})
    words = {"maxBytes": "max_bytes", "maxAge": "max_age"}
    if queue:
        made["queue"] = {words[key]: value for key, value in queue.items()}
    return made


def _time(written: Any) -> str:
    try:
        return as_prometheus(_seconds(written))
    except ValueError:
        # The agent says what is wrong with it.
        return str(written)


CONFIG: Final = "/etc/gpuledger-agent"
QUEUE: Final = "/var/lib/gpuledger-agent"
_NOBODY: Final = 65534
_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}


def agent_config(naming: Naming, secrets: Secrets) -> Manifest:
    """What the agent's configuration file says; receivers are the resource's, else the operator's."""
    agent, facts = naming.monitor.agent, naming.facts
    targets, automatic = targets_of(naming, secrets)
    open_agent: Manifest = {
        "globalInterval": agent.global_interval,
        "globalPath": agent.global_path,
        "extraScrapeMetrics": agent.extra_scrape_metrics,
        "targets": targets,
        "autoTargets": automatic,
    }
    # Nothing said, and the agent's own default, is not written.
    said = {key: value for key, value in open_agent.items() if value not in (None, "")}
    if targets is None:
        del said["autoTargets"]
    if agent.remote_write:
        receivers = receivers_of(agent.remote_write, secrets, f"{naming.monitor.agent_path}.remoteWrite")
    else:
        receivers = receivers_of(facts.default_remote_write, secrets, "operator.defaultRemoteWrite")
    external = {**facts.external_labels, **agent.external_labels}
    return {
        "features": {"openAgent": said},
        **({"global": {"external_labels": external}} if external else {}),
        "remote_write": receivers,
    }


def config_map(naming: Naming, config: Plain) -> Manifest:
    """The file: without secrets, which are named by the files that they are mounted at."""
    names = naming.names
    data = {names.agent_file: written(config)}
    return naming.object("v1", "ConfigMap", names.agent_config, "agent", data=data)


def service(naming: Naming) -> Manifest:
    """The headless Service that the StatefulSet names."""
    port = naming.monitor.agent.port
    spec = {
        "clusterIP": "None",
        "ports": [{"name": "metrics", "port": port, "targetPort": "metrics", "protocol": "TCP"}],
        "selector": naming.selector("agent"),
    }
    return naming.object("v1", "Service", naming.names.agent, "agent", spec=spec)


def stateful_set(naming: Naming, config: Plain, secrets: Secrets) -> Manifest:
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
        **pod(naming.monitor, naming.facts, agent.pods),
        **_containers(naming, [mount for mount, _ in mounts]),
        "volumes": volumes,
    }
    # The builtin engine takes a change by itself; the other's configuration is made when a pod starts.
    notes = {}
    if agent.engine == "prometheus":
        notes["gpuledger/restart-on"] = sha256(written(config).encode()).hexdigest()
    return naming.object(
        "apps/v1",
        "StatefulSet",
        naming.names.agent,
        "agent",
        labels={ENGINE: agent.engine},
        spec={
            "serviceName": naming.names.agent,
            "replicas": agent.replicas,
            # A shard is the ordinal's: none waits for another.
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": naming.selector("agent")},
            "template": template({**labels, ENGINE: agent.engine}, agent.pods, notes, spec),
            **_claims(naming),
        },
    )


def _containers(naming: Naming, mounts: list[Manifest]) -> Manifest:
    agent, facts = naming.monitor.agent, naming.facts
    file = f"{CONFIG}/{naming.names.agent_file}"
    own = [
        field("POD_NAME", "metadata.name"),
        field("POD_NAMESPACE", "metadata.namespace"),
        # The image's runtime must not hand it a GPU.
        variable("NVIDIA_VISIBLE_DEVICES", "void"),
    ]
    env = environment(own, agent.pods.env)
    queue = {"name": "queue", "mountPath": QUEUE}
    main: Manifest = {
        "env": env,
        "ports": [{"name": "metrics", "containerPort": agent.port, "protocol": "TCP"}],
        **probes(),
        "resources": plain(agent.pods.resources) or _RESOURCES,
        "securityContext": LOCKED,
        "volumeMounts": [*mounts, queue],
    }
    if agent.engine == "prometheus":
        maker = image_of(agent.pods, facts)
        return {
            "initContainers": [init_container(maker, file, agent.replicas, env, mounts)],
            "containers": [prometheus_container(agent, facts, main, QUEUE)],
        }
    args = [
        "agent",
        f"--config={file}",
        f"--listen-address=:{agent.port}",
        f"--queue-directory={QUEUE}",
        *agent.pods.args,
    ]
    return {"containers": [{"name": "agent", **image_of(agent.pods, facts), "args": args, **main}]}


def _config_mount(naming: Naming) -> tuple[Manifest, Manifest]:
    return (
        {"name": "config", "mountPath": CONFIG, "readOnly": True},
        {"name": "config", "configMap": {"name": naming.names.agent_config}},
    )


def _claims(naming: Naming) -> Manifest:
    kept = naming.monitor.agent.persistence
    if kept is None:
        return {}
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        **({"storageClassName": kept.storage_class} if kept.storage_class else {}),
        "resources": {"requests": {"storage": kept.size}},
    }
    return {"volumeClaimTemplates": [{"metadata": {"name": "queue"}, "spec": spec}]}
