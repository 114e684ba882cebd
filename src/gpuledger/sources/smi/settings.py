"""What a user sets about the `nvidia-smi` source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuledger.model.settings import Reload, duration, setting
from gpuledger.sources.smi.command import command_line
from gpuledger.sources.smi.fields import AUTO, field_globs, field_names


@dataclass(frozen=True, slots=True)
class SmiSettings:
    """Which command answers like nvidia-smi, how long it may take, and what the `smi` dialect has from it."""

    # Both may make another source of auto.
    reload: ClassVar[Reload] = Reload(restart=("nvidia_smi.command", "nvidia_smi.query_field_names"))

    command: str = setting(
        "nvidia_smi.command",
        command_line,
        "nvidia-smi",
        "the command that answers like nvidia-smi, split into words as a shell would, never run by one; "
        "'ssh user@host nvidia-smi' reads another machine",
        flags=("--nvidia-smi-command",),
        metavar="COMMAND",
    )
    timeout: float = setting(
        "nvidia_smi.timeout",
        duration("s", lowest=0.1),
        10.0,
        "longest time one call of the command may take; then it is killed",
        flags=("--nvidia-smi-timeout",),
        metavar="DURATION",
    )
    query_field_names: tuple[str, ...] = setting(
        "nvidia_smi.query_field_names",
        field_names,
        (AUTO,),
        "fields of nvidia-smi --query-gpu that the smi dialect tells; AUTO is all that the driver offers",
        flags=("--query-field-names",),
        metavar="LIST",
    )
    query_field_names_exclude: tuple[str, ...] = setting(
        "nvidia_smi.query_field_names_exclude",
        field_globs,
        (),
        "fields that the smi dialect does not tell; * stands for anything",
        flags=("--query-field-names-exclude",),
        metavar="LIST",
    )
    slow_field: float = setting(
        "nvidia_smi.slow_field",
        duration("s"),
        1.0,
        "with AUTO, leave out a field that alone takes nvidia-smi longer than this; 0 leaves none out",
        flags=("--nvidia-smi-slow-field",),
        metavar="DURATION",
    )
