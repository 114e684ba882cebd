"""Masking of jobs and slots of batch systems: the form is kept, names are replaced."""

from __future__ import annotations

import re

import pytest

from gpuledger.sources.replay.cgroup_masking import mask_cgroup
from gpuledger.sources.replay.masks import Masks

MASKS = Masks(b"k" * 32)


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/pbs_jobs.service/jobid/12345.headnode", r"/pbs_jobs\.service/jobid/\d{5}\.server-\w{4}"),
        ("/pbs_jobs.service/jobid/12345[7].headnode", r"/pbs_jobs\.service/jobid/\d{5}\[7\]\.server-\w{4}"),
        ("/pbs_jobs.service/jobs/12345.1", r"/pbs_jobs\.service/jobs/\d{5}\.1"),
        ("/torque/12345.headnode/R0.t0", r"/torque/\d{5}\.server-\w{4}/cgroup-\w{4}"),
        (
            r"/pbspro.slice/pbspro-12345.headnode.slice",
            r"/pbspro\.slice/pbspro-\d{5}\.server\\x2d\w{4}\.slice",
        ),
        (
            "/htcondor/condor_home_headnode_slot1_3@headnode",
            r"/htcondor/condor_dir-\w{4}_slot1_3@node-\w{4}",
        ),
        ("/machine/qemu-3-headnode.libvirt-qemu", r"/machine/qemu-3-container-\w{4}\.libvirt-qemu"),
        (
            r"/machine.slice/machine-lxc\x2d3\x2dheadnode.scope",
            r"/machine\.slice/machine-lxc\\x2d3\\x2dcontainer-\w{4}\.scope",
        ),
    ],
)
def test_a_masked_path_keeps_its_form_but_no_name(path: str, form: str) -> None:
    masked = mask_cgroup(f"0::{path}\n", MASKS)
    assert re.fullmatch(f"0::{form}\n", masked)
    assert "12345" not in masked
    assert "headnode" not in masked


def test_a_job_has_the_same_mask_everywhere() -> None:
    assert mask_cgroup("0::/torque/12345.headnode\n", MASKS) == f"0::/torque/{MASKS.job('12345.headnode')}\n"


def test_a_long_number_after_a_job_is_masked_too() -> None:
    assert "1652922013945" not in MASKS.job("12345.1652922013945")
