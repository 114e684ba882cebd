"""The settings of other exporters that `serve` accepts, and removed ones. Most nodes do not load them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpuledger.config.compatibility import FlagsWithoutEquivalent, RemovedSettings
from gpuledger.config.dcgm_exporter import DcgmExporterSettings
from gpuledger.config.my_gpu_exporter import MyGpuExporterSettings
from gpuledger.config.nvidia_gpu_exporter import NvidiaGpuExporterSettings

# Under the titles that --help-compat shows.
OTHER_EXPORTER_GROUPS: Final[Mapping[str, type]] = {
    "dcgm-exporter flags and equivalents": DcgmExporterSettings,
    "nvidia_gpu_exporter flags and equivalents": NvidiaGpuExporterSettings,
    "my-gpu-exporter flags and equivalents": MyGpuExporterSettings,
    "flags without an equivalent": FlagsWithoutEquivalent,
    "removed settings": RemovedSettings,
}
