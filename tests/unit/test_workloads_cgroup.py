"""Texts of /proc/PID/cgroup and the owners that they name."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.workloads.cgroup import KINDS, CgroupOwner, owner

UID = "2f1d7c7e-2c1e-4f0a-9a31-0d1f5f7f3b11"
SNAKE = UID.replace("-", "_")
UID2 = "a8f5f167-f44f-4964-b6c9-98f2a5d3e901"
STATIC = "8d3b1f0e9c7a6b5d4e3f2a1b0c9d8e7f"
ID = "5eed917563583925ffdbd40a64efb2aaffe58638e57add8becaf460fe74f5b1c"
ID2 = "66d6d4ac9851cfcab8400277ad96770ce52c1d75eeac29046753875056eacaed"
SHORT = ID[:12]
KUBE = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
USER = "/user.slice/user-1000.slice"

# Text (a path alone stands for the one line of cgroup v2), what it says, where it is seen.
Row = tuple[str, dict[str, Any], str]


def pod(uid: str = UID, container: str = ID, runtime: str = "", **more: Any) -> dict[str, Any]:
    return {
        "kind": "pod",
        "pod_uid": uid,
        "container_id": container,
        "runtime": runtime,
        "missing": "pod_name",
        **more,
    }


def box(container: str = ID, runtime: str = "", **more: Any) -> dict[str, Any]:
    return {
        "kind": "container",
        "container_id": container,
        "runtime": runtime,
        "missing": "container_name",
        **more,
    }


def named(name: str, runtime: str, **more: Any) -> dict[str, Any]:
    return {"kind": "container", "container": name, "runtime": runtime, **more}


def job(number: str, step: str = "", uid: int | None = None, **more: Any) -> dict[str, Any]:
    return {"kind": "slurm", "job": number, "step": step, "uid": uid, **more}


def batch(number: str, runtime: str, **more: Any) -> dict[str, Any]:
    return {"kind": "job", "job": number, "runtime": runtime, **more}


def user(uid: int, unit: str = "") -> dict[str, Any]:
    return {"kind": "user", "uid": uid, "unit": unit}


def unit(name: str, **more: Any) -> dict[str, Any]:
    return {"kind": "unit", "unit": name, **more}


def unknown(missing: str) -> dict[str, Any]:
    return {"kind": "unknown", "missing": missing}


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
        "drivers mixed, below containerd's own service",
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
        "a login in a pod has the pod's users",
    ),
    (
        f"{KUBE}{SNAKE}.slice/cri-containerd-{ID}.scope/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        pod(runtime="containerd", job="7", step="0"),
        "Slurm in pods",
    ),
    (
        f"{USER}/user@1000.service/user.slice/libpod-{ID2}.scope/kubelet/kubepods/pod{UID}/{ID}",
        pod(uid=UID) | {"uid": 1000},
        "kind on rootless Podman",
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
        "cgroup namespace: another container of our own pod",
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
        pod() | {"uid": 1000},
        "k3s, rootless",
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
        pod(runtime="containerd", job="s5K1KKYAYG5D00", step="batch"),
        "Slurm 26.05 in pods",
    ),
    (f"/kubepods/podnot-a-uid/{ID}", box(), "an id below something that is no pod"),
]

CONTAINERS: list[Row] = [
    (f"/system.slice/docker-{ID}.scope", box(runtime="docker"), "Docker, systemd"),
    (f"/docker/{ID}", box(runtime="docker"), "Docker, cgroupfs"),
    (f"/docker/{SHORT}", box(SHORT, "docker"), "shortened id, form without doubt"),
    (f"/system.slice:docker:{ID}", box(runtime="docker"), "Docker, drivers mixed"),
    (f"/docker/{ID2}/docker/{ID}", box(runtime="docker"), "Docker in Docker: the inner"),
    (f"/docker/{ID}/system.slice/ssh.service", box(runtime="docker"), "systemd in Docker"),
    (f"/system.slice/docker-{ID}.scope/init.scope", box(runtime="docker"), "systemd in Docker, v2"),
    (f"/../docker-{ID}.scope", box(runtime="docker"), "Docker seen from another container"),
    (f"/machine.slice/libpod-{ID}.scope", box(runtime="podman"), "Podman, root"),
    (f"/machine.slice/libpod-{ID}.scope/container", box(runtime="podman"), "Podman with crun"),
    (
        f"/machine.slice/machine-libpod_pod_{ID2}.slice/libpod-{ID}.scope/container",
        box(runtime="podman"),
        "Podman pod",
    ),
    (f"/libpod_parent/libpod-{ID}", box(runtime="podman"), "Podman, cgroupfs"),
    (f"/machine.slice/libpod-conmon-{ID}.scope", unknown("unknown_cgroup"), "Podman's monitor"),
    (
        f"{USER}/user@1000.service/user.slice/libpod-{ID}.scope/container",
        box(runtime="podman", uid=1000),
        "Podman, rootless",
    ),
    (
        f"/system.slice/train.service/libpod-payload-{ID}",
        box(runtime="podman", unit="train.service"),
        "Quadlet",
    ),
    (
        f"{USER}/user@1000.service/user.slice/docker-{ID}.scope",
        box(runtime="docker", uid=1000),
        "Docker, rootless",
    ),
    (f"/system.slice/nerdctl-{ID}.scope", box(runtime="containerd"), "nerdctl, systemd"),
    (f"/default/{ID}", box(runtime="containerd"), "ctr and nerdctl, cgroupfs"),
    (f"/ecs/0e1f2d3c4b5a69788796a5b4c3d2e1f0/{ID}", box(runtime="docker"), "ECS on EC2"),
    (f"/ecs/d64f3c5a-1111-2222-3333-444455556666/{ID}", box(runtime="docker"), "ECS, older task ids"),
    (
        "/ecs/0e1f2d3c4b5a69788796a5b4c3d2e1f0/0e1f2d3c4b5a69788796a5b4c3d2e1f0-1234567890",
        box("0e1f2d3c4b5a69788796a5b4c3d2e1f0-1234567890", "docker"),
        "ECS on Fargate",
    ),
    (f"/ecstasks.slice/ecstasks-x.slice/docker-{ID}.scope", box(runtime="docker"), "ECS, v2"),
    (f"/actions_job/{ID}", box(runtime="docker"), "GitHub Actions"),
    (f"/mygroup/{ID}", box(), "--cgroup-parent"),
    ("/lxc.payload.web", named("web", "lxc"), "LXC 4, LXD, Incus"),
    ("/lxc.payload/web/system.slice/ssh.service", named("web", "lxc"), "LXC, older, systemd inside"),
    ("/lxc.payload.web/user.slice/user-1000.slice/session-2.scope", named("web", "lxc"), "a login inside"),
    ("/lxc/101/ns/init.scope", named("101", "lxc"), "Proxmox"),
    (f"/lxc.payload.ci/docker/{ID}", box(runtime="docker"), "Docker in LXC"),
    (
        f"{USER}/user@1000.service/app.slice/train.service/libpod-payload-{ID}",
        box(runtime="podman", uid=1000, unit="train.service"),
        "Quadlet, rootless",
    ),
    (
        f"/user.slice/user-libpod_pod_{ID2}.slice/libpod-{ID}.scope/container",
        box(runtime="podman"),
        "Podman pod, rootless, older",
    ),
    (
        f"{USER}/user@1000.service/user.slice/nerdctl-{ID}.scope",
        box(runtime="containerd", uid=1000),
        "nerdctl, rootless",
    ),
    (f"/k8s.io/{ID}", box(runtime="containerd"), "ctr in the namespace of Kubernetes"),
    (f"/ml.slice/docker-{ID}.scope", box(runtime="docker"), "Docker with a slice as --cgroup-parent"),
    (f"/../{ID}", box(), "cgroup namespace: a neighbour, cgroupfs"),
    ("/lxc.payload.team_web/init.scope", named("team_web", "lxc"), "Incus, a project's container"),
    (f"{USER}/lxc.payload.web", named("web", "lxc", uid=1000), "LXC, unprivileged, started by a user"),
    ("/lxc.monitor/101", unknown("unknown_cgroup"), "Proxmox: the monitor"),
    (
        r"/machine.slice/machine-qemu\x2d1\x2dgpu.scope/emulator",
        named("gpu", "qemu"),
        "libvirt, v1",
    ),
    ("/machine/qemu-3-gpu.libvirt-qemu/emulator", named("gpu", "qemu"), "libvirt without machined"),
    ("/machine/gpu.libvirt-qemu/vcpu0", named("gpu", "qemu"), "libvirt 1.2"),
    (r"/machine.slice/machine-lxc\x2d12\x2dweb.scope", named("web", "lxc"), "libvirt's LXC driver"),
    ("/machine/lxc-12-web.libvirt-lxc", named("web", "lxc"), "libvirt's LXC driver without machined"),
    ("/lxc.monitor.web", unknown("unknown_cgroup"), "LXC's monitor"),
    ("/machine.slice/machine-fedora.scope/payload", named("fedora", "nspawn"), "nspawn"),
    (r"/machine.slice/machine-my\x2dbox.scope", named("my-box", "nspawn"), "nspawn, escaped name"),
    (
        r"/machine.slice/systemd-nspawn@my\x2dbox.service/payload",
        named("my-box", "nspawn"),
        "nspawn by its unit",
    ),
    (
        r"/machine.slice/machine-qemu\x2d3\x2dwin\x2d11.scope/libvirt/emulator",
        named("win-11", "qemu"),
        "libvirt with vGPU",
    ),
]

JOBS: list[Row] = [
    ("/slurm/uid_1000/job_123/step_0/task_0", job("123", "0", 1000), "v1"),
    ("/slurm/uid_1000/job_123/step_batch/task_0", job("123", "batch", 1000), "v1, batch script"),
    ("/slurm/uid_1000/job_123", job("123", "", 1000), "v1, controllers at job level"),
    ("/slurm_node01/uid_1000/job_123/step_extern/task_0", job("123", "extern", 1000), "v1, several slurmd"),
    ("/system.slice/slurmstepd.scope/job_123/step_batch/user/task_0", job("123", "batch"), "v2"),
    ("/system.slice/slurmstepd.scope/job_123/step_3/user/task_2", job("123", "3"), "v2, srun"),
    ("/system.slice/slurmstepd.scope/job_123/step_0/slurm", job("123", "0"), "v2, the step's daemon"),
    (
        "/system.slice/node01_slurmstepd.scope/job_123/step_interactive/user/task_0",
        job("123", "interactive"),
        "v2, several slurmd",
    ),
    (
        "/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0",
        job("s5K1KKYAYG5D00", "0"),
        "26.05: SLUID",
    ),
    (
        "/system.slice/gpu01_slurmstepd.scope/sEKNKTV3WPV500/step_extern/user/task_special",
        job("sEKNKTV3WPV500", "extern"),
        "26.05: SLUID, several slurmd",
    ),
    ("/system.slice/slurmstepd.scope/sEKNKTV3WPV500", job("sEKNKTV3WPV500"), "26.05: at the job's level"),
    (
        "/system.slice/slurmstepd.scope/sEKNKTV3WPVI00/step_0",
        unit("slurmstepd.scope"),
        "no SLUID: its base 32 has no I",
    ),
    ("/../../../sEKNKTV3WPV500/step_0/user/task_0", job("sEKNKTV3WPV500", "0"), "26.05, cgroup namespace"),
    ("/../../uid_1000/job_7/step_0/task_0", job("7", "0", 1000), "v1, cgroup namespace: another user's"),
    ("/slurm.slice/slurmstepd.scope/job_7/step_0/user/task_0", job("7", "0"), "v2 with CgroupSlice"),
    (
        "/system.slice/slurm-node.service/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        job("7", "0"),
        "slurmd in a service that makes a machine of its own: the unit is only around it",
    ),
    (
        f"/system.slice/docker-{ID}.scope/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        job("7", "0", container_id=ID, runtime="docker"),
        "slurmd in a container",
    ),
    ("/system.slice/slurmstepd.scope/system", unit("slurmstepd.scope"), "v2, no job"),
    ("/system.slice/slurmd.service", unit("slurmd.service"), "slurmd itself"),
    ("/../../job_123/step_0/user/task_0", job("123", "0"), "cgroup namespace inside another job"),
    (
        f"/system.slice/slurmstepd.scope/job_9/step_0/user/task_0/libpod-{ID}",
        job("9", "0", container_id=ID, runtime="podman"),
        "Podman in a job",
    ),
    (
        f"/docker/{ID}/slurm/uid_1000/job_5/step_0/task_0",
        job("5", "0", container_id=ID, runtime="docker"),
        "Slurm in Docker: the job, not the host's user 1000",
    ),
]

OTHER_BATCH_SYSTEMS: list[Row] = [
    ("/pbs_jobs.service/jobid/12345.pbs", batch("12345.pbs", "pbs"), "OpenPBS, v1"),
    ("/pbs_jobs.service/jobid/12345[7].pbs/child", batch("12345[7].pbs", "pbs"), "OpenPBS, array job"),
    ("/pbs_jobs.service/jobs/12345.1", batch("12345.1", "pbs"), "PBS Professional, v2"),
    ("/pbspro/12345.pbs", batch("12345.pbs", "pbs"), "PBS Professional 13"),
    (
        r"/pbspro.slice/pbspro-12345.gpu\x2dpbs.slice",
        batch("12345.gpu-pbs", "pbs"),
        "PBS Professional, systemd",
    ),
    ("/torque/12345.head/R0.t0", batch("12345.head", "torque"), "TORQUE 6"),
    (
        f"/docker/{ID}/pbs_jobs.service/jobid/7.pbs",
        batch("7.pbs", "docker", container_id=ID),
        "OpenPBS in Docker",
    ),
    ("/pbs_jobs.service/jobid", unit("pbs_jobs.service"), "OpenPBS, no job"),
    (
        "/htcondor/condor_var_lib_condor_execute_slot1_3@gpu01.example.org",
        unit("slot1_3@gpu01.example.org", runtime="htcondor"),
        "HTCondor, v1: a slot",
    ),
    (
        "/system.slice/htcondor/condor_var_lib_condor_execute_slot1_23@gpu01",
        unit("slot1_23@gpu01", runtime="htcondor"),
        "HTCondor, v2",
    ),
]

USERS_AND_UNITS: list[Row] = [
    (f"{USER}/session-3.scope", user(1000, "session-3.scope"), "ssh login"),
    ("/user.slice/user-0.slice/session-c1.scope", user(0, "session-c1.scope"), "root's login"),
    (
        f"{USER}/user@1000.service/app.slice/app-gnome-blender-4242.scope",
        user(1000, "app-gnome-blender-4242.scope"),
        "desktop application",
    ),
    (f"{USER}/user@1000.service/app.slice/jupyter.service", user(1000, "jupyter.service"), "user service"),
    (
        f"{USER}/user@1000.service/app.slice/dbus-:1.2-org.x.Y@0.service",
        user(1000, "dbus-:1.2-org.x.Y@0.service"),
        "a unit with a colon",
    ),
    ("/../user-1000.slice/session-3.scope", user(1000, "session-3.scope"), "login, cgroup namespace"),
    ("/system.slice/ollama.service", unit("ollama.service"), "service"),
    ("/system.slice/system-vllm.slice/vllm@a.service", unit("vllm@a.service"), "template service"),
    ("/system.slice/run-u12.scope", unit("run-u12.scope"), "systemd-run"),
    ("/system.slice/condor.service/slot1_1", unit("condor.service"), "delegated: the service"),
    ("/system.slice/condor.service/job.scope", unit("condor.service"), "what a service makes is its own"),
    (
        f"{USER}/user@1000.service/user-0.slice/session-1.scope",
        user(1000, "session-1.scope"),
        "a user cannot become another by a cgroup below the own",
    ),
    (
        f"{USER}/user@1000.service/user.slice/libpod-conmon-{ID}.scope",
        user(1000),
        "Podman's monitor, rootless",
    ),
    (
        f"{USER}/user@1000.service/app.slice/docker.service",
        user(1000, "docker.service"),
        "Docker, rootless without a cgroup driver: the container's processes stay in its unit",
    ),
    (
        f"{USER}/user@1000.service/app.slice/run-r1a2b.scope",
        user(1000, "run-r1a2b.scope"),
        "systemd-run --user",
    ),
    (f"{USER}/user@1000.service/apptainer-4242.scope", user(1000, "apptainer-4242.scope"), "Apptainer"),
    (USER, user(1000), "a login's slice alone"),
    ("/system.slice/snap.ollama.listener.service", unit("snap.ollama.listener.service"), "a snap's service"),
    ("/system.slice/host-containers@admin.service", unit("host-containers@admin.service"), "Bottlerocket"),
    (
        "/nomad.slice/share.slice/8f4e.train.scope",
        unit("8f4e.train.scope"),
        "Nomad, v2: an allocation's task",
    ),
    ("/init.scope", unit("init.scope"), "systemd itself"),
    ("/openrc.sshd", unit("sshd"), "OpenRC"),
]

UNKNOWNS: list[Row] = [
    ("", unknown("no_cgroup"), "could not be read"),
    ("/", unknown("no_cgroup"), "root cgroup, or our own in a cgroup namespace"),
    ("12:cpu:/\n1:name=systemd:/\n0::/\n", unknown("no_cgroup"), "hybrid, nothing anywhere"),
    ("/..", unknown("cgroup_namespace"), "outside our cgroup namespace"),
    ("/../../somewhere", unknown("cgroup_namespace"), "outside our cgroup namespace, unknown form"),
    ("/nomad/share/x", unknown("unknown_cgroup"), "a form that is not in the table"),
    (f"/foo/{SHORT}", unknown("unknown_cgroup"), "12 hex digits alone are no container"),
    ("garbage\n::\n1:2\n", unknown("no_cgroup"), "no lines of the form"),
]

MANY_LINES: list[Row] = [
    (
        f"12:devices:/kubepods/burstable/pod{UID}/{ID}\n"
        f"2:memory:/kubepods/burstable/pod{UID}/{ID}\n1:name=systemd:/kubepods/burstable/pod{UID}/{ID}\n0::/\n",
        pod(),
        "v1",
    ),
    (
        f"11:cpu:/\n3:devices:{KUBE}{SNAKE}.slice/crio-{ID}.scope\n0::/system.slice/crio.service\n",
        pod(runtime="cri-o"),
        "hybrid: most controllers at the root",
    ),
    (
        "5:memory:/slurm/uid_1000/job_1\n4:devices:/slurm/uid_1000/job_1/step_0/task_0\n"
        "1:name=systemd:/system.slice/slurmd.service\n",
        job("1", "0", 1000),
        "v1 Slurm: controllers at different depths",
    ),
    (
        f"2:cpu,cpuacct:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/system.slice/containerd.service\n",
        box(runtime="docker"),
        "hybrid Docker",
    ),
    (
        f"4:memory:/user.slice\n1:name=systemd:{USER}/session-3.scope\n",
        user(1000, "session-3.scope"),
        "v1 login",
    ),
    (
        "12:freezer:/slurm_gpu01/uid_1000/job_9/step_batch\n9:cpu,cpuacct:/slurm_gpu01/uid_1000/job_9/step_batch"
        "/task_0\n3:devices:/slurm_gpu01/uid_1000/job_9/step_batch\n1:name=systemd:/system.slice/slurmd.service\n"
        "0::/system.slice/slurmd.service\n",
        job("9", "batch", 1000),
        "hybrid Slurm, several slurmd",
    ),
    (
        "9:cpuset:/pbs_jobs.service/jobid/7.pbs\n4:devices:/pbs_jobs.service/jobid/7.pbs\n"
        "1:name=systemd:/system.slice/pbs.service\n0::/system.slice/pbs.service\n",
        batch("7.pbs", "pbs"),
        "hybrid OpenPBS",
    ),
    (
        "7:memory:/htcondor/condor_scratch_slot1\n1:name=systemd:/system.slice/condor.service\n",
        unit("slot1", runtime="htcondor"),
        "v1 HTCondor: the slot says more than the daemon's service",
    ),
    (
        "5:devices:/lxc.payload.web\n1:name=systemd:/lxc.payload.web/system.slice/ssh.service\n"
        "0::/lxc.payload.web/system.slice/ssh.service\n",
        named("web", "lxc"),
        "hybrid LXD",
    ),
    ("8:pids:/\n4:memory:/agent/x\n0::/\n", unknown("unknown_cgroup"), "one controller in an unknown form"),
]

ROWS = PODS + CONTAINERS + JOBS + OTHER_BATCH_SYSTEMS + USERS_AND_UNITS + UNKNOWNS + MANY_LINES

# Without the texts themselves, whose colons pytest takes for its own when a test is asked for by name.
NAMES = [f"{at}: {row[2]}" for at, row in enumerate(ROWS)]


@pytest.mark.parametrize(("text", "said", "seen"), ROWS, ids=NAMES)
def test_each_known_form_names_its_owner(text: str, said: dict[str, Any], seen: str) -> None:
    full = f"0::{text}\n" if text.startswith("/") else text
    assert owner(full) == CgroupOwner(**said)


PIECES = st.sampled_from(
    [
        *"/:\n-_.",
        "0::/",
        "pod",
        "kubepods-",
        ".slice",
        ".scope",
        UID,
        SNAKE,
        STATIC,
        ID,
        SHORT,
        "cri-containerd-",
        "crio-conmon-",
        "docker",
        "slurm/uid_1/job_2",
        "/step_",
        "slurmstepd.scope/",
        "s5K1KKYAYG5D00",
        "pbs_jobs.service/jobid/1",
        "user-1000.slice",
        "..",
        "lxc.payload.",
        "machine-",
        "\\x2d",
        "\\xff",
        "٣",
        " (deleted)",
    ]
)


@settings(deadline=None, max_examples=300)
@given(st.one_of(st.text(), st.lists(PIECES, max_size=20).map("".join)))
def test_any_text_is_read_and_nothing_is_said_that_is_not_in_it(text: str) -> None:
    said = owner(text)
    assert said.kind in KINDS
    assert said.pod_uid in text or said.pod_uid.replace("-", "_") in text
    assert said.container_id in text
    assert said.job in text
    assert said.uid is None or str(said.uid) in text
    assert (said.kind == "pod") == (said.missing == "pod_name")


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(MANY_LINES), st.randoms(use_true_random=False))
def test_the_order_of_lines_does_not_matter(row: Row, chance: Random) -> None:
    lines = row[0].splitlines()
    chance.shuffle(lines)
    assert owner("\n".join(lines)) == CgroupOwner(**row[1])


def test_a_colon_parts_segments_as_a_slash_does() -> None:
    found = owner(f"0::{USER}:session-3.scope\n")
    assert (found.kind, found.uid, found.unit) == ("user", 1000, "session-3.scope")
