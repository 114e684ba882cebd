"""Whether the programs that a resource's pods run would take what they are given, by their own readers.

Files are those that the resource itself has, and no others: what stands in one of the operator's own machine
would be told to whoever names it in a resource.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from re import fullmatch
from tempfile import TemporaryDirectory
from typing import Any

from gpuledger import __version__
from gpuledger.agent.config.file import read_agent_config
from gpuledger.agent.discovery.settings import ClusterSettings
from gpuledger.agent.discovery.sharding import parse_shard
from gpuledger.agent.prometheus_engine import prometheus_config
from gpuledger.agent.settings import AgentSettings
from gpuledger.app.flags import no_words, parse, parser
from gpuledger.config.assemble import assemble
from gpuledger.config.cluster import AGENT
from gpuledger.config.dcgm import dcgm_settings, read_collectors
from gpuledger.config.node import EVERYTHING, NODE
from gpuledger.dialects.catalogue import dialects, known
from gpuledger.dialects.settings import DialectSettings
from gpuledger.host.clock import SystemClock
from gpuledger.host.procfs import NoHost
from gpuledger.http.settings import HttpSettings
from gpuledger.model.errors import GpuledgerError, UsageError, unknown
from gpuledger.model.settings import build, reload_of
from gpuledger.operator.programs import Complaint, Part, Run
from gpuledger.sources.open import open_source
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.simulator.reader import BUILTINS
from gpuledger.sources.smi.settings import SmiSettings

# What a running `gpuledger serve` cannot change.
EXPORTER_RESTARTS = frozenset(key for group in NODE.values() for key in reload_of(group).restart)


class _Refused(Exception):
    """Carries what a program says against a part of what it is given."""

    def __init__(self, complaint: Complaint) -> None:
        super().__init__(complaint.text)
        self.complaint = complaint


def check_exporter(run: Run) -> Complaint | None:
    """What `gpuledger serve` has against it; None when it would begin to look for GPUs."""
    try:
        with _laid_out(run) as (here, file):
            flags = _flags("serve", NODE, here)
            with _part("environment"):
                assemble(NODE.values(), {}, here.environment, None)
            with _part("configuration"):
                assemble(NODE.values(), {}, {}, file, EVERYTHING)
                values = assemble(NODE.values(), flags, here.environment, file, EVERYTHING)
            with _part("dialect"):
                told = build(DialectSettings, values)
                every = dialects(told, __version__)
                for listen in build(HttpSettings, values).listen_address:
                    known(listen.dialects or told.dialect, every)
            collectors = Path(dcgm_settings(values).collectors)
            if collectors.parent == file.parent:
                with _part("collectors"):
                    read_collectors(str(collectors))
            _look_at_simulator(build(SourceSettings, values))
    except _Refused as error:
        return error.complaint
    return None


def check_agent(run: Run) -> Complaint | None:
    """What `gpuledger agent` has against it; None when it would begin to scrape, or print for Prometheus."""
    try:
        with _laid_out(run) as (here, file):
            flags = _flags("agent", AGENT, here)
            with _part("environment"):
                values = assemble(AGENT.values(), flags, here.environment, None)
            with _part("configuration"):
                config = read_agent_config(file, {})
                if build(AgentSettings, values).engine == "prometheus":
                    shard = parse_shard(build(ClusterSettings, values).shard)
                    prometheus_config(config, here.configuration, None, shard)
    except _Refused as error:
        return error.complaint
    return None


def _flags(command: str, groups: Mapping[str, type], run: Run) -> Mapping[str, Any]:
    """What the arguments set, by key."""
    with _part("arguments"):
        if {"-h", "--help"} & set(run.arguments):
            raise UsageError("--help: tells the flags and ends")
        given = parse(parser(command, "", "", groups), groups.values(), run.arguments, {})
        no_words(command, given.words)
        files = [one for one in run.arguments if one.partition("=")[0] in ("-config", "--config")]
        if len(files) > 1:
            raise UsageError("--config: the configuration is written by the operator; set its keys instead")
        assemble(groups.values(), given.flags, {}, None)
        return given.flags


def _look_at_simulator(settings: SourceSettings) -> None:
    """Of a simulated node all is known beforehand, its GPUs too; of a real one nothing."""
    kind, _, scenario = settings.source.partition(":")
    if kind != "simulator":
        return
    if scenario and scenario not in BUILTINS:
        # Else it is a file of the pod's.
        if fullmatch(r"[\w-]+", scenario):
            with _part("source"):
                raise unknown("scenario", scenario, BUILTINS)
        return
    with _part("devices"):
        open_source(settings, SmiSettings(), NoHost(), SystemClock())


@contextmanager
def _part(part: Part) -> Iterator[None]:
    try:
        yield
    except GpuledgerError as error:
        raise _Refused(Complaint(part, str(error))) from None


@contextmanager
def _laid_out(run: Run) -> Iterator[tuple[Run, Path]]:
    """The same with its files in a folder of this machine, and its configuration file there.

    What is raised within speaks of the pod's paths again.
    """
    with TemporaryDirectory(prefix="gpuledger-operator-") as folder:
        # Of two paths the one may begin with the other.
        paths = sorted(run.files, key=len, reverse=True)
        places = {path: str(Path(folder, str(number))) for number, path in enumerate(paths)}
        for path, place in places.items():
            Path(place).write_text(run.files[path], "utf-8")

        def moved(text: str) -> str:
            for path, place in places.items():
                text = text.replace(path, place)
            return text

        # JSON is YAML.
        written = moved(json.dumps(run.configuration))
        file = Path(folder, "configuration.yaml")
        file.write_text(written, "utf-8")
        here = Run(
            [moved(one) for one in run.arguments],
            {name: moved(value) for name, value in run.environment.items()},
            json.loads(written),
        )
        try:
            yield here, file
        except _Refused as error:
            text = error.complaint.text.replace(f"{file}: ", "").replace(str(file), "it")
            for path, place in places.items():
                text = text.replace(place, path)
            raise _Refused(replace(error.complaint, text=text)) from None
