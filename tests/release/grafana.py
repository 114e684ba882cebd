"""Grafana's own code: what its panels show for responses of a Prometheus.

`@grafana/data` has the units, matchers, reducers, transformations and value formats of Grafana, and
`@grafana/prometheus` is the data source. Both are installed from npm once, into ~/.cache/gpuledger. They run
in Node.js of Debian trixie, because that of bookworm is too old. Needs root.

Grafana's server, which turns responses into frames, is not in a registry: `frames` does what it does.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from debian_root import CACHE, CERTIFICATES, debian_root

Json = dict[str, Any]
HERE = Path(__file__).with_name("grafana")
PROGRAM = HERE / "panels.cjs"
VERSION: str = json.loads((HERE / "package.json").read_text())["dependencies"]["@grafana/data"]
# Its dependencies are a text editor and widgets. Only its module for responses is used, which has none.
DATA_SOURCE = f"@grafana/prometheus@{VERSION}"


def install() -> Path:
    """The folder with Grafana's packages; takes three minutes, once."""
    # Peer dependencies of packages disagree, so npm ignores them; react is named in package.json.
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    files = [HERE / "package.json", HERE / "package-lock.json"]
    identity = hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:8]
    folder = CACHE.parent / f"grafana-{VERSION}-{identity}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "grafana.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            for file in files:
                shutil.copy(file, part)
            _npm(part, "ci", "--legacy-peer-deps", *quiet)
            archive = part / _npm(part, "pack", *quiet, DATA_SOURCE).split()[-1]
            shutil.rmtree(part / ".npm", ignore_errors=True)
            with tarfile.open(archive) as packed:
                packed.extractall(part, filter="data")
            (part / "package").rename(part / "node_modules/@grafana/prometheus")
            part.rename(folder)
    return folder


def _npm(folder: Path, *arguments: str) -> str:
    environment = {"NODE_EXTRA_CA_CERTS": str(CERTIFICATES), "npm_config_cache": str(folder / ".npm")}
    root = debian_root("trixie", ["nodejs", "npm"], binds=[folder])
    return root.run("npm", *arguments, cwd=folder, env=environment)


def identifiers() -> dict[str, list[str]]:
    """What Grafana knows: units, matchers, reducers, transformations, colorModes, mappings, properties."""
    return dict(_run("identifiers"))


def show(panels: Iterable[Json], variables: Mapping[str, str]) -> dict[str, Json]:
    """What each panel shows, by its key: `warnings` and `rows`. panels.cjs describes the objects."""
    shown = _run("show", {"variables": variables, "panels": list(panels)})
    return {item["key"]: item for item in shown}


def _run(command: str, given: Json | None = None) -> Any:
    modules = install()
    with tempfile.NamedTemporaryFile("w", dir="/tmp", suffix=".json") as file:
        json.dump(given, file)
        file.flush()
        root = debian_root("trixie", ["nodejs", "npm"], binds=[modules, HERE])
        return json.loads(root.run("node", PROGRAM, modules, command, file.name))


def frames(target: Json, response: Json) -> list[Json]:
    """The frames that Grafana's server makes of a response of /api/v1/query or /api/v1/query_range.

    One frame per series: time, and a value with the series' labels. A legend becomes the name of the value.
    """
    kind = response["resultType"]
    meta = {"type": "timeseries-multi" if kind == "matrix" else "numeric-multi"}
    made = []
    for series in response["result"]:
        labels = series["metric"]
        samples = series["values"] if kind == "matrix" else [series["value"]]
        times = [float(at) * 1000 for at, _ in samples]
        name = _legend(target["legendFormat"], labels, target["expr"])
        made.append(
            {
                "refId": target["refId"],
                "name": name,
                "meta": {**meta, "custom": {"resultType": kind}},
                "fields": [
                    {"name": "Time", "type": "time", "values": times, "config": {}},
                    {
                        "name": labels.get("__name__", "Value"),
                        "type": "number",
                        "labels": labels,
                        # JSON has no NaN.
                        "values": [None if value == "NaN" else float(value) for _, value in samples],
                        "config": {"displayNameFromDS": name} if name else {},
                    },
                ],
            }
        )
    return made


def _legend(pattern: str, labels: Mapping[str, str], expression: str) -> str:
    if pattern == "__auto":
        return "" if labels else expression
    return re.sub(r"\{\{\s*(.+?)\s*\}\}", lambda name: labels.get(name[1], ""), pattern)
