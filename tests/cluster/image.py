"""A container image made by hand: one static program, in the layout that `docker save` writes."""

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


def build(folder: Path) -> Path:
    """The image's archive, for `ctr image import`."""
    program = folder / "sleeper"
    subprocess.run(["cc", "-static", "-Os", "-o", str(program), str(HERE / "sleeper.c")], check=True)
    layer = _archive({PROGRAM.lstrip("/"): program.read_bytes()})
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [PROGRAM]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]
    image = folder / "image.tar"
    members = {
        "layer.tar": layer,
        "config.json": json.dumps(config).encode(),
        "manifest.json": json.dumps(manifest).encode(),
    }
    image.write_bytes(_archive(members))
    return image


def _archive(members: dict[str, bytes]) -> bytes:
    told = io.BytesIO()
    with tarfile.open(fileobj=told, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return told.getvalue()
