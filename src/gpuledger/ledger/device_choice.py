"""Which free Devices a user gets: the wish, what does not fit it and why, and the order of the rest. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import inf
from typing import Final

from gpuledger.model.availability import DEFAULT_WINDOW, DISPLAY, FREE, Availability, Candidate
from gpuledger.model.devices import AMD, NVIDIA, Device, Instance

ANY, ONLY, NEVER = "any", "only", "never"
MIG_CHOICES: Final = (ANY, ONLY, NEVER)


@dataclass(frozen=True)
class DeviceWish:
    """What a user requests: so many Devices, each with so many bytes of free memory.

    `model` is a pattern or a part of the GPU's name or of the MIG profile, in any case; empty for all. `mig`
    is one of MIG_CHOICES. `display`: also GPUs on which a display server draws. Nobody must have had them for
    `window` seconds.
    """

    count: int = 1
    memory: int = 0
    model: str = ""
    mig: str = ANY
    display: bool = False
    window: float = DEFAULT_WINDOW


class NotEnoughDevices(Exception):
    """Fewer Devices can be taken than requested; the message is a sentence with the reasons."""


def can_be_taken(availability: Availability, wish: DeviceWish) -> bool:
    """Whether nobody has the Device, or only a display server and the user accepts that."""
    return availability.state == FREE or (wish.display and availability.state == DISPLAY)


def misfit(candidate: Candidate, wish: DeviceWish) -> str:
    """Why a Device does not match the request, whether it is free or not; empty if it does."""
    device, availability = candidate
    is_instance = isinstance(device, Instance)
    if wish.mig == NEVER and is_instance:
        return "MIG instance"
    if wish.mig == ONLY and not is_instance:
        return "whole GPU"
    if wish.model and not _has_model(device, wish.model):
        return "another model"
    if wish.memory and availability.memory_free is None:
        return "its free memory is not known"
    if wish.memory and (availability.memory_free or 0) < wish.memory:
        return "too little free memory"
    return ""


def _reason_against(candidate: Candidate, wish: DeviceWish) -> str:
    """Why a Device is not taken, whether it is free or not; empty if nothing is against it."""
    if why := misfit(candidate, wish):
        return why
    return "" if visibility_variable(candidate.device) else "not selectable by UUID"


def visibility_variable(device: Device) -> str:
    """The environment variable that shows only this Device to a program; empty if none takes its UUID."""
    if device.gpu.vendor == NVIDIA:
        return "CUDA_VISIBLE_DEVICES"
    # ROCm takes the UUID of a GPU that has a unique_id, and not those of partitions.
    is_whole = not isinstance(device, Instance) and device.uuid.startswith("GPU-")
    return "ROCR_VISIBLE_DEVICES" if device.gpu.vendor == AMD and is_whole else ""


def _has_model(device: Device, model: str) -> bool:
    names = [device.gpu.name, device.profile if isinstance(device, Instance) else ""]
    pattern = model.lower()
    if not any(sign in pattern for sign in "*?["):
        pattern = f"*{pattern}*"
    return any(fnmatchcase(name.lower(), pattern) for name in names if name)


def choose_devices(candidates: Iterable[Candidate], wish: DeviceWish) -> list[Candidate]:
    """The Devices that the user gets: whole GPUs or, if one is requested, one MIG instance; never both.

    The smallest memory that suffices comes first, so that the large GPUs are left to others; then what nobody
    has had for the longest time. Raises NotEnoughDevices.
    """
    everything = list(candidates)
    fitting = [one for one in everything if not _reason_against(one, wish)]
    takeable = [one for one in fitting if can_be_taken(one.availability, wish)]
    whole = sorted([one for one in takeable if not isinstance(one.device, Instance)], key=_order)
    # A program uses the GPUs of one vendor.
    for vendor in dict.fromkeys(one.device.gpu.vendor for one in whole):
        same = [one for one in whole if one.device.gpu.vendor == vendor]
        if len(same) >= wish.count:
            return same[: wish.count]
    parts = [one for one in takeable if isinstance(one.device, Instance)]
    if wish.count == 1 and parts:
        return sorted(parts, key=_order)[:1]
    raise NotEnoughDevices(_explain(wish, everything, fitting, whole, parts))


def _order(candidate: Candidate) -> tuple[object, ...]:
    device, availability = candidate
    memory = inf if availability.memory_total is None else availability.memory_total
    position = device.index if isinstance(device, Instance) else -1
    draws = availability.state == DISPLAY
    return (draws, memory, -(availability.free_seconds or 0.0), device.gpu.index, position)


def _explain(
    wish: DeviceWish,
    everything: Sequence[Candidate],
    fitting: Sequence[Candidate],
    whole: Sequence[Candidate],
    parts: Sequence[Candidate],
) -> str:
    kind = "MIG instance" if wish.mig == ONLY else "GPU"
    requested = f"{wish.count} {kind}{'' if wish.count == 1 else 's'}"
    if parts and wish.count > 1:
        return (
            f"{len(whole)} of {requested} can be taken; a CUDA program uses one MIG instance at a time: "
            "take instances with --count 1, once for each program"
        )
    states: dict[str, int] = {}
    for one in fitting:
        if not can_be_taken(one.availability, wish):
            states[one.availability.state] = states.get(one.availability.state, 0) + 1
    for one in everything:
        if why := _reason_against(one, wish):
            states[why] = states.get(why, 0) + 1
    reasons = ", ".join(f"{number} {state.replace('_', ' ')}" for state, number in states.items())
    if not everything:
        reasons = "there is no GPU"
    return f"{len(whole) or 'none'} of {requested} can be taken" + (f": {reasons}" if reasons else "")
