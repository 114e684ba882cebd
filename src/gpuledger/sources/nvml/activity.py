"""Engine activity from GPM: what happened between two samples of a Device, each tick's and the one before."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import byref, c_void_p, create_string_buffer
from dataclasses import dataclass
from math import isnan
from typing import Final

from gpuledger.model.devices import Instance
from gpuledger.model.quantities import Quantity
from gpuledger.model.source import Clock
from gpuledger.sources.nvml.codes import INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS
from gpuledger.sources.nvml.fields import ACTIVITY, ACTIVITY_CALL
from gpuledger.sources.nvml.findings import Findings
from gpuledger.sources.nvml.library import Library
from gpuledger.sources.nvml.readings import accept, refuse
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
_SAMPLE: Final = "nvmlGpmSampleGet"
_SAMPLE_OF_GPU_INSTANCE: Final = "nvmlGpmMigSampleGet"
_GRAPHICS_UTIL: Final = 1
# NVML wants more than this between two samples that are compared, in seconds.
_LEAST_GAP: Final = 0.1


@dataclass(slots=True, eq=False)
class _Pair:
    """The two samples of a Device, of `handle`: `last` was taken at `taken`, None before the first."""

    handle: c_void_p
    last: c_void_p
    spare: c_void_p
    taken: float | None = None


class EngineActivity:
    """Reads Quantity ENGINE_ACTIVITY of Gpus and Instances that have GPM (Hopper and later).

    Two samples are allocated per Device and used in turn, so a tick costs two calls per Device and waits for
    nothing; the first tick of a Device tells nothing. `clock` says how far samples are apart.
    """

    def __init__(self, library: Library, clock: Clock) -> None:
        self._library = library
        self._clock = clock
        self._support = create_string_buffer(GPM_SUPPORT.size)
        self._metrics = create_string_buffer(GPM_METRICS.size + GPM_MOST_METRICS * GPM_METRIC.size)
        self._pairs: dict[DeviceState, _Pair] = {}

    def reset(self) -> None:
        """Free all samples. Called before the driver is let go."""
        self.keep(())

    def keep(self, states: Iterable[DeviceState]) -> None:
        """Free the samples of all other Devices."""
        kept = frozenset(states)
        for state in [state for state in self._pairs if state not in kept]:
            pair = self._pairs.pop(state)
            for sample in (pair.last, pair.spare):
                self._library.call("nvmlGpmSampleFree", sample)

    def read(
        self,
        gpu: GpuState,
        part: DeviceState,
        wanted: frozenset[Quantity],
        values: dict[Quantity, float],
        findings: Findings,
    ) -> None:
        """Put the activity of the Gpu, or of its Instance `part`, since the last tick into `values`.

        Raises GpuGone.
        """
        if ACTIVITY not in wanted:
            # Nobody asks how busy it was meanwhile: a mean over that time is none over the next tick.
            if part in self._pairs:
                self._pairs[part].taken = None
            return
        if part.support.get(ACTIVITY.key) is False or not self._has_gpm(gpu, part, findings):
            return
        pair = self._pair(part, findings)
        now = self._clock.elapsed()
        if pair is None or (pair.taken is not None and now - pair.taken <= _LEAST_GAP):
            return
        older, newer = pair.last, pair.spare
        code, call = self._sample(gpu, part, newer)
        if code:
            refuse(part, ACTIVITY, code, call, findings)
            return
        part.answered = True
        if pair.taken is not None:
            self._compare(part, older, newer, values, findings)
        pair.last, pair.spare, pair.taken = newer, older, now

    def _has_gpm(self, gpu: GpuState, part: DeviceState, findings: Findings) -> bool:
        """Whether the Gpu has GPM at all, asked until it is known of the `part`."""
        if ACTIVITY.key in part.support:
            return True
        GPM_SUPPORT.pack_into(self._support, 0, GPM_SUPPORT_VERSION, 0)
        code = self._library.ask(_SUPPORT, gpu.handle, self._support)
        if code == SUCCESS and not GPM_SUPPORT.unpack(self._support)[1]:
            code = NOT_SUPPORTED
        if code:
            refuse(part, ACTIVITY, code, _SUPPORT, findings)
        else:
            part.learn(ACTIVITY, True)
        return code == SUCCESS

    def _pair(self, part: DeviceState, findings: Findings) -> _Pair | None:
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
                refuse(part, ACTIVITY, code, _ALLOCATE, findings)
                if number:
                    self._library.call("nvmlGpmSampleFree", samples[0])
                return None
        pair = self._pairs[part] = _Pair(part.handle, *samples)
        return pair

    def _sample(self, gpu: GpuState, part: DeviceState, into: c_void_p) -> tuple[int, str]:
        device = part.device
        if not isinstance(device, Instance):
            return self._library.ask(_SAMPLE, part.handle, into), _SAMPLE
        if _alone(gpu, device):
            code = self._library.ask(_SAMPLE_OF_GPU_INSTANCE, gpu.handle, device.gi, into)
            return code, _SAMPLE_OF_GPU_INSTANCE
        # Only by the MIG handle are compute instances told apart, and older drivers take none here.
        code = self._library.ask(_SAMPLE, part.handle, into)
        return NOT_SUPPORTED if code == INVALID_ARGUMENT else code, _SAMPLE

    def _compare(
        self,
        part: DeviceState,
        older: c_void_p,
        newer: c_void_p,
        values: dict[Quantity, float],
        findings: Findings,
    ) -> None:
        buffer = self._metrics
        GPM_METRICS.pack_into(buffer, 0, GPM_METRICS_VERSION, 1, older.value or 0, newer.value or 0)
        GPM_METRIC.pack_into(buffer, GPM_METRICS.size, _GRAPHICS_UTIL, NOT_SUPPORTED, 0.0, 0, 0, 0)
        code = self._library.ask(ACTIVITY_CALL, buffer)
        _, told, percent, *_ = GPM_METRIC.unpack_from(buffer, GPM_METRICS.size)
        if code or told:
            refuse(part, ACTIVITY, code or told, ACTIVITY_CALL, findings)
        elif not isnan(percent):
            accept(part, ACTIVITY, percent / 100, values, findings)


def _alone(gpu: GpuState, instance: Instance) -> bool:
    """Whether the compute instance is the only one of its GPU instance, whose activity then is its own."""
    return not any(
        isinstance(other.device, Instance) and other.device.gi == instance.gi and other.device != instance
        for other in gpu.instances
    )
