"""PromQL that all dashboards share: filters by variable, one row per device, names of devices.

Rules of all queries:

- `uuid` and `mig_instance` identify a device. `deduplicated()` takes the maximum of equal series, so two
Prometheus replicas, or two targets that export the same GPU, count once. - Quantities of both a GPU and its
MIG instances (memory, activity) are summed over one of them, never both. - A query returns 0 only if there
are devices: `or_zero()` returns 0 if nothing matches and GPUs are scraped, and nothing if no GPU is scraped.
"""

from __future__ import annotations

DEVICE = ("uuid", "mig_instance")
OWNER = ("owner_kind", "namespace", "pod", "container", "user", "slurm_job")
WHOLE = 'mig_instance=""'
KWH = "3.6e6"

_NODE = 'cluster=~"$cluster", instance=~"$node"'


def of_node(family: str, *matchers: str) -> str:
    """Selects a family on the chosen clusters and nodes."""
    return f"{family}{{{', '.join((_NODE, *matchers))}}}"


def of_gpu(family: str, *matchers: str) -> str:
    """Selects a family on the chosen GPUs."""
    return of_node(family, 'uuid=~"$gpu"', *matchers)


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


def or_zero(expression: str) -> str:
    """Returns the expression, or 0 if it is empty although GPUs are scraped."""
    return f"({expression}) or 0 * count({of_gpu('gpuledger_device_up')})"


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


def rise(family: str, labels: tuple[str, ...], *matchers: str, window: str = "$__range") -> str:
    """Returns the increase of an owner's counter in the window, each series once."""
    return deduplicated(f"increase({of_owner(family, *matchers)}[{window}])", *labels)


def blank(expression: str, label: str, text: str) -> str:
    """Sets the label to `text` where it is empty."""
    return f'label_replace({expression}, "{label}", "{text}", "{label}", "")'
