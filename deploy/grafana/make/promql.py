"""PromQL that all dashboards share: filters by variable, one row per device, names of devices.

Rules of all queries:

- `uuid` and `mig_instance` identify a device. `deduplicated()` takes the maximum of equal series, so two
  Prometheus replicas, or two targets that export the same GPU, count once.
- Counters in a window are recorded counters: without target labels, they go on when a pod is replaced.
- Quantities of both a GPU and its MIG instances (memory, activity) are summed over one of them, never both.
- A query returns 0 only if there are devices: `or_zero()` returns 0 if nothing matches and GPUs are scraped,
  and nothing if no GPU is scraped. `or_recorded_zero()` also returns nothing without recording rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

DEVICE = ("uuid", "mig_instance")
OWNER = ("owner_kind", "namespace", "pod", "container", "user", "slurm_job")
WHOLE = 'mig_instance=""'
KWH = "3.6e6"

_NODE = 'cluster=~"$cluster", instance=~"$node"'
_GPU = 'uuid=~"$gpu"'


def of_node(family: str, *matchers: str) -> str:
    """Selects a family on the chosen clusters and nodes."""
    return f"{family}{{{', '.join((_NODE, *matchers))}}}"


def of_gpu(family: str, *matchers: str) -> str:
    """Selects a family on the chosen GPUs."""
    return of_node(family, _GPU, *matchers)


def of_owner(family: str, *matchers: str) -> str:
    """Selects a family of the chosen namespaces on the chosen GPUs."""
    return of_gpu(family, 'namespace=~"$namespace"', *matchers)


def deduplicated(expression: str, *labels: str) -> str:
    """Returns one series per set of `labels`, even if it is scraped several times."""
    return f"max by ({', '.join(labels)}) ({expression})"


def one_series_per(expression: str, keys: tuple[str, ...], *labels: str) -> str:
    """Returns one series per set of `keys`, with the other labels of any series that has it.

    Joins need exactly one: two targets with the same object can briefly differ in its name.
    """
    return f"topk by ({', '.join(keys)}) (1, {deduplicated(expression, *keys, *labels)})"


def per_gpu(family: str, *matchers: str) -> str:
    """Selects a family of GPUs, or with matchers the GPU rows of a family that MIG instances also have."""
    return deduplicated(of_gpu(family, *matchers), "uuid")


def per_device(family: str, *matchers: str) -> str:
    """Selects a family of GPUs and MIG instances, each row once."""
    return deduplicated(of_gpu(family, *matchers), *DEVICE)


STATES = ("active", "held", "idle")


def in_state(name: str) -> str:
    """Returns 1 for devices in the state, else 0; if two targets differ briefly, the busier state counts."""
    matcher = f'state="{name}"'
    in_this_state = per_device("gpuledger_device_state", matcher)
    busier = STATES[: STATES.index(name)]
    if not busier:
        return in_this_state
    matcher = 'state=~"' + "|".join(busier) + '"'
    return f"{in_this_state} * (1 - {per_device('gpuledger_device_state', matcher)})"


def fullness(whole: str) -> tuple[str, str]:
    """Returns used and usable memory, both without memory reserved by driver and firmware."""
    used = per_device("gpuledger_device_memory_used_bytes", whole)
    return used, f"({used} + {per_device('gpuledger_device_memory_free_bytes', whole)})"


def total(expression: str, *labels: str) -> str:
    """Sums by `labels`, or over everything without labels."""
    return f"sum by ({', '.join(labels)}) ({expression})" if labels else f"sum({expression})"


def total_by_value(label: str, values: Iterable[str], rows: Callable[[str], str]) -> str:
    """Sums `rows` of one value of the label after the other; they are a function of its matcher.

    As `total()` of all rows by the label, but Prometheus never has the rows of two values in memory.
    """
    return " or ".join(total(rows(f'{label}="{value}"'), label) for value in values)


def or_zero(expression: str) -> str:
    """Returns the expression, or 0 if it is empty although GPUs are scraped."""
    return f"({expression}) or 0 * count({of_gpu('gpuledger_device_up')})"


def or_recorded_zero(expression: str) -> str:
    """Returns the expression of recorded counters, or 0 if it is empty although GPUs are recorded.

    Without recording rules there is no result, because the amounts are not known.
    """
    recorded = exported_in(f"last_over_time({of_recorded('gpu_watched_seconds')}[$__range])", "$__range")
    return f"({expression}) or 0 * count({recorded})"


def with_node(expression: str) -> str:
    """Sets an empty `node` label to the address of the target."""
    joined = f'label_join({expression}, "at", "|", "node", "instance")'
    return f'label_replace({joined}, "node", "$1", "at", "[|](.+)")'


def devices(*matchers: str) -> str:
    """Returns the names of devices, one row per device."""
    labels = ("cluster", "node", "instance", "gpu", "name", "profile")
    info = with_node(of_gpu("gpuledger_device_info", *matchers))
    return one_series_per(info, DEVICE, *labels)


def named(expression: str, *labels: str) -> str:
    """Adds `node`, `gpu` and further `labels` of the device to rows with `uuid` and `mig_instance`."""
    joined_labels = ", ".join(("node", "gpu", *labels))
    return f"({expression}) * on ({', '.join(DEVICE)}) group_left ({joined_labels}) {devices()}"


def named_gpu(expression: str, *labels: str) -> str:
    """Adds `node`, `gpu` and further `labels` of the GPU to rows with only `uuid`."""
    joined_labels = ", ".join(("node", "gpu", *labels))
    return f"({expression}) * on (uuid) group_left ({joined_labels}) {devices(WHOLE)}"


def in_gpus(expression: str, window: str = "") -> str:
    """Multiplies rows of devices by their fraction of the GPU, so that their sum counts GPUs."""
    ratio = of_gpu("gpuledger_device_sm_ratio")
    ratio = deduplicated(f"last_over_time({ratio}[{window}])" if window else ratio, *DEVICE)
    return f"({expression}) * on ({', '.join(DEVICE)}) group_left () {ratio}"


OF_NAMESPACE = 'namespace=~"$namespace"'


def rise(record: str, labels: tuple[str, ...], *matchers: str, window: str = "$__range") -> str:
    """Returns the increase of a recorded counter of the chosen GPUs in the window, each series once.

    Recorded counters have no target labels, so that they go on when these change.
    """
    counter = f"increase({of_recorded(record, *matchers)}[{window}])"
    return exported_in(deduplicated(counter, *labels), window)


def growth(record: str, labels: tuple[str, ...], *matchers: str, window: str = "$__range") -> str:
    """Returns the same of a counter that never falls and is not 0 at first.

    increase() of VictoriaMetrics can count a new series from 0.
    """
    counter = f"{of_recorded(record, *matchers)}[{window}]"
    grown = f"last_over_time({counter}) - min_over_time({counter})"
    return exported_in(deduplicated(grown, *labels), window)


def moving(record: str, family: str, labels: tuple[str, ...], *matchers: str) -> str:
    """Returns the rise per second of a counter that a restart of gpuledger does not reset, each series once.

    The recorded counter goes on when target labels change. The exported one is used without recording rules,
    and in windows that are too short for two recorded values.
    """
    window = "[$__rate_interval]"
    recorded = exported_in(f"rate({of_recorded(record, *matchers)}{window})", "$__rate_interval")
    exported = deduplicated(f"rate({of_gpu(family, *matchers)}{window})", *labels)
    return f"({deduplicated(recorded, *labels)} or {exported})"


def of_recorded(record: str, *matchers: str) -> str:
    """Selects a recorded series, which has no target labels, of the chosen GPUs."""
    return f"gpuledger:{record}:max{{{', '.join((_GPU, *matchers))}}}"


def exported_in(expression: str, window: str) -> str:
    """Limits rows with `uuid` to GPUs that the chosen nodes exported in the window."""
    exported = f"last_over_time({of_gpu('gpuledger_device_up', WHOLE)}[{window}])"
    return f"({expression} and on (uuid) {exported})"


TIME_ACCOUNT = (*DEVICE, "account", *OWNER)


def gpu_seconds(*matchers: str) -> str:
    """Returns seconds of whole GPUs by account of GPU time in the time range: they add up."""
    return rise("gpu_seconds", TIME_ACCOUNT, *matchers)


def owned_seconds() -> str:
    """Returns those of owners of the chosen namespaces."""
    return gpu_seconds('account="owner"', OF_NAMESPACE)


def held_seconds(window: str = "$__range") -> str:
    """Returns seconds in which owners had a device while no engine was busy for them."""
    return rise("owner_held_seconds", (*DEVICE, *OWNER), OF_NAMESPACE, window=window)


def price_of_time() -> str:
    """Returns the price of an hour of the whole GPU by device: as exported, else as in the text box."""
    exported = deduplicated(f"last_over_time({of_recorded('gpu_price')}[$__range])", *DEVICE)
    known = deduplicated(f"last_over_time({of_gpu('gpuledger_device_info')}[$__range])", *DEVICE)
    return f"({exported} or 0 * {known} + $price_gpu_hour)"


def time_cost(seconds: str, *labels: str) -> str:
    """Returns the cost of seconds by account, at the newest prices of the time range."""
    return total(f"{seconds} / 3600 * on ({', '.join(DEVICE)}) group_left () {price_of_time()}", *labels)


def blank(expression: str, label: str, text: str) -> str:
    """Sets the label to `text` where it is empty."""
    return f'label_replace({expression}, "{label}", "{text}", "{label}", "")'
