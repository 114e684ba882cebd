"""The other engine: a Prometheus in agent mode, with the configuration that `gpuledger agent` prints.

An init container of our own image prints it, from the same file that the builtin engine reads: so both scrape
the same, and the operator needs to know nothing of Prometheus's configuration. A change of the file exchanges
the pods one after the other; what waits to be delivered is on the volume `queue`.
"""

from __future__ import annotations

from re import search
from typing import Final

from gpuledger.operator.facts import Facts
from gpuledger.operator.render.names import Manifest
from gpuledger.operator.render.pods import LOCKED
from gpuledger.operator.spec import Agent

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
