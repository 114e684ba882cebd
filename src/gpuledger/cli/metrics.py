"""`gpuledger metrics`: the catalogue of families."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from gpuledger import __version__
from gpuledger.agent.families import SPECS as AGENT_SPECS
from gpuledger.app.flags import begin
from gpuledger.dialects.catalogue import dialects, known
from gpuledger.dialects.settings import DialectSettings
from gpuledger.model.family import FamilySpec
from gpuledger.model.settings import build, choice, setting
from gpuledger.operator.families import SPECS as OPERATOR_SPECS

_ABOUT = "List every family of metrics that gpuledger can tell: dialect by dialect, then agent and operator."
_EXAMPLES = """\
examples:
  gpuledger metrics                             all, as a table
  gpuledger metrics --dialect native            one dialect
  gpuledger metrics --format markdown           what docs/metrics.md is made of
"""


# No dialects: what other programs than the node's tell of themselves.
_PROGRAMS = {"agent": AGENT_SPECS, "operator": OPERATOR_SPECS}


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """How the catalogue is written."""

    format: str = setting(
        "format",
        choice("table", "markdown", "json"),
        "table",
        "table, markdown or json",
        flags=("--format",),
        metavar="FORM",
    )


def run(arguments: Sequence[str]) -> int:
    """Print the catalogue, of all dialects or of those named."""
    groups = {"what": MetricsSettings, "dialects": DialectSettings}
    _, read = begin("metrics", _ABOUT, _EXAMPLES, groups, arguments)
    values = read()
    settings = build(DialectSettings, values)
    every = dialects(settings, __version__)
    names = known(settings.dialect, every) if "dialect" in values else tuple(every)
    catalogue = {name: every[name].specs for name in names}
    if "dialect" not in values:
        catalogue |= _PROGRAMS
    write = {"table": _table, "markdown": _markdown, "json": _json}
    sys.stdout.write(write[build(MetricsSettings, values).format](catalogue))
    return 0


Catalogue = dict[str, tuple[FamilySpec, ...]]


def _table(catalogue: Catalogue) -> str:
    width = max(len(spec.name) for specs in catalogue.values() for spec in specs)
    lines = []
    for name, specs in catalogue.items():
        lines.append(f"# {name}")
        for spec in specs:
            lines.append(f"{spec.name:<{width}}  {spec.type:<7}  {{{', '.join(spec.labels)}}}")
            lines.append(f"{'':<{width}}  {spec.help}")
        lines.append("")
    return "\n".join(lines)


def _markdown(catalogue: Catalogue) -> str:
    lines = [
        "# Metrics",
        "",
        "Made by `gpuledger metrics --format markdown`; `make docs` writes it anew and a test compares.",
    ]
    for name, specs in catalogue.items():
        where = f"`/metrics` of `gpuledger {name}`" if name in _PROGRAMS else f"`/metrics/{name}`"
        lines += ["", f"## {name}: {where}", ""]
        lines += ["| family | type | unit | labels | meaning | source |", "|---|---|---|---|---|---|"]
        lines += [_row(spec) for spec in specs]
    return "\n".join(lines) + "\n"


def _row(spec: FamilySpec) -> str:
    cells = (f"`{spec.name}`", spec.type, spec.unit, ", ".join(spec.labels), spec.help, spec.source)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _json(catalogue: Catalogue) -> str:
    told = {name: [asdict(spec) for spec in specs] for name, specs in catalogue.items()}
    return json.dumps(told, indent=2) + "\n"
