"""The dcgm dialect: dcgm-exporter's bytes, and where it is better than they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from builders import GIB, gpu, instance, page, process, reading, snapshot
from golden_page import golden_page
from gpuledger.dialects.dcgm.collectors import DEFAULT, parse
from gpuledger.dialects.dcgm.dialect import DcgmDialect
from gpuledger.dialects.settings import DcgmSettings
from gpuledger.exposition import text
from gpuledger.exposition import text as openmetrics
from gpuledger.exposition.merging import check_specs
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model import quantities as q
from gpuledger.model.devices import Device
from gpuledger.model.node_state import NodeState
from gpuledger.model.session import LedgerState, OwnerRow
from gpuledger.model.snapshot import Collected, Failure, Snapshot, SourceInfo, XidEvent
from gpuledger.model.workload import Allocation, Workload

SOURCE = SourceInfo("nvml", False, "580.95.05", "13.580.95.05", "13.0")
CARD = gpu(
    0, name="NVIDIA H100 80GB HBM3", pci_bus_id="00000000:18:00.0", minor=3, serial="165", vbios="96.00"
)
FEW = """\
DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).
DCGM_FI_DEV_FB_USED, gauge, Framebuffer memory used (in MiB).
DCGM_FI_PROF_SM_ACTIVE, gauge, The ratio of cycles an SM has at least 1 warp assigned.
DCGM_FI_DRIVER_VERSION, label, Driver Version
"""
POD = Workload(
    "pod", "ml", "train-0", "main", "uid-0", labels=(("app.kubernetes.io/name", "t"), ("team", "v"))
)
OTHER = Workload("pod", "lab", "notebook-0", "jupyter", "uid-1")


def dialect(csv: str = FEW, hostname: str = "node-1", **settings: object) -> DcgmDialect:
    return DcgmDialect(DcgmSettings(**settings), parse(csv.encode(), "a.csv"), hostname)  # type: ignore[arg-type]


def posted(seen: Snapshot, *handed: tuple[Device, Workload]) -> NodeState:
    """The page after the ledger took the snapshot in, with these allocations."""
    allocations = tuple(
        Allocation(device, owner, "pod_resources", "nvidia.com/gpu") for device, owner in handed
    )
    seen = replace(seen, source=SOURCE, allocations=allocations, collected=(Collected("events", 0.0),))
    return page(seen, Ledger(LedgerSettings()).post(seen))


def body(told: DcgmDialect, seen: NodeState) -> str:
    return text.encode_text(told.families(seen)).decode()


Labels = Mapping[str, str]


def rows(told: DcgmDialect, seen: NodeState, name: str) -> list[tuple[Labels, float]]:
    """The samples of one family; a label that is empty is none, as in Prometheus."""
    for family in told.families(seen):
        if family.spec.name == name:
            return [
                ({key: one for key, one in zip(family.spec.labels, values, strict=True) if one}, value)
                for values, value in family.samples.items()
            ]
    raise AssertionError(f"{name} is not told")


def one_gpu(*processes: object, device: Device = CARD) -> Snapshot:
    values = {q.TEMPERATURE: 61.0, q.MEMORY_USED: 41 * GIB, q.SM_ACTIVITY: 0.25}
    return snapshot(reading(device, *processes, values=values))  # type: ignore[arg-type]


def test_a_small_page_is_dcgm_exporters_byte_for_byte() -> None:
    seen = posted(one_gpu(process(CARD, workload=POD)), (CARD, POD))
    who = (
        'gpu="0",UUID="GPU-0",pci_bus_id="00000000:18:00.0",device="nvidia0",'
        'modelName="NVIDIA H100 80GB HBM3",Hostname="node-1",DCGM_FI_DRIVER_VERSION="580.95.05",'
        'container="main",namespace="ml",pod="train-0"'
    )
    assert body(dialect(), seen) == (
        "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).\n"
        "# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
        f"DCGM_FI_DEV_GPU_TEMP{{{who}}} 61\n"
        "# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).\n"
        "# TYPE DCGM_FI_DEV_FB_USED gauge\n"
        f"DCGM_FI_DEV_FB_USED{{{who}}} 41984\n"
        "# HELP DCGM_FI_PROF_SM_ACTIVE The ratio of cycles an SM has at least 1 warp assigned.\n"
        "# TYPE DCGM_FI_PROF_SM_ACTIVE gauge\n"
        f"DCGM_FI_PROF_SM_ACTIVE{{{who}}} 0.25\n"
    )


def test_the_newer_schema_renames_labels_and_families_and_tells_base_units() -> None:
    seen = posted(one_gpu())
    assert body(dialect(schema="4.9"), seen).splitlines()[-1] == (
        'DCGM_FI_PROF_SM_UTIL_RATIO{gpu="0",UUID="GPU-0",pci_bus_id="00000000:18:00.0",device="nvidia0",'
        'modelName="NVIDIA H100 80GB HBM3",hostname="node-1",DCGM_FI_SYSTEM_DRIVER_VERSION="580.95.05"} 0.25'
    )
    ((_, used),) = rows(dialect(schema="4.9"), seen, "DCGM_FI_DEV_FB_USED_BYTES")
    assert used == 41 * GIB


def test_the_old_namespace_has_its_own_spellings() -> None:
    seen = posted(one_gpu(process(CARD, workload=POD)), (CARD, POD))
    ((labels, _),) = rows(dialect(old_namespace=True), seen, "DCGM_FI_DEV_GPU_TEMP")
    assert labels["uuid"] == "GPU-0"
    assert (labels["container_name"], labels["pod_namespace"], labels["pod_name"]) == (
        "main",
        "ml",
        "train-0",
    )
    assert not {"UUID", "container", "namespace", "pod"} & set(labels)


def test_without_hostname_extra_labels_and_dashes_are_as_asked() -> None:
    told = dialect(hostname_label=False, model_dashes=True, labels=(("rack", "7"), ("cluster", "west")))
    assert (
        'modelName="NVIDIA-H100-80GB-HBM3",DCGM_FI_DRIVER_VERSION="580.95.05",cluster="west",rack="7"}'
        in body(told, posted(one_gpu()))
    )
    assert "ostname" not in body(dialect(hostname=""), posted(one_gpu()))


def test_label_fields_stand_in_order_of_their_names_and_a_blank_one_is_left_out() -> None:
    csv = "150, gauge, x\n2, label, x\n85, label, x\n53, label, x\n65, label, x\n1, label, x\n55, label, x\n"
    assert (
        'Hostname="node-1",DCGM_FI_DEV_MINOR_NUMBER="3",DCGM_FI_DEV_SERIAL="165",DCGM_FI_DEV_VBIOS_VERSION="96.00",'
        'DCGM_FI_DRIVER_VERSION="580.95.05",DCGM_FI_NVML_VERSION="13.580.95.05"} 61'
    ) in body(dialect(csv), posted(one_gpu()))


def test_what_was_not_read_is_not_told_and_its_family_leaves_no_trace() -> None:
    seen = posted(snapshot(reading(CARD, values={q.MEMORY_USED: 0})))
    assert "GPU_TEMP" not in body(dialect(), seen)
    assert rows(dialect(), seen, "DCGM_FI_DEV_FB_USED")[0][1] == 0


def test_a_lost_gpu_loses_itself_alone() -> None:
    well = gpu(1)
    lost = reading(CARD, up=False, failed=True, values={})
    seen = posted(snapshot(lost, reading(well, values={q.TEMPERATURE: 40})))
    assert [labels["gpu"] for labels, _ in rows(dialect(), seen, "DCGM_FI_DEV_GPU_TEMP")] == ["1"]


def test_nothing_is_told_while_there_is_no_snapshot() -> None:
    assert body(dialect(), page(None)) == ""


class TestHolders:
    """Pod labels: only of who has the device alone."""

    def labels(self, seen: NodeState, **settings: object) -> Labels:
        ((labels, _),) = rows(dialect("150, gauge, x", hostname="", **settings), seen, "DCGM_FI_DEV_GPU_TEMP")
        device = {"gpu", "UUID", "pci_bus_id", "device", "modelName"}
        return {key: value for key, value in labels.items() if key not in device}

    def test_a_pod_that_was_given_the_gpu_and_runs_nothing_is_told(self) -> None:
        assert self.labels(posted(one_gpu(), (CARD, OTHER)))["pod"] == "notebook-0"

    def test_a_pod_that_runs_on_it_without_having_been_given_it_is_told(self) -> None:
        assert self.labels(posted(one_gpu(process(CARD, workload=POD))))["pod"] == "train-0"

    def test_a_gpu_that_two_pods_share_bears_no_pods_name(self) -> None:
        for seen in (
            posted(one_gpu(), (CARD, POD), (CARD, OTHER)),
            posted(one_gpu(process(CARD, 1, workload=OTHER)), (CARD, POD)),
            posted(one_gpu(process(CARD, 1, workload=OTHER), process(CARD, 2, workload=POD))),
        ):
            assert self.labels(seen) == {}

    def test_a_known_stranger_beside_the_pod_makes_it_shared(self) -> None:
        stranger = Workload("user", user="alice")
        assert self.labels(posted(one_gpu(process(CARD, workload=stranger)), (CARD, POD))) == {}

    def test_a_process_of_nobody_known_does_not_take_the_name_off(self) -> None:
        assert (
            self.labels(posted(one_gpu(process(CARD, missing="not_found")), (CARD, POD)))["pod"] == "train-0"
        )

    def test_of_one_pods_containers_the_one_that_was_given_the_gpu_is_told(self) -> None:
        sidecar = replace(POD, container="sidecar")
        both = one_gpu(process(CARD, 1, workload=POD), process(CARD, 2, workload=sidecar))
        assert self.labels(posted(both, (CARD, POD)))["container"] == "main"
        assert self.labels(posted(both)) == {"namespace": "ml", "pod": "train-0"}

    def test_uid_and_labels_of_the_pod_come_when_asked_for(self) -> None:
        seen = posted(one_gpu(), (CARD, POD))
        assert self.labels(seen, pod_uid=True, pod_labels=True) == {
            "container": "main",
            "namespace": "ml",
            "pod": "train-0",
            "pod_uid": "uid-0",
            "app_kubernetes_io_name": "t",
            "team": "v",
        }

    def test_uid_and_labels_are_those_of_who_runs_on_this_gpu_where_nobody_was_given_it(self) -> None:
        """A pod of the same name on another GPU was there before it was made anew."""
        card, beside = CARD, gpu(1)
        former = replace(POD, pod_uid="uid-9", labels=(("team", "w"),))
        seen = posted(
            snapshot(
                reading(beside, process(beside, 1, workload=former)),
                reading(card, process(card, 2, workload=POD), values={q.TEMPERATURE: 61.0}),
            )
        )
        labels = self.labels(seen, pod_uid=True, pod_labels=True)
        assert (labels["pod_uid"], labels["team"]) == ("uid-0", "v")

    def test_the_catalogue_has_the_labels_of_holders_that_are_asked_for(self) -> None:
        (spec,) = dialect("150, gauge, x", pod_uid=True, job_label=True).specs[:1]
        assert {"container", "namespace", "pod", "pod_uid", "hpc_job"} <= set(spec.labels)
        (spec,) = dialect("150, gauge, x").specs[:1]
        assert not {"pod_uid", "hpc_job"} & set(spec.labels)

    def test_a_pods_label_never_takes_the_place_of_the_devices(self) -> None:
        hostile = (("UUID", "x"), ("__a", "x"), ("gpu", "9"), ("pod", "evil"), ("1st", "y"))
        seen = posted(one_gpu(), (CARD, replace(POD, labels=hostile)))
        told = dialect("150, gauge, x", pod_labels=True)
        ((labels, _),) = rows(told, seen, "DCGM_FI_DEV_GPU_TEMP")
        assert (labels["gpu"], labels["UUID"], labels["pod"]) == ("0", "GPU-0", "train-0")
        assert (labels["_a"], labels["_1st"]) == ("x", "y")
        check_specs(family.spec for family in told.families(seen))

    def test_the_one_job_of_a_batch_system_is_hpc_job_when_asked_for(self) -> None:
        job = Workload("slurm", job="815", user="alice")
        assert self.labels(posted(one_gpu(), (CARD, job)), job_label=True) == {"hpc_job": "815"}
        assert self.labels(posted(one_gpu(), (CARD, job))) == {}
        two = posted(one_gpu(), (CARD, job), (CARD, replace(job, job="816")))
        assert self.labels(two, job_label=True) == {}

    def test_who_has_gone_is_not_told(self) -> None:
        gone = OwnerRow(CARD, ("pod", "ml", "train-0", "main", "", ""), False, None, 9.0, 0.0)
        assert self.labels(page(one_gpu(), LedgerState(owners=(gone,)))) == {}


class TestMig:
    """A GPU that is cut up: its own once on it, its instances' on them."""

    card = gpu(0, name="NVIDIA H100 80GB HBM3")
    large = instance(card, 2, 0, 0, profile="3g.40gb")
    small = instance(card, 9, 0, 1, profile="1g.10gb")

    def page(self, *more: tuple[Device, Workload]) -> NodeState:
        whole = {q.TEMPERATURE: 61.0, q.MEMORY_USED: 9 * GIB, q.SM_ACTIVITY: 0.5, q.PERSISTENCE_MODE: 1.0}
        return posted(
            snapshot(
                reading(self.card, values=whole, mig_enabled=True),
                reading(self.large, values={q.MEMORY_USED: 6 * GIB, q.SM_ACTIVITY: 0.75}),
                reading(self.small, values={q.MEMORY_USED: 3 * GIB}),
            ),
            *more,
        )

    def test_what_the_whole_gpu_has_is_told_once_and_on_it(self) -> None:
        ((labels, value),) = rows(dialect(), self.page(), "DCGM_FI_DEV_GPU_TEMP")
        assert value == 61
        assert not {"GPU_I_PROFILE", "GPU_I_ID"} & set(labels)

    def test_what_instances_have_is_told_on_them_alone_so_that_sums_are_right(self) -> None:
        found = rows(dialect(), self.page(), "DCGM_FI_DEV_FB_USED")
        assert [(labels["GPU_I_PROFILE"], labels["GPU_I_ID"], value) for labels, value in found] == [
            ("3g.40gb", "2", 6 * 1024),
            ("1g.10gb", "9", 3 * 1024),
        ]
        assert len(rows(dialect(), self.page(), "DCGM_FI_PROF_SM_ACTIVE")) == 1

    def test_labels_of_instances_stand_behind_the_model(self) -> None:
        assert 'modelName="NVIDIA H100 80GB HBM3",GPU_I_PROFILE="1g.10gb",GPU_I_ID="9",Hostname=' in body(
            dialect(), self.page()
        )

    def test_an_instance_has_its_own_holder_and_the_gpu_none(self) -> None:
        seen = self.page((self.large, POD), (self.small, OTHER))
        found = {
            labels["GPU_I_ID"]: labels["pod"] for labels, _ in rows(dialect(), seen, "DCGM_FI_DEV_FB_USED")
        }
        assert found == {"2": "train-0", "9": "notebook-0"}
        ((whole, _),) = rows(dialect(), seen, "DCGM_FI_DEV_GPU_TEMP")
        assert "pod" not in whole

    def test_label_fields_of_an_instance_are_its_gpus_where_it_has_none(self) -> None:
        told = dialect("252, gauge, x\n66, label, x\n54, label, x\n50, label, x\n76, label, x\n77, label, x")
        (_, (labels, _)) = rows(told, self.page(), "DCGM_FI_DEV_FB_USED")
        assert labels["DCGM_FI_DEV_PERSISTENCE_MODE"] == "1"
        assert labels["DCGM_FI_DEV_UUID"] == "MIG-0-9-0"
        assert labels["UUID"] == "GPU-0"
        assert labels["DCGM_FI_DEV_NAME"] == "1g.10gb"
        assert labels["DCGM_FI_DEV_MIG_GI_INFO"] == "2:3g.40gb,9:1g.10gb"
        assert labels["DCGM_FI_DEV_MIG_CI_INFO"] == "2/0:3g.40gb,9/0:1g.10gb"

    def test_mig_mode_without_instances_is_a_whole_gpu(self) -> None:
        seen = posted(snapshot(reading(self.card, values={q.MEMORY_USED: GIB}, mig_enabled=True)))
        ((labels, _),) = rows(dialect(), seen, "DCGM_FI_DEV_FB_USED")
        assert "GPU_I_ID" not in labels

    def test_compute_instances_of_one_gpu_instance_are_told_apart_and_share_their_memory(self) -> None:
        halves = [instance(self.card, 2, ci, ci, profile="1c.3g.40gb") for ci in (0, 1)]
        seen = posted(
            snapshot(
                reading(self.card, values={}, mig_enabled=True),
                *(
                    reading(half, values={q.MEMORY_USED: 6 * GIB, q.SM_ACTIVITY: half.ci / 2})
                    for half in reversed(halves)
                ),
            )
        )
        ((labels, used),) = rows(dialect(), seen, "DCGM_FI_DEV_FB_USED")
        assert (labels["GPU_I_PROFILE"], labels["GPU_I_ID"], used) == ("3g.40gb", "2", 6 * 1024)
        assert "GPU_CI_ID" not in labels
        found = rows(dialect(), seen, "DCGM_FI_PROF_SM_ACTIVE")
        assert {labels["GPU_CI_ID"]: value for labels, value in found} == {"0": 0.0, "1": 0.5}

    def test_memory_that_two_pods_compute_instances_share_is_nobodys(self) -> None:
        halves = [instance(self.card, 2, ci, ci, profile="1c.3g.40gb") for ci in (0, 1)]
        values = {q.MEMORY_USED: GIB, q.SM_ACTIVITY: 0.5}
        cut = snapshot(
            reading(self.card, values={}),
            *(reading(half, values=values) for half in halves),
            reading(self.small, values=values),
        )
        two = posted(cut, (halves[0], POD), (halves[1], OTHER))
        (shared, _), (alone, _) = rows(dialect(), two, "DCGM_FI_DEV_FB_USED")
        assert "pod" not in shared
        assert (alone["GPU_I_ID"], alone.get("GPU_CI_ID")) == ("9", None)
        assert [labels.get("pod") for labels, _ in rows(dialect(), two, "DCGM_FI_PROF_SM_ACTIVE")] == [
            "train-0",
            "notebook-0",
            None,
        ]
        one = posted(cut, (halves[0], POD), (halves[1], POD))
        assert rows(dialect(), one, "DCGM_FI_DEV_FB_USED")[0][0]["pod"] == "train-0"


class TestXids:
    """The last Xid, and how often each came."""

    csv = "DCGM_FI_DEV_XID_ERRORS, gauge, x\nDCGM_EXP_XID_ERRORS_TOTAL, counter, x\n"

    def last(self, seen: NodeState) -> list[tuple[str, str, float]]:
        found = rows(dialect(self.csv), seen, "DCGM_FI_DEV_XID_ERRORS")
        return [(labels.get("err_code", ""), labels.get("err_msg", ""), value) for labels, value in found]

    def test_the_last_one_is_told_with_its_name(self) -> None:
        events = (XidEvent(CARD, 79, 5.0), XidEvent(CARD, 31, 9.0), XidEvent(CARD, 79, 7.0))
        seen = posted(snapshot(reading(CARD), xids=events))
        assert self.last(seen) == [("31", "GPU memory page fault", 31)]
        total = rows(dialect(self.csv), seen, "DCGM_EXP_XID_ERRORS_TOTAL")
        assert {labels["xid"]: value for labels, value in total} == {"31": 1, "79": 2}

    def test_of_several_in_one_tick_the_last_is_told(self) -> None:
        events = (XidEvent(CARD, 31, 5.0), XidEvent(CARD, 79, 5.0))
        assert self.last(posted(snapshot(reading(CARD), xids=events)))[0][2] == 79

    def test_none_is_zero_where_somebody_listens(self) -> None:
        assert self.last(posted(snapshot(reading(CARD)))) == [("0", "No Error", 0)]

    def test_none_is_nothing_where_nobody_listens(self) -> None:
        deaf = snapshot(reading(CARD))
        assert self.last(page(deaf)) == []
        failed = replace(deaf, collected=(Collected("events", 0.0, "NOT_SUPPORTED"),))
        assert self.last(page(failed)) == []

    def test_a_gpu_whose_events_fail_costs_itself_alone(self) -> None:
        other = gpu(1)
        half = replace(
            snapshot(reading(CARD), reading(other)),
            collected=(Collected("events", 0.0),),
            failures=(Failure("events", "UNKNOWN", CARD),),
        )
        found = rows(dialect(self.csv), page(half), "DCGM_FI_DEV_XID_ERRORS")
        assert [labels["gpu"] for labels, _ in found] == ["1"]

    def test_a_gpu_that_fell_off_the_bus_still_says_so(self) -> None:
        lost = reading(CARD, up=False, failed=True, values={})
        seen = posted(snapshot(lost, xids=(XidEvent(CARD, 79, 5.0),)))
        assert self.last(seen) == [("79", "GPU has fallen off the bus", 79)]
        assert self.last(posted(snapshot(lost))) == []

    def test_labels_of_xids_and_pods_are_sorted_together(self) -> None:
        seen = posted(snapshot(reading(CARD)), (CARD, POD))
        assert ',container="main",err_code="0",err_msg="No Error",namespace="ml",pod="train-0"} 0\n' in body(
            dialect(self.csv), seen
        )


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, None),
        ({q.ROW_REMAP_FAILURE: 0.0, q.ROW_REMAP_PENDING: 0.0}, ("DCGM_FR_OK", 0)),
        ({q.ROW_REMAP_PENDING: 1.0}, ("DCGM_FR_PENDING_ROW_REMAP", 10)),
        ({q.RETIRED_PAGES_PENDING: 1.0}, ("DCGM_FR_PENDING_PAGE_RETIREMENTS", 10)),
        ({q.ECC_UNCORRECTED_VOLATILE: 2.0, q.ROW_REMAP_PENDING: 1.0}, ("DCGM_FR_VOLATILE_DBE_DETECTED", 20)),
        ({q.ROW_REMAP_FAILURE: 1.0, q.ECC_UNCORRECTED_VOLATILE: 2.0}, ("DCGM_FR_ROW_REMAP_FAILURE", 20)),
    ],
)
def test_health_is_told_of_what_is_read_and_of_nothing_else(
    values: dict[q.Quantity, float], told: tuple[str, float] | None
) -> None:
    seen = posted(snapshot(reading(CARD, values=values)))
    found = rows(dialect("DCGM_EXP_GPU_HEALTH_STATUS, gauge, x"), seen, "DCGM_EXP_GPU_HEALTH_STATUS")
    assert {labels["health_watch"] for labels, _ in found} <= {"MEM"}
    assert [(labels["health_error_code"], value) for labels, value in found] == (
        [] if told is None else [told]
    )


@pytest.mark.parametrize("schema", ["4.8", "4.9"])
def test_the_default_page_parses_in_both_formats_and_has_no_series_twice(schema: str) -> None:
    told = DcgmDialect(DcgmSettings(schema=schema), DEFAULT, "node-1")  # type: ignore[arg-type]
    check_specs(told.specs)
    families = list(told.families(golden_page()))
    for found in (
        list(read_text(text.encode_text(families).decode())),
        list(read_openmetrics(openmetrics.encode_openmetrics(families).decode())),
    ):
        series = [
            (sample.name, tuple(sorted((key, value) for key, value in sample.labels.items() if value)))
            for family in found
            for sample in family.samples
        ]
        assert len(series) > 10
        assert len(series) == len(set(series))


def test_the_catalogue_has_every_family_that_is_told() -> None:
    told = DcgmDialect(DcgmSettings(), DEFAULT, "node-1")
    catalogue = {spec.name: spec for spec in told.specs}
    assert len(catalogue) == len(told.specs)
    for family in told.families(golden_page()):
        spec = catalogue[family.spec.name]
        assert set(family.spec.labels) <= set(spec.labels)
        assert (family.spec.type, family.spec.help) == (spec.type, spec.help)


def test_it_wants_what_its_file_asks_for_labels_included() -> None:
    csv = "DCGM_FI_DEV_GPU_TEMP, gauge, x\nDCGM_FI_DEV_MIG_MODE, label, x\nDCGM_FI_DEV_UUID, label, x\n"
    assert dialect(csv).wants == {q.TEMPERATURE, q.MIG_MODE}


def test_text_of_strangers_is_escaped() -> None:
    odd = gpu(0, name='say "hi"\\\nbye')
    told = dialect("150, gauge, a\\b\n")
    (family,) = read_text(body(told, posted(snapshot(reading(odd, values={q.TEMPERATURE: 1.0})))))
    assert family.samples[0].labels["modelName"] == odd.name
