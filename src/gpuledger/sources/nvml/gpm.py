"""Read GPM metrics (GPU performance monitoring): means between the samples of two consecutive ticks."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import byref, c_void_p, create_string_buffer
from dataclasses import dataclass
from math import isnan
from typing import Final

from gpuledger.model.devices import Instance
from gpuledger.model.quantities import Quantity
from gpuledger.model.source import Clock
from gpuledger.sources.nvml.codes import UNSUPPORTED, Code
from gpuledger.sources.nvml.device_state import DeviceState, GpuState
from gpuledger.sources.nvml.library import NvmlLibrary, buffer_view
from gpuledger.sources.nvml.quantity_values import ValueRecorder
from gpuledger.sources.nvml.queries import GPM_METRICS_CALL, GPM_QUERIES, Depth, QueryPlan
from gpuledger.sources.nvml.structs import (
    GPM_MAX_METRICS,
    GPM_METRIC,
    GPM_METRICS,
    GPM_METRICS_VERSION,
    GPM_SUPPORT,
    GPM_SUPPORT_VERSION,
)

SUPPORT_CALL: Final = "nvmlGpmQueryDeviceSupport"
_ALLOCATE: Final = "nvmlGpmSampleAlloc"
_FREE: Final = "nvmlGpmSampleFree"
_SAMPLE: Final = "nvmlGpmSampleGet"
_SAMPLE_OF_GPU_INSTANCE: Final = "nvmlGpmMigSampleGet"
_OF_GPU_INSTANCE: Final = tuple(metric.quantity for metric in GPM_QUERIES if metric.of_gpu_instance)
# NVML requires more than this between two compared samples, in seconds.
_MIN_SAMPLE_GAP: Final = 0.1
# After this many blank comparisons in a row, samples are allocated again: after an Xid, profiling was seen to
# return blanks until the client restarts (DCGM issue 202).
_MAX_BLANK_COMPARISONS: Final = 60


@dataclass(slots=True, eq=False)
class _SamplePair:
    """The two GPM samples of a Device, allocated for `handle`.

    `last` was taken at `taken_at`, None before the first. `blanks` counts consecutive comparisons without any
    value.
    """

    handle: c_void_p
    last: c_void_p
    spare: c_void_p
    taken_at: float | None = None
    blanks: int = 0


class GpmReader:
    """Reads GPM_QUERIES of Gpus and Instances that support GPM (Hopper and later).

    Two samples are allocated per Device and used in turn. So a tick costs two calls per Device, regardless of
    the number of metrics, and never waits. The first tick of a Device has no values. `clock` measures the
    time between samples.
    """

    def __init__(self, library: NvmlLibrary, clock: Clock) -> None:
        self._library = library
        self._clock = clock
        self._metrics = create_string_buffer(GPM_METRICS.size + GPM_MAX_METRICS * GPM_METRIC.size)
        self._pairs: dict[DeviceState, _SamplePair] = {}

    def reset(self) -> None:
        """Free all samples, before the driver is released."""
        self.forget_others(())

    def forget_others(self, states: Iterable[DeviceState]) -> None:
        """Free the samples of all Devices except `states`."""
        kept = frozenset(states)
        for state in [state for state in self._pairs if state not in kept]:
            self._free(state)

    def _free(self, state: DeviceState) -> None:
        pair = self._pairs.pop(state)
        for sample in (pair.last, pair.spare):
            self._library.call(_FREE, sample)

    def read(self, gpu: GpuState, recorder: ValueRecorder, wanted: frozenset[Quantity]) -> None:
        """Record the metrics of the Gpu, or of one of its Instances, since the last tick. Raises GpuLost."""
        state = recorder.state
        plan = self._plan(gpu, state, wanted)
        if not plan.metrics:
            # Metrics are not wanted in this tick, so its time must not be part of a later mean.
            if state in self._pairs:
                self._pairs[state].taken_at = None
            return
        if not self._has_gpm(gpu, recorder, plan):
            return
        pair = self._pair(recorder, plan)
        now = self._clock.elapsed()
        if pair is None or (pair.taken_at is not None and now - pair.taken_at <= _MIN_SAMPLE_GAP):
            return
        older, newer = pair.last, pair.spare
        code = self._sample(gpu, state, newer)
        if code:
            _record_error_of_all(recorder, plan, code, state.sampled_by)
            return
        state.answered = True
        if pair.taken_at is not None:
            blank = self._compare(recorder, plan, older, newer)
            pair.blanks = pair.blanks + 1 if blank else 0
        pair.last, pair.spare, pair.taken_at = newer, older, now
        if pair.blanks >= _MAX_BLANK_COMPARISONS:
            self._free(state)

    def _plan(self, gpu: GpuState, state: DeviceState, wanted: frozenset[Quantity]) -> QueryPlan:
        """Return the query plan, after choosing the call that takes the Device's samples."""
        call = _SAMPLE
        if isinstance(state.device, Instance) and _is_only_compute_instance(gpu, state.device):
            # Only calls with a MIG device handle distinguish compute instances; older drivers reject them.
            call = _SAMPLE_OF_GPU_INSTANCE
        if call != state.sampled_by:
            # The calls may support different metrics, and their samples cannot be compared with each other.
            state.sampled_by, state.gpm = call, None
            state.forget_support(metric.quantity for metric in GPM_QUERIES)
            if state in self._pairs:
                self._pairs[state].taken_at = None
        if isinstance(state.device, Instance) and call == _SAMPLE:
            for quantity in _OF_GPU_INSTANCE:
                state.set_support(quantity, False)
        return state.plan(wanted, Depth.FAST)

    def _has_gpm(self, gpu: GpuState, recorder: ValueRecorder, plan: QueryPlan) -> bool:
        """Return whether the Gpu supports GPM; queried until known."""
        state = recorder.state
        if state.gpm is None:
            support = create_string_buffer(GPM_SUPPORT.size)
            GPM_SUPPORT.pack_into(support, 0, GPM_SUPPORT_VERSION, 0)
            code = self._library.call_device(SUPPORT_CALL, gpu.handle, support)
            if code == Code.SUCCESS or code in UNSUPPORTED:
                state.gpm = not code and bool(GPM_SUPPORT.unpack(support.raw)[1])
            else:
                _record_error_of_all(recorder, plan, code, SUPPORT_CALL)
        if state.gpm is False:
            _record_error_of_all(recorder, plan, Code.NOT_SUPPORTED, SUPPORT_CALL)
        return state.gpm is True

    def _pair(self, recorder: ValueRecorder, plan: QueryPlan) -> _SamplePair | None:
        state = recorder.state
        pair = self._pairs.get(state)
        if pair is not None:
            if pair.handle is not state.handle:
                # The GPU returned: do not compare with a sample from before the loss.
                pair.handle, pair.taken_at = state.handle, None
            return pair
        samples = (c_void_p(), c_void_p())
        for number, sample in enumerate(samples):
            code = self._library.call(_ALLOCATE, byref(sample))
            if code:
                _record_error_of_all(recorder, plan, code, _ALLOCATE)
                if number:
                    self._library.call(_FREE, samples[0])
                return None
        pair = self._pairs[state] = _SamplePair(state.handle, *samples)
        return pair

    def _sample(self, gpu: GpuState, state: DeviceState, into: c_void_p) -> int:
        device = state.device
        if not isinstance(device, Instance):
            return self._library.call_device(_SAMPLE, state.handle, into)
        if state.sampled_by == _SAMPLE_OF_GPU_INSTANCE:
            return self._library.call_device(_SAMPLE_OF_GPU_INSTANCE, gpu.handle, device.gi, into)
        code = self._library.call_device(_SAMPLE, state.handle, into)
        return Code.NOT_SUPPORTED if code == Code.INVALID_ARGUMENT else code

    def _compare(self, recorder: ValueRecorder, plan: QueryPlan, older: c_void_p, newer: c_void_p) -> bool:
        """Record the metrics between two samples; return True if all of them are blank."""
        buffer, end = self._metrics, GPM_METRICS.size + len(plan.metrics_request)
        GPM_METRICS.pack_into(
            buffer, 0, GPM_METRICS_VERSION, len(plan.metrics), older.value or 0, newer.value or 0
        )
        metrics = buffer_view(buffer, end)[GPM_METRICS.size :]
        metrics[:] = plan.metrics_request
        code = self._library.call_device(GPM_METRICS_CALL, buffer)
        blank = not code
        for metric, (_, metric_code, value, *_) in zip(
            plan.metrics, GPM_METRIC.iter_unpack(metrics), strict=True
        ):
            if code or metric_code:
                call = f"{GPM_METRICS_CALL} metric {metric.metric_id}"
                recorder.record_error(metric.quantity, code or metric_code, call)
            elif isnan(value):
                recorder.state.set_support(metric.quantity, True)
            else:
                recorder.record_raw(metric, value)
            blank = blank and not metric_code and isnan(value)
        return blank


def _record_error_of_all(recorder: ValueRecorder, plan: QueryPlan, code: int, call: str) -> None:
    for metric in plan.metrics:
        recorder.record_error(metric.quantity, code, call)


def _is_only_compute_instance(gpu: GpuState, instance: Instance) -> bool:
    """Return whether the GPU instance has no other compute instance, so that its activity is this one's."""
    return not any(
        isinstance(other.device, Instance) and other.device.gi == instance.gi and other.device != instance
        for other in gpu.instances
    )
