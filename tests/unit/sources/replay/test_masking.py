"""A masked recording does not reveal users or projects, but is as useful for debugging."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import instance, reading, snapshot
from gpuledger.model.devices import Gpu
from gpuledger.model.process import GpuProcess, HostFacts, ProcessStart
from gpuledger.model.quantities import POWER, Quantity
from gpuledger.model.snapshot import CollectorRun, Failure, Reading, Snapshot, SourceInfo, XidEvent
from gpuledger.model.workload import Allocation, Workload
from gpuledger.sources.nvml.codes import Code
from gpuledger.sources.replay.cgroup_masking import mask_cgroup
from gpuledger.sources.replay.masking import RULES, Masker, parts_of, strip_arguments
from gpuledger.sources.replay.masks import Masks
from gpuledger.sources.replay.recording import Outage, RecordingEntry
from gpuledger.sources.simulator.scenario_parser import load_scenario
from gpuledger.workloads.cgroup import CgroupOwner, parse_cgroup
from gpuledger.workloads.owner_lookup import OwnerLookup
from unit.sources.replay.support import Pages, deep, named, read, values, write
from unit.sources.simulator.support import Node
from unit.workloads.cgroup_forms.all_forms import ROWS

KEY = b"k" * 32
UUID = "5c1b8e8e-3f5a-4b1c-9d2e-0123456789ab"
POD_UID = "2f1d7c7e-2c1e-4f0a-9a31-0d1f5f7f3b11"
CONTAINER_ID = "5eed917563583925ffdbd40a64efb2aaffe58638e57add8becaf460fe74f5b1c"
BOOT_ID = "9e4f0a2b-1111-4222-8333-abcdefabcdef"
MIG_UUID = "66d6d4ac-9851-5cfc-8b84-00277ad96770"

SECRETS = (
    *(UUID, MIG_UUID, BOOT_ID, POD_UID, POD_UID.replace("-", "_"), CONTAINER_ID, "1652922013945", "8817265"),
    *("melinda", "/home/melinda", "1207", "secretlab", "trainer-x", "sidecar", "protein.service"),
    *("ssh-host-7", "GREENHOUSE-17", "fold_protein", "finetune-cat", "--token", "hunter2"),
    *("greenhouse.example", "vegetables", "potting"),
)


def secret_snapshot() -> Snapshot:
    """A Snapshot with an identifier in every field that can have one."""
    device = Gpu(
        f"GPU-{UUID}",
        3,
        "NVIDIA H100",
        "00000000:18:00.0",
        3,
        "1652922013945",
        "96.00.74.00.01",
        "Hopper",
        "9.0",
    )
    mig_instance = replace(instance(device, 2), uuid=f"MIG-{MIG_UUID}")
    pod = Workload(
        "pod", "secretlab", "trainer-x", "sidecar", POD_UID, CONTAINER_ID, "containerd", user="melinda",
        labels=(("greenhouse.example/team", "vegetables"),), controller_kind="Job", controller="potting",
    )  # fmt: skip
    start = ProcessStart(BOOT_ID, 4711, 1_700_000_123.25)
    cgroup = (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD_UID.replace('-', '_')}.slice"
        f"/cri-containerd-{CONTAINER_ID}.scope\n"
    )
    in_pod = HostFacts(start, "/home/melinda/env/bin/python3", "fold_protein", 1207, "melinda", cgroup, pod)
    job = Workload("slurm", job="8817265", step="batch", user="melinda", found_by="cgroup")
    in_job = HostFacts(
        start, "/usr/bin/finetune-cat", "finetune-cat", 1207, "melinda",
        "0::/system.slice/ssh-host-7_slurmstepd.scope/job_8817265/step_batch/user/task_0\n", job,
    )  # fmt: skip
    unit = Workload("unit", unit="protein.service", user="melinda", missing="container_name")
    rows = (
        GpuProcess(
            mig_instance, 20349, in_pod, "/home/melinda/env/bin/python3 --token=hunter2", workload=pod
        ),
        GpuProcess(mig_instance, 20350, in_job, "finetune-cat", workload=job),
        GpuProcess(mig_instance, 20351, replace(in_job, workload=unit), "fold_protein", workload=unit),
    )
    return replace(
        snapshot(
            reading(device, values={POWER: 61.5}, raw={"serial": "1652922013945", "ecc.mode": "Enabled"}),
            Reading(mig_instance, processes=rows, raw={"platform.host": "ssh-host-7", "note": "for melinda"}),
        ),
        source=SourceInfo("smi", False, "570.172.08", "12.570", "12.8", "ssh ssh-host-7 nvidia-smi"),
        allocations=(
            Allocation(mig_instance, pod, "kubelet", "greenhouse.example/gpu"),
            Allocation(mig_instance, pod, "kubelet", "nvidia.com/gpu"),
        ),
        xids=(XidEvent(device, 31, 1.0),),
        failures=(
            Failure(
                "power",
                "GPU_IS_LOST",
                mig_instance,
                f"{mig_instance.uuid}: nvmlDeviceGetPowerUsage: GPU_IS_LOST",
            ),
        ),
        collected=(
            CollectorRun("processes", 0.25, "ssh: connect to host ssh-host-7: GREENHOUSE-17 is down"),
        ),
    )


def masked(original: Snapshot, key: bytes | None = KEY) -> Snapshot:
    found = Masker(key)(strip_arguments(original))
    assert isinstance(found, Snapshot)
    return found


@pytest.mark.parametrize("secret", SECRETS)
def test_no_identifier_appears_in_the_masked_bytes(tmp_path: Path, secret: str) -> None:
    original = secret_snapshot()
    lost = Outage(
        1.0, original.elapsed, "unreachable", "ssh: connect to host ssh-host-7: GREENHOUSE-17 is down"
    )
    plain = write(tmp_path / "plain", [original, lost]).read_text()
    mask = Masker(KEY)
    hidden = write(
        tmp_path / "masked", [mask(strip_arguments(original)), mask(lost)], masked=True
    ).read_text()
    assert secret in plain
    assert secret not in hidden


def test_values_needed_for_debugging_are_kept() -> None:
    before, after = secret_snapshot(), masked(secret_snapshot())
    assert (after.unix, after.elapsed, after.invalid) == (before.unix, before.elapsed, before.invalid)
    device, was = after.readings[0].device.gpu, before.readings[0].device.gpu
    attributes = ("index", "name", "pci_bus_id", "minor", "vbios", "architecture", "compute_capability")
    for kept in attributes:
        assert getattr(device, kept) == getattr(was, kept)
    assert after.readings[0].values == {POWER: 61.5}
    assert after.readings[0].raw["ecc.mode"] == "Enabled"
    assert [item.resource for item in after.allocations][1:] == ["nvidia.com/gpu"]
    (first, second, _), (old, _, _) = (list(item.processes) for item in (after, before))
    assert (first.pid, first.memory, first.types) == (old.pid, old.memory, old.types)
    assert (first.host.start.ticks, first.host.start.unix) == (4711, 1_700_000_123.25)
    assert first.name.endswith("/python3")
    assert (first.workload.kind, first.workload.runtime) == ("pod", "containerd")
    assert second.workload.step == "batch"
    assert after.failures[0].reason == "GPU_IS_LOST"
    where = after.failures[0].device
    assert where is not None
    assert after.failures[0].detail == f"{where.uuid}: nvmlDeviceGetPowerUsage: GPU_IS_LOST"


def detail_of(text: str) -> str:
    failure = Failure("devices", "GPU_IS_LOST", None, text)
    found = masked(replace(snapshot(), failures=(failure,), collected=(CollectorRun("devices", 0.1, text),)))
    assert found.collected[0].error == found.failures[0].detail
    return found.failures[0].detail


# What drivers, nvidia-smi and ssh write, with the name of a machine, of a person, or a serial.
@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("ssh: GPUNODE17: Permission denied", "GPUNODE17"),
        ("GPUNODE17: UNKNOWN", "GPUNODE17"),
        ("nvmlDeviceGetName: GPU_IS_LOST (ALICE)", "ALICE"),
        ("nvmlDeviceGetSerial: 1652922013945: GPU_IS_LOST", "1652922013945"),
        ("Unable to determine the device handle for GPU of ALICE: GPU is lost", "ALICE"),
    ],
)
def test_a_drivers_text_with_anything_but_calls_and_codes_is_masked(text: str, secret: str) -> None:
    assert secret not in detail_of(text)


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetName", "nvmlDeviceGetHandleByIndex_v2 of index 3", "nvmlX of MIG device 2"]
)
def test_calls_and_all_codes_of_nvml_are_kept(call: str, code: Code) -> None:
    for text in (f"{call}: {code.name}", f"{call}: {code.name} (and 2 more)", f"{call}: NVML_77"):
        assert detail_of(text) == text


def test_masked_identifiers_keep_their_form() -> None:
    original = masked(secret_snapshot())
    uuid = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    device, mig_instance = original.readings[0].device, original.readings[1].device
    first, second, third = original.processes
    for pattern, found in (
        (rf"GPU-{uuid}", device.uuid),
        (rf"MIG-{uuid}", mig_instance.uuid),
        (r"\d{13}", device.gpu.serial),
        (uuid, first.host.start.boot_id),
        (uuid, first.workload.pod_uid),
        (r"[0-9a-f]{64}", first.workload.container_id),
        (r"pod-[0-9a-f]{4}", first.workload.pod),
        (r"namespace-[0-9a-f]{4}", first.workload.namespace),
        (r"user-[0-9a-f]{4}", first.host.user),
        (r"3\d{9}", str(first.host.uid)),
        (r"/dir-[0-9a-f]{4}/python3", first.host.executable),
        (r"process-[0-9a-f]{4}", first.host.comm),
        (r"/usr/bin/process-[0-9a-f]{4}", second.host.executable),
        (r"\d{7}", second.workload.job),
        (r"unit-[0-9a-f]{4}\.service", third.workload.unit),
    ):
        assert re.fullmatch(pattern, str(found)), (pattern, found)


def test_masked_identifiers_still_join() -> None:
    original = masked(secret_snapshot())
    device, mig_instance = original.readings[0].device, original.readings[1].device
    assert mig_instance.gpu == device == original.xids[0].gpu
    assert (
        {process.device for process in original.processes} == {original.failures[0].device} == {mig_instance}
    )
    assert original.allocations[0].device == mig_instance
    first, second, _ = original.processes
    assert original.allocations[0].workload == first.workload == first.host.workload
    assert first.host.user == second.workload.user
    assert first.host.start == second.host.start


def uuids(original: RecordingEntry) -> list[str]:
    assert isinstance(original, Snapshot)
    return [found.device.uuid for found in original.readings]


def test_an_identifier_has_one_mask_per_recording_and_another_in_the_next() -> None:
    mask, other = Masker(), Masker()
    original = secret_snapshot()
    assert deep(mask(original)) == deep(mask(original))
    assert not set(uuids(mask(original))) & set(uuids(other(original)))


def test_a_number_longer_than_any_is_masked_as_a_name() -> None:
    assert re.fullmatch(r"job-[0-9a-f]{4}", Masks(b"key").job("7" * 5000))


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
SHAPES: dict[str, tuple[Any, Any]] = {
    "name": (lambda masks, text: masks.name("pod", text), NAMES),
    "uuid": (lambda masks, text: masks.uuid(text), st.uuids().map(lambda found: f"GPU-{found}") | NAMES),
    "container": (
        lambda masks, text: masks.hexadecimal("container-id", text),
        st.text("0123456789abcdef", min_size=12, max_size=13) | NAMES,
    ),
    "serial": (
        lambda masks, text: masks.digits("serial", text),
        st.text("0123456789", min_size=1, max_size=3),
    ),
    "uid": (lambda masks, uid: masks.uid(uid), st.integers(0, 2**32 - 2)),
    "job": (lambda masks, text: masks.job(text), st.text("0123456789", min_size=1, max_size=5) | NAMES),
    "unit": (lambda masks, text: masks.unit(text), NAMES.map(lambda text: f"{text}.service")),
    "user": (lambda masks, text: masks.user(text), NAMES),
    "program": (
        lambda masks, text: masks.program(text),
        st.lists(st.text("ab.", min_size=1, max_size=3), max_size=3).map("/".join),
    ),
}


@settings(max_examples=30)
@pytest.mark.parametrize("shape", SHAPES)
@given(data=st.data())
def test_two_identifiers_never_share_a_mask(shape: str, data: st.DataObject) -> None:
    mask, originals = SHAPES[shape]
    given_ = data.draw(st.lists(originals, unique=True, max_size=60))
    masks = Masks(KEY)
    first = [mask(masks, original) for original in given_]
    assert len(set(first)) == len(given_)
    assert [mask(masks, original) for original in given_] == first


def test_masks_of_thousands_of_names_do_not_collide() -> None:
    masks = Masks(KEY)
    found = {masks.name("pod", f"trainer-{number}") for number in range(20_000)}
    assert len(found) == 20_000


def test_root_and_empty_text_are_kept() -> None:
    masks = Masks(KEY)
    assert (masks.uid(0), masks.user("root")) == (0, "root")
    assert {masks.user(""), masks.uuid(""), masks.name("pod", ""), masks.program(""), masks.unit("")} == {""}
    assert masks.user("1207") == str(masks.uid(1207))


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("/usr/bin/python3.11", "/usr/bin/python3.11"),
        ("python3 -m secret --token=a", "python3"),
        ("/usr/lib/xorg/Xorg", "/usr/lib/xorg/Xorg"),
        ("[Not Found]", "[Not Found]"),
        ("python3 secret.py", None),
        ("Xorg-of-melinda", None),
    ],
)
def test_only_well_known_programs_keep_their_name(name: str, kept: str | None) -> None:
    found = Masks(KEY).program(name)
    assert found == kept if kept else re.fullmatch(r"process-[0-9a-f]{4}", found)


@pytest.mark.parametrize("row", ROWS, ids=[row[2] for row in ROWS])
def test_a_masked_cgroup_has_the_masked_owner(row: tuple[str, Any, str]) -> None:
    text = row[0] if row[0] == "" or row[0][0].isdigit() else f"0::{row[0]}"
    masks = Masks(KEY)
    assert parse_cgroup(mask_cgroup(text, masks)) == masked_owner(parse_cgroup(text), masks), (
        "add the form to sources/replay/cgroup_masking.py"
    )


def masked_owner(was: CgroupOwner, masks: Masks) -> CgroupOwner:
    """The owner with masked names, and so those around it."""
    return CgroupOwner(
        kind=was.kind,
        pod_uid=masks.hexadecimal("pod-uid", was.pod_uid),
        container_id=masks.hexadecimal("container-id", was.container_id),
        container=masks.container(was.container),
        runtime=was.runtime,
        job=masks.job(was.job),
        step=masks.step(was.step),
        unit=masks.unit(was.unit),
        uid=None if was.uid is None else masks.uid(was.uid),
        missing=was.missing,
        inner_container=masks.hexadecimal("container-id", was.inner_container),
        outer=None if was.outer is None else masked_owner(was.outer, masks),
    )


@given(st.text())
def test_any_cgroup_text_can_be_masked(text: str) -> None:
    masks = Masks(KEY)
    assert mask_cgroup(text, masks).count("\n") == text.count("\n")


def test_a_masked_cgroup_keeps_its_lines() -> None:
    text = f"12:cpu,cpuacct:/docker/{CONTAINER_ID}\n"
    text += "1:name=systemd:/user.slice/user-1207.slice/our-lab (deleted)\n"
    masks = Masks(KEY)
    identity, group = masks.hexadecimal("container-id", CONTAINER_ID), masks.name("cgroup", "our-lab")
    assert mask_cgroup(text, masks) == (
        f"12:cpu,cpuacct:/docker/{identity}\n"
        f"1:name=systemd:/user.slice/user-{masks.uid(1207)}.slice/{group} (deleted)\n"
    )


def test_every_text_field_of_the_model_has_a_rule() -> None:
    # `uid` is the only identifying number.
    waiting: list[Any] = [Snapshot, Outage]
    seen: set[Any] = set()
    while waiting:
        kind = waiting.pop()
        if kind in seen or kind is Quantity:
            continue
        seen.add(kind)
        hints = get_type_hints(kind)
        for item in (item for item in fields(kind) if item.init):
            parts = parts_of(hints[item.name])
            waiting += [part for part in parts if is_dataclass(part)]
            if str in parts:
                assert item.name in RULES.get(kind, {}), f"{kind.__name__}.{item.name}: mask it or keep it?"
    assert set(RULES) <= seen
    assert "uid" in RULES[HostFacts]


@given(values(Snapshot))
def test_any_snapshot_can_be_masked(original: Snapshot) -> None:
    found = Masker(KEY)(original)
    assert isinstance(found, Snapshot)
    assert [len(item.processes or ()) for item in found.readings] == [
        len(item.processes or ()) for item in original.readings
    ]


SAMPLE = re.compile(rb"(?m)^([A-Za-z_]+)(?:\{.*\})? (\S+)$")


def measures(page: bytes) -> list[tuple[bytes, bytes]]:
    """Return names and values of a page, except for the only value that is an identifier."""
    return sorted(found for found in SAMPLE.findall(page) if found[0] != b"nvidia_smi_serial")


@pytest.mark.parametrize("scenario", ["k8s-node", "workstation"])
def test_a_masked_recording_gives_the_same_series_and_values_with_other_names(
    tmp_path: Path, scenario: str
) -> None:
    node, mask, plain, hidden = Node(load_scenario(scenario)), Masker(KEY), Pages(), Pages()
    for second in range(3):
        original = named(node.at(second))
        (found,) = read(write(tmp_path / "r", [mask(original)]))
        assert isinstance(found, Snapshot)
        before, after = plain.of(original), hidden.of(found)
        assert measures(before) == measures(after)
        assert before != after
        assert OwnerLookup().assign_owners(found) == found


def test_program_arguments_are_not_recorded_even_unmasked() -> None:
    found = strip_arguments(secret_snapshot())
    assert isinstance(found, Snapshot)
    assert next(found.processes).name == "/home/melinda/env/bin/python3"
    assert [process.command for process in found.processes] == [
        process.command for process in secret_snapshot().processes
    ]
