"""`gpuledger resume`: make the running gpuledger read the driver again."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gpuledger.app.control_socket import send_request
from gpuledger.app.flags import parse_command
from gpuledger.ledger.settings import StoreSettings
from gpuledger.node.settings import ControlSettings

_ABOUT = """\
End a pause: the running gpuledger opens the driver again. The command returns after its first attempt to
read.
"""
_EXAMPLES = """\
exit code: 0 when it reads again (or was not paused), 1 when the driver cannot be read yet (gpuledger retries
automatically) or no gpuledger runs here

examples:
  gpuledger resume
  kubectl exec POD -- gpuledger resume
  gpuledger resume --control.socket /run/gpuledger/control.sock
"""


def run(arguments: Sequence[str]) -> int:
    """Request the end of a pause, and print the answer of the running gpuledger."""
    groups = {"control socket": ControlSettings}
    _, read = parse_command("resume", _ABOUT, _EXAMPLES, groups, arguments, [StoreSettings])
    sys.stdout.write(f"{send_request(read(), {'do': 'resume'})}\n")
    return 0
