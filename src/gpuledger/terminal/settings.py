"""What a user sets about `top`: what is shown, and of which node."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.settings import boolean, setting, text, words
from gpuledger.terminal.order import KEYS, Order, parse_order


@dataclass(frozen=True, slots=True)
class TopSettings:
    """What is shown, and how."""

    once: bool = setting(
        "top.once",
        boolean,
        False,
        "print one picture and end; what is not a terminal gets it so",
        flags=("--once",),
    )
    json: bool = setting(
        "top.json",
        boolean,
        False,
        "print the snapshot of the API as JSON, one line a picture, instead of tables",
        flags=("--json",),
    )
    sort: Order = setting(
        "top.sort",
        parse_order,
        Order(),
        f"sort processes by {', '.join(KEYS)}; :asc or :desc after it says which way",
        flags=("--sort",),
        metavar="KEY",
    )
    filter: str = setting(
        "top.filter",
        text,
        "",
        "show processes with all these words in owner, command or pid; !word: without it; user:, ns:, pod:, "
        "container:, job:, command:, pid:, gpu: look in one place",
        flags=("--filter",),
        metavar="WORDS",
    )
    gpu: tuple[str, ...] = setting(
        "top.gpu",
        words(text),
        (),
        "show these GPUs alone, by index (1), MIG instance (1/2_0) or UUID",
        flags=("--gpu",),
        metavar="LIST",
    )


@dataclass(frozen=True, slots=True)
class NodeAccessSettings:
    """Which node is asked, and how one gets in."""

    url: str = setting(
        "top.url",
        text,
        "",
        "show the node that serves there instead of this machine, as http://node:9400; user:password@ in it "
        "is basic auth, which others can read in the list of processes",
        flags=("--url",),
        metavar="URL",
    )
    user: str = setting("top.user", text, "", "user for basic auth", flags=("--user",), metavar="NAME")
    password_file: str = setting(
        "top.password_file",
        text,
        "",
        "file with that user's password",
        flags=("--password-file",),
        metavar="FILE",
    )
    ca_file: str = setting(
        "top.ca_file",
        text,
        "",
        "certificates of the authority that signed the node's (PEM; default: the system's)",
        flags=("--ca-file",),
        metavar="FILE",
    )
    cert_file: str = setting(
        "top.cert_file",
        text,
        "",
        "certificate to show to the node (PEM)",
        flags=("--cert-file",),
        metavar="FILE",
    )
    key_file: str = setting(
        "top.key_file",
        text,
        "",
        "its key, where that is another file (PEM)",
        flags=("--key-file",),
        metavar="FILE",
    )
