"""GPM metrics: what happened between two samples of a Device, each tick's and the one before."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import byref, c_void_p, create_string_buffer
from dataclasses import dataclass
from math import isnan
from typing import Final

from gpuledger.model.devices import Instance
from gpuledger.model.quantities import Quantity
from gpuledger.model.source import Clock
from gpuledger.sources.nvml.answers import accept, refuse, scale
from gpuledger.sources.nvml.codes import INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS, UNSUPPORTED
from gpuledger.sources.nvml.fields import METRICS, METRICS_CALL, Metric, Plan
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.library import Library, view
from gpuledger.sources.nvml.state import DeviceState, GpuState
from gpuledger.sources.nvml.structs import (
    GPM_METRIC,
    GPM_METRICS,
    GPM_METRICS_VERSION,
    GPM_MOST_METRICS,
    GPM_SUPPORT,
    GPM_SUPPORT_VERSION,
)

_SUPPORT: Final = "nvmlGpmQueryDeviceSupport"
_ALLOCATE: Final = "nvmlGpmSampleAlloc"
_FREE: Final = "nvmlGpmSampleFree"
_SAMPLE: Final = "nvmlGpmSampleGet"
_SAMPLE_OF_GPU_INSTANCE: Final = "nvmlGpmMigSampleGet"
_OF_GPU_INSTANCE: Final = tuple(metric.quantity for metric in METRICS if metric.of_gpu_instance)
# NVML wants more than this between two samples that are compared, in seconds.
_LEAST_GAP: Final = 0.1
# After so many comparisons without any number the samples are made anew: after an Xid profiling was seen to
# tell blanks until its client starts again (DCGM issue 202).
_MOST_BLANKS: Final = 60


@dataclass(slots=True, eq=False)
class _Pair:
    """The two samples of a Device, of `handle`: `last` was taken at `taken`, None before the first.

    `blanks` counts the comparisons in a row that told nothing at all.
    """

    handle: c_void_p
    last: c_void_p
    spare: c_void_p
    taken: float | None = None
    blanks: int = 0


class PerformanceMetrics:
    """Reads METRICS of Gpus and Instances that have GPM (Hopper and later).

    Two samples are allocated per Device and used in turn, so a tick costs two calls per Device, however many
    metrics are wanted, and waits for nothing; the first tick of a Device tells nothing. `clock` says how far
    samples are apart.
    """

    def __init__(self, library: Library, clock: Clock) -> None:
        self._library = library
        self._clock = clock
        self._metrics = create_string_buffer(GPM_METRICS.size + GPM_MOST_METRICS * GPM_METRIC.size)
        self._pairs: dict[DeviceState, _Pair] = {}

    def reset(self) -> None:
        """Free all samples. Called before the driver is let go."""
        self.keep(())

    def keep(self, states: Iterable[DeviceState]) -> None:
        """Free the samples of all other Devices."""
        kept = frozenset(states)
        for state in [state for state in self._pairs if state not in kept]:
            self._free(state)

    def _free(self, state: DeviceState) -> None:
        pair = self._pairs.pop(state)
        for sample in (pair.last, pair.spare):
            self._library.call(_FREE, sample)

    def read(
        self,
        gpu: GpuState,
        part: DeviceState,
        wanted: frozenset[Quantity],
        values: dict[Quantity, float],
        findings: Findings,
    ) -> None:
        """Put the metrics of the Gpu, or of its Instance `part`, since the last tick into `values`.

        Raises GpuGone.
        """
        plan = self._plan(gpu, part, wanted)
        if not plan.metrics:
            # Nobody asks what happened meanwhile: a mean over that time is none over the next tick.
            if part in self._pairs:
                self._pairs[part].taken = None
            return
        if not self._has_gpm(gpu, part, plan, findings):
            return
        pair = self._pair(part, plan, findings)
        now = self._clock.elapsed()
        if pair is None or (pair.taken is not None and now - pair.taken <= _LEAST_GAP):
            return
        older, newer = pair.last, pair.spare
        code = self._sample(gpu, part, newer)
        if code:
            _refuse_all(part, plan, code, part.sampled_by, findings)
            return
        part.answered = True
        if pair.taken is not None:
            blank = self._compare(part, plan, (older, newer), values, findings)
            pair.blanks = pair.blanks + 1 if blank else 0
        pair.last, pair.spare, pair.taken = newer, older, now
        if pair.blanks >= _MOST_BLANKS:
            self._free(part)

    def _plan(self, gpu: GpuState, part: DeviceState, wanted: frozenset[Quantity]) -> Plan:
        """What to ask, after a look at how the part is to be sampled now."""
        call = _SAMPLE
        if isinstance(part.device, Instance) and _alone(gpu, part.device):
            # Only by the MIG handle are compute instances told apart, and older drivers take none there.
            call = _SAMPLE_OF_GPU_INSTANCE
        if call != part.sampled_by:
            # What one call does not tell the other may, and samples of the two cannot be compared.
            part.sampled_by, part.gpm = call, None
            part.doubt(metric.quantity for metric in METRICS)
            if part in self._pairs:
                self._pairs[part].taken = None
        if isinstance(part.device, Instance) and call == _SAMPLE:
            for quantity in _OF_GPU_INSTANCE:
                part.learn(quantity, False)
        return part.plan(wanted, False)

    def _has_gpm(self, gpu: GpuState, part: DeviceState, plan: Plan, findings: Findings) -> bool:
        """Whether the Gpu has GPM at all, asked until it is known."""
        if part.gpm is None:
            code, has = has_gpm(self._library, gpu.handle)
            if code == SUCCESS:
                part.gpm = has
            else:
                _refuse_all(part, plan, code, _SUPPORT, findings)
        if part.gpm is False:
            _refuse_all(part, plan, NOT_SUPPORTED, _SUPPORT, findings)
        return part.gpm is True

    def _pair(self, part: DeviceState, plan: Plan, findings: Findings) -> _Pair | None:
        pair = self._pairs.get(part)
        if pair is not None:
            if pair.handle is not part.handle:
                # The card came back: what was counted before it went does not go on.
                pair.handle, pair.taken = part.handle, None
            return pair
        samples = (c_void_p(), c_void_p())
        for number, sample in enumerate(samples):
            code = self._library.call(_ALLOCATE, byref(sample))
            if code:
                _refuse_all(part, plan, code, _ALLOCATE, findings)
                if number:
                    self._library.call(_FREE, samples[0])
                return None
        pair = self._pairs[part] = _Pair(part.handle, *samples)
        return pair

    def _sample(self, gpu: GpuState, part: DeviceState, into: c_void_p) -> int:
        device = part.device
        if not isinstance(device, Instance):
            return self._library.ask(_SAMPLE, part.handle, into)
        if part.sampled_by == _SAMPLE_OF_GPU_INSTANCE:
            return self._library.ask(_SAMPLE_OF_GPU_INSTANCE, gpu.handle, device.gi, into)
        code = self._library.ask(_SAMPLE, part.handle, into)
        return NOT_SUPPORTED if code == INVALID_ARGUMENT else code

    def _compare(
        self,
        part: DeviceState,
        plan: Plan,
        samples: tuple[c_void_p, c_void_p],
        values: dict[Quantity, float],
        findings: Findings,
    ) -> bool:
        """Take in the metrics; whether all of them are blank."""
        older, newer = samples
        buffer, end = self._metrics, GPM_METRICS.size + len(plan.metrics_request)
        GPM_METRICS.pack_into(
            buffer, 0, GPM_METRICS_VERSION, len(plan.metrics), older.value or 0, newer.value or 0
        )
        told = view(buffer, end)[GPM_METRICS.size :]
        told[:] = plan.metrics_request
        code = self._library.ask(METRICS_CALL, buffer)
        blank = not code
        for metric, (_, answer, value, *_) in zip(plan.metrics, GPM_METRIC.iter_unpack(told), strict=True):
            _take(part, metric, code or answer, value, values, findings)
            blank = blank and not answer and isnan(value)
        return blank


def has_gpm(library: Library, handle: c_void_p) -> tuple[int, bool]:
    """The return code, and whether the Gpu has GPM; a driver that knows of no such thing has none.

    Raises GpuGone.
    """
    support = create_string_buffer(GPM_SUPPORT.size)
    GPM_SUPPORT.pack_into(support, 0, GPM_SUPPORT_VERSION, 0)
    code = library.ask(_SUPPORT, handle, support)
    if code in UNSUPPORTED:
        return SUCCESS, False
    return code, code == SUCCESS and bool(GPM_SUPPORT.unpack(support.raw)[1])


def _take(
    part: DeviceState,
    metric: Metric,
    code: int,
    value: float,
    values: dict[Quantity, float],
    findings: Findings,
) -> None:
    if code:
        refuse(part, metric.quantity, code, f"{METRICS_CALL} metric {metric.metric_id}", findings)
    elif isnan(value):
        part.learn(metric.quantity, True)
    else:
        accept(part, metric.quantity, scale(value, metric.multiply, metric.divide), values, findings)


def _refuse_all(part: DeviceState, plan: Plan, code: int, call: str, findings: Findings) -> None:
    for metric in plan.metrics:
        refuse(part, metric.quantity, code, call, findings)


def _alone(gpu: GpuState, instance: Instance) -> bool:
    """Whether the compute instance is the only one of its GPU instance, whose activity then is its own."""
    return not any(
        isinstance(other.device, Instance) and other.device.gi == instance.gi and other.device != instance
        for other in gpu.instances
    )
