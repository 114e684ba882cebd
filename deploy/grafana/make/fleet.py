"""The fleet: every node at a glance, what is free, what it draws, and whether its exporter is well."""

from __future__ import annotations

from dashboard import dashboard
from panels import (
    BLUE,
    GOOD_IS_ZERO,
    GREEN,
    GREY,
    HANDED_ON,
    ORANGE,
    RED,
    YELLOW,
    Column,
    Json,
    Panel,
    Query,
    bars,
    series,
    stat,
    table,
)
from promql import (
    DEVICE,
    KWH,
    WHOLE,
    devices,
    fullness,
    in_gpus,
    in_state,
    named_gpu,
    of_gpu,
    of_node,
    once,
    one_of,
    or_zero,
    per_device,
    per_gpu,
    total,
    with_node,
)
from usage import NOTHING, state

STATE_COLORS = {"active": GREEN, "held": ORANGE, "idle": BLUE, "unknown": GREY}
_NODE = ("cluster", "node", "instance")
OK = {1.0: ("ok", GREEN), 0.0: ("fails", RED)}


def by_node(expression: str, *on: str) -> str:
    """Sum by node of rows with `uuid` (or with `on`)."""
    keys = on or ("uuid",)
    info = devices() if on else devices(WHOLE)
    joined = f"({expression}) * on ({', '.join(keys)}) group_left ({', '.join(_NODE)}) {info}"
    return total(joined, *_NODE)


def of_exporter(family: str, *labels: str, matchers: tuple[str, ...] = ()) -> str:
    """A family of the exporter itself, by node."""
    return once(with_node(of_node(family, *matchers)), *_NODE, *labels)


def node_state(name: str) -> str:
    """GPUs of each node in a state."""
    return by_node(in_gpus(in_state(name)), *DEVICE)


def build() -> Json:
    """The dashboard."""
    rows = [
        ("The fleet now", _now()),
        ("By node", [_nodes(), *_use()]),
        ("What is free, by model", [_models(), *_hours()]),
        ("Is gpuledger well?", [*_wellness(), _exporters(), _parts(), _maps()]),
    ]
    text = (
        "Every node with GPUs: what is used and free, power, lost GPUs, exporters. Made by `make dashboards`."
    )
    return dashboard("gpuledger-fleet", "gpuledger / Fleet", text, rows)


def _now() -> list[Panel]:
    up = per_gpu("gpuledger_device_up", WHOLE)
    ours = f"last_over_time({of_node('gpuledger_build_info')}[1d])"
    down = f"count(max by (instance) ({of_node('up')} == 0 and on (job, instance) {ours}))"
    return [
        stat(
            "Nodes",
            "Nodes whose gpuledger is scraped.",
            _count_nodes(),
            empty="No node is scraped",
            size=(3, 4),
        ),
        stat(
            "Targets down",
            "Targets that told gpuledger's numbers in the last day and do not answer now.",
            or_zero(down),
            steps=GOOD_IS_ZERO,
            empty=NOTHING,
            size=(3, 4),
        ),
        stat("GPUs", "GPUs that are scraped.", f"count({up})", empty=NOTHING, size=(3, 4)),
        stat(
            "GPUs lost",
            "GPUs that do not answer.",
            or_zero(f"count({up} == 0)"),
            steps=GOOD_IS_ZERO,
            empty=NOTHING,
            size=(3, 4),
        ),
        stat(
            "Active",
            "GPUs at work; MIG instances by their part.",
            state("active"),
            decimals=1,
            steps=((None, GREEN),),
            empty=NOTHING,
            size=(3, 4),
        ),
        stat(
            "Held idle",
            "GPUs that somebody has and does not use.",
            state("held"),
            decimals=1,
            steps=((None, GREEN), (0.1, ORANGE)),
            empty=NOTHING,
            size=(3, 4),
        ),
        stat("Free", "GPUs that nobody has.", state("idle"), decimals=1, empty=NOTHING, size=(3, 4)),
        stat(
            "Power",
            "Of all GPUs' boards; not of their hosts.",
            total(per_gpu("gpuledger_device_power_watts")),
            unit="watt",
            decimals=1,
            empty=NOTHING,
            size=(3, 4),
        ),
    ]


def _count_nodes() -> str:
    return f"count({once(of_node('gpuledger_build_info'), 'instance')})"


def _nodes() -> Panel:
    energy = once(f"increase({of_gpu('gpuledger_device_energy_joules_total')}[$__range])", "uuid")
    used, usable = (by_node(told, *DEVICE) for told in fullness(WHOLE))
    up = per_gpu("gpuledger_device_up", WHOLE)
    columns = [
        Column("GPUs", by_node(f"{up} * 0 + 1"), decimals=0),
        Column("Lost", by_node(f"{up} == bool 0"), decimals=0, steps=GOOD_IS_ZERO),
        Column("Active", node_state("active"), decimals=1),
        Column("Held idle", node_state("held"), decimals=1, steps=((None, GREEN), (0.1, ORANGE))),
        Column("Free", node_state("idle"), decimals=1),
        Column("Sessions", by_node(per_device("gpuledger_sessions_open"), *DEVICE), decimals=0),
        Column("Memory", f"{used} / {usable}", "percentunit", 0),
        Column("Power", by_node(per_gpu("gpuledger_device_power_watts")), "watt", 0),
        Column("Energy", f"{by_node(energy)} / {KWH}", "kwatth", 2),
    ]
    return table(
        "Every node",
        "One row per node. Active, held idle and free are GPUs, MIG instances by their part. Energy is "
        "of the time "
        "range. The node's name leads to who is on it.",
        {"cluster": "Cluster", "node": "Node", "instance": "Address"},
        columns,
        empty="No node is scraped",
        sort="Held idle",
        links={
            "Node": (
                "Who is on it",
                "/d/gpuledger-usage?var-node=${__data.fields.Address}&" + HANDED_ON,
            )
        },
        size=(24, 10),
    )


def _use() -> list[Panel]:
    activity = per_gpu("gpuledger_device_engine_activity_ratio", WHOLE)
    busy = f"{activity} or {per_gpu('gpuledger_device_utilization_ratio')}"
    mean = named_gpu(busy, "cluster", "instance")
    power = by_node(per_gpu("gpuledger_device_power_watts"))
    return [
        series(
            "Busy, by node",
            "Mean over the node's GPUs of the share of time in which an engine was busy.",
            [Query(f"avg by ({', '.join(_NODE)}) ({mean})", "{{cluster}} {{node}}")],
            unit="percentunit",
            decimals=0,
            highest=1,
            empty=NOTHING,
        ),
        series(
            "Power by node",
            "Of the GPUs' boards.",
            [Query(power, "{{cluster}} {{node}}")],
            unit="watt",
            decimals=0,
            stack=True,
            empty=NOTHING,
        ),
    ]


def _models() -> Panel:
    def with_model(name: str) -> str:
        gpus = in_gpus(in_state(name))
        joined = f"({gpus}) * on ({', '.join(DEVICE)}) group_left (name, profile) {devices()}"
        return total(joined, "name", "profile")

    columns = [
        Column("Devices", _devices_of_model(), decimals=0),
        Column("Active", with_model("active"), decimals=1),
        Column("Held idle", with_model("held"), decimals=1, steps=((None, GREEN), (0.1, ORANGE))),
        Column("Free", with_model("idle"), decimals=1),
    ]
    return table(
        "Models",
        "GPUs by model, and MIG instances by profile: devices are counted, the rest is in GPUs.",
        {"name": "Model", "profile": "MIG profile"},
        columns,
        empty=NOTHING,
        sort="Free",
        size=(12, 8),
    )


def _devices_of_model() -> str:
    told = per_device("gpuledger_device_state")
    joined = f"({told} * 0 + 1) * on ({', '.join(DEVICE)}) group_left (name, profile) {devices()}"
    return total(joined, "name", "profile")


def _hours() -> list[Panel]:
    labels = (*DEVICE, "state")
    now = once(f"rate({of_gpu('gpuledger_device_state_seconds_total')}[$__rate_interval])", *labels)
    spent = once(f"increase({of_gpu('gpuledger_device_state_seconds_total')}[$__range])", *labels)
    return [
        bars(
            "GPU-hours by state",
            "In the time range: active, held idle, free, and what the driver does not tell.",
            Query(f"{total(in_gpus(spent, '$__range'), 'state')} / 3600", "{{state}}"),
            unit="h",
            decimals=1,
            empty=NOTHING,
            size=(12, 8),
        ),
        series(
            "GPUs by state",
            "How the fleet's GPUs spent their time.",
            [Query(total(in_gpus(now), "state"), "{{state}}")],
            decimals=1,
            stack=True,
            colors=STATE_COLORS,
            empty=NOTHING,
            size=(24, 8),
        ),
    ]


def _wellness() -> list[Panel]:
    age = f"time() - {once(of_node('gpuledger_snapshot_timestamp_seconds'), 'instance')}"
    failing = f"count({once(of_node('gpuledger_collector_success'), 'instance', 'collector')} == 0)"
    maps = f"count({once(of_node('gpuledger_map_success'), 'instance', 'map')} == 0)"
    simulated = of_node("gpuledger_source_info", 'simulated="true"')
    made_up = f"count({once(simulated, 'instance')})"
    imbalance = once(f"abs({of_gpu('gpuledger_energy_imbalance_joules')})", "uuid")
    return [
        stat(
            "Oldest readings",
            "Age of the oldest readings that a node tells. More than three intervals: the driver does "
            "not answer.",
            f"clamp_min(max({age}), 0)",
            unit="s",
            decimals=0,
            steps=((None, GREEN), (30, YELLOW), (120, RED)),
            empty="No node tells readings",
        ),
        stat(
            "Stalled",
            "Nodes whose driver does not come back: their device data is gone.",
            or_zero(f"count({once(of_node('gpuledger_tick_stalled'), 'instance')} == 1)"),
            steps=GOOD_IS_ZERO,
            empty=NOTHING,
        ),
        stat(
            "Parts that fail",
            "Parts of the last tick that failed. The table below says which.",
            or_zero(failing),
            steps=GOOD_IS_ZERO,
            empty=NOTHING,
        ),
        stat(
            "Maps of owners that fail",
            "Sources of names (API server, kubelet, Slurm, ...) that could not be read at the last try.",
            or_zero(maps),
            steps=GOOD_IS_ZERO,
            empty=NOTHING,
        ),
        stat(
            "Books out of balance",
            "GPUs whose energy is not the sum of its accounts. Anything but 0 is a defect.",
            or_zero(f"count({imbalance} > 0.001)"),
            steps=GOOD_IS_ZERO,
            empty=NOTHING,
        ),
        stat(
            "Nodes with made-up data",
            "Nodes that show a simulator or a recording instead of hardware.",
            or_zero(made_up),
            steps=((None, GREEN), (1, YELLOW)),
            empty=NOTHING,
        ),
    ]


def _exporters() -> Panel:
    source = once(
        with_node(of_node("gpuledger_source_info")), *_NODE, "source", "driver_version", "cuda_version"
    )
    version = one_of(of_node("gpuledger_build_info"), ("instance",), "version")
    columns = [
        Column(
            "Readings age",
            f"clamp_min(time() - {of_exporter('gpuledger_snapshot_timestamp_seconds')}, 0)",
            "s",
            0,
            ((None, GREEN), (30, YELLOW), (120, RED)),
        ),
        Column("Interval", of_exporter("gpuledger_tick_interval_seconds"), "s", 1),
        Column(
            "Tick takes",
            of_exporter("gpuledger_collector_duration_seconds", matchers=('collector="source"',)),
            "s",
            3,
        ),
        Column("Impossible values", of_exporter("gpuledger_invalid_values_total"), decimals=0),
        Column("Settings", of_exporter("gpuledger_config_last_reload_success"), names=OK),
        Column(
            "Source",
            f"{source} * on (instance) group_left (version) {version}",
            names={1.0: ("told", GREEN)},
        ),
    ]
    return table(
        "Exporters",
        "One row per node. Impossible values came from the driver and were left out, since the start. "
        "Settings: "
        "whether the file could be read last.",
        {
            "cluster": "Cluster",
            "node": "Node",
            "instance": "Address",
            "version": "Version",
            "driver_version": "Driver",
            "cuda_version": "CUDA",
            "source": "Read from",
        },
        columns,
        empty="No node is scraped",
        sort="Readings age",
        size=(24, 8),
    )


def _parts() -> Panel:
    return table(
        "Parts of a tick",
        "What each node's last tick did. When a part fails, its numbers are absent and all others go on.",
        {"cluster": "Cluster", "node": "Node", "collector": "Part", "instance": "Address"},
        [
            Column("Last time", of_exporter("gpuledger_collector_success", "collector"), names=OK),
            Column("Takes", of_exporter("gpuledger_collector_duration_seconds", "collector"), "s", 4),
        ],
        empty="No node is scraped",
        sort="Last time",
        ascending=True,
        size=(12, 9),
    )


def _maps() -> Panel:
    last = of_exporter("gpuledger_map_last_success_timestamp_seconds", "map")
    return table(
        "Maps of owners",
        "Where names of pods, jobs and containers come from. One that fails keeps what it knew; its age "
        "says since "
        "when.",
        {"cluster": "Cluster", "node": "Node", "map": "Map", "instance": "Address"},
        [
            Column("Last try", of_exporter("gpuledger_map_success", "map"), names=OK),
            Column("Age", f"clamp_min(time() - {last}, 0)", "s", 0, ((None, GREEN), (300, ORANGE))),
            Column("Entries", of_exporter("gpuledger_map_entries", "map"), decimals=0),
        ],
        empty="No map of owners is in use here",
        sort="Age",
        size=(12, 9),
    )
