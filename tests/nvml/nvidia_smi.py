"""A fake nvidia-smi for the test libnvidia-ml.so.1: prints what NVIDIA's own binding reads from it.

    LD_LIBRARY_PATH=... TEST_NVML_STATE=... nvidia_smi.py -q -x

It shares no code with gpuledger, so that both can be compared. TEST_SMI_WRONG replaces what it prints, as
`NAME=TEXT;NAME=TEXT` with names of XML elements and of fields. TEST_SMI_NO_PROCESSES prints no processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pynvml as n

WRONG = dict(pair.split("=", 1) for pair in os.environ.get("TEST_SMI_WRONG", "").split(";") if pair)


def read(call: Callable[..., Any], *arguments: Any, show: Callable[[Any], str] = str) -> str:
    try:
        return show(call(*arguments))
    except n.NVMLError:
        return "N/A"


def mebibytes(value: int) -> str:
    return f"{value >> 20} MiB"


def watts(value: int) -> str:
    return f"{value / 1000:.2f} W"


def enabled(value: int) -> str:
    return "Enabled" if value else "Disabled"


class Card:
    """One GPU with the texts that nvidia-smi prints for it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.handle = n.nvmlDeviceGetHandleByIndex(index)

    def get(self, call: str, *arguments: Any, show: Callable[[Any], str] = str) -> str:
        return read(getattr(n, call), self.handle, *arguments, show=show)

    def memory(self, name: str) -> str:
        try:
            info = n.nvmlDeviceGetMemoryInfo(self.handle, version=n.nvmlMemory_v2)
        except n.NVMLError:
            info = None
        if info is None:
            return self.get("nvmlDeviceGetMemoryInfo", show=lambda one: mebibytes(getattr(one, name)))
        return mebibytes(getattr(info, name)) if info.total else "N/A"

    def mhz(self, call: str, kind: int) -> str:
        return self.get(call, kind, show=lambda value: f"{value} MHz")

    def percent(self, name: str) -> str:
        return self.get("nvmlDeviceGetUtilizationRates", show=lambda rates: f"{getattr(rates, name)} %")

    def fields(self) -> dict[str, str]:
        return {
            "uuid": self.get("nvmlDeviceGetUUID"),
            "index": str(self.index),
            "name": self.get("nvmlDeviceGetName"),
            "serial": self.get("nvmlDeviceGetSerial"),
            "pci.bus_id": self.get("nvmlDeviceGetPciInfo_v3", show=lambda pci: pci.busId),
            "vbios_version": self.get("nvmlDeviceGetVbiosVersion"),
            "driver_version": read(n.nvmlSystemGetDriverVersion),
            "mig.mode.current": self.get("nvmlDeviceGetMigMode", show=lambda modes: enabled(modes[0])),
            "persistence_mode": self.get("nvmlDeviceGetPersistenceMode", show=enabled),
            "fan.speed [%]": self.get("nvmlDeviceGetFanSpeed", show=lambda value: f"{value} %"),
            "pstate": self.get("nvmlDeviceGetPerformanceState", show=lambda value: f"P{value}"),
            "memory.total [MiB]": self.memory("total"),
            "memory.used [MiB]": self.memory("used"),
            "utilization.gpu [%]": self.percent("gpu"),
            "temperature.gpu": self.get("nvmlDeviceGetTemperature", 0),
            "power.draw [W]": self.get("nvmlDeviceGetPowerUsage", show=watts),
            "enforced.power.limit [W]": self.get("nvmlDeviceGetEnforcedPowerLimit", show=watts),
            "clocks.current.sm [MHz]": self.mhz("nvmlDeviceGetClockInfo", 1),
            "ecc.errors.corrected.aggregate.total": self.get("nvmlDeviceGetTotalEccErrors", 0, 1),
        }

    def xml(self) -> str:
        text = self.fields()
        leaf = {
            "product_name": text["name"],
            "serial": text["serial"],
            "uuid": text["uuid"],
            "minor_number": self.get("nvmlDeviceGetMinorNumber"),
            "vbios_version": text["vbios_version"],
            "fan_speed": text["fan.speed [%]"],
            "performance_state": text["pstate"],
            "persistence_mode": text["persistence_mode"],
        }
        nested = {
            "mig_mode": {"current_mig": text["mig.mode.current"]},
            "pci": {
                "pci_bus_id": text["pci.bus_id"],
                "replay_counter": self.get("nvmlDeviceGetPcieReplayCounter"),
            },
            "fb_memory_usage": {name: self.memory(name) for name in ("total", "used", "free")},
            "utilization": {"gpu_util": self.percent("gpu"), "memory_util": self.percent("memory")},
            "temperature": {
                "gpu_temp": self.get("nvmlDeviceGetTemperature", 0, show=lambda value: f"{value} C")
            },
            "gpu_power_readings": {
                "power_draw": text["power.draw [W]"],
                "requested_power_limit": self.get("nvmlDeviceGetPowerManagementLimit", show=watts),
            },
            "clocks": {
                name: self.mhz("nvmlDeviceGetClockInfo", kind)
                for kind, name in enumerate(("graphics_clock", "sm_clock", "mem_clock", "video_clock"))
            },
            "max_clocks": {
                "sm_clock": self.mhz("nvmlDeviceGetMaxClockInfo", 1),
                "mem_clock": self.mhz("nvmlDeviceGetMaxClockInfo", 2),
            },
        }
        lines = [element(name, value) for name, value in leaf.items()]
        for parent, children in nested.items():
            inner = "".join(element(name, value) for name, value in children.items())
            lines.append(f"<{parent}>{inner}</{parent}>")
        return f'<gpu id="{text["pci.bus_id"]}">{"".join(lines)}{self.instances()}{self.processes()}</gpu>\n'

    def instances(self) -> str:
        found = []
        for index in range(8):
            try:
                handle = n.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, index)
            except n.NVMLError:
                continue
            gi, ci = n.nvmlDeviceGetGpuInstanceId(handle), n.nvmlDeviceGetComputeInstanceId(handle)
            ids = element("index", str(index)) + element("gpu_instance_id", str(gi))
            found.append(f"<mig_device>{ids}{element('compute_instance_id', str(ci))}</mig_device>")
        return f"<mig_devices>{''.join(found) or 'None'}</mig_devices>"

    def listing(self) -> str:
        lines = [f"GPU {self.index}: a card (UUID: {self.fields()['uuid']})"]
        for index in range(8):
            try:
                handle = n.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, index)
            except n.NVMLError:
                continue
            lines.append(f"  MIG 1g.10gb     Device  {index}: (UUID: {n.nvmlDeviceGetUUID(handle)})")
        return "\n".join(lines) + "\n"

    def types(self) -> dict[int, tuple[str, Any]]:
        found: dict[int, tuple[str, Any]] = {}
        for kind in ("MPSCompute", "Compute", "Graphics"):
            try:
                entries = getattr(n, f"nvmlDeviceGet{kind}RunningProcesses")(self.handle)
            except n.NVMLError:
                continue
            for entry in entries:
                before = found.get(entry.pid)
                found[entry.pid] = (f"{before[0]}+{kind[0]}" if before else kind[0], entry)
        return found

    def processes(self) -> str:
        if "TEST_SMI_NO_PROCESSES" in os.environ:
            return "<processes></processes>"
        rows = "".join(
            "<process_info>"
            + element("gpu_instance_id", instance_id(entry.gpuInstanceId))
            + element("compute_instance_id", instance_id(entry.computeInstanceId))
            + element("pid", str(pid))
            + element("type", kind)
            + element("process_name", "a program")
            + element("used_memory", mebibytes(entry.usedGpuMemory) if entry.usedGpuMemory else "N/A")
            + "</process_info>"
            for pid, (kind, entry) in self.types().items()
        )
        return f"<processes>{rows}</processes>"


def instance_id(value: int | None) -> str:
    return "N/A" if value in (None, 0xFFFFFFFF) else str(value)


def element(name: str, value: str) -> str:
    return f"<{name}>{WRONG.get(name, value)}</{name}>"


def main(arguments: list[str]) -> int:
    try:
        n.nvmlInit()
    except n.NVMLError as error:
        print(f"Failed to initialize NVML: {error}")  # noqa: T201
        return 9
    cards = [Card(index) for index in range(n.nvmlDeviceGetCount())]
    driver = read(n.nvmlSystemGetDriverVersion)
    text = ""
    if "-x" in arguments:
        head = f"<driver_version>{driver}</driver_version><attached_gpus>{len(cards)}</attached_gpus>"
        gpus = "".join(card.xml() for card in cards)
        text = f'<?xml version="1.0" ?>\n<nvidia_smi_log>\n{head}\n{gpus}</nvidia_smi_log>\n'
    elif "-L" in arguments:
        text = "".join(card.listing() for card in cards)
    elif "--help-query-gpu" in arguments:
        text = "".join(f'\n"{name.split(" ")[0]}"\nA field.\n' for name in cards[0].fields())
    elif "pmon" in arguments:
        text = "# gpu         pid   type     sm    mem    enc    dec    command\n"
        text += "# Idx           #    C/G      %      %      %      %    name\n"
    elif wanted := next((word for word in arguments if word.startswith("--query-gpu=")), ""):
        rows = [card.fields() for card in cards]
        names = wanted.partition("=")[2].split(",")
        titles = {title.split(" ")[0]: title for title in rows[0]}
        unknown = [name for name in names if name not in titles]
        if unknown:
            print(f'Field "{unknown[0]}" is not a valid field to query.\n')  # noqa: T201
            return 2
        text = ", ".join(titles[name] for name in names) + "\n"
        for row in rows:
            text += ", ".join(WRONG.get(name, row[titles[name]]) for name in names) + "\n"
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
