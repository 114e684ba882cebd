"""The Settings of each command except the agent and the operator, under the titles that --help shows."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from socket import gethostname
from typing import Any

from gpuledger.config.access import AccessSettings
from gpuledger.config.books import BooksSettings
from gpuledger.config.compatibility import NO_EFFECT, FlagsWithoutEquivalent, RemovedSettings
from gpuledger.config.dcgm_exporter import DcgmExporterSettings
from gpuledger.config.free import FreeSettings
from gpuledger.config.idle import IdleSettings
from gpuledger.config.my_gpu_exporter import MyGpuExporterSettings
from gpuledger.config.nvidia_gpu_exporter import NvidiaGpuExporterSettings
from gpuledger.config.report import ExplainSettings, ReceiptSettings, ReportSettings, StatementSettings
from gpuledger.config.settings import LogSettings
from gpuledger.config.slurm import SlurmReceiptSettings
from gpuledger.dialects.settings import (
    AmdDialectSettings,
    DcgmSettings,
    DialectSettings,
    EnergyDialectSettings,
    SmiDialectSettings,
)
from gpuledger.fleet.settings import FleetCredentialSettings, FleetServerSettings, NodeListSettings
from gpuledger.host.settings import HostSettings, TimeZoneSettings
from gpuledger.http.hosts import HostNameSettings
from gpuledger.http.limits import HttpLimits
from gpuledger.http.settings import HttpSettings, SocketActivationSettings
from gpuledger.kubernetes.settings import (
    ApiServerSettings,
    KubernetesSettings,
    PodEventSettings,
    node_name,
)
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from gpuledger.ledger.report.settings import FleetSettings, Prices, TeamSettings
from gpuledger.ledger.report.tokens.settings import TokenSettings
from gpuledger.ledger.settings import ExportedBooksSettings, LedgerSettings, StoreSettings
from gpuledger.model.settings import build_settings, declared_settings
from gpuledger.node.settings import ControlSettings, GpuCountSettings, NodeSettings, ReloadSettings
from gpuledger.outputs.settings import TextfileSettings
from gpuledger.sources.dcgm_exporter.settings import DcgmExporterSourceSettings
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.terminal.settings import (
    FleetUrlSettings,
    NodeAccessSettings,
    NodeCredentialSettings,
    NodeUrlSettings,
    TopSettings,
)
from gpuledger.web.settings import WebSettings
from gpuledger.workloads.owner_index_setup import OWNER_INDEX_GROUPS


class HelpPage(Enum):
    """The option of a command that lists a group of settings."""

    COMMON = "--help"
    RARE = "--help-all"
    COMPATIBILITY = "--help-compat"


# Commands. `collect` and `top` do not serve over HTTP, and `top` does not write.
_SERVE = ("serve",)
_EXPORT = ("serve", "collect")
_READ = ("serve", "collect", "top")
_RECORD = ("serve", "collect", "top", "record")
# They show rows of a report.
_ROWS = ("report", "explain", "receipt", "idle")

# All groups of settings of these commands, in the order of --help: title, group, commands, page of the help.
GROUPS: tuple[tuple[str, type, tuple[str, ...], HelpPage], ...] = (
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
    ("access to the fleet", NodeCredentialSettings, ("free",), HelpPage.COMMON),
    ("another node", NodeUrlSettings, _ROWS, HelpPage.COMMON),
    ("nodes of the fleet", NodeListSettings, ("fleet",), HelpPage.COMMON),
    ("access to the nodes of the fleet", FleetCredentialSettings, ("fleet",), HelpPage.COMMON),
    ("server of the fleet", FleetServerSettings, ("fleet",), HelpPage.COMMON),
    ("source of readings", SourceSettings, (*_RECORD, "free"), HelpPage.COMMON),
    ("reading interval", NodeSettings, _READ, HelpPage.COMMON),
    ("HTTP server", HttpSettings, _SERVE, HelpPage.COMMON),
    ("exported metrics", DialectSettings, _EXPORT, HelpPage.COMMON),
    ("web page", WebSettings, _SERVE, HelpPage.COMMON),
    ("ledger", StoreSettings, (*_EXPORT, *_ROWS, "books"), HelpPage.COMMON),
    ("time zone", TimeZoneSettings, (*_EXPORT, *_ROWS, "books", "free", "fleet"), HelpPage.RARE),
    ("teams", TeamSettings, (*_SERVE, *_ROWS, "fleet"), HelpPage.RARE),
    ("prices", Prices, (*_SERVE, *_ROWS, "fleet"), HelpPage.COMMON),
    ("advice on receipts", AdviceSettings, (*_SERVE, "receipt", "slurm"), HelpPage.RARE),
    ("Kubernetes pods", KubernetesSettings, (*_READ, "free"), HelpPage.COMMON),
    ("Events of pods", PodEventSettings, _SERVE, HelpPage.RARE),
    ("control socket", ControlSettings, (*_EXPORT, *_ROWS, "top", "free"), HelpPage.COMMON),
    ("access", AccessSettings, _EXPORT, HelpPage.RARE),
    ("log", LogSettings, (*_RECORD, "free", "fleet"), HelpPage.COMMON),
    ("calls of nvidia-smi", SmiSettings, (*_RECORD, "free"), HelpPage.RARE),
    ("expected GPUs", GpuCountSettings, _EXPORT, HelpPage.RARE),
    ("allowed host names", HostNameSettings, (*_SERVE, "fleet"), HelpPage.RARE),
    ("socket activation", SocketActivationSettings, _SERVE, HelpPage.RARE),
    ("limits of the HTTP server", HttpLimits, (*_SERVE, "fleet"), HelpPage.RARE),
    ("metrics of the dialect dcgm", DcgmSettings, _EXPORT, HelpPage.RARE),
    ("metrics of the dialect energy", EnergyDialectSettings, _EXPORT, HelpPage.RARE),
    ("metrics of the dialect smi", SmiDialectSettings, _EXPORT, HelpPage.RARE),
    ("metrics of the dialect amd", AmdDialectSettings, _EXPORT, HelpPage.RARE),
    ("number of series", LedgerSettings, _READ, HelpPage.RARE),
    ("this machine", HostSettings, (*_RECORD, "free"), HelpPage.RARE),
    *((title, group, (*_READ, "free"), HelpPage.RARE) for title, group in OWNER_INDEX_GROUPS.items()),
    ("reload of settings", ReloadSettings, _SERVE, HelpPage.RARE),
    ("profiling metrics of older GPUs", DcgmExporterSourceSettings, _EXPORT, HelpPage.RARE),
    ("dcgm-exporter flags and equivalents", DcgmExporterSettings, _SERVE, HelpPage.COMPATIBILITY),
    (
        "nvidia_gpu_exporter flags and equivalents",
        NvidiaGpuExporterSettings,
        _SERVE,
        HelpPage.COMPATIBILITY,
    ),
    ("my-gpu-exporter flags and equivalents", MyGpuExporterSettings, _SERVE, HelpPage.COMPATIBILITY),
    ("flags without an equivalent", FlagsWithoutEquivalent, _SERVE, HelpPage.COMPATIBILITY),
    ("removed settings", RemovedSettings, _SERVE, HelpPage.COMPATIBILITY),
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
HELP_PAGES: dict[type, HelpPage] = {group: page for _, group, _, page in GROUPS}


def ignored_flags(values: Mapping[str, Any]) -> list[str]:
    """The flags in these parsed values that have no effect: of other exporters, or removed."""
    groups = (group for group, page in HELP_PAGES.items() if page is HelpPage.COMPATIBILITY)
    items = (item for group in groups for _, item, _ in declared_settings(group))
    return [item.flags[0] for item in items if item.key in values and item.help.startswith(NO_EFFECT)]


def configured_node_name(values: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """The name under which Kubernetes knows this machine, from parsed values (`config.load`)."""
    return node_name(build_settings(DialectSettings, values).node_name, environment, gethostname())
