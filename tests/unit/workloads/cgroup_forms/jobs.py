"""Cgroups of batch jobs: Slurm, and the other batch systems."""

from __future__ import annotations

from unit.workloads.cgroup_forms.expected_owners import (
    ID,
    UID,
    Row,
    batch,
    container,
    job,
    unit,
    unknown,
)

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
        "not a SLUID: Crockford's base 32 has no I",
    ),
    ("/../../../sEKNKTV3WPV500/step_0/user/task_0", job("sEKNKTV3WPV500", "0"), "26.05, cgroup namespace"),
    ("/../../uid_1000/job_7/step_0/task_0", job("7", "0", 1000), "v1, cgroup namespace: another user's"),
    ("/slurm.slice/slurmstepd.scope/job_7/step_0/user/task_0", job("7", "0"), "v2 with CgroupSlice"),
    (
        "/system.slice/slurm-node.service/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
        job("7", "0"),
        "slurmd in a service with its own cgroup tree: the job is inside the unit",
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
    ("/lsf/cluster1/job.4711.20813.1432828463", batch("4711", "lsf"), "LSF"),
    ("/lsf/cluster1/job.4711", unknown("unknown_cgroup"), "LSF: not the directory of a job"),
    (
        "/user.slice/user-990.slice/user@990.service/app.slice/imp-shell-3-f23sRkNe3.service",
        batch("f23sRkNe3", "flux", uid=990),
        "Flux with sdexec",
    ),
    (
        f"/nomad.slice/share.slice/{UID}.train.scope",
        batch(UID, "nomad", step="train"),
        "Nomad 1.7, v2",
    ),
    (f"/nomad.slice/{UID}.train.scope", batch(UID, "nomad", step="train"), "Nomad 1.3, v2"),
    (f"/nomad/{UID}.train", batch(UID, "nomad", step="train"), "Nomad, v1"),
    (f"/nomad/share/{UID}.train-a.b", batch(UID, "nomad", step="train-a.b"), "Nomad 1.7, v1"),
    (
        f"/nomad.slice/docker-{ID}.scope",
        container(ID, "docker"),
        "a Docker task of Nomad: its container",
    ),
]
