"""How much of a Gpu an Instance is: by multiprocessors, else by the slices of its profile."""

from __future__ import annotations

from fractions import Fraction

from gpuledger.model.devices import Device, Gpu, Instance

# Compute slices of a Gpu that can be cut (NVIDIA MIG User Guide, supported profiles).
_SLICES = 7
_FEWER_SLICES = (("A30", 4), ("RTX PRO", 4))


def slices_of(gpu: Gpu) -> int:
    """Compute slices of the whole Gpu."""
    return next((slices for name, slices in _FEWER_SLICES if name in gpu.name), _SLICES)


def profile_slices(profile: str) -> int:
    """Compute slices of an Instance of this profile: 3 of `3g.40gb`, 1 of `1c.3g.40gb`."""
    for word in profile.split("."):
        if word[:-1].isdigit() and word.endswith(("g", "c")):
            return int(word[:-1])
    return 1


def share_of(device: Device) -> Fraction:
    """The Device's part of its Gpu: 1 for the Gpu itself."""
    if not isinstance(device, Instance):
        return Fraction(1)
    gpu = device.parent
    if device.sm_count and gpu.sm_count:
        return min(Fraction(device.sm_count, gpu.sm_count), Fraction(1))
    return min(Fraction(profile_slices(device.profile), slices_of(gpu)), Fraction(1))
