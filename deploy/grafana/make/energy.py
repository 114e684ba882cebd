"""Energy and cost: whose the joules are, what was measured, what nobody used, whether the books balance."""

from __future__ import annotations

from dashboard import dashboard, number
from panels import (
    BLUE,
    GREEN,
    GREY,
    HANDED_ON,
    ORANGE,
    YELLOW,
    Column,
    Json,
    Panel,
    Query,
    pie,
    series,
    stat,
    table,
)
from promql import (
    KWH,
    OWNER,
    blank,
    named_gpu,
    of_gpu,
    of_owner,
    once,
    or_zero,
    per_gpu,
    rise,
    total,
)
from usage import NOTHING, gpu_hours

JOULES = "gpuledger_energy_joules_total"
ACCOUNT = ("uuid", "account", "method", *OWNER)
PROCESS = 'account="process"'
MEASURED = 'method="measured"'
COLORS = {"process": GREEN, "idle": BLUE, "unattributed": ORANGE, "unobserved": GREY}
_NOT_KNOWN = 'account=~"unattributed|unobserved"'
_NOBODY = "Nobody used energy"


def owned(*matchers: str) -> str:
    """Joules of the chosen namespaces' processes in the time range."""
    return rise(JOULES, ACCOUNT, PROCESS, *matchers)


def booked(*matchers: str) -> str:
    """Joules of any account in the time range, whatever namespace is chosen."""
    return once(f"increase({of_gpu(JOULES, *matchers)}[$__range])", *ACCOUNT)


def kwh(joules: str) -> str:
    """Joules as kWh."""
    return f"{joules} / {KWH}"


def at_most(*labels: str) -> str:
    """The most that a row can have used: its measured part, and what was not surely others' on its GPUs."""
    on = ", ".join(labels)
    rows = total(owned(), "uuid", *labels)
    open_to_all = total(booked('account=~"process|unattributed|unobserved"'), "uuid")
    sure = total(booked(PROCESS, MEASURED), "uuid")
    unsure = f"clamp_min({open_to_all} - on (uuid) ({sure} or on (uuid) 0 * {open_to_all}), 0)"
    spread = f"sum by ({on}) (0 * {rows} + on (uuid) group_left () {unsure})"
    return f"{spread} + on ({on}) ({_measured(*labels)})"


def _measured(*labels: str) -> str:
    """Joules for which nothing was split; 0 for a row of which all was."""
    every = total(owned(), *labels)
    return f"{total(owned(MEASURED), *labels)} or on ({', '.join(labels)}) 0 * {every}"


def _apportioned(*labels: str) -> str:
    every = total(owned(), *labels)
    rest = total(owned('method!="measured"'), *labels)
    return f"{rest} or on ({', '.join(labels)}) 0 * {every}"


def cost(joules: str) -> str:
    """What joules cost, with what the building adds."""
    return f"{joules} / {KWH} * $pue * $price_kwh"


def build() -> Json:
    """The dashboard."""
    rows = [
        ("In the time range", _sums()),
        ("Power", _power()),
        ("Whose", [_by_namespace(), _by_pod(), _by_user()]),
        ("Nobody's, and how sure it is", _nobodys()),
        ("The books", [_books()]),
    ]
    text = (
        "Energy by account and owner, from the GPUs' own counters. Sums of a time range are "
        "Prometheus's and off "
        "by up to two scrapes; `gpuledger report` is exact. Made by `make dashboards`."
    )
    prices = [
        number("price_kwh", "Price of a kWh", "What a kWh costs, in your currency", "0.30"),
        number("pue", "PUE", "What the building draws for each watt of the GPUs", "1.0"),
        number("price_gpu_hour", "Price of a GPU-hour", "Beside the energy; 0 bills energy alone", "0"),
    ]
    return dashboard(
        "gpuledger-energy", "gpuledger / Energy and cost", text, rows, prices, "now-24h", by_owner=True
    )


def _sums() -> list[Panel]:
    devices = total(once(f"increase({of_gpu('gpuledger_device_energy_joules_total')}[$__range])", "uuid"))
    everything = total(booked())
    idle = total(booked('account="idle"'))
    nobodys = total(booked(_NOT_KNOWN))
    sure = f"({total(owned(MEASURED))} or 0 * {total(owned())}) / ({total(owned())} > 0)"
    return [
        stat(
            "Energy of the GPUs",
            "What the GPUs' counters rose.",
            kwh(devices),
            unit="kwatth",
            decimals=2,
            empty=NOTHING,
        ),
        stat(
            "Cost at $price_kwh per kWh, PUE $pue",
            "Energy of the GPUs x PUE x price. Change the price above, or in the address: "
            "var-price_kwh=0.32.",
            cost(devices),
            decimals=2,
            empty=NOTHING,
        ),
        stat(
            "Used by owners",
            "Energy on the account of processes of the chosen namespaces.",
            or_zero(kwh(total(owned()))),
            unit="kwatth",
            decimals=2,
            empty=NOTHING,
        ),
        stat(
            "Measured",
            "Of the owners' energy, the part for which nothing had to be split: one process had the "
            "whole GPU.",
            sure,
            unit="percentunit",
            decimals=0,
            empty=_NOBODY,
        ),
        stat(
            "Idle",
            "Of all energy, what GPUs drew while nobody was there.",
            or_zero(f"{idle} / ({everything} > 0)"),
            unit="percentunit",
            decimals=0,
            steps=((None, GREEN), (0.3, YELLOW), (0.6, ORANGE)),
            empty=NOTHING,
        ),
        stat(
            "Nobody's",
            "Of all energy, what somebody used and nothing tells who, and what was used while nobody looked.",
            or_zero(f"{nobodys} / ({everything} > 0)"),
            unit="percentunit",
            decimals=1,
            steps=((None, GREEN), (0.02, YELLOW), (0.1, ORANGE)),
            empty=NOTHING,
        ),
    ]


def _power() -> list[Panel]:
    now = once(f"rate({of_gpu(JOULES)}[$__rate_interval])", *ACCOUNT)
    mine = once(f"rate({of_owner(JOULES, PROCESS)}[$__rate_interval])", *ACCOUNT)
    return [
        series(
            "Power by account",
            "process: somebody's. idle: nobody was there. unattributed: nothing tells whose. "
            "unobserved: nobody "
            "looked. What is new is told after half a minute, so the newest of it is still missing.",
            [Query(total(now, "account"), "{{account}}")],
            unit="watt",
            decimals=0,
            stack=True,
            colors=COLORS,
            empty=NOTHING,
        ),
        series(
            "Power by namespace",
            "Of the chosen namespaces' processes. Outside of pods: (none).",
            [Query(blank(total(mine, "namespace"), "namespace", "(none)"), "{{namespace}}")],
            unit="watt",
            decimals=0,
            stack=True,
            empty=_NOBODY,
        ),
        series(
            "Power of each GPU",
            "Of the whole board, as the driver reads it.",
            [Query(named_gpu(per_gpu("gpuledger_device_power_watts")), "{{node}} GPU {{gpu}}")],
            unit="watt",
            decimals=0,
            size=(24, 7),
            empty=NOTHING,
        ),
    ]


_SPLIT = (
    "Measured: nothing was split. Apportioned: split by activity, slices or equally, or integrated from "
    "power. "
    "At most: measured, and all that was not surely others' on the same GPUs."
)


def _energy_columns(*labels: str) -> list[Column]:
    return [
        Column("Energy", kwh(total(owned(), *labels)), "kwatth", 3),
        Column("Measured", kwh(f"({_measured(*labels)})"), "kwatth", 3),
        Column("Apportioned", kwh(f"({_apportioned(*labels)})"), "kwatth", 3),
        Column("At most", kwh(f"({at_most(*labels)})"), "kwatth", 3),
    ]


def _bill(*labels: str) -> list[Column]:
    """Energy, GPU-hours and the cost of both."""
    hours = gpu_hours("gpuledger_owner_resident_seconds_total", *labels)
    on = ", ".join(labels)
    energy = cost(total(owned(), *labels))
    both = f"({energy}) + on ({on}) ({hours} * $price_gpu_hour or on ({on}) 0 * {total(owned(), *labels)})"
    return [
        *_energy_columns(*labels),
        Column("GPU-hours", hours, "h", 2),
        Column("Cost", both, "short", 2),
    ]


def _by_namespace() -> Panel:
    return table(
        "By namespace",
        f"{_SPLIT} The row without a namespace is of processes outside of pods.",
        {"namespace": "Namespace"},
        _bill("namespace"),
        empty=_NOBODY,
        sort="Cost",
        links={
            "Namespace": (
                "Who of it",
                "/d/gpuledger-usage?var-namespace=${__data.fields.Namespace}&" + HANDED_ON,
            )
        },
        size=(24, 8),
    )


def _by_pod() -> Panel:
    return table(
        "By pod or job",
        f"{_SPLIT} The row without a name is of processes outside of both.",
        {"namespace": "Namespace", "pod": "Pod", "slurm_job": "Slurm job"},
        _bill("namespace", "pod", "slurm_job"),
        empty=_NOBODY,
        sort="Cost",
        size=(24, 10),
    )


def _by_user() -> Panel:
    columns = _energy_columns("user")
    columns.append(Column("Cost", cost(total(owned(), "user")), "short", 2))
    return table(
        "By user",
        f"By the user of the process, in pods and outside; GPU-hours in pods are told without users. "
        f"{_SPLIT}",
        {"user": "User"},
        columns,
        empty=_NOBODY,
        sort="Cost",
        size=(24, 8),
    )


def _nobodys() -> list[Panel]:
    idle = total(booked('account="idle"'), "uuid")
    lost = f"{total(booked(_NOT_KNOWN), 'uuid')} or on (uuid) 0 * {_each_gpu()}"
    return [
        pie(
            "Where the energy went",
            "All accounts of the chosen GPUs, in the time range.",
            Query(f"sort_desc({kwh(total(booked(), 'account'))})", "{{account}}"),
            unit="kwatth",
            empty=NOTHING,
        ),
        pie(
            "On what the split rests",
            "measured: nothing was split. activity: by engine time. slices: by size under MIG. equal: "
            "nothing told "
            "more. integrated: the GPU has no counter, power was summed up.",
            Query(f"sort_desc({kwh(total(owned(), 'method'))})", "{{method}}"),
            unit="kwatth",
            empty=_NOBODY,
        ),
        table(
            "Energy of nobody, by GPU",
            "Idle: nobody was on the GPU.",
            {"node": "Node", "gpu": "GPU", "name": "Model", "uuid": "UUID"},
            [
                Column("Idle", kwh(f"({named_gpu(idle, 'name')})"), "kwatth", 3),
                Column(
                    "Not known whose",
                    kwh(f"({named_gpu(lost, 'name')})"),
                    "kwatth",
                    3,
                ),
            ],
            empty=NOTHING,
            sort="Idle",
            size=(8, 8),
        ),
    ]


def _each_gpu() -> str:
    return per_gpu("gpuledger_device_energy_joules_total")


def _books() -> Panel:
    accounts = total(once(of_gpu(JOULES), *ACCOUNT), "uuid")
    columns = [
        Column("Counter", named_gpu(_each_gpu(), "name"), "joule", 0),
        Column("Accounts", named_gpu(accounts, "name"), "joule", 0),
        Column("Pending", named_gpu(per_gpu("gpuledger_energy_pending_joules"), "name"), "joule", 0),
        Column("Closed", named_gpu(per_gpu("gpuledger_energy_closed_joules"), "name"), "joule", 0),
        Column(
            "Out of balance",
            named_gpu(f"abs({per_gpu('gpuledger_energy_imbalance_joules')})", "name"),
            "joule",
            3,
            ((None, GREEN), (0.001, "red")),
        ),
    ]
    return table(
        "The books balance",
        "Since the books were opened: accounts, what is booked and not told yet (pending) and owners "
        "whose series "
        "have ended (closed) are together the GPU's counter. Anything but 0 out of balance is a defect: "
        "report it.",
        {"node": "Node", "gpu": "GPU", "name": "Model", "uuid": "UUID"},
        columns,
        empty=NOTHING,
        sort="Out of balance",
        size=(24, 8),
    )
