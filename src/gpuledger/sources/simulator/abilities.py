"""What a simulated Gpu and its Instances can tell at all, and what to ask of them for wanted quantities."""

from __future__ import annotations

from gpuledger.model import quantities as q
from gpuledger.model.quantities import QUANTITIES, Level, Quantity
from gpuledger.sources.simulator.engines import METRICS, RATES
from gpuledger.sources.simulator.gauges import GAUGES, STORES, Gauge
from gpuledger.sources.simulator.scenario import GpuSpec

# What NVML does not tell of a GPU under MIG (nvml.h, nvmlDeviceGetUtilizationRates).
_NOT_UNDER_MIG = frozenset(
    {q.UTILIZATION, q.MEMORY_UTILIZATION, q.ENCODER_UTILIZATION, q.DECODER_UTILIZATION, q.COMPUTE_MODE}
)
_WITH_GPM = frozenset({"Hopper", "Blackwell"})
_BEFORE_AMPERE = frozenset({"Maxwell", "Pascal", "Volta", "Turing"})
_PAGES = frozenset({q.RETIRED_PAGES_CORRECTABLE, q.RETIRED_PAGES_UNCORRECTABLE, q.RETIRED_PAGES_PENDING})
_SINCE_AMPERE = frozenset(
    {
        q.REMAPPED_ROWS_CORRECTABLE,
        q.REMAPPED_ROWS_UNCORRECTABLE,
        q.ROW_REMAP_PENDING,
        q.ROW_REMAP_FAILURE,
        q.POWER_INSTANT,
    }
)
_MIG = frozenset({q.MIG_MODE, q.MIG_MAX_SLICES})
_EVERY = frozenset(QUANTITIES.values())


class Abilities:
    """For one set of wanted quantities: whether a Gpu and its Instances have each, and how to answer.

    `gauges`, `metrics` and `stores` are of the Gpu, `inside` and `stores` of its Instances.
    """

    def __init__(self, wanted: frozenset[Quantity], spec: GpuSpec, mig: bool) -> None:
        lacks = _lacks(spec)
        self.gpu = _supported(wanted, lacks, Level.GPU, mig)
        self.instance = _supported(wanted, lacks, Level.INSTANCE, mig)
        told = [QUANTITIES[key] for key, has in self.gpu.items() if has]
        self.gauges: list[tuple[Quantity, Gauge]] = [(item, GAUGES[item]) for item in told if item in GAUGES]
        self.stores = [item for item in told if item in STORES]
        self.metrics = [item for item in told if item in METRICS]
        self.inside = [item for item in self.metrics if self.instance.get(item.key)]


def _supported(
    wanted: frozenset[Quantity], lacks: frozenset[str], level: Level, mig: bool
) -> dict[str, bool]:
    """For the quantities asked of a Device of this level, whether it has them."""
    known = GAUGES.keys() | STORES.keys() | METRICS
    answers = {}
    for quantity in sorted(wanted & _EVERY, key=lambda item: item.key):
        if level is Level.INSTANCE and quantity.level is not Level.INSTANCE:
            continue
        told = quantity in known and quantity.key not in lacks
        answers[quantity.key] = told and not (mig and quantity in _NOT_UNDER_MIG)
    return answers


def _lacks(spec: GpuSpec) -> frozenset[str]:
    """What the model lacks by the scenario's word and by its architecture."""
    missing = _SINCE_AMPERE if spec.architecture in _BEFORE_AMPERE else _PAGES
    if spec.architecture not in _WITH_GPM:
        missing |= METRICS | RATES
        if all(layout.instances is None for layout in spec.layouts):
            missing |= _MIG
    return spec.lacks | {quantity.key for quantity in missing}
