"""Settings of the `smi` source and of the smi dialect's fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuledger.model.settings import ReloadPolicy, duration, option, setting
from gpuledger.sources.smi.fields import AUTO, field_globs, field_names


def _command(value: object) -> str:
    # Imported lazily: most nodes read the driver's library.
    from gpuledger.sources.smi.command import command_line

    return command_line(value)


@dataclass(frozen=True)
class SmiSettings:
    """The nvidia-smi command, its timeout, and the fields that the smi dialect exports."""

    # A change of either may select another source for `auto`.
    reload: ClassVar[ReloadPolicy] = ReloadPolicy(
        restart=("nvidia_smi.command", "nvidia_smi.query_field_names")
    )

    command: str = setting(
        "nvidia_smi.command",
        _command,
        "nvidia-smi",
        "nvidia-smi command, split into words as a shell would but run without a shell; "
        "'ssh user@host nvidia-smi' reads another machine",
        flags=("--nvidia-smi-command",),
        metavar="COMMAND",
    )
    timeout: float = setting(
        "nvidia_smi.timeout",
        duration("s", lowest=0.1),
        30.0,
        "maximum time of one call of the command; after that it is killed",
        flags=("--nvidia-smi-timeout",),
    )
    query_field_names: tuple[str, ...] = option(
        "nvidia_smi.query_field_names",
        field_names,
        (AUTO,),
        "fields of nvidia-smi --query-gpu that the smi dialect exports; AUTO: all that the driver offers",
        metavar="LIST",
    )
    query_field_names_exclude: tuple[str, ...] = option(
        "nvidia_smi.query_field_names_exclude",
        field_globs,
        (),
        "fields that the smi dialect does not export; * matches any text",
        metavar="LIST",
    )
    slow_field: float = setting(
        "nvidia_smi.slow_field",
        duration("s"),
        1.0,
        "with AUTO, omit any field that alone takes nvidia-smi longer than this; 0 omits none",
        flags=("--nvidia-smi-slow-field",),
    )
