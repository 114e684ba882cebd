"""Flags of other exporters: how those with an equivalent are declared, and the table of those without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, make_dataclass, replace
from typing import Any

from gpuledger.config.help_pages import HelpPage
from gpuledger.model.settings import Meaning, Parser, ReloadPolicy, Setting, boolean, text

# Begin the help of a flag that is accepted and ignored, and of one that is refused.
NO_EFFECT, REFUSED = "no effect", "not supported"


def settings_group(name: str, *settings: Setting) -> type:
    """A Settings dataclass of settings that no code reads. Without a value they are None."""
    fields = [
        (item.key.replace(".", "_"), object, field(default=None, metadata={"setting": item}))
        for item in settings
    ]
    # The settings that they set decide whether a reload can change them.
    more = {"reload": ReloadPolicy(), "help_page": HelpPage.COMPATIBILITY}
    return make_dataclass(name, fields, frozen=True, namespace=more)


def compatible(
    program: str,
    usage: str,
    explanation: str,
    means: str | Meaning | None = None,
    parse: Parser = text,
    *,
    implies: str | Meaning = "",
    name: str = "",
    repeatable: bool = False,
) -> Setting:
    """A flag of another program.

    `usage` has the flags, the name or form of the value, and the variable: `-f --collectors FILE [VARIABLE]`.
    The key is the program and the last flag, or `name`. `means` is the key of the setting that gets the same
    value, or a function as in Setting, or None for a flag without effect. `implies` is the dialect of the
    flag, or a function as in Setting.
    """
    words = usage.split()
    flags = tuple(word for word in words if word.startswith("-"))
    last = flags[-1].removeprefix("--").rpartition(".")[2].replace("-", "_")
    return Setting(
        f"{program}.{name or last}",
        parse,
        explanation,
        flags,
        metavar="".join(word for word in words if word[0] not in "-["),
        repeatable=repeatable,
        boolean=parse is boolean,
        variables=tuple(word.strip("[]") for word in words if word.startswith("[")),
        means=_same_value(means) if isinstance(means, str) else means,
        implies=_dialect(implies) if isinstance(implies, str) else implies,
    )


def _same_value(key: str) -> Meaning:
    """Sets the other key to the same value; an empty text sets nothing."""

    def means(value: Any) -> Mapping[str, str]:
        written = str(value).lower() if isinstance(value, bool) else str(value)
        return {key: written} if written else {}

    return means


def _dialect(name: str) -> Meaning | None:
    return (lambda _value: {"dialect": name}) if name else None


# Flags without an equivalent, by program: usage, then `ignored` (a boolean, or a text if the usage has a
# form) or `refused`, and the reason or remedy. Of a refused flag only the values in its usage are accepted:
# the defaults of the program.
_WITHOUT_EQUIVALENT = {
    "dcgm_exporter": """
--kubernetes-virtual-gpus [KUBERNETES_VIRTUAL_GPUS]
    ignored: time-sliced replicas are always supported; a GPU shared by pods has no pod label
--kubernetes-enable-dra [KUBERNETES_ENABLE_DRA]
    ignored: resource claims (DRA) are always supported
--disable-startup-validate [DISABLE_STARTUP_VALIDATE]
    ignored: there is no startup validation
--enable-gpu-bind-unbind-watch [DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH]
    ignored: added and removed GPUs are always detected
--gpu-bind-unbind-poll-interval DURATION [DCGM_EXPORTER_GPU_BIND_UNBIND_POLL_INTERVAL]
    ignored: added and removed GPUs are detected at each reading; see --interval
--dcgm-log-level LEVEL [DCGM_EXPORTER_DCGM_LOG_LEVEL]
    ignored: there is no DCGM here; see --log-level
--dump-directory DIR [DCGM_EXPORTER_DUMP_DIRECTORY]
    ignored: there are no dumps; gpuledger record FILE writes readings to a file
--dump-retention HOURS [DCGM_EXPORTER_DUMP_RETENTION]
    ignored: there are no dumps
--dump-compression [DCGM_EXPORTER_DUMP_COMPRESSION]
    ignored: there are no dumps
-m --configmap-data none [DCGM_EXPORTER_CONFIGMAP_DATA]
    refused: mount the ConfigMap, and name the file with --collectors
-s --switch-devices f [DCGM_EXPORTER_OTHER_DEVICES_STR]
    refused: NVSwitches are not read
-p --cpu-devices f [DCGM_EXPORTER_CPU_DEVICES_STR]
    refused: CPUs are not read
--fake-gpus false [DCGM_EXPORTER_USE_FAKE_GPUS]
    refused: use --source simulator
-x --xid-count-window-size 300000 [DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE]
    refused: no counts per time window; use increase(DCGM_EXP_XID_ERRORS_TOTAL[5m])
--clock-events-count-window-size 300000 [DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE]
    refused: no counts per time window; use increase(gpuledger_device_throttled_seconds_total[5m])
--enable-dcgm-log false [DCGM_EXPORTER_ENABLE_DCGM_LOG]
    refused: there is no DCGM here; use --log-level debug
--dump-enabled false [DCGM_EXPORTER_DUMP_ENABLED]
    refused: there are no dumps; gpuledger record FILE writes readings to a file
--enable-pprof false [DCGM_EXPORTER_ENABLE_PPROF]
    refused: Go profiling
--config-file '' [DCGM_EXPORTER_CONFIG_FILE]
    refused: write the settings into a file for --config
--web-read-timeout 10s [DCGM_EXPORTER_WEB_READ_TIMEOUT]
    refused: see the flags --web.limits.* of gpuledger
--web-write-timeout 30s [DCGM_EXPORTER_WEB_WRITE_TIMEOUT]
    refused: see the flags --web.limits.* of gpuledger
--max-concurrent-scrapes 16 [DCGM_EXPORTER_MAX_CONCURRENT_SCRAPES]
    refused: see the flags --web.limits.* of gpuledger
--enable-exporter-metrics false [DCGM_EXPORTER_ENABLE_EXPORTER_METRICS]
    refused: gpuledger's own metrics are at /metrics/native
--watch-max-keep-age DURATION [DCGM_EXPORTER_WATCH_MAX_KEEP_AGE]
    ignored: there is no DCGM here that keeps samples
--watch-max-keep-samples NUMBER [DCGM_EXPORTER_WATCH_MAX_KEEP_SAMPLES]
    ignored: there is no DCGM here that keeps samples
--health-require-gpus false [DCGM_EXPORTER_HEALTH_REQUIRE_GPUS]
    refused: /health names missing GPUs
--container-labels false [DCGM_EXPORTER_CONTAINER_LABELS]
    refused: owners of processes are in the dialect native
--container-runtime-socket '' [DCGM_CONTAINER_RUNTIME_SOCKET]
    refused: see --docker-socket and --podman-socket
""",
    "nvidia_gpu_exporter": """
--web.network tcp
    refused: give an IPv4 or IPv6 address with --listen-address
--web.read-timeout 10s
    refused: see the flags --web.limits.* of gpuledger
--web.read-header-timeout 10s
    refused: see the flags --web.limits.* of gpuledger
--web.write-timeout 15s
    refused: see the flags --web.limits.* of gpuledger
--web.idle-timeout 60s|1m|1m0s
    refused: see the flags --web.limits.* of gpuledger
--web.max-requests 40
    refused: see the flags --web.limits.* of gpuledger
--web.timeout-offset 500ms|0.5s
    refused: metrics are rendered before the scrape
--web.enable-pprof false
    refused: Go profiling
--shutdown-on-error false
    refused: gpuledger keeps running; alert on nvidia_smi_last_collect_success
--demo-config ''
    refused: give a scenario with --source simulator:FILE
""",
}


def _without_equivalent(program: str, usage: str, explanation: str) -> Setting:
    kind, _, reason = explanation.strip().partition(": ")
    if kind == "ignored":
        has_form = any(word[0] not in "-[" for word in usage.split())
        return compatible(program, usage, f"{NO_EFFECT}: {reason}", parse=text if has_form else boolean)
    declared = compatible(program, usage, f"{REFUSED}: {reason}")
    if declared.metavar == "false":
        return replace(declared, parse=_accept_only_false(reason), boolean=True)
    return replace(declared, parse=_accept_only(declared.metavar.strip("'").split("|"), reason))


def _accept_only_false(remedy: str) -> Parser:
    def parse(value: object) -> bool:
        if boolean(value):
            raise ValueError(f"expected false: not supported ({remedy})")
        return False

    return parse


def _accept_only(accepted: list[str], remedy: str) -> Parser:
    def parse(value: object) -> str:
        word = text(value).strip()
        if word and word not in accepted:
            raise ValueError(f"not supported ({remedy}); leave it out")
        return word

    return parse


def _read_table() -> Iterator[Setting]:
    for program, table in _WITHOUT_EQUIVALENT.items():
        lines = table.strip().splitlines()
        for usage, explanation in zip(lines[::2], lines[1::2], strict=True):
            yield _without_equivalent(program, usage, explanation)


FlagsWithoutEquivalent = settings_group("FlagsWithoutEquivalent", *_read_table())

# Accepted by 0.2, with a warning.
_REMOVED = ("connections-per-client", "requests-per-client", "streams-per-client")
RemovedSettings = settings_group(
    "RemovedSettings",
    *(
        Setting(
            f"web.limits.{name.replace('-', '_')}",
            text,
            f"{NO_EFFECT}: removed; the limits of the HTTP server apply to all clients together",
            (f"--web.limits.{name}",),
            metavar="N",
        )
        for name in _REMOVED
    ),
)
