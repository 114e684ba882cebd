"""The GPUs that `--devices` selects, and what it leaves out: a list copied from another node hides GPUs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import groupby

from gpuledger.model.devices import Gpu, is_selected

log = logging.getLogger("gpuledger.source.devices")

REMEDY = "remove --devices to monitor all GPUs"


class DeviceSelection:
    """The names of `--devices`, and what they leave out.

    The UUID is the identity: a Gpu that was selected by its index remains selected under another index.
    `omission` is what they leave out as one line; empty if there is nothing to say.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._logged = ""
        # By UUID, the Gpus as they were when they were selected.
        self._taken: dict[str, Gpu] = {}
        self.omission = ""

    def takes(self, gpu: Gpu) -> bool:
        """Whether this Gpu is selected, or was."""
        if self._names and gpu.uuid not in self._taken and is_selected(gpu, self._names):
            self._taken[gpu.uuid] = gpu
        return not self._names or gpu.uuid in self._taken

    def compare(self, gpus: Iterable[Gpu]) -> None:
        """Compare the names with all GPUs that the source finds."""
        known = (self._taken.get(gpu.uuid, gpu) for gpu in gpus)
        self.omission = describe_omission(known, self._names) if self._names else ""

    def log_omission(self) -> None:
        """Log the omission once, and again after a change."""
        if self.omission != self._logged:
            self._logged = self.omission
            if self.omission:
                log.warning("%s; %s", self.omission, REMEDY)


def describe_omission(gpus: Iterable[Gpu], names: tuple[str, ...]) -> str:
    """What the names of `--devices` leave out of these GPUs, and which names no GPU has; may be empty."""
    found = list(gpus)
    unknown = [name for name in names if not any(is_selected(gpu, (name,)) for gpu in found)]
    omitted = [gpu.index for gpu in found if not is_selected(gpu, names)]
    problems = []
    if omitted:
        what = f"{format_indexes(omitted)} of {len(found)}"
        problems.append(f"leaves out {what}, which have no metrics and no row in reports")
    if unknown:
        problems.append(f"names {', '.join(unknown)}, which no GPU has as index, UUID or PCI bus id")
    return f"--devices {' and '.join(problems)}" if problems else ""


def format_indexes(indexes: Iterable[int]) -> str:
    """Format indexes as `GPU 0` or `GPUs 0-3, 5`."""
    ordered = sorted(indexes)
    spans = []
    # Consecutive indexes have the same distance to their position.
    for _, group in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0]):
        span = [index for _, index in group]
        spans.append(f"{span[0]}" if len(span) == 1 else f"{span[0]}-{span[-1]}")
    return f"GPU{'s' if len(ordered) > 1 else ''} {', '.join(spans)}"
