"""my-gpu-exporter's flags that gpuledger does not have itself, with their equivalents.

Its nine documented flags are flags of gpuledger itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from gpuledger.config.compatibility import compatible, settings_group
from gpuledger.model.settings import boolean, number


def _idle_power(watts: float) -> Mapping[str, str]:
    # There, 0 subtracts nothing; gpuledger's equivalent of an unknown power is the learned one.
    if not watts:
        return {}
    return {"energy.empty_watts": f"{watts:g}", "energy.resident_watts": f"{watts:g}"}


def _estimation(enabled: bool) -> Mapping[str, str]:
    return {"energy.policy": "apportioned" if enabled else "measured"}


_flag = partial(compatible, "my_gpu_exporter")

MyGpuExporterSettings = settings_group(
    "MyGpuExporterSettings",
    _flag(
        "--gpu-idle-power WATTS",
        "--energy.empty-watts and --energy.resident-watts; 0 has no effect: both are learned",
        _idle_power,
        number(0, 10_000),
    ),
    _flag(
        "--enable-energy-estimation",
        "--energy.policy: true is apportioned, false is measured",
        _estimation,
        boolean,
    ),
)
