"""`gpuledger`, sent SIGTERM when it comes somewhere. Arguments: who/where, at which time, then its own."""

from __future__ import annotations

import os
import signal
import sys
from pkgutil import resolve_name

from gpuledger.cli.main import main

# Who comes where, and what is called then.
PHASES = {
    "serve": {
        "assembling": "gpuledger.cli.serve:assemble_node",
        "opening-the-books": "gpuledger.ledger.store.store:Store.__init__",
        "listening": "gpuledger.http.server:HttpServer.start",
        "greeting": "gpuledger.cli.serve:_greet",
        "beginning-to-look": "gpuledger.app.wiring:Parts.start",
        "reading": "gpuledger.sources.nvml.source:NvmlSource.read",
        "naming": "gpuledger.workloads.naming:Workloads.name",
        "posting": "gpuledger.ledger.ledger:Ledger.post",
        "storing": "gpuledger.ledger.store.store:Store._write",
        "publishing": "gpuledger.outputs.metrics_pages:PageStore.publish",
    },
    "agent": {
        "reading-its-file": "gpuledger.cli.agent:read_agent_config",
        "listening": "gpuledger.http.server:HttpServer.start",
        "opening-the-queue": "gpuledger.agent.deliver.queue:Queue.__init__",
        "greeting": "gpuledger.cli.agent:say_addresses",
        "scraping": "gpuledger.agent.scrape.loop:TargetLoop.scrape",
        "reading-a-page": "gpuledger.agent.scrape.pages:Pages.take",
        "queueing": "gpuledger.agent.deliver.segments:Segments.append",
        "sending": "gpuledger.agent.deliver.client:Client.post",
        "noting-what-was-delivered": "gpuledger.agent.deliver.reader:Positions.save",
        "bringing-it-to-the-disk": "gpuledger.agent.deliver.segments:Segments.sync_job",
        "taking-a-changed-file": "gpuledger.agent.agent:Agent.become",
    },
    "operator": {
        "listening": "gpuledger.http.server:HttpServer.start",
        "greeting": "gpuledger.cli.operator:say_addresses",
        "asking-for-its-turn": "gpuledger.operator.leader:Leader.look",
    },
    "operator-that-acts": {
        "listing": "gpuledger.operator.term:Term._list",
        "beginning-to-watch": "gpuledger.operator.watching:Watch.run",
        "looking-at-a-resource": "gpuledger.operator.reconcile:Reconciler.look",
        "making-an-object": "gpuledger.operator.apply:Applier._take",
        "writing-a-status": "gpuledger.operator.events:Teller.tell",
        "renewing-its-lease": "gpuledger.operator.leader:Leader._renew",
    },
}


def arm(place: str, times: int) -> None:
    """From the thread that comes there, for the whole process, as the kernel delivers it."""
    holder, _, name = place.replace(":", ".").rpartition(".")
    found = resolve_name(holder)
    real = getattr(found, name)
    left = times

    def told(*arguments: object, **more: object) -> object:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments, **more)

    setattr(found, name, told)


if __name__ == "__main__":
    where, number, *words = sys.argv[1:]
    who, _, phase = where.partition("/")
    arm(PHASES[who][phase], int(number))
    sys.exit(main(words))
