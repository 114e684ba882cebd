"""The Settings of `serve`, under the titles that --help shows, and which other commands have them, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from socket import gethostname
from typing import Any, Final

from gpuledger.config.access import AccessSettings
from gpuledger.config.help_pages import HelpPage
from gpuledger.config.load import settings_of
from gpuledger.config.settings import LogSettings
from gpuledger.dialects.settings import (
    AmdDialectSettings,
    DcgmSettings,
    DialectSettings,
    EnergyDialectSettings,
    SmiDialectSettings,
)
from gpuledger.host.settings import HostSettings, TimeZoneSettings
from gpuledger.http.hosts import HostNameSettings
from gpuledger.http.limits import HttpLimits
from gpuledger.http.settings import HttpSettings, SocketActivationSettings
from gpuledger.kubernetes.settings import KubernetesSettings, PodEventSettings, node_name
from gpuledger.ledger.report.receipt.settings import AdviceSettings
from gpuledger.ledger.report.settings import Prices, TeamSettings
from gpuledger.ledger.settings import LedgerSettings, StoreSettings
from gpuledger.model.settings import Setting, build_settings
from gpuledger.node.settings import ControlSettings, GpuCountSettings, NodeSettings, ReloadSettings
from gpuledger.sources.dcgm_exporter.settings import DcgmExporterSourceSettings
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.web.settings import WebSettings
from gpuledger.workloads.owner_index_setup import OWNER_INDEX_GROUPS

# Title, group, the commands that have it, page of the help.
GroupRow = tuple[str, type, tuple[str, ...], HelpPage]

# Commands. `collect` and `top` do not serve over HTTP, and `top` does not write.
_SERVE = ("serve",)
_EXPORT = ("serve", "collect")
_READ = ("serve", "collect", "top")
_RECORD = ("serve", "collect", "top", "record")
# They show rows of a report.
ROW_COMMANDS = ("report", "explain", "receipt", "idle")

# The groups of settings of `serve`, in the order of --help. config/other_exporters.py has its flags of other
# exporters, config/commands.py the groups of other commands: most serving nodes load neither.
NODE_ROWS: tuple[GroupRow, ...] = (
    ("source of readings", SourceSettings, (*_RECORD, "free"), HelpPage.COMMON),
    ("reading interval", NodeSettings, _READ, HelpPage.COMMON),
    ("HTTP server", HttpSettings, _SERVE, HelpPage.COMMON),
    ("exported metrics", DialectSettings, _EXPORT, HelpPage.COMMON),
    ("web page", WebSettings, _SERVE, HelpPage.COMMON),
    ("ledger", StoreSettings, (*_EXPORT, *ROW_COMMANDS, "books"), HelpPage.COMMON),
    ("time zone", TimeZoneSettings, (*_EXPORT, *ROW_COMMANDS, "books", "free", "fleet"), HelpPage.RARE),
    ("teams", TeamSettings, (*_SERVE, *ROW_COMMANDS, "fleet"), HelpPage.RARE),
    ("prices", Prices, (*_SERVE, *ROW_COMMANDS, "fleet"), HelpPage.COMMON),
    ("advice on receipts", AdviceSettings, (*_SERVE, "receipt", "slurm"), HelpPage.RARE),
    ("Kubernetes pods", KubernetesSettings, (*_READ, "free"), HelpPage.COMMON),
    ("Events of pods", PodEventSettings, _SERVE, HelpPage.RARE),
    ("control socket", ControlSettings, (*_EXPORT, *ROW_COMMANDS, "top", "free"), HelpPage.COMMON),
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
)

OWN_GROUPS: dict[str, type] = {title: group for title, group, _, _ in NODE_ROWS}
_HELP_PAGES: dict[type, HelpPage] = {group: page for _, group, _, page in NODE_ROWS}

# How variables begin that may be settings of other exporters, or removed.
_OTHER_VARIABLES: Final = (
    "DCGM_",
    *(f"GPULEDGER_{name}_EXPORTER_" for name in ("DCGM", "NVIDIA_GPU", "MY_GPU")),
    *("GPULEDGER_WEB_LIMITS_", "NVIDIA_RESOURCE_NAMES", "DISABLE_STARTUP_VALIDATE"),
    *("KUBERNETES_VIRTUAL_GPUS", "KUBERNETES_ENABLE_DRA"),
)


def serve_groups(arguments: Iterable[str], environment: Iterable[str]) -> Mapping[str, type]:
    """The groups of `serve` by title. Those of other exporters are imported only for a flag that is not here
    (a page of the help, too), or for a variable that may be one of theirs.
    """
    known = {"--config", *(flag for item in _own_settings().values() for flag in item.flags)}
    names = (word.partition("=")[0] for word in arguments)
    # app.flags.DESCRIBE begins with \0.
    is_own = all(name in known or not name.startswith(("-", "\0")) for name in names)
    if is_own and not any(name.startswith(_OTHER_VARIABLES) for name in environment):
        return OWN_GROUPS
    from gpuledger.config.other_exporters import OTHER_EXPORTER_GROUPS

    return {**OWN_GROUPS, **OTHER_EXPORTER_GROUPS}


def other_exporter_groups() -> Iterator[type]:
    """The groups of other exporters, imported with the first: `load_values` seldom needs one."""
    from gpuledger.config.other_exporters import OTHER_EXPORTER_GROUPS

    yield from OTHER_EXPORTER_GROUPS.values()


def ignored_flags(values: Mapping[str, Any]) -> list[str]:
    """The flags in these parsed values that have no effect: of other exporters, or removed."""
    if values.keys() <= _own_settings().keys():
        return []
    from gpuledger.config.compatibility import NO_EFFECT

    items = settings_of(other_exporter_groups()).values()
    return [item.flags[0] for item in items if item.key in values and item.help.startswith(NO_EFFECT)]


def _own_settings() -> Mapping[str, Setting]:
    return settings_of(OWN_GROUPS.values())


def help_page(group: type) -> HelpPage:
    """The page of the help that lists a group."""
    page: HelpPage = getattr(group, "help_page", HelpPage.COMMON)
    return _HELP_PAGES.get(group, page)


def configured_node_name(values: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """The name under which Kubernetes knows this machine, from parsed values (`config.load`)."""
    return node_name(build_settings(DialectSettings, values).node_name, environment, gethostname())
