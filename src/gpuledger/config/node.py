"""The Settings of everything that runs on a node, under the titles that --help shows."""

from __future__ import annotations

from gpuledger.config.settings import LogSettings
from gpuledger.dialects.settings import DialectSettings
from gpuledger.host.settings import HostSettings
from gpuledger.ledger.settings import LedgerSettings, StoreSettings
from gpuledger.node.settings import NodeSettings
from gpuledger.outputs.settings import HttpSettings
from gpuledger.sources.settings import SourceSettings
from gpuledger.web.settings import WebSettings

NODE: dict[str, type] = {
    "where readings come from": SourceSettings,
    "how often": NodeSettings,
    "where metrics are served": HttpSettings,
    "what is told": DialectSettings,
    "how much is told": LedgerSettings,
    "how the books are kept": StoreSettings,
    "the page people look at": WebSettings,
    "this machine": HostSettings,
    "log": LogSettings,
}
