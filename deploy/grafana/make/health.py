"""Health and detail of GPUs: is each there, how warm, how fast, held down by what, with which errors."""

from __future__ import annotations

from typing import Any

from dashboard import dashboard
from dcgm import of_dcgm
from panels import (
    FULLNESS,
    GOOD_IS_ZERO,
    GREEN,
    HANDED_ON,
    ORANGE,
    RED,
    YELLOW,
    Column,
    Json,
    Panel,
    Query,
    series,
    stat,
    table,
)
from promql import (
    WHOLE,
    fullness,
    named,
    named_gpu,
    of_gpu,
    once,
    or_zero,
    per_device,
    per_gpu,
    total,
)
from usage import NOTHING

WARMTH = ((None, GREEN), (80, YELLOW), (90, RED))
_GPU = "{{node}} GPU {{gpu}}"
_MIG = "{{node}} GPU {{gpu}} {{mig_instance}}"


def _line(family: str, *matchers: str) -> list[Query]:
    return [Query(named_gpu(per_gpu(f"gpuledger_device_{family}", *matchers)), _GPU)]


def build() -> Json:
    """The dashboard."""
    rows = [
        ("Now", [*_now(), _every_gpu()]),
        ("Heat, power and clocks", _physics()),
        ("Work of the engines", _engines()),
        ("MIG instances", _instances()),
        ("Errors", _errors()),
        ("PCIe bus", _pcie()),
        ("Throttling, profiling, NVLink and memory rows: of the dcgm dialect", of_dcgm()),
        ("What the driver does not tell", [_untold()]),
    ]
    text = "Whether each GPU is well, and all that it tells of itself. Made by `make dashboards`."
    return dashboard("gpuledger-health", "gpuledger / GPU health and detail", text, rows)


def _now() -> list[Panel]:
    up = per_gpu("gpuledger_device_up", WHOLE)
    xids = per_xid("gpuledger_device_xid_last_timestamp_seconds")
    ecc = once(_increase("ecc_errors_total", 'type="uncorrected"'), "uuid")
    near = f"{per_gpu('gpuledger_device_power_watts')} / {per_gpu('gpuledger_device_power_limit_watts')}"
    return [
        stat("GPUs up", "GPUs that answered in the last interval.", total(up), empty=NOTHING),
        stat(
            "GPUs lost",
            "GPUs that do not answer: fallen off the bus, or failing. Xid 79 says so, too.",
            or_zero(f"count({up} == 0)"),
            steps=GOOD_IS_ZERO,
            empty=NOTHING,
        ),
        stat(
            "GPUs with Xid errors",
            "GPUs that had an Xid error in the time range.",
            or_zero(f"count(count by (uuid) (time() - {xids} < $__range_s))"),
            steps=((None, GREEN), (1, ORANGE)),
            empty=NOTHING,
        ),
        stat(
            "Uncorrected ECC errors",
            "In the time range. Any is data lost: the process that met it was ended.",
            or_zero(f"ceil({total(ecc)})"),
            steps=GOOD_IS_ZERO,
            empty=NOTHING,
        ),
        stat(
            "Hottest GPU",
            "The highest temperature now.",
            f"max({per_gpu('gpuledger_device_temperature_celsius')})",
            unit="celsius",
            decimals=0,
            steps=WARMTH,
            empty=NOTHING,
        ),
        stat(
            "GPUs at their power limit",
            "GPUs that draw 98 % of their limit or more: their clocks are held down.",
            or_zero(f"count({near} >= 0.98)"),
            steps=((None, GREEN), (1, YELLOW)),
            empty=NOTHING,
        ),
    ]


def _every_gpu() -> Panel:
    def column(title: str, family: str, unit: str = "short", decimals: int = 0, **looks: Any) -> Column:
        told = named_gpu(per_gpu(f"gpuledger_device_{family}", *_whole(family)), "name")
        return Column(title, told, unit, decimals, **looks)

    columns = [
        column("Answers", "up", names={1: ("yes", GREEN), 0: ("lost", RED)}),
        column("Temperature", "temperature_celsius", "celsius", steps=WARMTH),
        column("Power", "power_watts", "watt"),
        column("Limit", "power_limit_watts", "watt"),
        column("Memory used", "memory_used_bytes", "bytes", 1),
        column("Memory", "memory_size_bytes", "bytes", 1),
        column("State", "performance_state"),
        column("MIG", "mig_enabled", names={1: ("on", GREEN), 0: ("off", "text")}),
    ]
    return table(
        "Every GPU",
        "One row per GPU. State is the performance state, P0 (highest) to P15. An empty cell: the "
        "driver does "
        "not tell it.",
        {"node": "Node", "gpu": "GPU", "name": "Model", "uuid": "UUID"},
        columns,
        empty=NOTHING,
        sort="Temperature",
        links={
            "GPU": ("Who uses it", "/d/gpuledger-usage?var-gpu=${__data.fields.UUID}&" + HANDED_ON),
        },
        size=(24, 9),
    )


def _whole(family: str) -> tuple[str, ...]:
    return (WHOLE,) if family in {"up", "memory_used_bytes", "memory_size_bytes"} else ()


def _physics() -> list[Panel]:
    power, limit = per_gpu("gpuledger_device_power_watts"), per_gpu("gpuledger_device_power_limit_watts")
    return [
        series(
            "Temperature",
            "Of the GPU. Most slow down at about 90 °C.",
            _line("temperature_celsius"),
            unit="celsius",
            decimals=0,
            lowest=None,
            steps=WARMTH,
            empty=NOTHING,
        ),
        series(
            "Temperature of the memory",
            "Where the model tells it: those with HBM do.",
            _line("memory_temperature_celsius"),
            unit="celsius",
            decimals=0,
            lowest=None,
            steps=((None, GREEN), (90, YELLOW), (100, RED)),
            empty="This model does not tell it",
        ),
        series(
            "Power of the limit",
            "1 is the limit in force: there clocks are held down.",
            [Query(named_gpu(f"{power} / {limit}"), _GPU)],
            unit="percentunit",
            decimals=0,
            highest=1,
            steps=((None, GREEN), (0.98, YELLOW)),
            empty=NOTHING,
        ),
        series(
            "Clock of the SMs",
            "Falls under load when power or heat holds it down, and when nothing runs.",
            _line("clock_hertz", 'clock="sm"'),
            unit="hertz",
            decimals=2,
            empty=NOTHING,
        ),
        series(
            "Other clocks",
            "Memory, graphics and video.",
            [
                Query(
                    named_gpu(once(of_gpu("gpuledger_device_clock_hertz", 'clock!="sm"'), "uuid", "clock")),
                    f"{_GPU} {{{{clock}}}}",
                )
            ],
            unit="hertz",
            decimals=2,
            empty=NOTHING,
        ),
        series(
            "Fan",
            "Intended speed as a share of the highest. Passive boards have no fan.",
            _line("fan_speed_ratio"),
            unit="percentunit",
            decimals=0,
            empty="No fan is told: passive boards have none",
        ),
    ]


def _engines() -> list[Panel]:
    video = [
        Query(named_gpu(per_gpu(f"gpuledger_device_{engine}_utilization_ratio")), f"{_GPU} {engine}")
        for engine in ("encoder", "decoder")
    ]
    share: dict[str, Any] = {"unit": "percentunit", "decimals": 0, "highest": 1, "size": (8, 8)}
    mig = "Not told under MIG"
    return [
        series(
            "A kernel ran",
            "Share of time in which at least one kernel ran: one thread suffices for 1. Not told under MIG.",
            _line("utilization_ratio"),
            empty=mig,
            **share,
        ),
        series(
            "Memory was read or written",
            "Share of time; not how full it is. Not told under MIG.",
            _line("memory_utilization_ratio"),
            empty=mig,
            **share,
        ),
        series(
            "Video engines",
            "Encoder and decoder, share of time. Not told under MIG.",
            video,
            empty=mig,
            **share,
        ),
    ]


def _instances() -> list[Panel]:
    some = 'mig_instance!=""'
    return [
        series(
            "Engine activity",
            "Share of time in which the instance's engine was busy. Hopper and newer tell it.",
            [Query(named(per_device("gpuledger_device_engine_activity_ratio", some)), _MIG)],
            unit="percentunit",
            decimals=0,
            highest=1,
            empty="No MIG instance tells its activity",
        ),
        series(
            "Memory in use",
            "Of the instance's own memory.",
            [Query(named(" / ".join(fullness(some))), _MIG)],
            unit="percentunit",
            decimals=0,
            highest=1,
            steps=FULLNESS,
            empty="No GPU is cut by MIG",
        ),
    ]


def per_xid(family: str) -> str:
    """A family of Xids, each once per GPU."""
    return once(of_gpu(family), "uuid", "xid")


def _increase(family: str, *matchers: str) -> str:
    return f"increase({of_gpu(f'gpuledger_device_{family}', *matchers)}[$__range])"


def _errors() -> list[Panel]:
    ecc = once(_increase("ecc_errors_total"), "uuid", "type")
    life = once(of_gpu("gpuledger_device_ecc_errors_total"), "uuid", "type")
    xids = [
        Column(
            "Since the start",
            named_gpu(per_xid("gpuledger_device_xid_errors_total"), "name"),
            decimals=0,
            steps=((None, ORANGE),),
        ),
        Column(
            "Last",
            f"{named_gpu(per_xid('gpuledger_device_xid_last_timestamp_seconds'), 'name')} * 1000",
            "dateTimeAsIso",
        ),
    ]
    return [
        table(
            "Xid errors",
            "The driver's errors by number, since gpuledger started. 13, 31 and 43 are mostly the "
            "application's; "
            "48, 63, 64, 74, 79, 92, 94, 95, 119 and 120 the GPU's.",
            {"node": "Node", "gpu": "GPU", "name": "Model", "xid": "Xid", "uuid": "UUID"},
            xids,
            empty="No Xid error since gpuledger started",
            sort="Last",
            size=(12, 8),
        ),
        table(
            "ECC errors",
            "In the time range and over the life of the board. Corrected ones cost nothing; a board with "
            "uncorrected ones should be looked at.",
            {"node": "Node", "gpu": "GPU", "name": "Model", "type": "Type", "uuid": "UUID"},
            [
                Column("In the time range", named_gpu(ecc, "name"), decimals=0),
                Column("In all", named_gpu(life, "name"), decimals=0),
            ],
            empty="No GPU here tells ECC errors",
            sort="In all",
            size=(12, 8),
        ),
    ]


def _pcie() -> list[Panel]:
    moved = of_gpu("gpuledger_device_pcie_bytes_total")
    rate = once(f"rate({moved}[$__rate_interval])", "uuid", "direction")
    replays = once(_increase("pcie_replays_total"), "uuid")
    return [
        series(
            "PCIe",
            "Bytes a second as the GPU sees them: transmit leaves the GPU. The hardware's counter can wrap.",
            [Query(named_gpu(rate), f"{_GPU} {{{{direction}}}}")],
            unit="Bps",
            decimals=1,
            empty="No GPU here counts PCIe bytes",
        ),
        table(
            "PCIe replays",
            "In the time range and since the driver was loaded. Many: a bad slot, riser or board.",
            {"node": "Node", "gpu": "GPU", "name": "Model", "uuid": "UUID"},
            [
                Column(
                    "In the time range",
                    named_gpu(replays, "name"),
                    decimals=0,
                    steps=((None, GREEN), (10, ORANGE)),
                ),
                Column(
                    "In all", named_gpu(per_gpu("gpuledger_device_pcie_replays_total"), "name"), decimals=0
                ),
            ],
            empty="No GPU here counts replays",
            sort="In the time range",
            size=(12, 8),
        ),
    ]


def _untold() -> Panel:
    lacks = once(of_gpu("gpuledger_field_supported"), "field", "uuid", "mig_instance")
    counted = f"sum by (field) ({lacks} == bool 0)"
    return table(
        "By quantity",
        "On how many GPUs and MIG instances the driver says that it does not have the quantity: there "
        "the panels "
        "above stay empty. It is not a failure.",
        {"field": "Quantity"},
        [
            Column("Without it", counted, decimals=0),
            Column("With it", f"sum by (field) ({lacks} == bool 1)", decimals=0),
        ],
        empty=NOTHING,
        sort="Without it",
        size=(24, 8),
    )
