"""`gpuledger resume`: have the running gpuledger read the driver again."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gpuledger.app.control_socket import ask
from gpuledger.app.flags import begin
from gpuledger.ledger.settings import StoreSettings
from gpuledger.node.settings import ControlSettings

_ABOUT = """\
End what gpuledger pause began: the gpuledger that runs here opens the driver again. It answers when a first
reading was tried.
"""
_EXAMPLES = """\
exit code: 0 when it reads again (or there was no pause), 1 when the driver cannot be read yet (it is tried
again by itself) or no gpuledger runs here

examples:
  gpuledger resume
  kubectl exec POD -- gpuledger resume
  gpuledger resume --control.socket /run/gpuledger/control.sock
"""


def run(arguments: Sequence[str]) -> int:
    """Ask for the end of a pause, and print what the running gpuledger answers."""
    groups = {"where gpuledger hears": ControlSettings}
    _, read = begin("resume", _ABOUT, _EXAMPLES, groups, arguments, [StoreSettings])
    sys.stdout.write(f"{ask(read(), {'do': 'resume'})}\n")
    return 0
