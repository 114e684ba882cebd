"""Cgroups of containers and virtual machines outside pods, by what started them."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.workloads.cgroup import CgroupOwner, owner
from unit.cgroup_forms import ID, ID2, SHORT, USER, Row, box, named, names, unknown, whole

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


@pytest.mark.parametrize(("text", "said", "seen"), CONTAINERS, ids=names(CONTAINERS))
def test_a_containers_cgroup_names_it_and_its_runtime(text: str, said: dict[str, Any], seen: str) -> None:
    assert owner(whole(text)) == CgroupOwner(**said)
