"""Write what the chart has out of other files: `python deploy/helm/make [CHART]`.

README's values, values.schema.json, and under files/ the defaults, dashboards, rules and CRDs, which Helm
cannot read from outside of a chart.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import crds
import readme
import schema
import values

DEPLOY = Path(__file__).resolve().parents[2]
CHART = DEPLOY / "helm/gpuledger"


def main(chart: Path) -> None:
    """Write them, reading values.yaml and README.md of the same chart."""
    keys = values.read(chart / "values.yaml")
    text = json.dumps(schema.build(keys), indent=2, ensure_ascii=False)
    (chart / "values.schema.json").write_text(text + "\n", encoding="utf-8")
    page = chart / "README.md"
    page.write_text(readme.put(page.read_text(encoding="utf-8"), readme.table(keys)), encoding="utf-8")
    # templates/_init.tpl lays it beneath values that an older chart had.
    shutil.copyfile(chart / "values.yaml", chart / "files/defaults.yaml")
    _copy(sorted((DEPLOY / "grafana/dashboards").glob("*.json")), chart / "files/dashboards")
    _copy(sorted((DEPLOY / "prometheus/rules").glob("*.yml")), chart / "files/rules")
    crds.write(chart / "files/crds")


def _copy(files: list[Path], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in files:
        shutil.copyfile(file, folder / file.name)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else CHART)
