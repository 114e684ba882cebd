"""Series of the price of GPU time and of its basis, and of batch jobs."""

from __future__ import annotations

from dataclasses import replace

from builders import gpu, instance, process, reading, snapshot
from gpuledger.dialects.native.dialect import NativeDialect
from gpuledger.model.devices import Device
from gpuledger.model.node_state import NodeState
from gpuledger.model.session import LedgerState, TimeState
from gpuledger.model.snapshot import Snapshot, SourceInfo
from gpuledger.model.workload import Allocation, Workload

UNIX = 1_700_000_000.0
Rows = dict[tuple[str, ...], float]


def rows(name: str, state: NodeState, dialect: NativeDialect | None = None) -> Rows:
    families = (dialect or NativeDialect("0")).families(state)
    (family,) = (family for family in families if family.spec.name == name)
    return dict(family.samples)


def node(seen: Snapshot | None, ledger: LedgerState | None = None) -> NodeState:
    return NodeState(UNIX, SourceInfo("test"), seen, ledger or LedgerState())


def test_each_device_has_the_price_of_an_hour_of_its_gpu() -> None:
    card = gpu(0)
    part = instance(card, 1)

    def price(device: Device, unix: float) -> float | None:
        assert unix == seen.unix
        return {"": 2.4, part.instance: 3.0}.get(device.instance)

    seen = snapshot(reading(card, mig_enabled=True), reading(part))
    found = rows("gpuledger_gpu_price", node(seen), NativeDialect("0", price))
    assert found == {(card.uuid, ""): 2.4, (card.uuid, part.instance): 3.0}


def test_a_device_without_a_price_has_no_series_instead_of_zero() -> None:
    first, second = gpu(0), gpu(1)
    dialect = NativeDialect("0", lambda device, _: 0.0 if device == first else None)
    found = rows("gpuledger_gpu_price", node(snapshot(reading(first), reading(second))), dialect)
    assert found == {(first.uuid, ""): 0.0}
    assert rows("gpuledger_gpu_price", node(None), dialect) == {}


def test_the_basis_of_gpu_time_is_exported() -> None:
    state = node(None, LedgerState(time=TimeState("residence")))
    assert rows("gpuledger_books_info", state) == {("residence",): 1}


def test_a_job_has_its_facts_from_any_of_its_owners_once() -> None:
    card = gpu(0)
    array = {"job_name": "bert", "array_job": "4700", "array_task": "11"}
    known = Workload("slurm", job="4711", user="mira", slurm_account="nlp", partition="gpu", **array)
    step = Workload(kind="slurm", job="4711", step="0", user="mira")
    other = Workload(kind="job", job="12", runtime="pbs")
    listed = snapshot(reading(card, process(card, 1, workload=step), process(card, 2, workload=other)))
    seen = replace(listed, allocations=(Allocation(card, known, "slurm"),))
    assert rows("gpuledger_job_info", node(seen)) == {
        ("12", *[""] * 6): 1,
        ("4711", "nlp", "gpu", "bert", "4700", "11", "mira"): 1,
    }


def test_a_pod_is_no_job() -> None:
    card = gpu(0)
    pod = process(card, 1, workload=Workload(kind="pod", namespace="ml", pod="t"))
    assert rows("gpuledger_job_info", node(snapshot(reading(card, pod)))) == {}
