"""Which free Devices a user gets, and the sentence if there are too few."""

from __future__ import annotations

import pytest

from builders import GIB, gpu, instance
from gpuledger.ledger.device_choice import (
    NEVER,
    ONLY,
    DeviceWish,
    NotEnoughDevices,
    choose_devices,
    visibility_variable,
)
from gpuledger.model.availability import (
    DISPLAY,
    DOWN,
    FREE,
    IN_USE,
    RECENTLY_USED,
    RESERVED,
    UNKNOWN,
    Availability,
    Candidate,
    with_reservation,
)
from gpuledger.model.devices import Device, Instance

A100 = gpu(0, name="NVIDIA A100-SXM4-40GB")
H100S = [gpu(index, name="NVIDIA H100 80GB HBM3") for index in (1, 2)]
SLICED = gpu(3, name="NVIDIA H100 80GB HBM3")
SLICES = [
    instance(SLICED, 1, index=0, profile="1g.10gb"),
    instance(SLICED, 5, index=1, profile="2g.20gb"),
]
AMD_GPU = gpu(9, name="AMD Instinct MI300X", vendor="amd")


def candidate(
    device: Device, state: str = FREE, memory: int | None = 80 * GIB, free_for: float = 100.0
) -> Candidate:
    seconds = free_for if state in (FREE, DISPLAY) else None
    return Candidate(device, Availability(state, "", seconds, memory, memory))


EVERYTHING = [
    candidate(A100, memory=40 * GIB),
    *(candidate(one) for one in H100S),
    candidate(SLICES[0], memory=10 * GIB),
    candidate(SLICES[1], memory=20 * GIB),
]


def chosen(wish: DeviceWish, candidates: list[Candidate] = EVERYTHING) -> list[str]:
    return [one.device.uuid for one in choose_devices(candidates, wish)]


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        # The smallest that suffices: large GPUs are left to others.
        (DeviceWish(), ["GPU-0"]),
        (DeviceWish(memory=50 * GIB), ["GPU-1"]),
        (DeviceWish(2), ["GPU-0", "GPU-1"]),
        (DeviceWish(2, memory=50 * GIB), ["GPU-1", "GPU-2"]),
        (DeviceWish(model="h100"), ["GPU-1"]),
        (DeviceWish(model="*A100*40GB"), ["GPU-0"]),
        (DeviceWish(mig=ONLY), ["MIG-3-1-0"]),
        (DeviceWish(mig=ONLY, memory=15 * GIB), ["MIG-3-5-0"]),
        (DeviceWish(model="2g.20gb"), ["MIG-3-5-0"]),
    ],
)
def test_what_a_wish_gets(wish: DeviceWish, expected: list[str]) -> None:
    assert chosen(wish) == expected


def test_what_nobody_has_had_for_the_longest_time_comes_first() -> None:
    known = [candidate(H100S[0], free_for=10), candidate(H100S[1], free_for=500)]
    assert chosen(DeviceWish(), known) == ["GPU-2"]


def test_an_instance_is_taken_only_if_no_whole_gpu_is_free() -> None:
    known = [candidate(A100, IN_USE), candidate(SLICES[0])]
    assert chosen(DeviceWish(), known) == ["MIG-3-1-0"]
    with pytest.raises(NotEnoughDevices, match=r"^none of 1 GPU can be taken: 1 in use, 1 MIG instance$"):
        chosen(DeviceWish(mig=NEVER), known)


def test_several_instances_are_never_given_to_one_program() -> None:
    with pytest.raises(NotEnoughDevices, match="a CUDA program uses one MIG instance at a time"):
        chosen(DeviceWish(2, mig=ONLY))


@pytest.mark.parametrize(
    ("wish", "candidates", "message"),
    [
        (DeviceWish(), [], "none of 1 GPU can be taken: there is no GPU"),
        (
            DeviceWish(4, model="h100"),
            EVERYTHING[:3],
            "2 of 4 GPUs can be taken: 1 another model",
        ),
        (
            DeviceWish(memory=90 * GIB),
            EVERYTHING,
            "none of 1 GPU can be taken: 5 too little free memory",
        ),
        (
            DeviceWish(memory=GIB),
            [candidate(A100, memory=None), candidate(H100S[0], DOWN)],
            "none of 1 GPU can be taken: 1 down, 1 its free memory is not known",
        ),
        (
            DeviceWish(),
            [candidate(gpu(8, vendor="intel"))],
            "none of 1 GPU can be taken: 1 not selectable by UUID",
        ),
    ],
)
def test_too_few_is_a_sentence(wish: DeviceWish, candidates: list[Candidate], message: str) -> None:
    with pytest.raises(NotEnoughDevices) as caught:
        chosen(wish, candidates)
    assert str(caught.value) == message


def test_a_gpu_with_a_display_is_taken_last_and_only_if_the_user_accepts_it() -> None:
    known = [candidate(A100, DISPLAY), candidate(H100S[0])]
    assert chosen(DeviceWish(display=True), known) == ["GPU-1"]
    assert chosen(DeviceWish(2, display=True), known) == ["GPU-1", "GPU-0"]
    with pytest.raises(NotEnoughDevices, match="1 of 2 GPUs can be taken: 1 display"):
        chosen(DeviceWish(2), known)


def test_a_program_gets_gpus_of_one_vendor() -> None:
    known = [candidate(AMD_GPU), *(candidate(one) for one in H100S)]
    assert set(chosen(DeviceWish(2), known)) == {"GPU-1", "GPU-2"}


def test_the_variable_that_selects_a_device() -> None:
    assert visibility_variable(A100) == "CUDA_VISIBLE_DEVICES"
    assert visibility_variable(SLICES[0]) == "CUDA_VISIBLE_DEVICES"
    assert visibility_variable(AMD_GPU) == "ROCR_VISIBLE_DEVICES"
    # ROCm selects partitions by number only.
    assert visibility_variable(Instance("GPU-9/1", AMD_GPU, 1, 0, 1)) == ""


@pytest.mark.parametrize(
    ("state", "free_for", "shown"),
    [
        (FREE, 100.0, RESERVED),
        (DISPLAY, 100.0, RESERVED),
        (RECENTLY_USED, 5.0, RESERVED),
        (IN_USE, None, IN_USE),
        (UNKNOWN, None, UNKNOWN),
    ],
)
def test_a_reservation_does_not_hide_who_has_the_device_already(
    state: str, free_for: float | None, shown: str
) -> None:
    before = Availability(state, "why", free_for)
    found = with_reservation(before, 1000, "ann", 5.0, "a user has reserved it")
    assert (found.state, found.reserved_by, found.reserved_until) == (shown, "ann", 5.0)
