"""The summary of a job in the format of jobstats: complete, or honestly none."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.app.slurm_receipts.job_summary import (
    LONGEST_COMMENT,
    NO_DATA,
    SHORT,
    decode_summary,
    encode_summary,
    is_final_summary,
    is_own_summary,
    summarize_job,
)
from gpuledger.ledger.report.receipt.content import ReceiptJson
from gpuledger.ledger.report.receipt.merging import merge_receipts
from receipt_helpers import BEGIN, GIB, HOUR, amounts, gpu_row, host_row, receipt, unused_gpu
from slurm_jobs import job_row, running_row

END = BEGIN + HOUR


def read_by_others(comment: str) -> Any:
    """The content as the clients of the format decode it; they stop with an error for anything else."""
    assert re.fullmatch(r"JS1:[A-Za-z0-9+/]+=*", comment)
    return json.loads(gzip.decompress(base64.b64decode(comment[4:])))


def check_readers(summary: Any) -> None:
    """The keys that reportseff 2.10 and jobstats 1.0 use without a default, and what they divide by."""
    assert isinstance(summary["gpus"], int)
    assert summary["total_time"] >= 0
    for node in summary["nodes"].values():
        assert node["cpus"] > 0
        assert node["total_time"] >= 0
        assert node["total_memory"] > 0
        assert node["used_memory"] >= 0
        assert node["gpu_total_memory"].keys() == node["gpu_used_memory"].keys()
        assert all(size > 0 for size in node["gpu_total_memory"].values())
        assert node.get("gpu_utilization", node["gpu_used_memory"]).keys() == node["gpu_used_memory"].keys()


def test_a_job_on_one_node() -> None:
    made = receipt("n1", gpu_row("n1", "0"), gpu_row("n1", "3", sm_seconds=360.0, memory_peak_bytes=GIB))
    comment = summarize_job(made, job_row(gpus=2, cpus=16), END).comment
    summary = read_by_others(comment)
    check_readers(summary)
    own = summary.pop("gpuledger")
    assert summary == {
        "total_time": 3600,
        "gpus": 2,
        "nodes": {
            "n1": {
                "cpus": 16,
                "total_time": 7200.0,
                "total_memory": 64 * GIB,
                "used_memory": 12 * GIB,
                "gpu_total_memory": {"0": 80 * GIB, "3": 80 * GIB},
                "gpu_used_memory": {"0": 40 * GIB, "3": GIB},
                "gpu_utilization": {"0": 50.0, "3": 10.0},
            }
        },
    }
    assert own == {
        "version": 1,
        "final": True,
        "gpu_seconds": 3600,
        "joules": 2_520_000,
        "cost": "2.2100000000",
        "currency": "EUR",
    }


def test_a_job_on_two_nodes_has_the_cores_and_the_memory_of_each() -> None:
    hosts = [host_row("n1", cores=4), host_row("n2", cores=12, memory_limit_bytes=128 * GIB)]
    parts = [receipt(node, hosts=[host]) for node, host in zip(("n1", "n2"), hosts, strict=True)]
    job = job_row(gpus=2, cpus=16, nodes=("n1", "n2"))
    summary = read_by_others(summarize_job(merge_receipts(parts), job, END).comment)
    check_readers(summary)
    found = {name: (node["cpus"], node["total_memory"]) for name, node in summary["nodes"].items()}
    assert found == {"n1": (4, 64 * GIB), "n2": (12, 128 * GIB)}


def test_cores_and_memory_of_a_node_without_a_gpu_of_the_job_are_not_those_of_the_other() -> None:
    """Slurm's numbers are of the whole job, and only one of its nodes has seen it on a GPU."""
    job = job_row(cpus=16, memory=192 * GIB, nodes=("n1", "n2"))
    made = receipt("n1", hosts=[host_row("n1", cores=4)])
    node = read_by_others(summarize_job(made, job, END).comment)["nodes"]["n1"]
    assert (node["cpus"], node["total_memory"]) == (4, 64 * GIB)
    unknown = receipt("n1", hosts=[host_row("n1", cores=None)])
    assert summarize_job(unknown, job, END).comment == NO_DATA


def test_a_gpu_that_was_never_used_is_0_and_not_absent() -> None:
    made = receipt("n1", gpu_row("n1", "0"), unused_gpu("n1", "1"))
    node = read_by_others(summarize_job(made, job_row(gpus=2), END).comment)["nodes"]["n1"]
    assert node["gpu_utilization"] == {"0": 50.0, "1": 0.0}
    assert node["gpu_used_memory"] == {"0": 40 * GIB, "1": 0}


def test_a_little_use_is_never_rounded_to_none() -> None:
    """40 s of work in a day are 0.046 %: rounded to 0.0, the readers say that the GPU was not used."""
    made = receipt("n1", gpu_row(sm_seconds=1.5))
    node = read_by_others(summarize_job(made, job_row(), END).comment)["nodes"]["n1"]
    assert node["gpu_utilization"] == {"0": 0.1}


def test_mig_instances_have_their_own_keys_and_no_utilization_if_the_driver_has_none() -> None:
    made = receipt(
        "n1",
        gpu_row("n1", "0", instance="1_0", uuid="MIG-a", sm_share=0.5, sm_known_seconds=0.0),
        gpu_row("n1", "0", instance="2_0", uuid="MIG-b", sm_share=0.5, sm_known_seconds=0.0),
    )
    node = read_by_others(summarize_job(made, job_row(), END).comment)["nodes"]["n1"]
    assert list(node["gpu_used_memory"]) == ["0_1_0", "0_2_0"]
    assert "gpu_utilization" not in node


def test_the_time_of_a_running_job_is_that_until_now() -> None:
    comment = summarize_job(receipt(), running_row(), BEGIN + 600.4).comment
    assert read_by_others(comment)["total_time"] == 600
    assert is_own_summary(comment)
    assert not is_final_summary(comment)


INCOMPLETE: dict[str, ReceiptJson] = {
    "no CPU time": receipt(hosts=[host_row(cpu_seconds=None)]),
    "no memory of the host": receipt(hosts=[host_row(memory_peak_bytes=None)]),
    "nothing of the host": receipt(hosts=[]),
    "no size of the GPU's memory": receipt("n1", gpu_row(memory_bytes=None)),
    "a size of 0, by which readers divide": receipt("n1", gpu_row(memory_bytes=0)),
    "no memory used on a used GPU": receipt("n1", gpu_row(memory_peak_bytes=None)),
    "no memory used, and not all was seen": receipt("n1", unused_gpu(unknown_seconds=5.0)),
}


@pytest.mark.parametrize("made", INCOMPLETE.values(), ids=INCOMPLETE)
def test_without_a_number_that_readers_need_there_is_no_summary(made: ReceiptJson) -> None:
    found = summarize_job(made, job_row(), END)
    assert found.comment == NO_DATA
    assert "known" in found.missing


def test_on_several_nodes_the_cores_and_the_limit_must_be_known_of_each() -> None:
    job = job_row(nodes=("n1", "n2"))
    for missing in ({"cores": None}, {"memory_limit_bytes": None}):
        parts = [receipt("n1"), receipt("n2", hosts=[host_row("n2", **missing)])]
        found = summarize_job(merge_receipts(parts), job, END)
        assert found.comment == NO_DATA
        assert "on n2" in found.missing


def test_a_job_that_no_node_has_seen() -> None:
    assert summarize_job(None, job_row(), END).comment == NO_DATA
    assert summarize_job(receipt("n1", gpus=[]), job_row(), END).comment == NO_DATA
    # What jobstats writes for jobs that are shorter than two of its samples.
    assert summarize_job(None, job_row(end=BEGIN + 20), BEGIN + 20).comment == SHORT


def test_a_summary_that_slurmdbd_would_cut_is_not_written() -> None:
    gpus = [
        gpu_row("n1", str(index), uuid=f"GPU-{index}", memory_peak_bytes=index**4) for index in range(6000)
    ]
    found = summarize_job(receipt("n1", *gpus), job_row(gpus=6000), END)
    assert found.comment == NO_DATA
    assert str(LONGEST_COMMENT) in found.missing


def test_the_size_of_a_usual_job_is_some_hundred_characters() -> None:
    gpus = [gpu_row("n1", str(index), uuid=f"GPU-{index}") for index in range(8)]
    assert len(summarize_job(receipt("n1", *gpus), job_row(gpus=8), END).comment) < 600


COMMENTS = {
    "": False,
    "JS1:None": False,
    "JS1:Short": False,
    "js1:h4siaaaa": False,
    "JS1:H4sIAAAA": False,
    "JS1:H4s not base64": False,
    "JSON of a user": False,
    "checked by eva": False,
    encode_summary({"gpus": 1, "total_time": 1, "nodes": {}}): False,
    encode_summary({"gpuledger": 1}): False,
    "JS1:" + base64.b64encode(gzip.compress(b"[1]", mtime=0)).decode(): False,
    encode_summary({"gpuledger": {"final": True}}) + " and a remark": False,
    encode_summary({"gpuledger": {"final": True}}): True,
}


@pytest.mark.parametrize(("comment", "is_own"), COMMENTS.items())
def test_only_what_this_program_wrote_is_its_own(comment: str, is_own: bool) -> None:
    assert is_own_summary(comment) == is_own
    assert is_final_summary(comment) == is_own


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none()))
def test_what_is_encoded_is_decoded_again_and_is_plain_base64(content: dict[str, Any]) -> None:
    comment = encode_summary(content)
    assert decode_summary(comment) == content == read_by_others(comment)
    # What sacctmgr would change, and what ends a value in Slurm's files.
    assert not set(comment) & set("'\"|, \n\t")


@given(
    st.text(max_size=200)
    | st.binary(max_size=200).map(lambda raw: "JS1:H4s" + base64.b64encode(raw).decode())
)
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert decode_summary(text) is None or isinstance(decode_summary(text), dict)


def test_the_cost_is_omitted_without_prices() -> None:
    made = receipt(total=amounts(cost=None, millijoules=None))
    own = read_by_others(summarize_job(made, job_row(), END).comment)["gpuledger"]
    assert own == {"version": 1, "final": True, "gpu_seconds": 3600}
