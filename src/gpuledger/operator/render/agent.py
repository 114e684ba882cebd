"""The StatefulSet that scrapes and delivers, by either engine, and what belongs to it."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

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
from gpuledger.operator.render.prometheus import init_container, prometheus_container
from gpuledger.operator.render.receivers import receivers_of
from gpuledger.operator.render.secrets import Secrets
from gpuledger.operator.render.targets import targets_of
from gpuledger.operator.spec import Plain

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
