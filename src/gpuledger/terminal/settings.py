"""Settings of `gpuledger top`: what it shows, and which node it reads."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.model.settings import boolean, choice, comma_separated, option, repeated_texts, text
from gpuledger.terminal.sort_order import SORT_KEYS, SortOrder, parse_sort_order


@dataclass(frozen=True)
class TopSettings:
    """What `top` shows, and in which format."""

    once: bool = option(
        "top.once",
        boolean,
        False,
        "print one snapshot and exit; the default when the output is not a terminal",
    )
    json: bool = option(
        "top.json", boolean, False, "print snapshots of the API as JSON, one per line, instead of tables"
    )
    sort: SortOrder = option(
        "top.sort",
        parse_sort_order,
        SortOrder(),
        f"sort processes by {', '.join(SORT_KEYS)}; append :asc or :desc for the direction",
        metavar="KEY",
    )
    filter: str = option(
        "top.filter",
        text,
        "",
        "show processes with all these words in owner, command or pid; !word: without it; user:, ns:, pod:, "
        "container:, job:, command:, pid:, gpu: match one field",
        metavar="WORDS",
    )
    gpu: tuple[str, ...] = option(
        "top.gpu",
        comma_separated(text),
        (),
        "show only these GPUs, by index (1), MIG instance (1/2_0) or UUID",
    )
    command_lines: str = option(
        "top.command_lines",
        choice("own", "all", "off"),
        "own",
        "processes of this machine with their arguments, never in text or JSON output: own (for root: of all "
        "users), all that the kernel lets you read (as ps does), or off",
    )


@dataclass(frozen=True)
class NodeAccessSettings(ClientAccessSettings):
    """Which nodes `top` reads, and the credentials for them."""

    urls: tuple[str, ...] = option(
        "top.url",
        repeated_texts,
        (),
        "show the node at this URL instead of this machine, such as http://node:9400; several nodes are one "
        "table; user:password@ in it is basic auth, which other users can read in the process list",
        metavar="URL",
        repeatable=True,
    )


@dataclass(frozen=True)
class NodeUrlSettings(ClientAccessSettings):
    """The node that a command reads in place of the ledger on this machine, and the credentials for it."""

    url: str = option(
        "node.url",
        text,
        "",
        "what you may read on the node at this URL, such as http://node:9400, in place of the ledger on this "
        "machine; unix:PATH is the control socket of one",
        metavar="URL",
    )


@dataclass(frozen=True)
class FleetUrlSettings:
    """The fleet that a command reads."""

    fleet: str = option(
        "top.fleet",
        text,
        "",
        "all nodes of the `gpuledger fleet` at this URL, such as http://lab:9410",
        metavar="URL",
    )
