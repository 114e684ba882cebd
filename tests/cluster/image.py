"""An image with one static program, built without a container engine in the layout of `docker save`."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
NAME = "gpuledger.test/sleeper:1"
PROGRAM = "/sleeper"


def build_sleeper(folder: Path) -> Path:
    """Build the archive of an image with one static program, for `ctr image import`."""
    program = folder / "sleeper"
    subprocess.run(["cc", "-static", "-Os", "-o", str(program), str(HERE / "sleeper.c")], check=True)
    layer = folder / "sleeper-layer.tar"
    with tarfile.open(layer, "w") as archive:
        archive.add(program, PROGRAM.lstrip("/"))
    return _pack(NAME, layer, {"Entrypoint": [PROGRAM]}, folder / "sleeper.tar")


def _pack(name: str, layer: Path, config: dict[str, object], target: Path) -> Path:
    with layer.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    described = {
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as archive:
        archive.add(layer, "layer.tar")
        for member, content in (("config.json", described), ("manifest.json", manifest)):
            data = json.dumps(content).encode()
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    layer.unlink()
    return target
