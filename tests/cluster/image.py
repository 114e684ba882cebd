"""Container images made by hand, in the layout that `docker save` writes."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

from cluster.dockerfile import Stage

HERE = Path(__file__).parent
NAME = "gpuledger.test/sleeper:1"
PROGRAM = "/sleeper"


def build(folder: Path) -> Path:
    """The archive of an image with one static program, for `ctr image import`."""
    program = folder / "sleeper"
    subprocess.run(["cc", "-static", "-Os", "-o", str(program), str(HERE / "sleeper.c")], check=True)
    layer = folder / "sleeper-layer.tar"
    with tarfile.open(layer, "w") as archive:
        archive.add(program, PROGRAM.lstrip("/"))
    return _pack(NAME, layer, {"Entrypoint": [PROGRAM]}, folder / "sleeper.tar")


def pack(stage: Stage, name: str, folder: Path) -> Path:
    """The archive of what a Dockerfile has made."""
    layer = folder / "layer.tar"
    # Python's tarfile takes five times as long.
    subprocess.run(["tar", "--create", "--file", layer, "--numeric-owner", "-C", stage.root, "."], check=True)
    told = stage.config
    config = {
        "Entrypoint": list(told.entrypoint),
        "Env": [f"{key}={value}" for key, value in told.env.items()],
        "Labels": told.labels,
        "WorkingDir": told.folder,
    }
    return _pack(name, layer, config, folder / "image.tar")


def _pack(name: str, layer: Path, config: dict[str, object], target: Path) -> Path:
    with layer.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
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
            told = json.dumps(content).encode()
            entry = tarfile.TarInfo(member)
            entry.size = len(told)
            archive.addfile(entry, io.BytesIO(told))
    layer.unlink()
    return target
