"""What the programs that a resource's objects run say of the configurations that are written for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpuledger.agent.config.reading import read_agent_config
from gpuledger.config.assemble import assemble
from gpuledger.config.node import NODE
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.settings import reload_of

# What a running `gpuledger serve` cannot change.
EXPORTER_RESTARTS = frozenset(key for group in NODE.values() for key in reload_of(group).restart)


def check_agent(config: Mapping[str, Any]) -> str:
    """What `gpuledger agent` says against its configuration file, without the file's name; else empty."""
    return _checked(config, lambda file: read_agent_config(file, {}))


def check_exporter(config: Mapping[str, Any]) -> str:
    """The same for `gpuledger serve`."""
    return _checked(config, lambda file: assemble(NODE.values(), {}, {}, file))


def _checked(config: Mapping[str, Any], read: Callable[[Path], object]) -> str:
    # Its readers read files: paths within are relative to them.
    with TemporaryDirectory(prefix="gpuledger-operator-") as folder:
        file = Path(folder, "configuration.yaml")
        # JSON is YAML.
        file.write_text(json.dumps(config), "utf-8")
        try:
            read(file)
        except GpuledgerError as error:
            return str(error).replace(f"{file}: ", "").replace(str(file), "it")
    return ""
