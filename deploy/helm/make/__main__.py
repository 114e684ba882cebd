"""Generate the chart's derived files: `python deploy/helm/make [CHART]`.

These are the README's table of values, values.schema.json, and below files/ the defaults, the values of
keys that are null, dashboards, rules and CRDs, because Helm cannot read files outside of a chart.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import crds
import readme
import schema
import unset
import values

DEPLOY = Path(__file__).resolve().parents[2]
CHART = DEPLOY / "helm/gpuledger"


def main(chart: Path) -> None:
    """Write the derived files of this chart, from its values.yaml and from other folders of deploy/."""
    keys = values.read_keys(chart / "values.yaml")
    text = json.dumps(schema.build_schema(keys), indent=2, ensure_ascii=False)
    (chart / "values.schema.json").write_text(text + "\n", encoding="utf-8")
    page = chart / "README.md"
    updated = readme.replace_table(page.read_text(encoding="utf-8"), readme.values_table(keys))
    page.write_text(updated, encoding="utf-8")
    # templates/_init.tpl merges the values of an older chart over these.
    shutil.copyfile(chart / "values.yaml", chart / "files/defaults.yaml")
    unset.write_unset(keys, chart / "files/unset.yaml")
    _copy_files(sorted((DEPLOY / "grafana/dashboards").glob("*.json")), chart / "files/dashboards")
    rules = sorted((DEPLOY / "prometheus/rules").glob("*.yml"))
    _copy_files([DEPLOY / "prometheus/activity.yml", *rules], chart / "files/rules")
    crds.write_crds(chart / "files/crds")


def _copy_files(files: list[Path], folder: Path) -> None:
    """Replace the folder by copies of these files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in files:
        shutil.copyfile(file, folder / file.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else CHART)
