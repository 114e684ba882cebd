"""Runs `gpuledger` and sends it SIGTERM when it enters a phase.

Arguments: PROGRAM/PHASE, the number of the call that triggers the signal, and gpuledger's own arguments.
"""

from __future__ import annotations

import os
import signal
import sys
from pkgutil import resolve_name

from gpuledger.cli.main import main

# Program: phases, each with the function that the phase calls.
PHASES = {
    "serve": {
        "assembling": "gpuledger.cli.serve.assemble_node",
        "opening-the-ledger": "gpuledger.ledger.store.store.Store.__init__",
        "listening": "gpuledger.http.server.HttpServer.start",
        "logging-addresses": "gpuledger.cli.serve._log_start",
        "starting-the-node": "gpuledger.app.node_parts.NodeParts.start",
        "reading-the-driver": "gpuledger.sources.nvml.source.NvmlSource.read",
        "finding-owners": "gpuledger.workloads.owner_lookup.OwnerLookup.assign_owners",
        "posting-a-snapshot": "gpuledger.ledger.ledger.Ledger.post",
        "storing-the-ledger": "gpuledger.ledger.store.store.Store._write",
        "publishing-metrics": "gpuledger.outputs.metrics_pages.MetricsPages.publish",
    },
    "agent": {
        "loading-the-configuration": "gpuledger.cli.agent.read_agent_config",
        "listening": "gpuledger.http.server.HttpServer.start",
        "opening-the-queue": "gpuledger.agent.deliver.queue.ReceiverQueue.__init__",
        "logging-addresses": "gpuledger.cli.agent.log_addresses",
        "scraping": "gpuledger.agent.scrape.loop.ScrapeLoop.scrape",
        "reading-a-page": "gpuledger.agent.scrape.page_cache.PageCache.read_page",
        "queueing": "gpuledger.agent.deliver.segments.SegmentFiles.append",
        "sending": "gpuledger.agent.deliver.client.RemoteWriteClient.post_write_request",
        "saving-positions": "gpuledger.agent.deliver.queue_reader.DeliveredPositions.save_positions",
        "syncing-the-queue": "gpuledger.agent.deliver.segments.SegmentFiles.sync_job",
        "reloading-the-configuration": "gpuledger.agent.agent.Agent.apply_config",
    },
    "operator": {
        "listening": "gpuledger.http.server.HttpServer.start",
        "logging-addresses": "gpuledger.cli.operator.log_addresses",
        "acquiring-the-lease": "gpuledger.operator.leader_election.LeaderElection.try_acquire",
    },
    "operator-that-acts": {
        "listing": "gpuledger.operator.leader_term.LeaderTerm._list_all",
        "starting-a-watch": "gpuledger.operator.watches.ClusterWatch.run",
        "reconciling-a-resource": "gpuledger.operator.reconcile.Reconciler.reconcile",
        "applying-an-object": "gpuledger.operator.apply.Applier._apply_step",
        "writing-a-status": "gpuledger.operator.reconcile.Reconciler._write_status",
        "renewing-the-lease": "gpuledger.operator.leader_election.LeaderElection._renew",
    },
}


def send_sigterm_on_call(function: str, call: int) -> None:
    """Patch a function so that its call number `call` first sends SIGTERM to this process."""
    holder, _, name = function.rpartition(".")
    found = resolve_name(holder)
    real = getattr(found, name)
    left = call

    def patched(*arguments: object, **more: object) -> object:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*arguments, **more)

    setattr(found, name, patched)


if __name__ == "__main__":
    program_phase, number, *words = sys.argv[1:]
    program, _, phase = program_phase.partition("/")
    send_sigterm_on_call(PHASES[program][phase], int(number))
    sys.exit(main(words))
