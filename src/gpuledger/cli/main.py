"""Which command, and what becomes of errors: one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

from gpuledger.model.errors import GpuledgerError, UsageError, unknown


def leave_out_tls() -> None:
    """Load asyncio as in a Python built without TLS, a case that it provides for.

    asyncio loads `ssl`, and with it OpenSSL, whether or not anything is encrypted: 4.3 of the 29 MiB that
    were resident here (CPython 3.11). The module stays importable for who needs it later.
    """
    if "asyncio" not in sys.modules and "ssl" not in sys.modules:
        sys.modules["ssl"] = None  # type: ignore[assignment]  # documented: makes the import fail
        try:
            import asyncio  # noqa: F401  (loaded for its effect)
        finally:
            del sys.modules["ssl"]


# malloc.h. The size from which a block is a mapping of its own, as glibc begins with.
_M_MMAP_THRESHOLD = -3
_LARGE = 128 << 10


def give_back_large_blocks() -> None:
    """Let every large block go back to the system as soon as it is freed, for as long as the program runs.

    glibc takes blocks from 128 KiB on as mappings of their own, until one is freed: then it raises that limit
    to its size, up to 32 MiB (mallopt(3), "dynamic mmap threshold"), and later ones lie in the heap. Pages of
    changing size leave gaps there that what is made meanwhile keeps from being given back. A limit that is
    set is not raised. One that the environment sets stays; other C libraries have none.

    Not for the agent: of pages of 5,000 series it holds as much at its peaks, and a third more CPU time goes
    into mapping (docs/agent.md has the figures). The operator makes no pages of such a size.
    """
    if "MALLOC_MMAP_THRESHOLD_" in os.environ or "mmap_threshold" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    from ctypes import CDLL

    set_option = getattr(CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _LARGE)


# Modules are loaded by name, so that a command pays only for itself.
COMMANDS = {
    "serve": "serve metrics and the node's page over HTTP (what no command means)",
    "top": "show who is on the GPUs now, in the terminal: live, or once for a pipe",
    "doctor": "say what works on this machine, what does not, why, and what to do",
    "collect": "write metrics into a file of node_exporter's textfile collector, once or --every 60s",
    "metrics": "list every family of metrics: name, type, labels, meaning, source",
    "report": "say who used the GPUs, for how long, and what it cost",
    "explain": "say of which intervals a pod's, a process's or a job's bill is made, and why",
    "pause": "have the gpuledger that runs here let the driver go, for a while",
    "resume": "have it read the driver again",
    "agent": "scrape exporters and deliver what they tell by Prometheus remote write",
    "operator": "make of a Kubernetes cluster what its GpuMonitor resources ask for",
    "record": "write what a source says to a file, identifiers masked: for bug reports and tests",
    "version": "print the version",
}

_OVERVIEW = """\
gpuledger tells who uses each NVIDIA GPU, for how long, and what it costs.

usage: gpuledger [COMMAND] [FLAGS]     no command means serve

commands:
{commands}

try it without a GPU:
  gpuledger serve --source simulator
  curl -s localhost:9400/metrics

more: gpuledger COMMAND --help
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; answers the exit code: 0, 1 when something failed, 2 when the user must change it."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_stdout()
    try:
        return _run(words)
    except GpuledgerError as error:
        print(f"gpuledger: {error}", file=sys.stderr)  # noqa: T201  (the one line for the user)
        return error.exit_code
    except BrokenPipeError:
        # The reader of stdout went away (`gpuledger metrics | head`): not an error of ours.
        sys.stderr.close()
        return 0
    except OSError as error:
        # What is left to fail here is standard output (a full disk, a closed pipe), or a file that is named.
        what = f"{error.filename}: " if error.filename else "cannot write: "
        print(f"gpuledger: {what}{error.strerror}", file=sys.stderr)  # noqa: T201  (as above)
        return 1
    except KeyboardInterrupt:
        return 130


# What the extra `cluster` installs.
_CLUSTER_MODULES = ("aiohttp", "cramjam", "kopf", "re2")


def _open_stdout() -> None:
    """A closed one takes nothing; one that lacks a character takes its escape."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  (until the program ends)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _run(words: list[str]) -> int:
    if words and words[0] in ("-h", "--help", "-help", "help"):
        width = max(map(len, COMMANDS))
        lines = "\n".join(f"  {name:<{width}}  {about}" for name, about in COMMANDS.items())
        sys.stdout.write(_OVERVIEW.format(commands=lines))
        return 0
    if words and words[0] in ("--version", "-version"):
        words[0] = "version"
    command = "serve" if not words or words[0].startswith("-") else words.pop(0)
    if command not in COMMANDS:
        raise unknown("command", command, COMMANDS)
    if command == "serve":
        leave_out_tls()
        give_back_large_blocks()
    try:
        run = import_module(f"gpuledger.cli.{command}").run
    except ModuleNotFoundError as error:
        if error.name not in _CLUSTER_MODULES:
            raise
        raise UsageError(
            f"{command} needs the package {error.name}, not installed here: pip install 'gpuledger[cluster]'"
        ) from None
    try:
        return int(run(words))
    except SystemExit as done:
        # argparse leaves this way after --help.
        return done.code if isinstance(done.code, int) else 1
