"""Who is using the GPUs: owners, sessions, memory, and what is held without being used."""

from __future__ import annotations

from dashboard import dashboard
from panels import (
    BLUE,
    FULLNESS,
    GREEN,
    GREY,
    HANDED_ON,
    ORANGE,
    Column,
    Json,
    Panel,
    Query,
    bars,
    series,
    stat,
    table,
    timeline,
)
from promql import (
    DEVICE,
    OWNER,
    WHOLE,
    blank,
    fullness,
    in_gpus,
    in_state,
    named,
    named_gpu,
    of_gpu,
    of_node,
    of_owner,
    once,
    one_of,
    or_zero,
    per_device,
    per_gpu,
    rise,
    total,
)

NOTHING = "No GPU is scraped here"
STATES = {3.0: ("active", GREEN), 2.0: ("held idle", ORANGE), 1.0: ("free", BLUE), 0.0: ("not told", GREY)}
WHOSE = {
    "owner_kind": "Kind",
    "namespace": "Namespace",
    "pod": "Pod",
    "container": "Container",
    "user": "User",
    "slurm_job": "Slurm job",
}
PLACE = {"node": "Node", "gpu": "GPU", "mig_instance": "MIG", "profile": "Profile"}
GPU_LINK = ("Health of this GPU", "/d/gpuledger-health?var-gpu=${__data.fields.UUID}&" + HANDED_ON)
_PID = (*DEVICE, "pid")


def state(name: str) -> str:
    """GPUs (by their part, under MIG) in a state."""
    return or_zero(total(in_gpus(in_state(name))))


def state_code() -> str:
    """One number per device for what it does: the codes of STATES."""
    codes = ((3, "active"), (2, "held"), (1, "idle"))
    return " + ".join(f"{code} * {in_state(name)}" for code, name in codes)


def processes() -> str:
    """A row for each process with its owner, by the labels of owners: a pod's rows bear no user there."""
    info = of_owner("gpuledger_process_info")
    return one_of(f'label_replace({info}, "user", "", "owner_kind", "pod")', _PID, *OWNER)


def memory_by_owner() -> str:
    """Memory of processes, with the labels of their owners."""
    held = once(of_gpu("gpuledger_process_memory_bytes"), *_PID)
    return f"{held} * on ({', '.join(_PID)}) group_left ({', '.join(OWNER)}) {processes()}"


def held_share(window: str) -> str:
    """Of the window, the share in which an owner had the device and no engine worked for it."""
    return once(f"rate({of_owner('gpuledger_owner_held_seconds_total')}[{window}])", *DEVICE, *OWNER)


def gpu_hours(family: str, *labels: str) -> str:
    """GPU-hours in the time range by `labels`: seconds of owners on devices, by the devices' parts."""
    seconds = in_gpus(rise(family, (*DEVICE, *OWNER)), "$__range")
    return f"{total(seconds, *labels)} / 3600"


def build() -> Json:
    """The dashboard."""
    rows = [
        ("Now", _now()),
        ("Who", [_owners(), _processes()]),
        ("When", [_device_timeline(), _owner_timeline(), _busy(), _memory()]),
        ("Held and not used", _held()),
        ("Sessions", _sessions()),
    ]
    text = "Who has each GPU now, whether they use it, and how it was before. Made by `make dashboards`."
    return dashboard("gpuledger-usage", "gpuledger / Who is using the GPUs", text, rows, by_owner=True)


def _now() -> list[Panel]:
    gpus = f"count({per_gpu('gpuledger_device_up', WHOLE)})"
    opened = per_device("gpuledger_sessions_open")
    owners = f"count({once(of_owner('gpuledger_device_owner_info'), *OWNER)})"
    used, usable = map(total, fullness(WHOLE))
    return [
        stat("GPUs", "GPUs that are scraped. A GPU cut by MIG is one.", gpus, empty=NOTHING, size=(3, 4)),
        stat(
            "Active",
            "GPUs on which an engine worked in the last interval. A MIG instance counts by its part.",
            state("active"),
            empty=NOTHING,
            decimals=1,
            steps=((None, GREEN),),
            size=(3, 4),
        ),
        stat(
            "Held idle",
            "GPUs that somebody has (handed out, or a process is on it) while no engine works.",
            state("held"),
            empty=NOTHING,
            decimals=1,
            steps=((None, GREEN), (0.1, ORANGE)),
            size=(3, 4),
        ),
        stat(
            "Free",
            "GPUs that nobody has. What MIG leaves uncut is in no instance and not counted.",
            state("idle"),
            empty=NOTHING,
            decimals=1,
            size=(3, 4),
        ),
        stat(
            "Open sessions",
            "Processes on GPUs, each once per device, graphics included.",
            or_zero(total(opened)),
            empty=NOTHING,
            size=(3, 4),
        ),
        stat(
            "Owners",
            "Pods' containers, users, jobs and units that have a device now.",
            or_zero(owners),
            empty=NOTHING,
            size=(3, 4),
        ),
        stat(
            "Memory in use",
            "Of the device memory that can be used: what the driver keeps for itself is not in it.",
            f"{used} / {usable}",
            unit="percentunit",
            decimals=0,
            steps=FULLNESS,
            empty=NOTHING,
            size=(3, 4),
        ),
        stat(
            "Owner not known",
            "Processes whose owner is not fully known. `gpuledger doctor` says why and what to do.",
            or_zero(total(once(of_node("gpuledger_unresolved_processes"), "instance", "reason"))),
            steps=((None, GREEN), (1, ORANGE)),
            empty=NOTHING,
            size=(3, 4),
        ),
    ]


def _owners() -> Panel:
    count = once(of_owner("gpuledger_device_owner_processes"), *DEVICE, *OWNER)
    memory = total(memory_by_owner(), *DEVICE, *OWNER)
    columns = [
        Column("Processes", named(count, "profile"), decimals=0, steps=((None, ORANGE), (1, GREEN))),
        Column("Memory", named(memory, "profile"), "bytes", 1),
        Column(
            "Held idle, last hour",
            named(f"{held_share('1h')} and on ({', '.join((*DEVICE, *OWNER))}) {count}", "profile"),
            "percentunit",
            0,
            ((None, GREEN), (0.5, ORANGE), (0.9, "red")),
        ),
    ]
    return table(
        "Who has which device",
        "One row per owner and device: the device was handed to the owner, or the owner has processes "
        "on it. "
        "0 processes: handed out, and nothing runs there. Held idle is the share of the last hour in which "
        "the owner had the device and no engine worked for it; who came ten minutes ago has a sixth at most.",
        {**PLACE, **WHOSE, "uuid": "UUID"},
        columns,
        empty="Nobody has a GPU",
        sort="Held idle, last hour",
        links={"GPU": GPU_LINK},
        size=(24, 10),
    )


def _processes() -> Panel:
    labels = ("command", "type", "owner_kind", "namespace", "pod", "container", "user")
    info = one_of(of_owner("gpuledger_process_info"), _PID, *labels)
    pid = ", ".join(_PID)
    since = f"{info} * on ({pid}) group_left () {_process('start_time_seconds')} * 1000"
    columns = [
        Column("Since", named(since), "dateTimeFromNow"),
        Column("Memory", f"{_process('memory_bytes')} and on ({pid}) {info}", "bytes", 1),
        Column("SM", f"{_process('sm_utilization_ratio')} and on ({pid}) {info}", "percentunit", 0),
    ]
    shown = {**PLACE, "pid": "PID", "command": "Command", "type": "Type", **WHOSE}
    del shown["profile"], shown["slurm_job"]
    return table(
        "Sessions now",
        "Each process on each device. SM: share of time in which it kept the multiprocessors busy; MIG "
        "tells "
        "none. Type C computes, G draws, M is an MPS client.",
        {**shown, "uuid": "UUID"},
        columns,
        empty="No process is on a GPU",
        sort="Memory",
        links={"GPU": GPU_LINK},
        size=(24, 10),
    )


def _process(name: str) -> str:
    return once(of_gpu(f"gpuledger_process_{name}"), *_PID)


def _device_timeline() -> Panel:
    return timeline(
        "What each device did",
        "Active: an engine worked. Held idle: somebody has it and no engine works. Free: nobody has it. "
        "A gap: it was not scraped, or is lost.",
        Query(named(state_code()), "{{node}} GPU {{gpu}} {{mig_instance}}"),
        names=STATES,
        empty=NOTHING,
        size=(24, 10),
    )


def _owner_timeline() -> Panel:
    count = once(of_owner("gpuledger_device_owner_processes"), *DEVICE, *OWNER)
    names = {0.0: ("has it, runs nothing", ORANGE)}
    return timeline(
        "Who was on which device",
        "A band for each owner and device, for as long as the owner had it; orange while nothing ran there.",
        Query(
            named(count),
            "{{node}} GPU {{gpu}} {{mig_instance}} · {{namespace}} {{pod}} {{user}} {{slurm_job}}",
        ),
        names=names,
        steps=((None, ORANGE), (1, GREEN)),
        empty="Nobody had a GPU",
        size=(24, 12),
    )


def _busy() -> Panel:
    activity = per_gpu("gpuledger_device_engine_activity_ratio", WHOLE)
    busy = f"{activity} or {per_gpu('gpuledger_device_utilization_ratio')}"
    return series(
        "Busy",
        "Share of time in which the compute or graphics engine was busy (Hopper and newer), else in "
        "which at "
        "least one kernel ran.",
        [Query(named_gpu(busy), "{{node}} GPU {{gpu}}")],
        unit="percentunit",
        decimals=0,
        highest=1,
        empty=NOTHING,
    )


def _memory() -> Panel:
    by_pod = total(memory_by_owner(), "namespace", "pod", "user")
    return series(
        "Memory by owner",
        "Device memory that the owners' processes hold.",
        [Query(by_pod, "{{namespace}} {{pod}} {{user}}")],
        unit="bytes",
        decimals=1,
        stack=True,
        empty="No process is on a GPU",
    )


def _held() -> list[Panel]:
    now = total(in_gpus(held_share("$__rate_interval")), "namespace")
    hours = gpu_hours("gpuledger_owner_held_seconds_total", "namespace", "pod", "user", "slurm_job")
    used = gpu_hours("gpuledger_owner_resident_seconds_total", "namespace")
    return [
        series(
            "GPUs held idle by namespace",
            "How many GPUs each namespace had without using them. Outside of pods: (none).",
            [Query(blank(now, "namespace", "(none)"), "{{namespace}}")],
            decimals=1,
            stack=True,
            empty="Nobody holds a GPU",
        ),
        bars(
            "GPU-hours held idle, by owner",
            "In the time range, the twenty that held most: give these back first.",
            Query(f"topk(20, {hours} > 0)", "{{namespace}} {{pod}} {{user}} {{slurm_job}}"),
            unit="h",
            decimals=1,
            steps=((None, ORANGE),),
            empty="Nobody held a GPU without using it",
        ),
        bars(
            "GPU-hours by namespace",
            "In the time range, time with a process on a device. Owners who shared a GPU count each; "
            "`gpuledger report` counts it once.",
            Query(f"sort_desc({blank(used, 'namespace', '(none)')})", "{{namespace}}"),
            unit="h",
            decimals=1,
            empty="Nobody used a GPU",
        ),
        bars(
            "Memory by GPU",
            "How full each GPU's memory is, of what can be used.",
            Query(named(" / ".join(fullness(WHOLE))), "{{node}} GPU {{gpu}}"),
            unit="percentunit",
            decimals=0,
            steps=FULLNESS,
            highest=1,
            empty=NOTHING,
        ),
    ]


def _sessions() -> list[Panel]:
    opened = total(named(per_device("gpuledger_sessions_open")), "node", "gpu")
    closed = once(f"rate({of_gpu('gpuledger_sessions_closed_total')}[$__rate_interval])", "uuid")
    buckets = once(f"increase({of_gpu('gpuledger_session_duration_seconds_bucket')}[$__range])", "uuid", "le")
    return [
        series(
            "Open sessions by GPU",
            "Processes on the GPU and on its MIG instances.",
            [Query(opened, "{{node}} GPU {{gpu}}")],
            decimals=0,
            empty=NOTHING,
        ),
        series(
            "Sessions that ended",
            "Per hour.",
            [Query(f"{named_gpu(closed)} * 3600", "{{node}} GPU {{gpu}}")],
            decimals=1,
            size=(6, 8),
            empty="No session has ended",
        ),
        bars(
            "How long sessions lasted",
            "In the time range, by length: up to so many seconds, +Inf being all. Running ones are not "
            "in it.",
            Query(f"sort(sum by (le) ({buckets}))", "≤ {{le}} s"),
            decimals=0,
            size=(6, 8),
            empty="No session has ended",
        ),
    ]
