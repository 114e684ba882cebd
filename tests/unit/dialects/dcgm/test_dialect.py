"""The dcgm dialect: pages equal to those of dcgm-exporter, and the intended differences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from builders import GIB, gpu, instance, node_state, process, reading, snapshot
from golden_state import golden_state
from gpuledger.dialects.dcgm.collectors import DEFAULT_COLLECTORS
from gpuledger.dialects.dcgm.dialect import DcgmDialect
from gpuledger.dialects.settings import DcgmSettings
from gpuledger.exposition import text
from gpuledger.exposition.merging import check_family_specs
from gpuledger.model import quantities as q
from gpuledger.model.devices import Device
from gpuledger.model.node_state import NodeState
from gpuledger.model.snapshot import CollectorRun, Failure, XidEvent
from gpuledger.model.workload import Workload
from unit.dialects.dcgm.support import CARD, OTHER, POD, body, dialect, one_gpu, posted, rows


def test_a_small_page_equals_that_of_dcgm_exporter() -> None:
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


def test_the_newer_schema_renames_labels_and_families_and_uses_base_units() -> None:
    seen = posted(one_gpu())
    assert body(dialect(schema="4.9"), seen).splitlines()[-1] == (
        'DCGM_FI_PROF_SM_UTIL_RATIO{gpu="0",UUID="GPU-0",pci_bus_id="00000000:18:00.0",device="nvidia0",'
        'modelName="NVIDIA H100 80GB HBM3",hostname="node-1",DCGM_FI_SYSTEM_DRIVER_VERSION="580.95.05"} 0.25'
    )
    ((_, used),) = rows(dialect(schema="4.9"), seen, "DCGM_FI_DEV_FB_USED_BYTES")
    assert used == 41 * GIB


def test_the_old_namespace_uses_the_old_label_names() -> None:
    seen = posted(one_gpu(process(CARD, workload=POD)), (CARD, POD))
    ((labels, _),) = rows(dialect(old_namespace=True), seen, "DCGM_FI_DEV_GPU_TEMP")
    assert labels["uuid"] == "GPU-0"
    assert (labels["container_name"], labels["pod_namespace"], labels["pod_name"]) == (
        "main",
        "ml",
        "train-0",
    )
    assert not {"UUID", "container", "namespace", "pod"} & set(labels)


def test_settings_of_hostname_extra_labels_and_dashes_are_applied() -> None:
    dcgm = dialect(hostname_label=False, model_dashes=True, labels=(("rack", "7"), ("cluster", "west")))
    assert (
        'modelName="NVIDIA-H100-80GB-HBM3",DCGM_FI_DRIVER_VERSION="580.95.05",cluster="west",rack="7"}'
        in body(dcgm, posted(one_gpu()))
    )
    assert "ostname" not in body(dialect(hostname=""), posted(one_gpu()))


def test_label_fields_are_sorted_by_name_and_empty_ones_omitted() -> None:
    csv = "150, gauge, x\n2, label, x\n85, label, x\n53, label, x\n65, label, x\n1, label, x\n55, label, x\n"
    assert (
        'Hostname="node-1",DCGM_FI_DEV_MINOR_NUMBER="3",DCGM_FI_DEV_SERIAL="165",DCGM_FI_DEV_VBIOS_VERSION="96.00",'
        'DCGM_FI_DRIVER_VERSION="580.95.05",DCGM_FI_NVML_VERSION="13.580.95.05"} 61'
    ) in body(dialect(csv), posted(one_gpu()))


def test_a_family_without_readings_is_omitted() -> None:
    seen = posted(snapshot(reading(CARD, values={q.MEMORY_USED: 0})))
    assert "GPU_TEMP" not in body(dialect(), seen)
    assert rows(dialect(), seen, "DCGM_FI_DEV_FB_USED")[0][1] == 0


def test_a_lost_gpu_does_not_affect_others() -> None:
    well = gpu(1)
    lost = reading(CARD, up=False, failed=True, values={})
    seen = posted(snapshot(lost, reading(well, values={q.TEMPERATURE: 40})))
    assert [labels["gpu"] for labels, _ in rows(dialect(), seen, "DCGM_FI_DEV_GPU_TEMP")] == ["1"]


def test_without_a_snapshot_the_page_is_empty() -> None:
    assert body(dialect(), node_state(None)) == ""


class TestMig:
    """A GPU with MIG instances: GPU quantities once on the GPU, instance quantities on the instances."""

    card = gpu(0, name="NVIDIA H100 80GB HBM3")
    large = instance(card, 2, 0, 0, profile="3g.40gb")
    small = instance(card, 9, 0, 1, profile="1g.10gb")

    def state(self, *more: tuple[Device, Workload]) -> NodeState:
        whole = {q.TEMPERATURE: 61.0, q.MEMORY_USED: 9 * GIB, q.SM_ACTIVITY: 0.5, q.PERSISTENCE_MODE: 1.0}
        return posted(
            snapshot(
                reading(self.card, values=whole, mig_enabled=True),
                reading(self.large, values={q.MEMORY_USED: 6 * GIB, q.SM_ACTIVITY: 0.75}),
                reading(self.small, values={q.MEMORY_USED: 3 * GIB}),
            ),
            *more,
        )

    def test_quantities_of_the_whole_gpu_are_exported_once_on_the_gpu(self) -> None:
        ((labels, value),) = rows(dialect(), self.state(), "DCGM_FI_DEV_GPU_TEMP")
        assert value == 61
        assert not {"GPU_I_PROFILE", "GPU_I_ID"} & set(labels)

    def test_quantities_of_instances_are_exported_only_on_instances(self) -> None:
        found = rows(dialect(), self.state(), "DCGM_FI_DEV_FB_USED")
        assert [(labels["GPU_I_PROFILE"], labels["GPU_I_ID"], value) for labels, value in found] == [
            ("3g.40gb", "2", 6 * 1024),
            ("1g.10gb", "9", 3 * 1024),
        ]
        assert len(rows(dialect(), self.state(), "DCGM_FI_PROF_SM_ACTIVE")) == 1

    def test_labels_of_instances_follow_the_model(self) -> None:
        assert 'modelName="NVIDIA H100 80GB HBM3",GPU_I_PROFILE="1g.10gb",GPU_I_ID="9",Hostname=' in body(
            dialect(), self.state()
        )

    def test_an_instance_has_a_separate_holder_and_the_gpu_none(self) -> None:
        seen = self.state((self.large, POD), (self.small, OTHER))
        found = {
            labels["GPU_I_ID"]: labels["pod"] for labels, _ in rows(dialect(), seen, "DCGM_FI_DEV_FB_USED")
        }
        assert found == {"2": "train-0", "9": "notebook-0"}
        ((whole, _),) = rows(dialect(), seen, "DCGM_FI_DEV_GPU_TEMP")
        assert "pod" not in whole

    def test_an_instance_without_a_label_field_gets_that_of_its_gpu(self) -> None:
        dcgm = dialect("252, gauge, x\n66, label, x\n54, label, x\n50, label, x\n76, label, x\n77, label, x")
        (_, (labels, _)) = rows(dcgm, self.state(), "DCGM_FI_DEV_FB_USED")
        assert labels["DCGM_FI_DEV_PERSISTENCE_MODE"] == "1"
        assert labels["DCGM_FI_DEV_UUID"] == "MIG-0-9-0"
        assert labels["UUID"] == "GPU-0"
        assert labels["DCGM_FI_DEV_NAME"] == "1g.10gb"
        assert labels["DCGM_FI_DEV_MIG_GI_INFO"] == "2:3g.40gb,9:1g.10gb"
        assert labels["DCGM_FI_DEV_MIG_CI_INFO"] == "2/0:3g.40gb,9/0:1g.10gb"

    def test_a_mig_gpu_without_instances_is_a_whole_gpu(self) -> None:
        seen = posted(snapshot(reading(self.card, values={q.MEMORY_USED: GIB}, mig_enabled=True)))
        ((labels, _),) = rows(dialect(), seen, "DCGM_FI_DEV_FB_USED")
        assert "GPU_I_ID" not in labels

    def test_compute_instances_have_separate_activity_and_shared_memory(self) -> None:
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

    def test_memory_shared_by_compute_instances_of_two_pods_has_no_pod_label(self) -> None:
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
    """The last Xid and the number of each Xid."""

    csv = "DCGM_FI_DEV_XID_ERRORS, gauge, x\nDCGM_EXP_XID_ERRORS_TOTAL, counter, x\n"

    def last(self, seen: NodeState) -> list[tuple[str, str, float]]:
        found = rows(dialect(self.csv), seen, "DCGM_FI_DEV_XID_ERRORS")
        return [(labels.get("err_code", ""), labels.get("err_msg", ""), value) for labels, value in found]

    def test_the_last_xid_is_exported_with_its_message(self) -> None:
        events = (XidEvent(CARD, 79, 5.0), XidEvent(CARD, 31, 9.0), XidEvent(CARD, 79, 7.0))
        seen = posted(snapshot(reading(CARD), xids=events))
        assert self.last(seen) == [("31", "GPU memory page fault", 31)]
        total = rows(dialect(self.csv), seen, "DCGM_EXP_XID_ERRORS_TOTAL")
        assert {labels["xid"]: value for labels, value in total} == {"31": 1, "79": 2}

    def test_the_last_of_several_xids_in_one_tick_is_exported(self) -> None:
        events = (XidEvent(CARD, 31, 5.0), XidEvent(CARD, 79, 5.0))
        assert self.last(posted(snapshot(reading(CARD), xids=events)))[0][2] == 79

    def test_without_xids_the_value_is_zero_if_events_are_read(self) -> None:
        assert self.last(posted(snapshot(reading(CARD)))) == [("0", "No Error", 0)]

    def test_without_xids_there_is_no_value_if_events_are_not_read(self) -> None:
        without_events = snapshot(reading(CARD))
        assert self.last(node_state(without_events)) == []
        failed = replace(without_events, collected=(CollectorRun("events", 0.0, "NOT_SUPPORTED"),))
        assert self.last(node_state(failed)) == []

    def test_a_gpu_with_failing_events_does_not_affect_others(self) -> None:
        other = gpu(1)
        half = replace(
            snapshot(reading(CARD), reading(other)),
            collected=(CollectorRun("events", 0.0),),
            failures=(Failure("events", "UNKNOWN", CARD),),
        )
        found = rows(dialect(self.csv), node_state(half), "DCGM_FI_DEV_XID_ERRORS")
        assert [labels["gpu"] for labels, _ in found] == ["1"]

    def test_a_lost_gpu_still_exports_its_last_xid(self) -> None:
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
    ("values", "expected"),
    [
        ({}, None),
        ({q.ROW_REMAP_FAILURE: 0.0, q.ROW_REMAP_PENDING: 0.0}, ("DCGM_FR_OK", 0)),
        ({q.ROW_REMAP_PENDING: 1.0}, ("DCGM_FR_PENDING_ROW_REMAP", 10)),
        ({q.RETIRED_PAGES_PENDING: 1.0}, ("DCGM_FR_PENDING_PAGE_RETIREMENTS", 10)),
        ({q.ECC_UNCORRECTED_VOLATILE: 2.0, q.ROW_REMAP_PENDING: 1.0}, ("DCGM_FR_VOLATILE_DBE_DETECTED", 20)),
        ({q.ROW_REMAP_FAILURE: 1.0, q.ECC_UNCORRECTED_VOLATILE: 2.0}, ("DCGM_FR_ROW_REMAP_FAILURE", 20)),
    ],
)
def test_health_covers_only_quantities_that_were_read(
    values: dict[q.Quantity, float], expected: tuple[str, float] | None
) -> None:
    seen = posted(snapshot(reading(CARD, values=values)))
    found = rows(dialect("DCGM_EXP_GPU_HEALTH_STATUS, gauge, x"), seen, "DCGM_EXP_GPU_HEALTH_STATUS")
    assert {labels["health_watch"] for labels, _ in found} <= {"MEM"}
    assert [(labels["health_error_code"], value) for labels, value in found] == (
        [] if expected is None else [expected]
    )


@pytest.mark.parametrize("schema", ["4.8", "4.9"])
def test_the_default_page_parses_in_both_formats_without_duplicate_series(schema: str) -> None:
    dcgm = DcgmDialect(DcgmSettings(schema=schema), DEFAULT_COLLECTORS, "node-1")  # type: ignore[arg-type]
    check_family_specs(dcgm.specs)
    families = list(dcgm.families(golden_state()))
    for found in (
        list(read_text(text.encode_text(families).decode())),
        list(read_openmetrics(text.encode_openmetrics(families).decode())),
    ):
        series = [
            (sample.name, tuple(sorted((key, value) for key, value in sample.labels.items() if value)))
            for family in found
            for sample in family.samples
        ]
        assert len(series) > 10
        assert len(series) == len(set(series))


def test_every_exported_family_has_a_spec() -> None:
    dcgm = DcgmDialect(DcgmSettings(), DEFAULT_COLLECTORS, "node-1")
    catalogue = {spec.name: spec for spec in dcgm.specs}
    assert len(catalogue) == len(dcgm.specs)
    for family in dcgm.families(golden_state()):
        spec = catalogue[family.spec.name]
        assert set(family.spec.labels) <= set(spec.labels)
        assert (family.spec.type, family.spec.help) == (spec.type, spec.help)


def test_required_quantities_are_those_of_the_file_including_labels() -> None:
    csv = "DCGM_FI_DEV_GPU_TEMP, gauge, x\nDCGM_FI_DEV_MIG_MODE, label, x\nDCGM_FI_DEV_UUID, label, x\n"
    assert dialect(csv).required_quantities == {q.TEMPERATURE, q.MIG_MODE}


def test_hostile_text_is_escaped() -> None:
    odd = gpu(0, name='say "hi"\\\nbye')
    dcgm = dialect("150, gauge, a\\b\n")
    (family,) = read_text(body(dcgm, posted(snapshot(reading(odd, values={q.TEMPERATURE: 1.0})))))
    assert family.samples[0].labels["modelName"] == odd.name


def test_a_page_is_empty_until_the_quantities_of_its_labels_are_read() -> None:
    csv = "DCGM_FI_DEV_GPU_TEMP, gauge, t\nDCGM_FI_DEV_COMPUTE_MODE, label, m\n"
    state = posted(snapshot(reading(CARD, values={q.TEMPERATURE: 61.0, q.COMPUTE_MODE: 0.0})))
    for requested, pages in ((frozenset({q.TEMPERATURE}), 0), (frozenset({q.COMPUTE_MODE}), 1), (None, 1)):
        assert len(list(dialect(csv).families(replace(state, requested=requested)))) == pages
    # A label that the driver does not answer does not hold the page.
    unread = posted(snapshot(reading(CARD, values={q.TEMPERATURE: 61.0})))
    assert len(list(dialect(csv).families(replace(unread, requested=frozenset({q.COMPUTE_MODE}))))) == 1


@pytest.mark.parametrize(("age", "complete", "pages"), [(1.0, False, 0), (1.0, True, 1), (15.0, False, 1)])
def test_the_first_page_waits_a_moment_for_the_first_allocations(
    age: float, complete: bool, pages: int
) -> None:
    state = posted(replace(one_gpu(), allocations_complete=complete))
    state = replace(state, health=replace(state.health, started=state.unix - age))
    assert len(list(dialect("DCGM_FI_DEV_GPU_TEMP, gauge, t\n").families(state))) == pages
