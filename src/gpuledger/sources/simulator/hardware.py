"""The devices of a scenario: Gpus with generated identities, and the Instances of each partition."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.devices import AMD, NVIDIA, Device, Gpu, Instance
from gpuledger.sources.simulator.scenario import FOREVER, GpuSpec, InstanceSpec, PlacementSpec

_WORD = 2**64 - 1


def mix_bits(*parts: int) -> int:
    """Hash integers to 64 well-distributed bits (the finalizer of splitmix64, folded over the parts).

    Python's `hash` is not suitable: for text it differs in each process, and its algorithm may change.
    """
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = (state ^ (part & _WORD)) * 0xBF58476D1CE4E5B9 & _WORD
        state ^= state >> 30
        state = state * 0x94D049BB133111EB & _WORD
        state ^= state >> 31
    return state


def hash_text(text: str) -> int:
    """Hash text to 64 bits (FNV-1a of its UTF-8 bytes)."""
    state = 0xCBF29CE484222325
    for byte in text.encode("utf-8", "surrogatepass"):
        state = (state ^ byte) * 0x100000001B3 & _WORD
    return state


def hex_digits(digits: int, *parts: int) -> str:
    """Return `digits` pseudo-random hexadecimal digits, for serial numbers and container ids."""
    words = range((digits + 15) // 16)
    return "".join(f"{mix_bits(*parts, word):016x}" for word in words)[:digits]


def make_uuid(*parts: int) -> str:
    """Return a pseudo-random UUID in the form of version 4."""
    raw = hex_digits(32, *parts)
    variant = "89ab"[int(raw[16], 16) % 4]
    return f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-{variant}{raw[17:20]}-{raw[20:]}"


_UUID, _SERIAL, _INSTANCE, _MACHINE = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class PartitionPeriod:
    """A span of time with the same partitioning: `instances` with their specs, in the driver's order."""

    start: int
    stop: int
    mig_enabled: bool
    instances: tuple[tuple[Instance, InstanceSpec], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Hardware:
    """One GPU of the node, with its partitions over time."""

    gpu: Gpu
    spec: GpuSpec
    partitions: tuple[PartitionPeriod, ...]

    def partition_at(self, at: int) -> PartitionPeriod:
        """Return the partition at a time."""
        return next(
            partition
            for partition in reversed(self.partitions)
            if partition.start <= at or partition is self.partitions[0]
        )

    def device_at(self, placement: PlacementSpec, at: int) -> tuple[Device, int] | None:
        """Return the Device of a placement at a time, and when it ceases to exist; None if there is none.

        An Instance with the same ids and profile before and after a repartition is the same Instance.
        """
        found: Device | None = None
        until = at
        for partition in self.partitions:
            if partition.stop <= at:
                continue
            here = self._find_device(partition, placement)
            if here is None or (found is not None and here != found):
                break
            found, until = here, partition.stop
        return None if found is None else (found, until)

    def _find_device(self, partition: PartitionPeriod, placement: PlacementSpec) -> Device | None:
        if placement.gi is None:
            return None if partition.mig_enabled else self.gpu
        return next((i for i, _ in partition.instances if (i.gi, i.ci) == (placement.gi, placement.ci)), None)


def build_hardware(spec: GpuSpec, index: int, seed: int) -> Hardware:
    """Build the Gpu at `index`, with a UUID and serial number derived from the seed."""
    if spec.vendor != NVIDIA:
        return _build_hardware_of(_build_other_gpu(spec, index, seed), spec, seed)
    gpu = Gpu(
        uuid=spec.uuid or "GPU-" + make_uuid(seed, _UUID, index),
        index=index,
        name=spec.model,
        pci_bus_id=f"00000000:{0x10 + 8 * index:02X}:00.0",
        minor=index,
        serial=f"165{mix_bits(seed, _SERIAL, index) % 10**10:010d}",
        vbios=f"96.00.{hex_digits(2, hash_text(spec.model)).upper()}.00.01",
        architecture=spec.architecture,
        compute_capability=spec.compute_capability,
        sm_count=spec.sm_count,
        unified_memory=spec.unified_memory,
    )
    return _build_hardware_of(gpu, spec, seed)


def _build_other_gpu(spec: GpuSpec, index: int, seed: int) -> Gpu:
    """A GPU that is not NVIDIA's, as the source `drm` names it: AMD's by their unique id."""
    address = f"0000:{0x10 + 8 * index:02x}:00.0"
    local = f"PCI-{address}-8086:e20b-{hex_digits(12, seed, _MACHINE)}"
    uuid = f"GPU-{hex_digits(16, seed, _UUID, index)}" if spec.vendor == AMD else local
    return Gpu(
        uuid=spec.uuid or uuid,
        index=index,
        name=spec.model,
        pci_bus_id=address,
        minor=index,
        serial=hex_digits(16, seed, _SERIAL, index) if spec.vendor == AMD else None,
        architecture=spec.architecture,
        sm_count=spec.sm_count,
        unified_memory=spec.unified_memory,
        vendor=spec.vendor,
        nodes=(f"card{index}", f"renderD{128 + index}"),
    )


def _build_hardware_of(gpu: Gpu, spec: GpuSpec, seed: int) -> Hardware:
    partitions = []
    for number, partition in enumerate(spec.partitions):
        last = number + 1 == len(spec.partitions)
        stop = FOREVER if last else spec.partitions[number + 1].at
        instances = tuple(
            (_instance(gpu, item, order, seed), item) for order, item in enumerate(partition.instances or ())
        )
        partitions.append(PartitionPeriod(partition.at, stop, partition.instances is not None, instances))
    return Hardware(gpu, spec, tuple(partitions))


def _instance(gpu: Gpu, spec: InstanceSpec, order: int, seed: int) -> Instance:
    identity = (seed, _INSTANCE, hash_text(gpu.uuid), spec.gi, spec.ci, hash_text(spec.profile))
    return Instance(
        uuid="MIG-" + make_uuid(*identity) if gpu.vendor == NVIDIA else f"{gpu.uuid}/{spec.gi}",
        parent=gpu,
        gi=spec.gi,
        ci=spec.ci,
        index=order,
        profile=spec.profile,
        sm_count=spec.sm_count,
    )
