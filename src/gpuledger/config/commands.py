"""The Settings of each command except the agent and the operator, under the titles that --help shows."""

from __future__ import annotations

from gpuledger.config.books import BooksSettings
from gpuledger.config.free import FreeSettings
from gpuledger.config.help_pages import HelpPage
from gpuledger.config.idle import IdleSettings
from gpuledger.config.node import NODE_ROWS, ROW_COMMANDS, GroupRow
from gpuledger.config.other_exporters import OTHER_EXPORTER_GROUPS
from gpuledger.config.report import ExplainSettings, ReceiptSettings, ReportSettings, StatementSettings
from gpuledger.config.slurm import SlurmReceiptSettings
from gpuledger.fleet.settings import FleetCredentialSettings, FleetServerSettings, NodeListSettings
from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.kubernetes.settings import ApiServerSettings
from gpuledger.ledger.report.settings import FleetSettings
from gpuledger.ledger.report.tokens.settings import TokenSettings
from gpuledger.ledger.settings import ExportedBooksSettings
from gpuledger.outputs.settings import TextfileSettings
from gpuledger.terminal.settings import (
    FleetUrlSettings,
    NodeAccessSettings,
    NodeUrlSettings,
    TopSettings,
)

# The groups that `serve` does not have. All are on --help.
_OTHER_ROWS: tuple[GroupRow, ...] = (
    ("textfile", TextfileSettings, ("collect",), HelpPage.COMMON),
    ("report", ReportSettings, ("report",), HelpPage.COMMON),
    ("statements", StatementSettings, ("report",), HelpPage.COMMON),
    ("Prometheus of a fleet", FleetSettings, ("report",), HelpPage.COMMON),
    ("tokens of inference servers", TokenSettings, ("report",), HelpPage.COMMON),
    ("exported ledgers", ExportedBooksSettings, ("report",), HelpPage.COMMON),
    ("exports and names", BooksSettings, ("books",), HelpPage.COMMON),
    ("receipts of Slurm jobs", SlurmReceiptSettings, ("slurm",), HelpPage.COMMON),
    ("period and output", ExplainSettings, ("explain",), HelpPage.COMMON),
    ("receipt", ReceiptSettings, ("receipt",), HelpPage.COMMON),
    ("GPUs", FreeSettings, ("free",), HelpPage.COMMON),
    ("what is listed", IdleSettings, ("idle",), HelpPage.COMMON),
    ("display", TopSettings, ("top",), HelpPage.COMMON),
    ("fleet", FleetUrlSettings, ("top", "free", "report"), HelpPage.COMMON),
    ("access to another node", NodeAccessSettings, ("top",), HelpPage.COMMON),
    ("access to the fleet", ClientAccessSettings, ("free",), HelpPage.COMMON),
    ("another node", NodeUrlSettings, ROW_COMMANDS, HelpPage.COMMON),
    ("nodes of the fleet", NodeListSettings, ("fleet",), HelpPage.COMMON),
    ("access to the nodes of the fleet", FleetCredentialSettings, ("fleet",), HelpPage.COMMON),
    ("server of the fleet", FleetServerSettings, ("fleet",), HelpPage.COMMON),
)

# All groups of settings of these commands, in the order of --help.
GROUPS: tuple[GroupRow, ...] = (
    *_OTHER_ROWS,
    *NODE_ROWS,
    *((title, group, ("serve",), HelpPage.COMPATIBILITY) for title, group in OTHER_EXPORTER_GROUPS.items()),
)


def _groups_of(command: str) -> dict[str, type]:
    return {title: group for title, group, commands, _ in GROUPS if command in commands}


NODE_GROUPS = _groups_of("serve")
COLLECT_GROUPS = _groups_of("collect")
TOP_GROUPS = _groups_of("top")
FREE_GROUPS = _groups_of("free")
IDLE_GROUPS = _groups_of("idle")
RECORD_GROUPS = _groups_of("record")
REPORT_GROUPS = _groups_of("report")
EXPLAIN_GROUPS = _groups_of("explain")
RECEIPT_GROUPS = _groups_of("receipt")
BOOKS_GROUPS = _groups_of("books")
SLURM_GROUPS = _groups_of("slurm")
FLEET_GROUPS = {**_groups_of("fleet"), "Kubernetes cluster": ApiServerSettings}
# One configuration file serves all commands: it may contain settings of other commands.
ALL_GROUPS: tuple[type, ...] = tuple(group for _, group, _, _ in GROUPS)
