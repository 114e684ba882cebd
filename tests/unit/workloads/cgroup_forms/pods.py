"""Cgroups of pods, by runtime, cgroup driver, distribution and nesting."""

from __future__ import annotations

from unit.workloads.cgroup_forms.expected_owners import (
    ID,
    ID2,
    KUBE,
    SNAKE,
    STATIC,
    UID,
    UID2,
    USER,
    Row,
    container,
    pod,
)

PODS: list[Row] = [
    (f"{KUBE}{SNAKE}.slice/cri-containerd-{ID}.scope", pod(runtime="containerd"), "containerd, systemd"),
    (
        f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SNAKE}.slice/crio-{ID}.scope",
        pod(runtime="cri-o"),
        "cri-o, systemd",
    ),
    (f"{KUBE}{SNAKE}.slice/crio-{ID}.scope/container", pod(runtime="cri-o"), "cri-o with crun"),
    (f"{KUBE}{SNAKE}.slice/docker-{ID}.scope", pod(runtime="docker"), "cri-dockerd, systemd"),
    (
        f"/kubepods.slice/kubepods-pod{SNAKE}.slice/cri-containerd-{ID}.scope",
        pod(runtime="containerd"),
        "guaranteed, systemd",
    ),
    (f"/kubepods/burstable/pod{UID}/{ID}", pod(), "cgroupfs, burstable"),
    (f"/kubepods/besteffort/pod{UID}/{ID}", pod(), "cgroupfs, best effort"),
    (f"/kubepods/pod{UID}/{ID}", pod(), "cgroupfs, guaranteed"),
    (f"/kubepods/besteffort/pod{UID}/crio-{ID}", pod(runtime="cri-o"), "cri-o, cgroupfs"),
    (f"/kubepods/burstable/pod{STATIC}/{ID}", pod(STATIC), "static pod, cgroupfs"),
    (
        f"{KUBE}{STATIC}.slice/cri-containerd-{ID}.scope",
        pod(STATIC, runtime="containerd"),
        "static pod, systemd",
    ),
    (f"{KUBE}{SNAKE}.slice:cri-containerd:{ID}", pod(runtime="containerd"), "drivers mixed"),
    (
        f"/system.slice/containerd.service/kubepods-burstable-pod{SNAKE}.slice:cri-containerd:{ID}",
        pod(runtime="containerd"),
        "drivers mixed, below containerd's service",
    ),
    (f"{KUBE}{SNAKE}.slice:crio:{ID}", pod(runtime="cri-o"), "cri-o, drivers mixed"),
    (f"{KUBE}{SNAKE}.slice", pod(container=""), "a pod's slice without a container"),
    (f"{KUBE}{SNAKE}.slice/crio-conmon-{ID}.scope", pod(container=""), "cri-o's monitor"),
    (
        f"/docker/{ID2}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice"
        f"/kubelet-kubepods-besteffort-pod{SNAKE}.slice/cri-containerd-{ID}.scope",
        pod(runtime="containerd"),
        "kind, node in Docker",
    ),
    (f"/docker/{ID2}/kubelet/kubepods/besteffort/pod{UID}/{ID}", pod(), "kind, cgroupfs"),
    (f"/docker/{ID2}/docker/{ID}/kubepods/pod{UID}/{ID}", pod(), "k3d in Docker in Docker"),
    (f"/lxc.payload.k8s/kubepods/burstable/pod{UID}/{ID}", pod(), "microk8s in LXD"),
    (
        f"/lxc/101/ns/kubepods.slice/kubepods-pod{SNAKE}.slice/cri-containerd-{ID}.scope",
        pod(runtime="containerd"),
        "k3s in Proxmox",
    ),
    (f"/kubepods/pod{UID2}/{ID2}/kubepods/besteffort/pod{UID}/{ID}", pod(), "kind in a pod: innermost pod"),
    (f"/kubepods/burstable/pod{UID}/{ID}/docker/{ID2}", pod(), "Docker in a pod is the pod's container"),
    (
        f"{KUBE}{SNAKE}.slice/cri-containerd-{ID}.scope/system.slice/nginx.service",
        pod(runtime="containerd"),
        "systemd in a pod",
    ),
    (
        f"{KUBE}{SNAKE}.slice/cri-containerd-{ID}.scope/user.slice/user-1000.slice/session-1.scope",
        pod(runtime="containerd"),
        "a login in a pod: its uid belongs to the pod",
    ),
    (
        f"{KUBE}{SNAKE}.slice/cri-containerd-{ID}.scope/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        pod(runtime="containerd"),
        "Slurm in pods: a pod can name any job",
    ),
    (
        f"{USER}/user@1000.service/user.slice/libpod-{ID2}.scope/kubelet/kubepods/pod{UID}/{ID}",
        container() | {"uid": 1000},
        "kind on rootless Podman: a container of the login, whatever it names below itself",
    ),
    (
        f"/../../kubepods-besteffort-pod{SNAKE}.slice/cri-containerd-{ID}.scope",
        pod(runtime="containerd"),
        "ns",
    ),
    (
        f"/../../../kubepods-burstable.slice/kubepods-burstable-pod{SNAKE}.slice/crio-{ID}.scope",
        pod(runtime="cri-o"),
        "cgroup namespace: a pod of another quality of service",
    ),
    (f"/../../pod{UID}/{ID}", pod(), "cgroup namespace, cgroupfs"),
    (f"/../../../burstable/pod{UID}/{ID}", pod(), "cgroup namespace, cgroupfs, other quality of service"),
    (
        f"/../cri-containerd-{ID}.scope",
        pod("", runtime="containerd"),
        "cgroup namespace: another container of the same pod",
    ),
    (f"{KUBE}{SNAKE}.slice/cri-containerd-{ID}.scope (deleted)", pod(runtime="containerd"), "removed"),
    (
        f"/system.slice/docker-{ID2}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SNAKE}.slice"
        f"/cri-containerd-{ID}.scope",
        pod(runtime="containerd"),
        "kind, node in Docker, v2",
    ),
    (
        f"/machine.slice/libpod-{ID2}.scope/container/kubelet.slice/kubelet-kubepods.slice"
        f"/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{SNAKE}.slice/crio-{ID}.scope",
        pod(runtime="cri-o"),
        "minikube, Podman driver with cri-o",
    ),
    (
        f"/system.slice/docker-{ID2}.scope{KUBE}{SNAKE}.slice/docker-{ID}.scope",
        pod(runtime="docker"),
        "minikube, Docker driver with cri-dockerd, v2",
    ),
    (f"/docker/{ID2}/kubepods/burstable/pod{UID}/{ID}", pod(), "minikube, Docker driver, v1"),
    (f"/system.slice/k3s.service/kubepods/burstable/pod{UID}/{ID}", pod(), "k3s, cgroupfs, older"),
    (
        f"{USER}/user@1000.service/k3s-rootless.service/kubepods/burstable/pod{UID}/{ID}",
        container() | {"uid": 1000, "unit": "k3s-rootless.service"},
        "k3s, rootless: a login can name any pod",
    ),
    (f"/system.slice/snap.microk8s.daemon-kubelite.service/kubepods/pod{UID}/{ID}", pod(), "microk8s, snap"),
    (f"/kubepods/burstable/pod{UID}/{ID}/ns", pod(), "GKE, cgroupfs, with a cgroup that the container made"),
    (
        f"/kubepods.slice/kubepods-pod{SNAKE}.slice/cri-containerd-{ID}.scope/init.scope",
        pod(runtime="containerd"),
        "EKS Bottlerocket, v2, with systemd in the pod",
    ),
    (
        f"{KUBE}{SNAKE}.slice/crio-conmon-{ID}.scope/container",
        pod(container=""),
        "OpenShift: conmon in the pod's slice",
    ),
    (
        f"/docker/{ID2}/lxc.payload.node/kubepods/pod{UID}/{ID}",
        pod(),
        "kubelet in LXC in Docker",
    ),
    (
        f"{KUBE}{SNAKE}.slice/cri-containerd-{ID}.scope/system.slice/gpu-0_slurmstepd.scope/s5K1KKYAYG5D00"
        "/step_batch/user/task_special",
        pod(runtime="containerd"),
        "Slurm 26.05 in pods",
    ),
    (f"/kubepods/podnot-a-uid/{ID}", container(), "an id below something that is no pod"),
]
