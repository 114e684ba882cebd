"""The devices of a scenario: Gpus with their identities, and the Instances of each partition."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.devices import Device, Gpu, Instance
from gpuledger.sources.simulator.scenario import FOREVER, GpuSpec, InstanceSpec, Place

_WORD = 2**64 - 1


def mix(*parts: int) -> int:
    """64 well-spread bits from whole numbers (the finalizer of splitmix64, folded over the parts).

    Python's own `hash` is not used: it is salted per process for text, and its form is no promise.
    """
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = (state ^ (part & _WORD)) * 0xBF58476D1CE4E5B9 & _WORD
        state ^= state >> 30
        state = state * 0x94D049BB133111EB & _WORD
        state ^= state >> 31
    return state


def number_of(text: str) -> int:
    """64 bits from text (FNV-1a over its UTF-8 bytes)."""
    state = 0xCBF29CE484222325
    for byte in text.encode("utf-8", "surrogatepass"):
        state = (state ^ byte) * 0x100000001B3 & _WORD
    return state


def hexadecimal(digits: int, *parts: int) -> str:
    """`digits` hexadecimal digits, for serial numbers and container ids."""
    words = range((digits + 15) // 16)
    return "".join(f"{mix(*parts, word):016x}" for word in words)[:digits]


def uuid_text(*parts: int) -> str:
    """Text in the form of a random (version 4) UUID."""
    raw = hexadecimal(32, *parts)
    variant = "89ab"[int(raw[16], 16) % 4]
    return f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-{variant}{raw[17:20]}-{raw[20:]}"


_UUID, _SERIAL, _INSTANCE = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Era:
    """A span of time with one partition: `instances` with their specs, in the driver's order."""

    start: int
    stop: int
    mig_enabled: bool
    instances: tuple[tuple[Instance, InstanceSpec], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Hardware:
    """One Gpu of the node through time."""

    gpu: Gpu
    spec: GpuSpec
    eras: tuple[Era, ...]

    def era(self, at: int) -> Era:
        """The partition at a time."""
        return next(era for era in reversed(self.eras) if era.start <= at or era is self.eras[0])

    def device(self, place: Place, at: int) -> tuple[Device, int] | None:
        """The Device that a place names at a time, and when it goes; None while there is none such.

        An Instance that a repartition leaves as it was (same ids, same profile) is the same Instance.
        """
        found: Device | None = None
        until = at
        for era in self.eras:
            if era.stop <= at:
                continue
            here = self._here(era, place)
            if here is None or (found is not None and here != found):
                break
            found, until = here, era.stop
        return None if found is None else (found, until)

    def _here(self, era: Era, place: Place) -> Device | None:
        if place.gi is None:
            return None if era.mig_enabled else self.gpu
        return next((i for i, _ in era.instances if (i.gi, i.ci) == (place.gi, place.ci)), None)


def build(spec: GpuSpec, index: int, seed: int) -> Hardware:
    """The Gpu at `index`, with a UUID, serial number and bus address drawn from the seed."""
    gpu = Gpu(
        uuid=spec.uuid or "GPU-" + uuid_text(seed, _UUID, index),
        index=index,
        name=spec.model,
        pci_bus_id=f"00000000:{0x10 + 8 * index:02X}:00.0",
        minor=index,
        serial=f"165{mix(seed, _SERIAL, index) % 10**10:010d}",
        vbios=f"96.00.{hexadecimal(2, number_of(spec.model)).upper()}.00.01",
        architecture=spec.architecture,
        compute_capability=spec.compute_capability,
        sm_count=spec.sm_count,
        unified_memory=spec.unified_memory,
    )
    eras = []
    for number, layout in enumerate(spec.layouts):
        last = number + 1 == len(spec.layouts)
        stop = FOREVER if last else spec.layouts[number + 1].at
        instances = tuple(
            (_instance(gpu, item, order, seed), item) for order, item in enumerate(layout.instances or ())
        )
        eras.append(Era(layout.at, stop, layout.instances is not None, instances))
    return Hardware(gpu, spec, tuple(eras))


def _instance(gpu: Gpu, spec: InstanceSpec, order: int, seed: int) -> Instance:
    identity = (seed, _INSTANCE, number_of(gpu.uuid), spec.gi, spec.ci, number_of(spec.profile))
    return Instance(
        uuid="MIG-" + uuid_text(*identity),
        parent=gpu,
        gi=spec.gi,
        ci=spec.ci,
        index=order,
        profile=spec.profile,
        sm_count=spec.sm_count,
    )
