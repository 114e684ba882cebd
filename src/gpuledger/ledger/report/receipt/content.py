"""The content of a receipt: the JSON document from which all its forms are made, wherever it was read.

Times are unix seconds. Absent values are None: zero is a value. Money is text with ten decimals, as in
all files of reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, Final, TypedDict

# It changes with the meaning of a field.
RECEIPT_VERSION: Final = 1
# How sure the saving of an advice is.
EXACT, ABOUT, AT_MOST = "exact", "about", "at_most"


class Amounts(TypedDict):
    """The amounts of a row of `gpuledger report`, for the same range and prices.

    Those of the GPUs add up to the total, but `high_millijoules` and the seconds of instances of one GPU.
    Seconds are of whole GPUs: an instance counts by its part of the GPU.
    """

    gpu_microseconds: int | None
    estimated_microseconds: int
    millijoules: int | None
    measured_millijoules: int | None
    high_millijoules: int | None
    time_cost: str | None
    energy_cost: str | None
    cost: str | None
    unpriced_microseconds: int | None
    unpriced_millijoules: int | None
    co2_grams: float | None
    allocated_seconds: float | None
    resident_seconds: float | None
    active_seconds: float | None
    held_seconds: float | None
    unknown_seconds: float | None
    sessions: int | None


class DeviceBars(TypedDict):
    """By bar: the seconds in which the owner had the device, an engine was busy, and that is not known.

    `utilization` is the mean SM utilization (a ratio) of its processes; None where it is not known.
    """

    present: list[int]
    active: list[int]
    unknown: list[int]
    utilization: list[float | None]


class DeviceUsage(TypedDict):
    """What the owners did on one device.

    `sm_seconds` are the seconds times the SM utilization (a ratio) of the `sm_known_seconds`. `throttled` has
    seconds by reason, of those in `throttle_known_seconds`.
    """

    memory_bytes: int | None
    memory_peak_bytes: int | None
    memory_mean_bytes: float | None
    sm_seconds: float
    sm_known_seconds: float
    sm_mean: float | None
    sm_peak: float | None
    throttled: dict[str, float]
    throttle_known_seconds: float
    pcie_rx_bytes: int | None
    pcie_tx_bytes: int | None
    nvlink_rx_bytes: int | None
    nvlink_tx_bytes: int | None


class ReceiptGpu(Amounts, DeviceUsage):
    """One GPU or MIG instance; `uuid` is that of the device. `sm_share` is its part of the GPU.

    `first_active` and `last_active` are the first and last second in which an engine was busy for the owner.
    `wait_seconds` are those between having the device and the first of these, summed over the owner's
    jobs there, in seconds of the device, as are `tail_seconds` after the last one and `gap_seconds`, the idle
    ones between. None if some second around them is not known.

    `begun_before`: it was there already when the range, or the ledger, begins. `unwatched_seconds` are those
    between `begins` and `ends` in which nobody looked. `usage_complete` is False if memory and utilization
    are not known of the first part of the time.
    """

    node: str
    uuid: str
    gpu_uuid: str
    index: str
    model: str
    instance: str
    profile: str
    sm_share: float
    begins: float | None
    ends: float | None
    first_active: float | None
    last_active: float | None
    wait_seconds: int | None
    gap_seconds: int | None
    tail_seconds: int | None
    present_seconds: int
    begun_before: bool
    unwatched_seconds: float
    usage_complete: bool
    bars: DeviceBars


class ReceiptWho(TypedDict):
    """What the receipt is about; `explain` is the argument of `gpuledger explain` with the same row."""

    kind: str
    key: list[str]
    name: str
    explain: str


class ReceiptProcess(TypedDict):
    """A process, from its first to its last sight."""

    node: str
    pid: int
    command: str
    device: str
    gpu: str
    instance: str
    begins: float
    ends: float
    running: bool


class ReceiptOwner(Amounts):
    """One of several owners of a receipt, such as the jobs of a user; `explain` names its own receipt."""

    name: str
    explain: str
    gpus: int


class ReceiptHost(TypedDict):
    """CPU and memory of a job on one node, of its cgroup; `seconds` is the time over which it was read.

    `memory_limit_bytes` is the lowest limit that it has, `is_limited` False if that is only the size of the
    machine.
    """

    node: str
    job: str
    seconds: float | None
    cpu_seconds: float | None
    cores: float | None
    memory_peak_bytes: int | None
    memory_limit_bytes: int | None
    is_limited: bool


class BarScale(TypedDict):
    """The time of the bars: `count` of them from `begins`, each of `step_seconds`."""

    begins: int
    step_seconds: int
    count: int


class Saving(TypedDict):
    """GPU time that need not have been billed, and its cost (without energy); None without a price.

    `kind` is `exact`, `about` (it rests on an estimate), or `at_most`. Savings of several pieces of advice
    can overlap.
    """

    gpu_microseconds: int
    cost: str | None
    kind: str


class ReceiptAdvice(TypedDict):
    """What would cost less, and why: `evidence` are sentences with the numbers of `values`.

    `gpus` are labels of the GPUs that it is about.
    """

    rule: str
    text: str
    evidence: list[str]
    gpus: list[str]
    values: dict[str, Any]
    saving: Saving | None


class ReceiptJson(TypedDict):
    """A receipt. `begins` and `ends` are the first and last sight in the range `since` to `until`.

    `owner` has the fields of the owner, None if there are several; then `owners` lists them.
    """

    version: int
    program: str
    nodes: list[str]
    simulated: bool
    made: float
    who: ReceiptWho
    owner: dict[str, str] | None
    since: float
    until: float
    ledger_until: float
    begins: float | None
    ends: float | None
    running: bool
    zone: str
    basis: str
    currency: str
    price_list: str | None
    total: Amounts
    gpus: list[ReceiptGpu]
    processes: list[ReceiptProcess]
    processes_omitted: int
    owners: list[ReceiptOwner]
    owners_omitted: int
    hosts: list[ReceiptHost]
    bars: BarScale | None
    advice: list[ReceiptAdvice]
    notes: list[str]


def gpu_label(gpu: ReceiptGpu, nodes: Iterable[str] = ()) -> str:
    """The short name of a device: `1`, `1/2_0` for an instance, `n2:1` on one of several nodes."""
    name = gpu["index"] or gpu["gpu_uuid"]
    if gpu["instance"]:
        name += f"/{gpu['instance']}"
    return f"{gpu['node']}:{name}" if len(set(nodes)) > 1 else name


def money(text: str | None) -> Fraction | None:
    """The amount of a text of money."""
    return None if text is None else Fraction(text)


def billed_part(gpu: Amounts, part: Fraction) -> tuple[int, Fraction | None]:
    """This part of the billed microseconds of a row, and of their cost."""
    whole, cost = gpu["gpu_microseconds"] or 0, money(gpu["time_cost"])
    return round(whole * part), None if cost is None else cost * part


def is_cut_off(receipt: ReceiptJson, ends: float | None) -> bool:
    """Whether the range ends while it is there, and the ledger goes on: it may have gone on, too."""
    return receipt["until"] < receipt["ledger_until"] and ends is not None and ends >= receipt["until"]


def owner_text(owner: Mapping[str, str]) -> str:
    """The most specific names of an owner, for people: `ml/train-0`, `job 4711 train of dan`, `dan`."""
    if owner["kind"] == "pod":
        return "/".join(filter(None, (owner["namespace"], owner["pod"])))
    if owner["job"]:
        named = f"job {owner['job']}" + (f" {owner['job_name']}" if owner["job_name"] else "")
        return f"{named} of {owner['user']}" if owner["user"] else named
    return owner["container"] or owner["unit"] or owner["user"] or "unknown owner"
