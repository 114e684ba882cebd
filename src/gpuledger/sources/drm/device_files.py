"""The files of one GPU during one tick, and values that all drivers provide in the same form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpuledger.sources.drm.cards import DrmCard
from gpuledger.sources.drm.gpu_metrics import GpuMetrics, UnreadableMetrics, parse_gpu_metrics
from gpuledger.sources.drm.sysfs import SysfsFolder, is_asleep, labelled_files

# Micro- and milli-units in a base unit.
MICRO: Final = 1_000_000
MILLI: Final = 1000
# PCIe generation by speed in GT/s.
_GENERATIONS: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


class DeviceFiles:
    """The files of a card. `hwmon` and its labels are found once; `gpu_metrics` is read once in a tick.

    Read `is_asleep` first: any other file can wake a sleeping GPU.
    """

    def __init__(self, card: DrmCard, folder: SysfsFolder) -> None:
        self.card = card
        self.folder = folder
        self.device = folder.folder("device")
        self._hwmon: SysfsFolder | None = None
        self._labels: dict[str, Mapping[str, str]] = {}
        self._metrics: GpuMetrics | None = None
        self._metrics_read = False
        self.metrics_error = ""

    @property
    def errors(self) -> dict[str, OSError]:
        """Files of the card that could not be read in this tick, by path."""
        return self.folder.errors

    @property
    def is_asleep(self) -> bool:
        """Whether the kernel has suspended the GPU to save power."""
        return is_asleep(self.device)

    @property
    def hwmon(self) -> SysfsFolder | None:
        """The folder of the card's sensors; None if it has none."""
        if self._hwmon is None:
            parent = self.device.folder("hwmon")
            # i915 has further ones for each tile: `i915_gt0`.
            names = (name for name in parent.names() if parent.text(f"{name}/name") == self.card.driver)
            found = next(names, None)
            self._hwmon = None if found is None else parent.folder(found)
        return self._hwmon

    def labels(self, kind: str) -> Mapping[str, str]:
        """Prefixes of the sensors of a kind (temp, power, energy) by label."""
        hwmon = self.hwmon
        if hwmon is None:
            return {}
        found = self._labels.get(kind)
        if found is None:
            found = labelled_files(hwmon, kind)
            if not any(path.startswith(f"{hwmon.path}/{kind}") for path in self.errors):
                self._labels[kind] = found
        return found

    def begin_tick(self) -> None:
        """Forget what was read in the last tick."""
        self._metrics, self._metrics_read = None, False
        self.folder.errors.clear()

    def check_sensors(self) -> None:
        """Find the sensors again if the driver was loaded again: their folder has another number then."""
        if self._hwmon is not None and not self._hwmon.text("name"):
            self._hwmon, self._labels = None, {}

    @property
    def metrics(self) -> GpuMetrics | None:
        """The table of amdgpu's firmware; None if there is none or it cannot be read (`metrics_error`)."""
        if not self._metrics_read:
            self._metrics_read = True
            raw = self.device.raw("gpu_metrics")
            if raw:
                try:
                    self._metrics = parse_gpu_metrics(raw)
                    self.metrics_error = ""
                except UnreadableMetrics as error:
                    self.metrics_error = str(error)
        return self._metrics

    def sensor(self, name: str, per_unit: int) -> float | None:
        """A file of hwmon in base units; `per_unit` of its units are one."""
        hwmon = self.hwmon
        found = None if hwmon is None else hwmon.number(name)
        return None if found is None else found / per_unit


def percent(number: int | None) -> float | None:
    """A percentage as a ratio."""
    return None if number is None else number / 100


def link_generation(device: SysfsFolder, file: str) -> float | None:
    """The PCIe generation in a file such as "16.0 GT/s PCIe", of older kernels "16 GT/s"; None if unknown."""
    try:
        return _GENERATIONS.get(float(device.text(file).split()[0]))
    except (ValueError, IndexError):
        return None


def link_width(device: SysfsFolder, file: str) -> float | None:
    """The lanes in a file; None for 0, which stands for an unknown width."""
    return device.number(file) or None


def fan_ratio(files: DeviceFiles) -> float | None:
    """Fan speed as a fraction of the maximum: by revolutions, else by the duty cycle. None without a fan."""
    hwmon = files.hwmon
    if hwmon is None:
        return None
    for speed, most in (("fan1_input", "fan1_max"), ("pwm1", "pwm1_max")):
        now, highest = hwmon.number(speed), hwmon.number(most)
        if now is not None and highest:
            return now / highest
    return None
