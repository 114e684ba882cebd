"""The parts of a node joined: source, workloads, ledger, dialects, pages, routes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuledger import __version__
from gpuledger.dialects.catalogue import dialects, known
from gpuledger.dialects.settings import DialectSettings
from gpuledger.exposition.merging import check_specs
from gpuledger.host.clock import SystemClock
from gpuledger.host.procfs import ProcFs
from gpuledger.host.settings import HostSettings
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.page import Page
from gpuledger.model.settings import build
from gpuledger.model.source import Source
from gpuledger.node.loop import Node
from gpuledger.node.settings import NodeSettings
from gpuledger.outputs.settings import HttpSettings
from gpuledger.sources.open import open_source
from gpuledger.sources.settings import SourceSettings
from gpuledger.web.settings import WebSettings
