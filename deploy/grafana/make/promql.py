"""The PromQL that all dashboards share: filters by variable, one row per device, names for devices.

Rules that every query here keeps:

- A device is known by `uuid` and `mig_instance`, whoever scraped it. `once()` takes the highest of equals:
  two Prometheus replicas, or two targets that tell one GPU, count it once.
- What both a GPU and its MIG instances have (memory, activity) is summed over one of the two, never both.
- A zero is told only where devices are: `or_zero()` gives 0 when nothing matched and GPUs are scraped, and
  nothing when none is.
"""

from __future__ import annotations

DEVICE = ("uuid", "mig_instance")
OWNER = ("owner_kind", "namespace", "pod", "container", "user", "slurm_job")
WHOLE = 'mig_instance=""'
KWH = "3.6e6"

_NODE = 'cluster=~"$cluster", instance=~"$node"'


def of_node(family: str, *matchers: str) -> str:
    """The family on the chosen clusters and nodes."""
    return f"{family}{{{', '.join((_NODE, *matchers))}}}"


def of_gpu(family: str, *matchers: str) -> str:
    """The family on the chosen GPUs."""
    return of_node(family, 'uuid=~"$gpu"', *matchers)


def of_owner(family: str, *matchers: str) -> str:
    """The family of the chosen namespaces on the chosen GPUs."""
    return of_gpu(family, 'namespace=~"$namespace"', *matchers)


def once(expression: str, *labels: str) -> str:
    """One series for each set of `labels`, however often it was scraped."""
    return f"max by ({', '.join(labels)}) ({expression})"


def one_of(expression: str, keys: tuple[str, ...], *labels: str) -> str:
    """One series for each set of `keys`, with the other labels of one of those that have it.

    A join must find one: two targets that tell one thing can differ in its name for a moment.
    """
    return f"topk by ({', '.join(keys)}) (1, {once(expression, *keys, *labels)})"


def per_gpu(family: str, *matchers: str) -> str:
    """A family of whole GPUs, or the whole GPUs' rows of one that instances have too."""
    return once(of_gpu(family, *matchers), "uuid")


def per_device(family: str, *matchers: str) -> str:
    """A family of GPUs and MIG instances, each row once."""
    return once(of_gpu(family, *matchers), *DEVICE)


STATES = ("active", "held", "idle")


def in_state(name: str) -> str:
    """1 for devices in the state, else 0. Two targets can tell two for a moment: the busier counts."""
    matcher = f'state="{name}"'
    told = per_device("gpuledger_device_state", matcher)
    busier = STATES[: STATES.index(name)]
    if not busier:
        return told
    matcher = 'state=~"' + "|".join(busier) + '"'
    return f"{told} * (1 - {per_device('gpuledger_device_state', matcher)})"


def fullness(whole: str) -> tuple[str, str]:
    """Memory in use, and what can be used: what driver and firmware keep for themselves is in neither."""
    used = per_device("gpuledger_device_memory_used_bytes", whole)
    return used, f"({used} + {per_device('gpuledger_device_memory_free_bytes', whole)})"


def total(expression: str, *labels: str) -> str:
    """The sum, by `labels` if there are any."""
    return f"sum by ({', '.join(labels)}) ({expression})" if labels else f"sum({expression})"


def or_zero(expression: str) -> str:
    """The number, and 0 where there is none though GPUs are scraped: then 0 is the truth."""
    return f"({expression}) or 0 * count({of_gpu('gpuledger_device_up')})"


def with_node(expression: str) -> str:
    """`node` is the target's label of that name, else its address: replaced only where it is empty."""
    joined = f'label_join({expression}, "at", "|", "node", "instance")'
    return f'label_replace({joined}, "node", "$1", "at", "[|](.+)")'


def devices(*matchers: str) -> str:
    """Names of devices, one row each."""
    labels = ("cluster", "node", "instance", "gpu", "name", "profile")
    info = with_node(of_gpu("gpuledger_device_info", *matchers))
    return one_of(info, DEVICE, *labels)


def named(expression: str, *labels: str) -> str:
    """Rows that have `uuid` and `mig_instance` get `node`, `gpu` and what else of the device is asked for."""
    told = ", ".join(("node", "gpu", *labels))
    return f"({expression}) * on ({', '.join(DEVICE)}) group_left ({told}) {devices()}"


def named_gpu(expression: str, *labels: str) -> str:
    """Rows that have `uuid` alone get `node`, `gpu` and what else of the GPU is asked for."""
    told = ", ".join(("node", "gpu", *labels))
    return f"({expression}) * on (uuid) group_left ({told}) {devices(WHOLE)}"


def in_gpus(expression: str, window: str = "") -> str:
    """Rows of devices weighed by their part of the GPU: what a sum of them counts is GPUs."""
    ratio = of_gpu("gpuledger_device_sm_ratio")
    ratio = once(f"last_over_time({ratio}[{window}])" if window else ratio, *DEVICE)
    return f"({expression}) * on ({', '.join(DEVICE)}) group_left () {ratio}"


def rise(family: str, labels: tuple[str, ...], *matchers: str, window: str = "$__range") -> str:
    """How much an owner's counter rose in the window, each series once."""
    return once(f"increase({of_owner(family, *matchers)}[{window}])", *labels)


def blank(expression: str, label: str, text: str) -> str:
    """Where the label is empty it says `text`."""
    return f'label_replace({expression}, "{label}", "{text}", "{label}", "")'
