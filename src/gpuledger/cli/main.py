"""The entry point: run the command of the command line; errors become one line on stderr and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger.model.errors import GpuledgerError, missing_package_error, unknown_name_error

if TYPE_CHECKING:
    from gpuledger.app.flags import CommandParser


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
    "demo": "try it without a GPU: page, books and reports of a day",
    "serve": "run the Prometheus exporter and the web page (the default)",
    "top": "show GPU usage by process and owner in the terminal",
    "free": "show which GPUs can be taken now; reserve them, run on them",
    "idle": "show who holds GPUs without use, and what that costs",
    "fleet": "show the GPUs of many machines on one page",
    "doctor": "check what works on this machine, and how to fix the rest",
    "selftest": "test on this machine's GPUs whether the numbers are right",
    "report": "report usage, energy and cost by pod, job, user or namespace",
    "explain": "itemize a row of a report, or a process, by intervals",
    "receipt": "what one job or user used, what it cost, and what to change",
    "books": "check, back up, export and merge ledgers; forget a person",
    "slurm": "write receipts of jobs into Slurm's accounting",
    "metrics": "list all metrics: name, type, labels, meaning, source",
    "migrate": "check what dashboards of another exporter would miss here",
    "collect": "write a file for node_exporter's textfile collector",
    "agent": "scrape exporters and send samples by remote write",
    "operator": "run the Kubernetes operator for GpuMonitor resources",
    "pause": "release the NVIDIA driver, for an upgrade or a profiler",
    "resume": "end a pause and read the driver again",
    "record": "record a source to a file, identifiers masked",
    "completion": "print the completion script of bash, zsh or fish",
    "man": "write the man pages",
    "version": "print the version",
}

# Not for users: sources/nvml/probe.py starts it.
_HIDDEN_COMMAND = "probe_driver"

# Commands that have one line of the overview together.
_TOGETHER = {
    ("doctor", "selftest"): "check this machine, and whether the numbers are right",
    ("agent", "operator"): "scrape exporters of a cluster; run GpuMonitor resources",
    ("pause", "resume"): "release the NVIDIA driver for an upgrade; read it again",
    ("completion", "man", "version"): "print completion scripts, man pages, the version",
}

# Fits a terminal of 80 columns and 24 lines.
_OVERVIEW = """\
gpuledger shows who uses each GPU, for how long, and what it costs.
usage: gpuledger COMMAND [FLAGS]         (gpuledger COMMAND --help has more)
{commands}

Without a GPU: gpuledger demo, or gpuledger serve --source simulator
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit code: 0, 1 after a failure, 2 after wrong usage or settings."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_streams()
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
        line = f"cannot write: {error.strerror}"
        if error.filename:
            why = f"cannot use {error.filename}: {error.strerror}"
            line = f"{why}; check the name, and the permissions of the file and its directories"
        print(f"gpuledger: {line}", file=sys.stderr)  # noqa: T201  (as above)
        return 1
    except KeyboardInterrupt:
        return 130


# The modules that the extra `cluster` installs.
_CLUSTER_MODULES = ("cramjam", "re2")


def _open_streams() -> None:
    """Replace a closed stdout or stderr by /dev/null.

    Characters outside the encoding of stdout are written as escapes.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  (until the end)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def command_parser(command: str) -> CommandParser:
    """The parser of a command, for its man page and its completion.

    Raises UsageError if the command needs a package that is not installed.
    """
    from gpuledger.app.flags import DESCRIBE, ParserFound

    try:
        _import_command(command)([DESCRIBE])
    except ParserFound as found:
        return found.parser
    raise AssertionError(f"{command} parses no flags")


def _import_command(command: str) -> Callable[[Sequence[str]], int]:
    """The function that runs a command; see `command_parser` for what it raises."""
    try:
        run: Callable[[Sequence[str]], int] = import_module(f"gpuledger.cli.{command}").run
    except ModuleNotFoundError as error:
        if error.name not in _CLUSTER_MODULES:
            raise
        raise missing_package_error(command, error.name, "cluster") from None
    return run


def _is_interactive() -> bool:
    """Whether a person started this program in a terminal; pid 1 is that of a container, which serves."""
    streams = (sys.stdin, sys.stdout)
    return os.getpid() != 1 and all(stream is not None and stream.isatty() for stream in streams)


def _show_overview() -> int:
    first = {names[0]: (", ".join(names), about) for names, about in _TOGETHER.items()}
    others = {name for names in _TOGETHER for name in names[1:]}
    rows = [first.get(name, (name, about)) for name, about in COMMANDS.items() if name not in others]
    # A longer name is followed by its text.
    width = len("doctor, selftest")
    lines = "\n".join(f"  {name:<{width}}  {about}" for name, about in rows)
    sys.stdout.write(_OVERVIEW.format(commands=lines))
    return 0


def _run(words: list[str]) -> int:
    wants_help = bool(words) and words[0] in ("-h", "--help", "-help", "help")
    if wants_help and words[1:]:
        words = [words[1], "--help"]
    elif wants_help or (not words and _is_interactive()):
        return _show_overview()
    if words and words[0] in ("-V", "--version", "-version"):
        words[0] = "version"
    command = "serve" if not words or words[0].startswith("-") else words.pop(0)
    if command not in COMMANDS and command != _HIDDEN_COMMAND:
        raise unknown_name_error("command", command, COMMANDS)
    if command in ("serve", "demo"):
        load_asyncio_without_tls()
        configure_malloc()
    run = _import_command(command)
    try:
        return int(run(words))
    except SystemExit as done:
        # argparse raises SystemExit after --help.
        return done.code if isinstance(done.code, int) else 1
