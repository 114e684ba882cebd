"""The entry point: run the command of the command line; errors become one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

from gpuledger.model.errors import GpuledgerError, UsageError, unknown_name_error


def load_asyncio_without_tls() -> None:
    """Import asyncio without `ssl`, as on a Python built without TLS, which asyncio supports.

    asyncio imports `ssl`, and with it OpenSSL, even when nothing is encrypted: 4.3 of 29 MiB resident memory
    (CPython 3.11). `ssl` can still be imported later.
    """
    if "asyncio" not in sys.modules and "ssl" not in sys.modules:
        sys.modules["ssl"] = None  # type: ignore[assignment]  # documented: makes the import fail
        try:
            import asyncio  # noqa: F401  (loaded for its effect)
        finally:
            del sys.modules["ssl"]


# malloc.h's parameters, the variables that set the same, and the values for `serve`.
_MALLOC_OPTIONS = (
    # glibc's initial value: blocks of this size or larger get their own mapping.
    ("mmap_threshold", "MALLOC_MMAP_THRESHOLD_", -3, 128 << 10),
    ("arena_max", "MALLOC_ARENA_MAX", -8, 1),
)


def configure_malloc() -> None:
    """Let malloc return large blocks to the system as soon as they are freed, and share one heap.

    glibc allocates blocks of 128 KiB and more as separate mappings. When one is freed, glibc raises this
    threshold to its size, up to 32 MiB (mallopt(3), "dynamic mmap threshold"), and allocates later blocks on
    the heap, where metrics pages of changing size leave gaps that fragment it. A threshold that is set
    explicitly is not raised. glibc also gives each thread a heap, with gaps that other threads cannot use:
    0.5 MiB here, and Python's threads take turns anyway. Options set in the environment are kept; other C
    libraries have none.

    Not for the agent: with pages of 5,000 series its peak memory is the same, and mapping costs a third more
    CPU time (docs/agent.md has the figures). The operator creates no pages of this size.
    """
    from ctypes import CDLL

    set_option = getattr(CDLL(None), "mallopt", None)
    for tunable, variable, number, value in _MALLOC_OPTIONS:
        is_set = variable in os.environ or tunable in os.environ.get("GLIBC_TUNABLES", "")
        if set_option is not None and not is_set:
            set_option(number, value)


# Modules are imported by name, so that a command loads only its own modules.
COMMANDS = {
    "serve": "run the Prometheus exporter and the web page of this node (the default command)",
    "top": "show GPU usage by process and owner in the terminal, live or once",
    "doctor": "check what works on this machine, and how to fix what does not",
    "collect": "write metrics for node_exporter's textfile collector, once or --every 60s",
    "metrics": "list all metrics: name, type, labels, meaning, source",
    "report": "report GPU usage, energy and cost by pod, job, user, namespace or label",
    "explain": "itemize a row of a report, or a process, interval by interval",
    "books": "check, back up, export and merge ledgers; replace a person by a pseudonym",
    "migrate": "check what dashboards and rules of another exporter would miss here",
    "pause": "release the NVIDIA driver for an upgrade, a GPU reset or a profiler",
    "resume": "end a pause and read the driver again",
    "agent": "scrape exporters and send their samples by Prometheus remote write",
    "operator": "run the Kubernetes operator for GpuMonitor resources",
    "record": "record a source to a file, identifiers masked, for bug reports and tests",
    "version": "print the version",
}

_OVERVIEW = """\
gpuledger shows who uses each NVIDIA GPU, for how long, and what it costs.

usage: gpuledger [COMMAND] [FLAGS]     the default command is serve

commands:
{commands}

try it without a GPU:
  gpuledger serve --source simulator
  curl -s localhost:9400/metrics

more: gpuledger COMMAND --help
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit code: 0, 1 after a failure, 2 after wrong usage or settings."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_stdout()
    try:
        return _run(words)
    except GpuledgerError as error:
        print(f"gpuledger: {error}", file=sys.stderr)  # noqa: T201  (the one line for the user)
        return error.exit_code
    except BrokenPipeError:
        # The reader of stdout has exited (`gpuledger metrics | head`): not an error.
        sys.stderr.close()
        return 0
    except OSError as error:
        # Only standard output (a full disk, a closed pipe) or a file named on the command line can fail here.
        what = f"{error.filename}: " if error.filename else "cannot write: "
        print(f"gpuledger: {what}{error.strerror}", file=sys.stderr)  # noqa: T201  (as above)
        return 1
    except KeyboardInterrupt:
        return 130


# The modules that the extra `cluster` installs.
_CLUSTER_MODULES = ("cramjam", "re2")


def _open_stdout() -> None:
    """Replace a closed stdout by /dev/null; write escapes for characters outside its encoding."""
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
        raise unknown_name_error("command", command, COMMANDS)
    if command == "serve":
        load_asyncio_without_tls()
        configure_malloc()
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
        # argparse raises SystemExit after --help.
        return done.code if isinstance(done.code, int) else 1
