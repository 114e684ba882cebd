"""`gpuledger idle`: who holds GPUs without use, for how long, at what cost, and what would release them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gpuledger.app.flags import parse_command
from gpuledger.app.idle_source import IDLE_PARAMETERS, check_idle, write_idle
from gpuledger.app.node_requests import (
    fetch_node_answer,
    print_answer,
    request_parameters,
    with_ledger_or_node,
)
from gpuledger.config.commands import IDLE_GROUPS
from gpuledger.config.idle import IdleSettings
from gpuledger.dialects.settings import DialectSettings
from gpuledger.ledger.store.history import History
from gpuledger.model.settings import build_settings
from gpuledger.terminal.settings import NodeUrlSettings

_ABOUT = """\
List who has held which GPU without using it, since when, what that has cost so far, and the command that
would release it. From the ledger that `gpuledger serve` keeps on this machine. It takes no action.

A GPU is held without use while it is allocated to an owner, or a process of the owner is on it, and no engine
works for the owner. What the driver does not report is not judged: nobody is listed for it. MPS servers,
display servers, placeholder pods of schedulers and claims for monitoring hold nothing.
"""
_EXAMPLES = """\
examples:
  gpuledger idle                                   for half an hour and longer
  gpuledger idle --for 4h --price.gpu_hour 2.40
  gpuledger idle --json | jq -r '.holds[] | [.user, .idle_seconds, .cost] | @tsv'

a weekly digest, printed and not sent:
  gpuledger idle --digest user                     of last week, an entry for each user
  gpuledger idle --digest team --in 'this month' --format text
  gpuledger idle --digest user --format mail --mail-domain example.org | formail -s /usr/sbin/sendmail -t
  gpuledger idle --digest team --format slack-json |
      while read -r message; do curl -sd "$message" "$WEBHOOK"; done

Costs are those of `gpuledger report` for the same owner, GPU and time, from the first quarter of an hour
after the last use. More: docs/free-and-idle.md
"""


def run(arguments: Sequence[str]) -> int:
    """Print what is held without use, or a digest."""
    given, read = parse_command("idle", _ABOUT, _EXAMPLES, IDLE_GROUPS, arguments, (DialectSettings,))
    values = read()
    settings = check_idle(build_settings(IdleSettings, values), given.flags)
    access = build_settings(NodeUrlSettings, values)

    def write(history: History) -> None:
        text, notes = write_idle(history, settings, values)
        sys.stderr.writelines(f"{note}\n" for note in notes)
        sys.stdout.write(text)

    def ask() -> None:
        parameters = request_parameters(values, given.flags, IDLE_PARAMETERS, access)
        print_answer(fetch_node_answer(values, access, "idle", parameters), access)

    with_ledger_or_node(values, access, write, ask)
    return 0
