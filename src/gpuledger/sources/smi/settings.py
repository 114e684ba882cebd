"""What a user sets about the `nvidia-smi` source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuledger.model.settings import Reload, duration, setting
from gpuledger.sources.smi.command import command_line


@dataclass(frozen=True, slots=True)
class SmiSettings:
    """Which command answers like nvidia-smi, and how long it may take."""

    reload: ClassVar[Reload] = Reload(restart=("nvidia_smi.command",))

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
