"""What runs in an exporter's pod before it."""

from __future__ import annotations

from typing import Final

from gpuledger.operator.facts import Facts
from gpuledger.operator.render.gpu import gpu_env, gpu_mounts
from gpuledger.operator.render.names import Manifest
from gpuledger.operator.render.pods import image_of, variable
from gpuledger.operator.spec import Exporter

_VALIDATIONS: Final = "/run/nvidia/validations"
_WAIT: Final = (
    f"until [ -f {_VALIDATIONS}/toolkit-ready ]; do "
    'echo "waiting for the GPU Operator to validate driver and toolkit"; sleep 5; done'
)


def init_containers(exporter: Exporter, facts: Facts) -> list[Manifest]:
    """In their order."""
    waiting = [_waiting(exporter, facts)] if exporter.gpu_operator.enabled else []
    turning_on = [_accounting(exporter, facts)] if exporter.accounting and not exporter.made_up else []
    return [*waiting, *turning_on]


def init_volumes(exporter: Exporter) -> list[tuple[Manifest, Manifest]]:
    """What they alone need."""
    if not exporter.gpu_operator.enabled:
        return []
    mount = {
        "name": "validations",
        "mountPath": _VALIDATIONS,
        "readOnly": True,
        "mountPropagation": "HostToContainer",
    }
    return [(mount, {"name": "validations", "hostPath": {"path": exporter.gpu_operator.validations_dir}})]


def _waiting(exporter: Exporter, facts: Facts) -> Manifest:
    return {
        "name": "wait-for-gpu-operator",
        **image_of(exporter.pods, facts),
        "command": ["sh", "-c"],
        "args": [_WAIT],
        "env": [variable("NVIDIA_VISIBLE_DEVICES", "void")],
        "resources": {"requests": {"cpu": "5m", "memory": "8Mi"}, "limits": {"memory": "32Mi"}},
        "securityContext": {
            "runAsUser": 0,
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [mount for mount, _ in init_volumes(exporter)],
    }


def _accounting(exporter: Exporter, facts: Facts) -> Manifest:
    made: Manifest = {"runAsUser": 0, "readOnlyRootFilesystem": True}
    if exporter.on_host:
        made["privileged"] = True
    else:
        # The driver lets nobody without SYS_ADMIN turn it on.
        made |= {
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]},
        }
    mounts = [mount for mount, _ in gpu_mounts(exporter)]
    return {
        "name": "enable-accounting",
        **image_of(exporter.pods, facts),
        "command": ["sh", "-c"],
        "args": [
            'PATH="/usr/local/nvidia/bin:$PATH"; nvidia-smi -am 1 || '
            'echo "accounting mode is not on for every GPU (see above); the exporter starts without"'
        ],
        "env": gpu_env(exporter),
        "resources": {"requests": {"cpu": "5m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": made,
        **({"volumeMounts": mounts} if mounts else {}),
    }
