"""nvidia_gpu_exporter's flags with their equivalents.

`--nvidia-smi-command`, `--query-field-names`, `--query-field-names-exclude`, `--log.level` and `--log.format`
are flags of gpuledger itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from gpuledger.config.compatibility import compatible, settings_group
from gpuledger.model.settings import boolean, choice, duration, text

_BACKENDS = {"exec": "smi", "nvml": "nvml", "demo": "simulator"}


def _addresses(value: object) -> tuple[str, ...]:
    parts = value if isinstance(value, list | tuple) else text(value).split()
    return tuple(text(part).strip() for part in parts)


def _interval(value: float) -> Mapping[str, str]:
    # There, 0 means one reading per scrape; gpuledger always reads every --interval.
    return {"interval": f"{value}s"} if value else {}


_smi = partial(compatible, "nvidia_gpu_exporter", implies="smi")

# Each of them selects the dialect `smi` for /metrics.
NvidiaGpuExporterSettings = settings_group(
    "NvidiaGpuExporterSettings",
    _smi(
        "--web.listen-address ADDR",
        "--listen-address",
        lambda value: {"listen_address": " ".join(value)} if value else {},
        _addresses,
        repeatable=True,
    ),
    _smi("--web.systemd-socket", "--systemd-socket", "systemd_socket", boolean),
    _smi("--web.telemetry-path PATH", "--metrics-path", "metrics_path"),
    _smi(
        "--collect.backend exec|nvml|demo",
        "--source: exec is smi, nvml is nvml, demo is simulator",
        lambda value: {"source": _BACKENDS[value]},
        choice(*_BACKENDS),
    ),
    _smi("--collect.interval DURATION", "--interval; 0 has no effect", _interval, duration("s")),
    _smi(
        "--collect.timeout DURATION",
        "--nvidia-smi-timeout",
        lambda value: {"nvidia_smi.timeout": f"{value}s"},
        duration("s"),
    ),
    _smi("--collect.compute-apps", "--smi.compute-apps", "smi.compute_apps", boolean),
    _smi(
        "--collect.compute-apps-mig",
        "no effect: the MIG instance of a process is always exported",
        parse=boolean,
    ),
    _smi("--collect.pcie-throughput", "--smi.pcie-throughput", "smi.pcie_throughput", boolean),
)
