"""The modules that a serving node does not load before it needs them: its memory is mostly code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpuledger
from gpuledger.config.commands import ALL_GROUPS
from nvml.library import NvmlGpu, NvmlProcess, NvmlState, load

# A node with the default dialects, without prices, Kubernetes, Slurm and containers, after two ticks and one
# page. Prints the loaded modules.
SCRIPT = """
import sys
from gpuledger.cli.main import load_asyncio_without_tls
load_asyncio_without_tls()
from gpuledger.app.flags import parse_command
from gpuledger.cli import serve
from gpuledger.http.routes import Request
groups = serve.serve_groups(sys.argv[1:], {})
_, read = parse_command("serve", "", "", groups, sys.argv[1:], rare=serve.other_exporter_groups)
serve.warn_about_ignored_flags(read())
node = serve.assemble_node(read())
for _ in range(2):
    node.parts.node.tick()
routes = node.listeners[0][1]
page = routes.respond(Request("GET", "/metrics", "", {"accept-encoding": "gzip"}))
assert page.status == 200 and len(page.body) > 100
node.parts.stop()
print(*sys.modules)
"""
FLAGS = ("--source", "nvml", "--kubernetes-enabled", "false", "--slurm", "false")
NOT_LOADED = (
    # `ctypes` of Python 3.14 needs it.
    *(() if sys.version_info >= (3, 14) else ("sysconfig",)),
    # Python's: TLS, archives, databases of time zones, text processing.
    *("ssl", "_hashlib", "shutil", "bz2", "lzma", "zoneinfo", "random", "base64", "difflib"),
    *("tempfile", "email", "html", "csv", "urllib.request", "http.client", "multiprocessing", "unittest"),
    *("yaml", "psutil", "h2", "google", "cramjam", "re2", "textual"),
    # Commands, and reports.
    *("gpuledger.agent", "gpuledger.operator", "gpuledger.terminal.app", "gpuledger.cli.report"),
    *("gpuledger.app.statement", "gpuledger.app.fleet", "gpuledger.app.export", "gpuledger.app.diagnosis"),
    *("gpuledger.ledger.books", "gpuledger.ledger.store.history"),
    *(
        "gpuledger.app.free_requests",
        "gpuledger.app.idle_source",
        "gpuledger.app.ledger_commands",
        "gpuledger.ledger.report.idle",
    ),
    *(
        f"gpuledger.ledger.report.{name}"
        for name in ("grouping", "moments", "ranges", "prices", "price_rules")
    ),
    # Settings of other commands.
    *(f"gpuledger.config.{name}" for name in ("commands", "report", "free", "idle", "books", "slurm")),
    *("gpuledger.fleet", "gpuledger.terminal", "gpuledger.outputs.settings"),
    *("gpuledger.ledger.report.tokens", "gpuledger.ledger.report.teams"),
    # Settings of other exporters.
    *(f"gpuledger.config.{name}" for name in ("other_exporters", "compatibility", "dcgm_exporter")),
    *("gpuledger.config.nvidia_gpu_exporter", "gpuledger.config.my_gpu_exporter"),
    # What few requests need, or GPUs in trouble, or the ledger an hour after the start (of a trusted clock).
    *("gpuledger.app.http_access", "gpuledger.host.process_tree", "gpuledger.ledger.device_choice"),
    *(f"gpuledger.ledger.store.{name}" for name in ("folding", "usage_folding", "time_history", "presence")),
    *(
        f"gpuledger.web.api.{name}"
        for name in ("snapshot", "own_snapshot", "gpu_health", "availability_json")
    ),
    # Clients, and pages and responses before their first request.
    *("gpuledger.http.async_client", "gpuledger.http.blocking_client", "gpuledger.http.web_config"),
    *("gpuledger.web.page", "gpuledger.web.plain", "gpuledger.web.api.handlers", "gpuledger.web.api.energy"),
    # Dialects, sources and schedulers that this node does not have.
    *("gpuledger.dialects.dcgm", "gpuledger.dialects.smi"),
    *("gpuledger.sources.composite", "gpuledger.sources.simulator", "gpuledger.sources.smi.command"),
    *("gpuledger.sources.dcgm_exporter.profiling", "gpuledger.kubernetes.api_client"),
    "gpuledger.host.yaml_nodes",
    *(f"gpuledger.workloads.pods.{name}" for name in ("pod", "pod_watch", "gpu_shares", "controller")),
    "gpuledger.workloads.pod_resources.device_names",
    *(
        "gpuledger.workloads.slurm.job_reader",
        "gpuledger.workloads.slurm.jobs",
        "gpuledger.workloads.slurm.gres_conf",
        "gpuledger.workloads.job_map.job_map_reader",
    ),
)
# The dialect native judges the GPUs at each tick, others only GPUs in trouble.
NOT_LOADED_WITHOUT_NATIVE = ("gpuledger.model.gpu_problems", "gpuledger.model.xids", "gpuledger.model.checks")

SOURCE = Path(gpuledger.__file__).parents[1]


def loaded(folder: Path, *flags: str) -> set[str]:
    """The modules, and the packages that they are in."""
    state = NvmlState(folder / "nvml", [NvmlGpu(NvmlProcess(11))]).write()
    folders = {"LD_LIBRARY_PATH": str(Path(load()._name).parent), "PYTHONPATH": str(SOURCE)}
    env = {"TEST_NVML_STATE": str(state.path), "TZ": "UTC", **folders}
    command = [sys.executable, "-c", SCRIPT, *FLAGS, "--state-dir", str(folder / "ledger"), *flags]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("flags", "not_loaded"),
    [
        ((), NOT_LOADED),
        (("--dialect", "process,session,energy"), (*NOT_LOADED, *NOT_LOADED_WITHOUT_NATIVE)),
        (("--state-dir", "none"), (*NOT_LOADED, "sqlite3", "gpuledger.ledger.store.store")),
    ],
)
def test_a_node_loads_only_what_it_serves(
    tmp_path: Path, flags: tuple[str, ...], not_loaded: tuple[str, ...]
) -> None:
    modules = loaded(tmp_path, *flags)
    assert "gpuledger.dialects.catalogue" in modules
    found = {name for name in modules if any(f"{name}.".startswith(f"{one}.") for one in not_loaded)}
    assert found == set()
    assert {name for name in modules if re.fullmatch(r"gpuledger\.sources\.\w+\.source", name)} == {
        "gpuledger.sources.nvml.source"
    }, "import other sources where they are opened: other machines do not need their memory"


def test_a_group_of_settings_has_no_slots() -> None:
    """With slots a frozen dataclass keeps two classes in memory, for an object that exists once."""
    assert [group.__name__ for group in ALL_GROUPS if "__slots__" in vars(group)] == []
