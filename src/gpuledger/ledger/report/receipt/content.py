"""The content of a receipt: the JSON document from which all its forms are made, wherever it was read.

Times are unix seconds. Absent values are None: zero is a value. Money is text with ten decimals, as in
all files of reports. The API's JSON Schema is made of these types: a text beside a type describes it there, a
pair limits it, and the first paragraph of a class describes the object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Annotated, Any, Final, TypedDict

from gpuledger.ledger.report.receipt.settings import RULE_NAMES
from gpuledger.model.session import BASES

# It changes with the meaning of a field.
RECEIPT_VERSION: Final = 1
# How sure the saving of an advice is.
EXACT, ABOUT, AT_MOST = "exact", "about", "at_most"

Unix = Annotated[float, "Unix seconds."]
Ratio = Annotated[float, ("maximum", 1)]
Money = Annotated[str, "Money with ten decimals, or 0.", ("pattern", r"^(0|-?[0-9]+\.[0-9]{10})$")]


class Amounts(TypedDict):
    """The row of a report for the same range.

    Those of the GPUs add up to the total, but `high_millijoules` and the seconds of instances of one GPU.
    Seconds are of whole GPUs: an instance counts by its part of the GPU.
    """

    gpu_microseconds: Annotated[int | None, "Billed time, of whole GPUs."]
    estimated_microseconds: Annotated[int, "Billed time of which the part of the GPU is unknown."]
    millijoules: Annotated[int | None, "Energy; null if it was not measured."]
    measured_millijoules: Annotated[int | None, "Lower bound, without a model."]
    high_millijoules: Annotated[int | None, "Upper bound. Those of instances of one GPU overlap."]
    time_cost: Money | None
    energy_cost: Money | None
    cost: Money | None
    unpriced_microseconds: int | None
    unpriced_millijoules: int | None
    co2_grams: float | None
    allocated_seconds: float | None
    resident_seconds: Annotated[float | None, "With a process."]
    active_seconds: Annotated[float | None, "An engine was busy."]
    held_seconds: Annotated[float | None, "Had it, and no engine was busy."]
    unknown_seconds: Annotated[float | None, "Had it, and activity is not known."]
    sessions: int | None


class DeviceBars(TypedDict):
    """Seconds by bar, and the mean SM utilization.

    The seconds in which the owner had the device, an engine was busy, and that is not known. `utilization`
    is of its processes; None where it is not known.
    """

    present: list[int]
    active: list[int]
    unknown: list[int]
    utilization: list[Ratio | None]


class DeviceUsage(TypedDict):
    """What the owners did on one device."""

    memory_bytes: Annotated[int | None, "Memory of the device."]
    memory_peak_bytes: Annotated[int | None, "Most memory of its processes together."]
    memory_mean_bytes: float | None
    sm_seconds: Annotated[float, "SM utilization (a ratio) times seconds, of the known seconds."]
    sm_known_seconds: float
    sm_mean: Ratio | None
    sm_peak: Ratio | None
    throttled: Annotated[dict[str, float], "Seconds with reduced clocks by reason."]
    throttle_known_seconds: float
    pcie_rx_bytes: int | None
    pcie_tx_bytes: int | None
    nvlink_rx_bytes: int | None
    nvlink_tx_bytes: int | None


class ReceiptGpu(Amounts, DeviceUsage):
    """A GPU or MIG instance. Seconds above are of whole GPUs, those below of the device.

    `first_active` and `last_active` are the first and last second in which an engine was busy for the owner.
    `wait_seconds`, `tail_seconds` and `gap_seconds` are summed over the owner's jobs there.
    """

    node: str
    uuid: Annotated[str, "UUID of the device: of an instance its own."]
    gpu_uuid: str
    index: str
    model: str
    instance: str
    profile: str
    sm_share: Annotated[Ratio, "Part of the GPU."]
    begins: Unix | None
    ends: Unix | None
    first_active: Unix | None
    last_active: Unix | None
    wait_seconds: Annotated[int | None, "Before the first use. Null if some second before it is not known."]
    gap_seconds: Annotated[int | None, "Known to be idle, between the first and the last use."]
    tail_seconds: Annotated[int | None, "After the last use. Null if some second after it is not known."]
    present_seconds: Annotated[int, "Had the device: allocated, or with a process."]
    begun_before: Annotated[bool, "Was there already when the range, or the ledger, begins."]
    unwatched_seconds: Annotated[float, "Between `begins` and `ends`, in which nobody looked."]
    usage_complete: Annotated[bool, "False if memory and utilization are not known of the first part."]
    bars: DeviceBars


class ReceiptWho(TypedDict):
    """What the receipt is about."""

    kind: str
    key: list[str]
    name: str
    explain: Annotated[str, "KIND:NAME, for `gpuledger explain` and `of`."]


class ReceiptProcess(TypedDict):
    """A process from its first to its last sight."""

    node: str
    pid: int
    command: str
    device: str
    gpu: str
    instance: str
    begins: Unix
    ends: Unix
    running: bool


class ReceiptOwner(Amounts):
    """One of several owners.

    Such as the jobs of a user; `explain` names its own receipt.
    """

    name: str
    explain: str
    gpus: int


class ReceiptHost(TypedDict):
    """CPU and memory of the owner's cgroup on a node.

    `seconds` is the time over which it was read, `memory_limit_bytes` the lowest limit that it has.
    """

    node: str
    job: str
    seconds: float | None
    cpu_seconds: float | None
    cores: float | None
    memory_peak_bytes: int | None
    memory_limit_bytes: int | None
    is_limited: Annotated[bool, "False if the limit is only the size of the machine."]


class BarScale(TypedDict):
    """The time of the bars."""

    begins: int
    step_seconds: int
    count: int


class Saving(TypedDict):
    """GPU time that need not have been billed, and its cost without energy.

    `kind` is `exact`, `about` (it rests on an estimate), or `at_most`. Savings of several pieces of advice
    can overlap.
    """

    gpu_microseconds: int
    cost: Money | None
    kind: Annotated[str, ("enum", (EXACT, ABOUT, AT_MOST))]


class ReceiptAdvice(TypedDict):
    """What would have cost less. `evidence` are sentences with the numbers of `values`.

    `gpus` are labels of the GPUs that it is about.
    """

    rule: Annotated[str, ("enum", RULE_NAMES)]
    text: str
    evidence: list[str]
    gpus: list[str]
    values: dict[str, Any]
    saving: Saving | None


class ReceiptJson(TypedDict):
    """What one owner used, GPU by GPU, with advice. `version` changes with the meaning of a field.

    `owner` has the fields of the owner; if there are several, `owners` lists them.
    """

    version: Annotated[int, ("const", RECEIPT_VERSION)]
    program: str
    nodes: list[str]
    simulated: bool
    made: Unix
    who: ReceiptWho
    owner: Annotated[dict[str, str] | None, "Names and facts; null for several owners."]
    since: Unix
    until: Unix
    ledger_until: Annotated[Unix, "Until when the ledger has data."]
    begins: Annotated[Unix | None, "First sight in the range."]
    ends: Annotated[Unix | None, "Last sight in the range."]
    running: bool
    zone: Annotated[str, "Time zone of the node."]
    basis: Annotated[str, ("enum", BASES)]
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
