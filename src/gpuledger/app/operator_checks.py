"""Validate the arguments, environment and files of a resource's pods with the parsers of their programs.

Only files in the resource itself are read. Reading files of the operator's own machine would disclose their
content to the author of the resource.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from re import fullmatch
from tempfile import TemporaryDirectory
from typing import Any

from gpuledger import __version__
from gpuledger.agent.config.agent_config import read_agent_config
from gpuledger.agent.discovery.settings import ClusterSettings
from gpuledger.agent.discovery.sharding import parse_shard
from gpuledger.agent.prometheus_engine import prometheus_config
from gpuledger.agent.settings import AgentSettings
from gpuledger.app.flags import HELP_FLAGS, build_parser, parse_flags, reject_words
from gpuledger.config.cluster import AGENT_GROUPS
from gpuledger.config.collectors import dcgm_settings, read_collectors
from gpuledger.config.commands import ALL_GROUPS, COLLECT_GROUPS, NODE_GROUPS
from gpuledger.config.load import load_values
from gpuledger.dialects.catalogue import check_dialect_names, create_dialects
from gpuledger.dialects.settings import DialectSettings
from gpuledger.host.clock import SystemClock
from gpuledger.host.procfs import RemoteHost
from gpuledger.http.settings import HttpSettings
from gpuledger.model.errors import GpuledgerError, UsageError, unknown_name_error
from gpuledger.model.settings import build_settings, reload_policy
from gpuledger.node.settings import NodeSettings
from gpuledger.operator.program_checks import Part, ProgramProblem, ProgramRun
from gpuledger.outputs.settings import TextfileSettings
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.simulator.scenario_parser import BUILTINS
from gpuledger.sources.smi.settings import SmiSettings
from gpuledger.sources.source_factory import open_source

# Keys that `gpuledger serve` cannot change without a restart.
EXPORTER_RESTARTS = frozenset(key for group in NODE_GROUPS.values() for key in reload_policy(group).restart)


@dataclass
class _Complaints:
    """The complaints of a program about its input, part by part."""

    found: list[ProgramProblem] = field(default_factory=list)

    @contextmanager
    def about(self, part: Part) -> Iterator[None]:
        """Collect the errors of this part, so that the next part is checked, too."""
        try:
            yield
        except GpuledgerError as error:
            errors = error.errors if isinstance(error, UsageError) else (error,)
            self.found += [ProgramProblem(part, str(one)) for one in errors]

    def check_environment(self, groups: Iterable[type], environment: Mapping[str, str]) -> None:
        """Check each variable."""
        for name, value in environment.items():
            with self.about("environment"):
                load_values(groups, {}, {name: value}, None)


def check_exporter(run: ProgramRun) -> Sequence[ProgramProblem]:
    """The complaints of `gpuledger serve` about its input; none when it would start to read GPUs."""
    return _find_problems(run, _check_exporter)


def _check_exporter(run: ProgramRun, file: Path, complaints: _Complaints) -> None:
    groups = COLLECT_GROUPS if run.command == "collect" else NODE_GROUPS
    flags: Mapping[str, Any] = {}
    with complaints.about("arguments"):
        flags = _flags(run.command, groups, run)
    complaints.check_environment(groups.values(), run.environment)
    with complaints.about("configuration"):
        load_values(groups.values(), {}, {}, file, ALL_GROUPS)
    if complaints.found:
        return
    with complaints.about("configuration"):
        values = load_values(groups.values(), flags, run.environment, file, ALL_GROUPS)
    if complaints.found:
        return
    if run.command == "collect":
        with complaints.about("configuration"):
            build_settings(TextfileSettings, values).check_interval(
                build_settings(NodeSettings, values).interval
            )
    with complaints.about("dialect"):
        dialect_settings = build_settings(DialectSettings, values)
        available = create_dialects(dialect_settings, __version__)
        listened = build_settings(HttpSettings, values).listen_address if run.command == "serve" else ()
        for names in [listen.dialects for listen in listened] or [()]:
            check_dialect_names(names or dialect_settings.dialect, available)
    dcgm = dcgm_settings(values)
    if Path(dcgm.collectors).parent == file.parent:
        with complaints.about("collectors"):
            read_collectors(dcgm.collectors, dcgm.schema)
    _check_simulator(build_settings(SourceSettings, values), complaints)


def check_agent(run: ProgramRun) -> Sequence[ProgramProblem]:
    """The complaints of `gpuledger agent` about its input; none when it would start."""
    return _find_problems(run, _check_agent)


def _check_agent(run: ProgramRun, file: Path, complaints: _Complaints) -> None:
    flags: Mapping[str, Any] = {}
    with complaints.about("arguments"):
        flags = _flags("agent", AGENT_GROUPS, run)
    complaints.check_environment(AGENT_GROUPS.values(), run.environment)
    values: Mapping[str, Any] = {}
    if not complaints.found:
        with complaints.about("environment"):
            values = load_values(AGENT_GROUPS.values(), flags, run.environment, None)
    with complaints.about("configuration"):
        config = read_agent_config(file, {})
        if build_settings(AgentSettings, values).engine == "prometheus":
            shard = parse_shard(build_settings(ClusterSettings, values).shard)
            prometheus_config(config, run.configuration, None, shard)


def _flags(command: str, groups: Mapping[str, type], run: ProgramRun) -> Mapping[str, Any]:
    """The values of the arguments by key. Raises UsageError."""
    for word in run.arguments:
        if {word, f"-{word}"} & HELP_FLAGS:
            raise UsageError(f"{word}: prints the help and exits; remove it")
    given = parse_flags(build_parser(command, "", "", groups), groups.values(), run.arguments, {})
    reject_words(command, given.arguments)
    files = [word for word in run.arguments if word.partition("=")[0] in ("-config", "--config")]
    if len(files) > 1:
        raise UsageError("--config: the operator writes the configuration file; set its keys instead")
    load_values(groups.values(), given.flags, {}, None)
    return given.flags


def _check_simulator(settings: SourceSettings, complaints: _Complaints) -> None:
    """Check scenario and devices of a simulated node; the devices of a real one are not known here."""
    kind, _, scenario = settings.source.partition(":")
    if kind != "simulator":
        return
    if scenario and scenario not in BUILTINS:
        # Otherwise it is a file in the pod.
        if fullmatch(r"[\w-]+", scenario):
            with complaints.about("source"):
                raise unknown_name_error("scenario", scenario, BUILTINS)
        return
    with complaints.about("devices"):
        open_source(settings, SmiSettings(), RemoteHost(), SystemClock())


def _find_problems(
    run: ProgramRun, check: Callable[[ProgramRun, Path, _Complaints], None]
) -> list[ProgramProblem]:
    """The complaints with which `check` rejects `run`, if any. They name the pod's paths.

    Writes the files of `run` to a temporary folder, and calls `check` with these paths and the config file.
    """
    with TemporaryDirectory(prefix="gpuledger-operator-") as folder:
        # Longest first: one path may be a prefix of another.
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
        here = ProgramRun(
            [moved(word) for word in run.arguments],
            {name: moved(value) for name, value in run.environment.items()},
            json.loads(written),
            command=run.command,
        )
        complaints = _Complaints()
        check(here, file, complaints)
        return [replace(one, text=_in_pod(one.text, file, places)) for one in complaints.found]


def _in_pod(text: str, file: Path, places: Mapping[str, str]) -> str:
    """The text with the paths of the pod."""
    text = text.replace(f"{file}: ", "").replace(str(file), "it")
    for path, place in places.items():
        text = text.replace(place, path)
    return text
