"""The summary of a job in the format of jobstats (`JS1:`), which four programs read from AdminComment. Pure.

`JS1:`, then base64 of gzip of JSON; or `JS1:None` (`JS1:Short` below a minute) for a job without data. The
readers stop with an error for the whole list of jobs if one comment is cut, has text beside the summary, or
lacks a key that they use. So a summary is complete, or there is none. Source: jobstats.py and
docs/setup/summaries.md of jobstats 1.0, the readers of reportseff 2.10 and job_defense_shield 1.2.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gpuledger.app.slurm_receipts.accounting import JobRow
from gpuledger.ledger.report.receipt.content import ReceiptGpu, ReceiptHost, ReceiptJson
from gpuledger.ledger.report.receipt.sentence import mean_utilization

_PREFIX: Final = "JS1:"
# The base64 of the magic bytes of gzip.
_GZIP: Final = "H4s"
NO_DATA: Final = "JS1:None"
SHORT: Final = "JS1:Short"
# Seconds. Of shorter jobs, jobstats has no data.
_SHORTEST: Final = 60.0
# The column of slurmdbd is of type `text`: it cuts longer values without an error.
LONGEST_COMMENT: Final = 65_535
# The key of gpuledger's object at the top of the summary. Readers ignore keys that they do not know.
_OWN: Final = "gpuledger"
# Bytes of the JSON of a summary that is read back.
_LONGEST_JSON: Final = 16 << 20


class JobSummary(NamedTuple):
    """The comment to write, and why it has no data (empty if it has)."""

    comment: str
    missing: str = ""


def summarize_job(receipt: ReceiptJson | None, job: JobRow, until: float) -> JobSummary:
    """The summary of a job; `until` is its end, or now while it runs. `receipt` is None without data."""
    if receipt is None or not receipt["gpus"]:
        is_short = until - job.start < _SHORTEST
        return JobSummary(SHORT if is_short else NO_DATA, "no node has seen the job on a GPU")
    try:
        nodes = {node: _node_entry(receipt, node, job) for node in receipt["nodes"]}
    except _Incomplete as error:
        return JobSummary(NO_DATA, str(error))
    seconds = max(0, round(until - job.start))
    found: dict[str, Any] = {"total_time": seconds, "gpus": job.gpus, "nodes": nodes}
    comment = encode_summary({**found, _OWN: _own_entry(receipt, is_final=job.end is not None)})
    if len(comment) > LONGEST_COMMENT:
        # Thousands of GPUs. Cut, it would break the readers of all jobs.
        why = f"the summary has {len(comment)} characters, slurmdbd keeps {LONGEST_COMMENT}"
        return JobSummary(NO_DATA, why)
    return JobSummary(comment)


class _Incomplete(Exception):
    """A number that the readers need is not known."""


def _node_entry(receipt: ReceiptJson, node: str, job: JobRow) -> dict[str, Any]:
    gpus = [gpu for gpu in receipt["gpus"] if gpu["node"] == node]
    host = next((one for one in receipt["hosts"] if one["node"] == node), None)
    entry = _host_entry(host, node, job)
    keys = {gpu["uuid"]: _gpu_key(gpu) for gpu in gpus}
    entry["gpu_total_memory"] = {keys[gpu["uuid"]]: _size(gpu) for gpu in gpus}
    entry["gpu_used_memory"] = {keys[gpu["uuid"]]: _peak(gpu) for gpu in gpus}
    means = {keys[gpu["uuid"]]: mean_utilization(gpu) for gpu in gpus}
    if None not in means.values():
        entry["gpu_utilization"] = {key: _percent(mean or 0.0) for key, mean in means.items()}
    return entry


def _host_entry(host: ReceiptHost | None, node: str, job: JobRow) -> dict[str, Any]:
    """CPU time and memory on a node. Of a job on one node, Slurm's numbers of cores and memory are exact."""
    cpu = None if host is None else host["cpu_seconds"]
    peak = None if host is None else host["memory_peak_bytes"]
    cores = None if host is None else host["cores"]
    limit = None if host is None else host["memory_limit_bytes"]
    if len(job.nodes) == 1:
        cores, limit = job.cpus, job.memory or limit
    if cpu is None or peak is None or not cores or not limit:
        raise _Incomplete(
            f"CPU time and memory of the job on {node} are not known: run gpuledger there as root, or with "
            "CAP_SYS_PTRACE, before the job begins"
        )
    return {
        "cpus": round(cores),
        "total_time": round(cpu, 1),
        "total_memory": limit,
        "used_memory": peak,
    }


def _gpu_key(gpu: ReceiptGpu) -> str:
    return "_".join(filter(None, (gpu["index"] or gpu["gpu_uuid"], gpu["instance"])))


def _size(gpu: ReceiptGpu) -> int:
    if not gpu["memory_bytes"]:
        raise _Incomplete(f"the size of the memory of GPU {_gpu_key(gpu)} on {gpu['node']} is not known")
    return gpu["memory_bytes"]


def _peak(gpu: ReceiptGpu) -> int:
    if gpu["memory_peak_bytes"] is not None:
        return gpu["memory_peak_bytes"]
    if gpu["resident_seconds"] == 0 and not gpu["unknown_seconds"]:
        return 0
    raise _Incomplete(f"the memory used on GPU {_gpu_key(gpu)} of {gpu['node']} is not known")


def _percent(ratio: float) -> float:
    """One decimal, as all values of the format; a little use is never rounded to none."""
    percent = round(100 * ratio, 1)
    return 0.1 if ratio > 0 and percent == 0 else percent


def _own_entry(receipt: ReceiptJson, *, is_final: bool) -> dict[str, Any]:
    """What the format has no key for, as integers and texts. `final`: the job had ended."""
    total = receipt["total"]
    found = {
        "version": receipt["version"],
        "final": is_final,
        "gpu_seconds": None if total["gpu_microseconds"] is None else round(total["gpu_microseconds"] / 1e6),
        "joules": None if total["millijoules"] is None else round(total["millijoules"] / 1000),
        "cost": total["cost"],
        "currency": receipt["currency"] if total["cost"] is not None else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def encode_summary(summary: Mapping[str, Any]) -> str:
    """The comment with this content; the same bytes for the same content."""
    raw = json.dumps(summary, separators=(",", ":"), sort_keys=True).encode("ascii")
    return _PREFIX + base64.b64encode(gzip.compress(raw, mtime=0)).decode("ascii")


def decode_summary(comment: str) -> Mapping[str, Any] | None:
    """The content of a comment; None if it is no summary."""
    if not comment.startswith(_PREFIX + _GZIP):
        return None
    try:
        unzip = zlib.decompressobj(zlib.MAX_WBITS | 16)
        packed = base64.b64decode(comment.removeprefix(_PREFIX), validate=True)
        found = json.loads(unzip.decompress(packed, _LONGEST_JSON))
    except (ValueError, zlib.error, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def is_own_summary(comment: str) -> bool:
    """Whether this program wrote the comment: only such a comment is ever replaced."""
    found = decode_summary(comment)
    return found is not None and isinstance(found.get(_OWN), dict)


def is_final_summary(comment: str) -> bool:
    """Whether this program wrote the comment after the end of the job."""
    found = decode_summary(comment)
    own = None if found is None else found.get(_OWN)
    return isinstance(own, dict) and own.get("final") is True
