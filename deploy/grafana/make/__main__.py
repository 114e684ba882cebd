"""Generates the dashboards: `python deploy/grafana/make [FOLDER]`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import agents
import energy
import health
import tokens
import usage

import fleet

BUILDERS = (usage.build, energy.build, health.build, fleet.build, tokens.build, agents.build)


def main(folder: Path) -> None:
    """Writes one file per dashboard, named by its uid."""
    folder.mkdir(parents=True, exist_ok=True)
    for build in BUILDERS:
        dashboard = build()
        text = json.dumps(dashboard, indent=2, ensure_ascii=False)
        (folder / f"{dashboard['uid']}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1] / "dashboards")
