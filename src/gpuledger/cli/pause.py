"""`gpuledger pause`: make the running gpuledger release the driver."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.app.control_socket import send_request
from gpuledger.app.flags import parse_command
from gpuledger.ledger.settings import StoreSettings
from gpuledger.model.settings import build_settings, duration, option, text
from gpuledger.node.health import DEFAULT_PAUSE, LONGEST_PAUSE
from gpuledger.node.settings import ControlSettings

_ABOUT = """\
Make the running gpuledger release the NVIDIA driver: it closes all its handles, so that the driver can be
unloaded or upgraded, a GPU reset, or a profiler use the performance counters. The command returns when all
handles are closed.
"""
_EXAMPLES = """\
while paused:
  /metrics       has the booked counters, but no device data; gpuledger_paused is 1
  /health        reports PAUSED, the end of the pause, and the reason
  the ledger     books the energy of the pause as unobserved (account="unobserved")

examples:
  gpuledger pause                                  for 10 minutes, or until gpuledger resume
  gpuledger pause --for 1h --reason 'driver 580'   the reason appears in /health and in the log
  gpuledger pause && ncu --set full ./train; gpuledger resume
  gpuledger pause && rmmod nvidia_uvm nvidia       other programs may use it, too: fuser -v /dev/nvidia*
  kubectl exec POD -- gpuledger pause --for 5m

A second `gpuledger pause` sets a new end. The pause ends automatically after its time, and when gpuledger
restarts. More: docs/pause.md
"""


@dataclass(frozen=True, slots=True)
class PauseSettings:
    """Duration and reason of a pause."""

    lasting: float = option(
        "pause.for",
        duration("s", lowest=1.0, highest=LONGEST_PAUSE),
        DEFAULT_PAUSE,
        "resume automatically after this time, 24h at most",
    )
    reason: str = option("pause.reason", text, "", "reason, shown in /health and in the log", metavar="TEXT")


def run(arguments: Sequence[str]) -> int:
    """Request a pause, and print the answer of the running gpuledger."""
    groups = {"pause": PauseSettings, "control socket": ControlSettings}
    _, read = parse_command("pause", _ABOUT, _EXAMPLES, groups, arguments, [StoreSettings])
    values = read()
    settings = build_settings(PauseSettings, values)
    answer = send_request(values, {"do": "pause", "for": settings.lasting, "reason": settings.reason})
    sys.stdout.write(f"{answer}\n")
    return 0
