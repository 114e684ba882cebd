"""The settings of `gpuledger slurm`."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.http.client_access import access_option
from gpuledger.model.settings import boolean, choice, duration, option, text


@dataclass(frozen=True)
class SlurmReceiptSettings:
    """Where the receipts of nodes are, and how summaries are written."""

    place: str = option(
        "slurm_receipts.from",
        text,
        "http://{node}:9400",
        "the API of each node, with {node} for its name in Slurm; or the directory into which the epilogs of "
        "the nodes write (GPULEDGER_RECEIPTS)",
        metavar="URL|DIR",
    )
    state: str = option(
        "slurm_receipts.state",
        text,
        "/var/lib/gpuledger-slurm/state.json",
        "update: file that remembers the last pass, and the jobs to try again",
        metavar="FILE",
    )
    refresh: float = option(
        "slurm_receipts.refresh",
        duration("s", lowest=0.0, highest=86_400.0),
        240.0,
        "update: how often the summary of a running job is written, with Slurm before 23.02",
    )
    timeout: float = option(
        "slurm_receipts.timeout",
        duration("s", lowest=1.0, highest=600.0),
        10.0,
        "longest wait for a command of Slurm, and for a node",
    )
    dry_run: bool = option(
        "slurm_receipts.dry_run", boolean, False, "update: show what would be written, and write nothing"
    )
    format: str = option(
        "slurm_receipts.format",
        choice("text", "json", "markdown", "html"),
        "text",
        "receipt: text, json, markdown, or html (a page to print)",
        metavar="FORM",
    )
    user: str = access_option("slurm_receipts.user", of_nodes=True)
    password_file: str = access_option("slurm_receipts.password_file", of_nodes=True)
    ca_file: str = access_option("slurm_receipts.ca_file", of_nodes=True)
