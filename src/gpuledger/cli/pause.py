"""`gpuledger pause`: have the running gpuledger let the driver go."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from gpuledger.app.control_socket import ask
from gpuledger.app.flags import begin
from gpuledger.ledger.settings import StoreSettings
from gpuledger.model.settings import build, duration, setting, text
from gpuledger.node.health import LONGEST, USUAL
from gpuledger.node.settings import ControlSettings

_ABOUT = """\
Have the gpuledger that runs here close every handle of the NVIDIA driver, so that the driver can be unloaded
or upgraded, a GPU reset, or a profiler take the performance counters. It answers when all are closed.
"""
_EXAMPLES = """\
while it is paused:
  /metrics       answers, with booked counters and without device data; gpuledger_paused is 1
  /health        says PAUSED, until when, and why
  the books      go on after it: energy of the pause is nobody's (account="unobserved")

examples:
  gpuledger pause                                  for 10 minutes, or until gpuledger resume
  gpuledger pause --for 1h --reason 'driver 580'   the reason is shown in /health and in the log
  gpuledger pause && ncu --set full ./train; gpuledger resume
  gpuledger pause && rmmod nvidia_uvm nvidia       other programs may hold it, too: fuser -v /dev/nvidia*
  kubectl exec POD -- gpuledger pause --for 5m

Asked again in a pause, it sets another end. A pause that nobody ends, ends by itself. A restart of gpuledger
ends it as well. More: docs/pause.md
"""


@dataclass(frozen=True, slots=True)
class PauseSettings:
    """How long, and why."""

    lasting: float = setting(
        "pause.for",
        duration("s", lowest=1.0, highest=LONGEST),
        USUAL,
        "resume by itself after this time, 24h at most",
        flags=("--for",),
        metavar="DURATION",
    )
    reason: str = setting(
        "pause.reason",
        text,
        "",
        "why, for those who wonder where the data are",
        flags=("--reason",),
        metavar="TEXT",
    )


def run(arguments: Sequence[str]) -> int:
    """Ask for a pause, and print what the running gpuledger answers."""
    groups = {"the pause": PauseSettings, "where gpuledger hears": ControlSettings}
    _, read = begin("pause", _ABOUT, _EXAMPLES, groups, arguments, [StoreSettings])
    values = read()
    settings = build(PauseSettings, values)
    answer = ask(values, {"do": "pause", "for": settings.lasting, "reason": settings.reason})
    sys.stdout.write(f"{answer}\n")
    return 0
