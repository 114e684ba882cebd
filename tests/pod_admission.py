"""What Kubernetes' Pod Security Standards and OpenShift's SecurityContextConstraints admit.

Rules made from their documentation, because no API server of OpenShift runs in the tests:
https://kubernetes.io/docs/concepts/security/pod-security-standards/ and
https://docs.redhat.com/en/documentation/openshift_container_platform (Managing security context constraints).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Spec = Mapping[str, Any]

_BASELINE_CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
    *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_RESTRICTED_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected"),
    "secret",
}
_PROFILES = ("RuntimeDefault", "Localhost")

# The SCC of OpenShift that every pod may use, since 4.11.
RESTRICTED_V2: Spec = {
    "metadata": {"name": "restricted-v2"},
    "allowHostDirVolumePlugin": False,
    "allowHostIPC": False,
    "allowHostNetwork": False,
    "allowHostPID": False,
    "allowHostPorts": False,
    "allowPrivilegeEscalation": False,
    "allowPrivilegedContainer": False,
    "allowedCapabilities": ["NET_BIND_SERVICE"],
    "requiredDropCapabilities": ["ALL"],
    "readOnlyRootFilesystem": False,
    "runAsUser": {"type": "MustRunAsRange"},
    "fsGroup": {"type": "MustRunAs"},
    "supplementalGroups": {"type": "RunAsAny"},
    "seLinuxContext": {"type": "MustRunAs"},
    "seccompProfiles": ["runtime/default"],
    "volumes": sorted(_RESTRICTED_VOLUMES),
}
# The range that OpenShift gives a namespace; ids outside of it are refused.
_NAMESPACE_IDS = range(1_000_680_000, 1_000_690_000)


def _containers(spec: Spec) -> list[Spec]:
    return [*spec.get("initContainers", ()), *spec["containers"]]


def _contexts(spec: Spec) -> Iterator[tuple[str, Spec]]:
    """The name and the security context of each container."""
    for container in _containers(spec):
        yield container["name"], container.get("securityContext") or {}


def _volume_kinds(spec: Spec) -> set[str]:
    return {kind for volume in spec.get("volumes", ()) for kind in volume if kind != "name"}


def baseline_problems(spec: Spec) -> Iterator[str]:
    """Why the level `baseline` refuses a pod."""
    pod = spec.get("securityContext") or {}
    yield from (key for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key))
    if "hostPath" in _volume_kinds(spec):
        yield "hostPath volumes"
    if pod.get("sysctls"):
        yield "sysctls"
    for name, context in (("pod", pod), *_contexts(spec)):
        if context.get("privileged"):
            yield f"{name}: privileged"
        added = set((context.get("capabilities") or {}).get("add", ())) - _BASELINE_CAPABILITIES
        yield from (f"{name}: capability {capability}" for capability in sorted(added))
        selinux = context.get("seLinuxOptions") or {}
        if selinux.get("type", "") not in _SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
            yield f"{name}: seLinuxOptions"
        if (context.get("seccompProfile") or {}).get("type") == "Unconfined":
            yield f"{name}: seccompProfile"
        if context.get("procMount", "Default") != "Default":
            yield f"{name}: procMount"
    for container in _containers(spec):
        if any(port.get("hostPort") for port in container.get("ports", ())):
            yield f"{container['name']}: hostPort"
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            for action in ("httpGet", "tcpSocket"):
                if (container.get(probe, {}).get(action) or {}).get("host"):
                    yield f"{container['name']}: host of {probe}"


def restricted_problems(spec: Spec) -> Iterator[str]:
    """Why the level `restricted` refuses a pod."""
    yield from baseline_problems(spec)
    pod = spec.get("securityContext") or {}
    yield from (
        f"{kind} volumes" for kind in sorted(_volume_kinds(spec) - _RESTRICTED_VOLUMES - {"hostPath"})
    )
    for name, context in _contexts(spec):
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"{name}: allowPrivilegeEscalation"
        if context.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
            yield f"{name}: runAsNonRoot"
        if context.get("runAsUser", pod.get("runAsUser")) == 0:
            yield f"{name}: runAsUser 0"
        profile = context.get("seccompProfile") or pod.get("seccompProfile") or {}
        if profile.get("type") not in _PROFILES:
            yield f"{name}: seccompProfile"
        capabilities = context.get("capabilities") or {}
        if "ALL" not in capabilities.get("drop", ()):
            yield f"{name}: capabilities are not dropped"
        if set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
            yield f"{name}: added capabilities"


def scc_problems(scc: Spec, spec: Spec) -> Iterator[str]:
    """Why a SecurityContextConstraints does not admit a pod. What the pod leaves open, it fills in."""
    pod = spec.get("securityContext") or {}
    for key, field in (
        ("hostPID", "allowHostPID"),
        ("hostNetwork", "allowHostNetwork"),
        ("hostIPC", "allowHostIPC"),
    ):
        if spec.get(key) and not scc[field]:
            yield key
    if "*" not in scc["volumes"]:
        yield from (f"{kind} volumes" for kind in sorted(_volume_kinds(spec) - set(scc["volumes"])))
    if "hostPath" in _volume_kinds(spec) and not scc["allowHostDirVolumePlugin"]:
        yield "hostPath volumes"
    yield from _id_problems(scc["fsGroup"]["type"], pod.get("fsGroup"), "fsGroup")
    for group in pod.get("supplementalGroups", ()):
        yield from _id_problems(scc["supplementalGroups"]["type"], group, "supplementalGroups")
    for name, context in _contexts(spec):
        for problem in _container_problems(scc, {**pod, **context}):
            yield f"{name}: {problem}"
    for container in _containers(spec):
        if any(port.get("hostPort") for port in container.get("ports", ())) and not scc["allowHostPorts"]:
            yield f"{container['name']}: hostPort"


def _container_problems(scc: Spec, context: Spec) -> Iterator[str]:
    if context.get("privileged") and not scc["allowPrivilegedContainer"]:
        yield "privileged"
    if context.get("allowPrivilegeEscalation") and not scc["allowPrivilegeEscalation"]:
        yield "allowPrivilegeEscalation"
    if scc["readOnlyRootFilesystem"] and context.get("readOnlyRootFilesystem") is False:
        yield "a writable root file system"
    added = set((context.get("capabilities") or {}).get("add", ()))
    allowed = {*(scc.get("allowedCapabilities") or ()), *(scc.get("defaultAddCapabilities") or ())}
    if "*" not in allowed:
        yield from (f"capability {capability}" for capability in sorted(added - allowed))
    strategy, user = scc["runAsUser"]["type"], context.get("runAsUser")
    yield from _id_problems(strategy, user, "runAsUser")
    if strategy != "RunAsAny" and context.get("runAsNonRoot") is False:
        yield "runAsNonRoot"
    if scc["seLinuxContext"]["type"] == "MustRunAs" and context.get("seLinuxOptions"):
        yield "seLinuxOptions"
    profile = (context.get("seccompProfile") or {}).get("type", "RuntimeDefault")
    names = {"RuntimeDefault": "runtime/default", "Unconfined": "unconfined"}
    profiles = scc.get("seccompProfiles") or ()
    if "*" not in profiles and names.get(profile, profile) not in profiles:
        yield f"seccompProfile {profile}"


def _id_problems(strategy: str, number: int | None, field: str) -> Iterator[str]:
    if number is None or strategy == "RunAsAny":
        return
    is_allowed = number != 0 if strategy == "MustRunAsNonRoot" else number in _NAMESPACE_IDS
    if not is_allowed:
        yield f"{field} {number}"
