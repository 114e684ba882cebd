"""nvidia_gpu_exporter's flags: accepted, and what each means here.

`--nvidia-smi-command`, `--query-field-names`, `--query-field-names-exclude`, `--log.level` and `--log.format`
are gpuledger's own under the same names. What cannot be honoured is an error at start that says what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from re import fullmatch
from typing import ClassVar

from gpuledger.model.settings import Reload, boolean, choice, duration, setting, text

_HIGHEST_GPU = 1023
# Hosts up to the first dot. The last is the GPU Operator's Service, which leads to the caller's own node.
_THIS_MACHINE = frozenset({"", "localhost", "127", "::1", "nvidia-dcgm"})


def only_false(remedy: str) -> Callable[[object], bool]:
    """A switch that may only be off; ValueError says why, with the remedy."""

    def parse(value: object) -> bool:
        if boolean(value):
            raise ValueError(f"only false can be honoured ({remedy})")
        return False

    return parse


def only(unset: tuple[str, ...], remedy: str) -> Callable[[object], str]:
    """A text that may only be one of those that ask for nothing; ValueError says why, with the remedy."""

    def parse(value: object) -> str:
        word = text(value).strip()
        if word not in unset:
            raise ValueError(f"it cannot be honoured ({remedy}); leave it out")
        return word

    return parse


def devices(value: object) -> str:
    """Indices, comma-separated, from `g`, `g:0,2-3` or `f`; empty for all."""
    written = text(value).strip()
    if written in ("f", "g"):
        return ""
    if written.split(":", 1)[0] == "i":
        raise ValueError(
            "f, g or g:0,2-3 is wanted: instances are told beside their GPU, and cannot be chosen"
        )
    if not fullmatch(r"g:\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*", written):
        raise ValueError("f, g or g:0,2-3 is wanted")
    chosen: dict[int, None] = {}
    for part in written[2:].split(","):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[-1] > _HIGHEST_GPU:
            raise ValueError(f"indices from 0 to {_HIGHEST_GPU}, the lower first, are wanted")
        chosen.update(dict.fromkeys(numbers))
    return ",".join(map(str, chosen))


def host_engine(value: object) -> str:
    """The address of a DCGM host engine, `HOST[:PORT]`: of this machine's, for no other can stand for it."""
    written = text(value).strip()
    host = fullmatch(r"\[?(.*?)\]?(:\d+)?", written)
    if host is None or host[1].split(".", 1)[0] not in _THIS_MACHINE:
        raise ValueError(
            "an address of this machine, such as localhost:5555, is wanted: no other's host engine is asked; "
            "run gpuledger there"
        )
    return written


def label_patterns(value: object) -> str:
    """Names, some with a * at the end, from regular expressions that are names or beginnings of names."""
    names = []
    for pattern in filter(None, (part.strip() for part in text(value).split(","))):
        plain = pattern.removeprefix("^").removesuffix("$").replace("\\.", ".")
        found = fullmatch(r"([\w./-]*?)(\.\*)?", plain)
        if found is None:
            raise ValueError(
                "names and beginnings such as ^app$ and ^team/.* are wanted; say the rest by "
                "--pod-label-allowlist"
            )
        # Without an end a regular expression takes what goes on, too.
        open_end = found[2] is not None or not pattern.endswith("$")
        names.append(found[1] + ("*" if open_end else ""))
    return ",".join(names)


_BACKENDS = {"exec": "smi", "nvml": "nvml", "demo": "simulator"}
_LIMITS = "gpuledger has limits of its own"


def _smi(_value: object) -> Mapping[str, str]:
    return {"dialect": "smi"}


def _addresses(value: object) -> tuple[str, ...]:
    parts = value if isinstance(value, list | tuple) else text(value).split()
    return tuple(text(part).strip() for part in parts)


def _interval(value: float) -> Mapping[str, str]:
    # 0 is a reading for each scrape there; here readings are always at --interval.
    return {"interval": f"{value}s"} if value else {}


def _limit(name: str, *usual: str) -> str:
    """A limit of its server, which may only be the usual one, however that is written."""
    return setting(
        f"nvidia_gpu_exporter.{name}",
        only(usual, _LIMITS),
        usual[0],
        f"cannot be honoured: {_LIMITS}",
        flags=("--web." + name.replace("_", "-"),),
        metavar=usual[0],
    )


@dataclass(frozen=True, slots=True)
class NvidiaGpuExporterSettings:
    """What nvidia_gpu_exporter takes beside what has the same name here. Any of them that can be honoured in
    more than its default makes /metrics `smi`.
    """

    # The settings that they mean say whether they can change.
    reload: ClassVar[Reload] = Reload()

    listen_address: tuple[str, ...] = setting(
        "nvidia_gpu_exporter.listen_address",
        _addresses,
        (),
        "--listen-address",
        flags=("--web.listen-address",),
        metavar="ADDR",
        repeatable=True,
        means=lambda value: {"listen_address": " ".join(value)} if value else {},
        implies=_smi,
    )
    telemetry_path: str = setting(
        "nvidia_gpu_exporter.telemetry_path",
        text,
        "",
        "--metrics-path",
        flags=("--web.telemetry-path",),
        metavar="PATH",
        means=lambda value: {"metrics_path": value} if value else {},
        implies=_smi,
    )
    backend: str = setting(
        "nvidia_gpu_exporter.backend",
        choice(*_BACKENDS),
        "exec",
        "--source: exec is smi, nvml is nvml, demo is simulator",
        flags=("--collect.backend",),
        metavar="exec|nvml|demo",
        means=lambda value: {"source": _BACKENDS[value]},
        implies=_smi,
    )
    interval: float = setting(
        "nvidia_gpu_exporter.interval",
        duration("s"),
        0.0,
        "--interval; 0 leaves it as it is",
        flags=("--collect.interval",),
        metavar="DURATION",
        means=_interval,
        implies=_smi,
    )
    timeout: float = setting(
        "nvidia_gpu_exporter.timeout",
        duration("s"),
        10.0,
        "--nvidia-smi-timeout",
        flags=("--collect.timeout",),
        metavar="DURATION",
        means=lambda value: {"nvidia_smi.timeout": f"{value}s"},
        implies=_smi,
    )
    compute_apps: bool = setting(
        "nvidia_gpu_exporter.compute_apps",
        boolean,
        True,
        "--smi.compute-apps",
        flags=("--collect.compute-apps",),
        means=lambda value: {"smi.compute_apps": "true" if value else "false"},
        implies=_smi,
    )
    compute_apps_mig: bool = setting(
        "nvidia_gpu_exporter.compute_apps_mig",
        boolean,
        True,
        "the instance of a process is always told, and this changes nothing",
        flags=("--collect.compute-apps-mig",),
        implies=_smi,
    )
    pcie_throughput: bool = setting(
        "nvidia_gpu_exporter.pcie_throughput",
        boolean,
        True,
        "it costs nothing and is told where the card has it, and this changes nothing",
        flags=("--collect.pcie-throughput",),
        implies=_smi,
    )
    network: str = setting(
        "nvidia_gpu_exporter.network",
        only(("tcp",), "name an IPv4 or IPv6 address by --listen-address"),
        "tcp",
        "cannot be honoured but for tcp",
        flags=("--web.network",),
        metavar="tcp",
    )
    read_timeout: str = _limit("read_timeout", "10s")
    read_header_timeout: str = _limit("read_header_timeout", "10s")
    write_timeout: str = _limit("write_timeout", "15s")
    idle_timeout: str = _limit("idle_timeout", "60s", "1m", "1m0s")
    max_requests: str = _limit("max_requests", "40")
    timeout_offset: str = setting(
        "nvidia_gpu_exporter.timeout_offset",
        only(("500ms", "0.5s"), "a page is ready before it is asked for"),
        "500ms",
        "cannot be honoured: a page is ready before it is asked for",
        flags=("--web.timeout-offset",),
        metavar="500ms",
    )
    pprof: bool = setting(
        "nvidia_gpu_exporter.enable_pprof",
        only_false("it is Go's"),
        False,
        "cannot be honoured: it is Go's",
        flags=("--web.enable-pprof",),
        metavar="false",
        bare=True,
    )
    shutdown_on_error: bool = setting(
        "nvidia_gpu_exporter.shutdown_on_error",
        only_false("gpuledger goes on and tells it; alert on nvidia_smi_last_collect_success"),
        False,
        "cannot be honoured: gpuledger goes on, and tells what fails",
        flags=("--shutdown-on-error",),
        metavar="false",
        bare=True,
    )
    demo_config: str = setting(
        "nvidia_gpu_exporter.demo_config",
        only(("",), "name a scenario by --source simulator:FILE"),
        "",
        "cannot be honoured: --source simulator:FILE has scenarios",
        flags=("--demo-config",),
        metavar="FILE",
    )
