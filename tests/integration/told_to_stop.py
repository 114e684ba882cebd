"""`gpuledger serve`, sent SIGTERM when it comes somewhere. Arguments: where, at which time, then serve's."""

from __future__ import annotations

import os
import signal
import sys

from gpuledger.cli import serve
from gpuledger.cli.main import main
from gpuledger.cli.wiring import Parts
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.store.store import Store
from gpuledger.outputs.http import HttpServer
from gpuledger.outputs.pages import PageStore
from gpuledger.sources.nvml.source import NvmlSource
from gpuledger.workloads.naming import Workloads

PHASES = {
    "assembling": (serve, "assemble_node"),
    "opening-the-books": (Store, "__init__"),
    "listening": (HttpServer, "start"),
    "greeting": (serve, "_greet"),
    "beginning-to-look": (Parts, "start"),
    "reading": (NvmlSource, "read"),
    "naming": (Workloads, "name"),
    "posting": (Ledger, "post"),
    "storing": (Store, "_write"),
    "publishing": (PageStore, "publish"),
}


def arm(where: str, times: int) -> None:
    """From the thread that comes there, for the whole process, as the kernel delivers it."""
    holder, name = PHASES[where]
    real = getattr(holder, name)
    left = times

    def told(*arguments: object, **more: object) -> object:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments, **more)

    setattr(holder, name, told)


if __name__ == "__main__":
    phase, number, *rest = sys.argv[1:]
    arm(phase, int(number))
    sys.exit(main(["serve", *rest]))
