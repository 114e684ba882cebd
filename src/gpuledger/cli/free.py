"""`gpuledger free`: which GPUs can be taken now; reserve some, and run a command on them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from gpuledger.app.flag_checks import refuse_other_flags, require_words
from gpuledger.app.flags import parse_command
from gpuledger.app.free_client import (
    FreeAnswer,
    list_devices,
    list_fleet,
    release_devices,
    take_devices,
)
from gpuledger.app.free_text import free_table
from gpuledger.app.logs import configure_logging
from gpuledger.app.stop_signals import StopRequest
from gpuledger.config.commands import FREE_GROUPS
from gpuledger.config.free import FreeSettings
from gpuledger.config.load import settings_of
from gpuledger.config.settings import LogSettings
from gpuledger.dialects.settings import DialectSettings
from gpuledger.host.settings import TimeZoneSettings, configured_time_zone
from gpuledger.http.client_access import ClientAccessSettings
from gpuledger.ledger.device_choice import visibility_variable
from gpuledger.ledger.settings import StoreSettings
from gpuledger.model.availability import DISPLAY, FREE
from gpuledger.model.devices import Gpu
from gpuledger.model.errors import GpuledgerError, UsageError
from gpuledger.model.settings import build_settings
from gpuledger.terminal.settings import FleetUrlSettings

_ABOUT = """\
Show which GPUs and MIG instances can be taken now, and why not the others. With --env, or with a command
after --, take some: gpuledger gives them to nobody else until they are released.

A GPU is free if nobody has had it for a minute (--for): no process, no allocation, no reservation, no
busy engine, and no memory that is used by something that cannot be seen. What is not known is not free.

`gpuledger serve` of this machine keeps the reservations. They are advisory: they bind the users of this
command, and no others.
"""
_EXAMPLES = """\
examples:
  gpuledger free                                   all GPUs of this machine
  gpuledger free -- python train.py                run it on a free GPU, or not at all
  gpuledger free --count 2 --memory 20GiB -- torchrun --nproc-per-node 2 train.py
  gpuledger free --wait 8h --model h100 -- ./train
  gpuledger free --fleet http://lab:9410           the GPUs of all nodes of a gpuledger fleet

for scripts: nothing is printed, and the exit code is 1, if too few GPUs are free
  gpus=$(gpuledger free --env --count 2) && export "$gpus"
  gpuledger free --json | jq -r '.devices[] | select(.availability == "free").device_uuid'
  gpuledger free --release all                     end your reservations

--env reserves for five minutes (--reserve), or until a process of yours runs on the GPU. A command holds its
GPUs until it ends; signals and exit code are those of the command. More: docs/free-and-idle.md
"""
# Seconds between two tries with --wait: the first ones are quick.
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 15.0
# As shells report that a command was not found, or cannot be run.
_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126


def run(arguments: Sequence[str]) -> int:
    """Show the GPUs, or take some; the exit code is 1 if too few are free."""
    words, command = split_command(arguments)
    also = (DialectSettings, StoreSettings)
    given, read = parse_command("free", _ABOUT, _EXAMPLES, FREE_GROUPS, words, also)
    values = read()
    configure_logging(values)
    settings = build_settings(FreeSettings, values)
    require_words(given.flags, {"free.release": "all or GPUs", "top.fleet": "a URL"})
    _check_flags(settings, given.flags, command)
    # Who names a source means that source, not the one that the running gpuledger reads.
    locally = "source" in given.flags
    if settings.release:
        return _release(values, settings)
    if command is not None or settings.env:
        return _take(values, settings, command, locally=locally)
    fleet = build_settings(FleetUrlSettings, values).fleet if "top.fleet" in given.flags else ""
    if fleet:
        answer = list_fleet(build_settings(ClientAccessSettings, values), fleet, settings)
    else:
        answer = list_devices(values, settings, locally=locally)
    _write_remarks(answer)
    if settings.format == "json":
        sys.stdout.write(json.dumps(answer.body, indent=2) + "\n")
    else:
        sys.stdout.write(free_table(answer.body, configured_time_zone(values)))
    states = [one["availability"] for one in answer.body["devices"]]
    free = states.count(FREE) + (states.count(DISPLAY) if settings.display else 0)
    return 0 if free >= settings.count else 1


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """The flags, and the command after `--`; None without one. Raises UsageError for an empty one."""
    words = list(arguments)
    if "--" not in words:
        return words, None
    place = words.index("--")
    if not words[place + 1 :]:
        raise UsageError("there is no command after --: gpuledger free -- python train.py")
    return words[:place], words[place + 1 :]


# Groups that matter for the GPUs of a fleet. The others say how this machine is read.
_OF_FLEET: Final = (FreeSettings, ClientAccessSettings, FleetUrlSettings, LogSettings, TimeZoneSettings)


def _check_flags(settings: FreeSettings, flags: Collection[str], command: Sequence[str] | None) -> None:
    """Raise UsageError for flags without an effect."""
    if settings.env and command is not None:
        raise UsageError("--env and a command exclude each other: the command gets the variable anyway")
    if command is not None and settings.format == "json" and "free.format" in flags:
        raise UsageError("--format json and a command exclude each other: the output is the command's")
    if command is not None and "free.reserve" in flags:
        raise UsageError("--reserve is for --env: a command holds its GPUs until it ends")
    if not settings.env and command is None:
        for key in ("free.reserve", "free.wait"):
            if key in flags:
                raise UsageError(f"--{key.partition('.')[2]} needs --env, or a command after --")
    is_listing = not settings.env and command is None and not settings.release
    if "top.fleet" in flags and not is_listing:
        raise UsageError("--fleet shows the GPUs of all nodes; take one on its node: ssh NODE gpuledger free")
    if "top.fleet" in flags:
        honored = settings_of(_OF_FLEET).keys() - {"free.for"}
        refuse_other_flags(flags, honored, " has no effect on what --fleet shows: omit it")
    if settings.release and (settings.env or command is not None):
        other = "--env" if settings.env else "a command"
        raise UsageError(f"--release and {other} exclude each other: release first, then take")
    if settings.everybody and not settings.release:
        raise UsageError("--everybody needs --release")


def _release(values: Mapping[str, Any], settings: FreeSettings) -> int:
    wanted = [] if settings.release == "all" else [one.strip() for one in settings.release.split(",")]
    released = release_devices(values, wanted, everybody=settings.everybody)
    for uuid in released:
        sys.stdout.write(f"released {uuid}\n")
    missing = sorted(set(wanted) - set(released))
    if missing:
        raise GpuledgerError(f"no reservation of yours: {', '.join(missing)}")
    if not released:
        sys.stdout.write("no reservations\n")
    return 0


def _take(
    values: Mapping[str, Any], settings: FreeSettings, command: Sequence[str] | None, *, locally: bool
) -> int:
    if command is not None and shutil.which(command[0]) is None:
        sys.stderr.write(f"gpuledger: {command[0]}: command not found\n")
        return _NOT_FOUND
    answer = _wait_for_devices(values, settings, hold=command is not None, locally=locally)
    if answer is None:
        return 130
    _write_remarks(answer)
    if "refused" in answer.body:
        raise GpuledgerError(str(answer.body["refused"]))
    devices: Sequence[Mapping[str, Any]] = answer.body["devices"]
    variable, uuids = _visible(devices)
    if command is not None:
        return _run_command(values, command, variable, uuids, has_reservation=answer.body["reservations"])
    if settings.format == "json":
        sys.stdout.write(json.dumps(answer.body, indent=2) + "\n")
    else:
        sys.stdout.write(f"{variable}={','.join(uuids)}\n")
    return 0


def _wait_for_devices(
    values: Mapping[str, Any], settings: FreeSettings, *, hold: bool, locally: bool
) -> FreeAnswer | None:
    """Try until GPUs are taken or the time is over; None after SIGINT or SIGTERM.

    Once gpuledger has answered, a failure is waited for as well: it may only be restarted, or paused.
    """
    until, pause = time.monotonic() + settings.wait, _FIRST_PAUSE
    has_answered = has_reservations = False
    with StopRequest() as stop:
        while True:
            left = until - time.monotonic()
            try:
                answer = take_devices(
                    values, settings, hold=hold, locally=locally, must_reserve=has_reservations
                )
                if "refused" not in answer.body or left <= 0:
                    return answer
                has_answered, has_reservations = True, answer.body["reservations"]
            except GpuledgerError:
                if not has_answered or left <= 0:
                    raise
            if stop.wait(min(pause, left)):
                return None
            pause = min(2 * pause, _LONGEST_PAUSE)


def _visible(devices: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
    """The variable that shows only these devices to a program, and their UUIDs."""
    uuids = [str(one["device_uuid"]) for one in devices]
    vendor = str(devices[0]["vendor"])
    return visibility_variable(Gpu(uuids[0], 0, vendor=vendor)), uuids


def _run_command(
    values: Mapping[str, Any],
    command: Sequence[str],
    variable: str,
    uuids: Sequence[str],
    *,
    has_reservation: bool,
) -> int:
    """Become the command: it keeps this process's id, by which its GPUs are held, and gets all signals."""
    os.environ[variable] = ",".join(uuids)
    sys.stdout.flush()
    # Python ignores these, and a program that is executed would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        if has_reservation:
            release_devices(values, uuids, everybody=False)
        sys.stderr.write(f"gpuledger: {command[0]}: {error.strerror}\n")
        return _NOT_EXECUTABLE


def _write_remarks(answer: FreeAnswer) -> None:
    for remark in answer.remarks:
        sys.stderr.write(f"gpuledger: {remark}\n")
