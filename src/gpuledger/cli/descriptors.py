"""How many files and connections this process may have open, and the server's limits made to fit."""

from __future__ import annotations

import logging
import resource
from contextlib import suppress
from dataclasses import replace

from gpuledger.outputs.limits import RESERVE, Limits

log = logging.getLogger("gpuledger")

# Books, maps, watches, sockets to elsewhere, libraries: fewer than sixty are seen.
_OWN = 128


def within_descriptors(limits: Limits, beside: int | None = _OWN) -> Limits:
    """The limits, with no more connections than there are file descriptors for, and a word in the log then.

    The soft limit is raised towards the hard one, so far as `beside` descriptors are left for other things;
    None raises it all the way. A server out of descriptors could not answer a probe either.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = limits.connections + RESERVE + (_OWN if beside is None else beside)
    if soft != unlimited and (beside is None or soft < wanted):
        raised = hard if beside is None or (hard != unlimited and hard < wanted) else wanted
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
            soft = raised
    if soft == unlimited or soft >= wanted:
        return limits
    fitting = max(1, limits.connections - (wanted - soft))
    log.warning(
        "of %d connections (web.limits.connections) %d are served: ulimit -n is %d, %d is needed",
        limits.connections,
        fitting,
        soft,
        wanted,
    )
    return replace(limits, connections=fitting)
