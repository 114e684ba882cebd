"""A machine with AMD and Intel GPUs in a folder: sysfs and procfs made of published dumps and of values."""

from __future__ import annotations

import json
import shutil
from base64 import b64decode
from functools import cache
from pathlib import Path
from struct import pack_into
from typing import Any

from gpuledger.sources.drm.gpu_metrics import metrics_layout

DUMPS = Path(__file__).parent / "fixtures/drm"


@cache
def load_dump(name: str) -> dict[str, Any]:
    """A dump with its files and expected values."""
    found: dict[str, Any] = json.loads((DUMPS / f"{name}.json").read_text())
    return found


def file_bytes(value: str | dict[str, Any]) -> bytes:
    """The bytes of a file in a dump."""
    if isinstance(value, str):
        return value.encode()
    raw = b64decode(value["base64"]) if "base64" in value else value["text"].encode()
    return raw.ljust(value.get("padded", 0), b"\0")


class DrmMachine:
    """Files below a folder. `sysfs` and `procfs` are the roots to pass to a source."""

    def __init__(self, folder: Path) -> None:
        self.sys, self.proc = folder / "sys", folder / "proc"
        self.sysfs, self.procfs = str(self.sys), str(self.proc)
        for path in (self.sys / "class/drm", self.proc):
            path.mkdir(parents=True)
        self.write("proc/stat", "btime 1700000000\n")
        self._folder = folder

    def write(self, path: str, content: str | bytes) -> None:
        """Write a file below the folder, such as `sys/class/...`."""
        target = self.sys.parent / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)

    def add_dump(self, name: str, card: int | None = None, render: int | None = None) -> Path:
        """Add the card of a dump (as `cardN`), and its KFD topology if it has one. Returns its folder."""
        number = card
        for path, value in load_dump(name)["files"].items():
            first, _, rest = path.partition("/")
            if first.startswith("card"):
                number = int(first.removeprefix("card")) if card is None else card
                self.write(f"sys/class/drm/card{number}/{rest}", file_bytes(value))
            elif first == "kfd":
                self.write(f"sys/class/kfd/kfd/{rest}", file_bytes(value))
        folder = self.sys / f"class/drm/card{number}"
        if render is not None:
            (folder / f"device/drm/renderD{render}").mkdir(parents=True)
        return folder

    def add_topology(self, name: str) -> None:
        """Add the KFD nodes of a dump."""
        for path, value in load_dump(f"kfd-{name}")["files"].items():
            rest = path if path.startswith("topology") else f"topology/{path}"
            self.write(f"sys/class/kfd/kfd/{rest}", file_bytes(value))

    def add_card(
        self,
        number: int,
        address: str,
        ids: str,
        driver: str = "amdgpu",
        *,
        render: int | None = None,
        hwmon: dict[str, object] | None = None,
        **files: object,
    ) -> Path:
        """Add a card with these files in its device folder; `__` in a name stands for a slash."""
        device = f"sys/class/drm/card{number}/device"
        event = f"DRIVER={driver}\nPCI_ID={ids}\nPCI_SLOT_NAME={address}\n"
        self.write(f"{device}/uevent", event)
        for name, value in files.items():
            content = value if isinstance(value, bytes) else f"{value}\n"
            self.write(f"{device}/{name.replace('__', '/')}", content)
        if hwmon is not None:
            self.write(f"{device}/hwmon/hwmon{number}/name", f"{driver}\n")
            for name, value in hwmon.items():
                self.write(f"{device}/hwmon/hwmon{number}/{name}", f"{value}\n")
        if render is not None:
            (self.sys / f"class/drm/card{number}/device/drm/renderD{render}").mkdir(
                parents=True, exist_ok=True
            )
        return self.sys / f"class/drm/card{number}"

    def add_node(self, number: int, gpu_id: int, **properties: int) -> None:
        """Add a KFD node."""
        folder = f"sys/class/kfd/kfd/topology/nodes/{number}"
        given = {"simd_count": 416, "simd_per_cu": 4, "vendor_id": 4098, **properties}
        self.write(f"{folder}/properties", "".join(f"{key} {value}\n" for key, value in given.items()))
        self.write(f"{folder}/gpu_id", f"{gpu_id}\n")

    def add_process(self, pid: int, clients: dict[int, tuple[str, str]] | None = None) -> None:
        """Add a process, or replace its clients: by descriptor the node (`renderD128`) and fdinfo."""
        folder = self.proc / str(pid)
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "fd").mkdir(parents=True)
        (folder / "fdinfo").mkdir()
        (folder / "cmdline").write_text("python\0")
        middle = " ".join(str(number) for number in range(5, 22))
        (folder / "stat").write_text(f"{pid} (python) S 1 {middle} {5000 + pid} 1024 77 0\n")
        (folder / "cgroup").write_text("0::/user.slice/user-1000.slice/session-1.scope\n")
        for descriptor, (node, text) in (clients or {}).items():
            (folder / f"fd/{descriptor}").symlink_to(f"/dev/dri/{node}")
            (folder / f"fdinfo/{descriptor}").write_text(text)

    def end_process(self, pid: int) -> None:
        """Remove a process."""
        shutil.rmtree(self.proc / str(pid))

    def use_kfd(
        self, pid: int, gpu_id: int, *, vram: int = 0, occupancy: int | None = None, queues: int = 1
    ) -> None:
        """Add what a process holds on a KFD node."""
        folder = f"sys/class/kfd/kfd/proc/{pid}"
        self.write(f"{folder}/vram_{gpu_id}", f"{vram}\n")
        if occupancy is not None:
            self.write(f"{folder}/stats_{gpu_id}/cu_occupancy", f"{occupancy}\n")
        for queue in range(queues):
            self.write(f"{folder}/queues/{gpu_id}{queue}/gpuid", f"{gpu_id}\n")


def amd_client(address: str, client_id: int, *, vram: int = 0, **engines: int) -> str:
    """The fdinfo of a client of amdgpu: engines in nanoseconds, memory in bytes."""
    lines = [
        "pos:\t0",
        "drm-driver:\tamdgpu",
        f"drm-client-id:\t{client_id}",
        f"drm-pdev:\t{address}",
        f"drm-memory-vram:\t{vram // 1024} KiB",
        *(f"drm-engine-{name}:\t{amount} ns" for name, amount in engines.items() if amount),
    ]
    return "\n".join(lines) + "\n"


def xe_client(address: str, client_id: int, *, total: int, vram: int = 0, **cycles: int) -> str:
    """The fdinfo of a client of xe: GPU cycles by class, and the time stamp of the GPU."""
    lines = [
        "drm-driver:\txe",
        f"drm-client-id:\t{client_id}",
        f"drm-pdev:\t{address}",
        f"drm-resident-vram0:\t{vram // 1024} KiB",
    ]
    for name, amount in cycles.items():
        lines += [f"drm-cycles-{name}:\t{amount}", f"drm-total-cycles-{name}:\t{total}"]
    return "\n".join(lines) + "\n"


def metrics_table(version: tuple[int, int], **fields: int | list[int]) -> bytes:
    """A table of gpu_metrics with these fields; all others are absent (all bits 1)."""
    layout = metrics_layout(version)
    raw = bytearray(b"\xff" * layout.size)
    pack_into("<HBB", raw, 0, layout.size, *version)
    for place in layout.places:
        given = fields.get(place.name)
        if given is not None:
            values = given if isinstance(given, list) else [given]
            pack_into(f"<{len(values)}{place.code}", raw, place.offset, *values)
    return bytes(raw)
