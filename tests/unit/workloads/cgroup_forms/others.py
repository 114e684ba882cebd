"""Cgroups of users and units, cgroups without an owner, and texts with several lines."""

from __future__ import annotations

from unit.workloads.cgroup_forms.expected_owners import (
    ID,
    KUBE,
    SHORT,
    SNAKE,
    UID,
    USER,
    Row,
    batch,
    container,
    job,
    named_container,
    pod,
    unit,
    unknown,
    user,
)

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
    (
        "/system.slice/condor.service/job.scope",
        unit("condor.service"),
        "a scope below a service belongs to the service",
    ),
    (
        f"{USER}/user@1000.service/user-0.slice/session-1.scope",
        user(1000, "session-1.scope"),
        "a user cannot become another user by creating cgroups",
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
    ("/", unknown("no_cgroup"), "root cgroup, or gpuledger's cgroup in a cgroup namespace"),
    ("12:cpu:/\n1:name=systemd:/\n0::/\n", unknown("no_cgroup"), "hybrid, nothing anywhere"),
    ("/..", unknown("cgroup_namespace"), "outside our cgroup namespace"),
    ("/../../somewhere", unknown("cgroup_namespace"), "outside our cgroup namespace, unknown form"),
    ("/nomad/share/x", unknown("unknown_cgroup"), "a form that is not in the table"),
    (f"/foo/{SHORT}", unknown("unknown_cgroup"), "12 hex digits alone are no container"),
    ("garbage\n::\n1:2\n", unknown("no_cgroup"), "no valid lines"),
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
        container(runtime="docker"),
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
        "v1 HTCondor: the slot is more specific than the daemon's service",
    ),
    (
        "5:devices:/lxc.payload.web\n1:name=systemd:/lxc.payload.web/system.slice/ssh.service\n"
        "0::/lxc.payload.web/system.slice/ssh.service\n",
        named_container("web", "lxc"),
        "hybrid LXD",
    ),
    ("8:pids:/\n4:memory:/agent/x\n0::/\n", unknown("unknown_cgroup"), "one controller in an unknown form"),
]
