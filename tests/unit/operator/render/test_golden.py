"""Complete renderings as golden files. `make goldens` writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from unit.operator.support import SIMPLE, Json, gpu_monitor, rendered

FOLDER = Path(__file__).parents[3] / "golden/operator"
PROMETHEUS: Json = {
    "exporter": {"nodeSelector": {"pool": "a"}, "dialects": ["native", "dcgm"]},
    "agent": {
        "engine": "prometheus",
        "replicas": 2,
        "persistence": {"size": "5Gi"},
        "remoteWrite": [
            {
                "url": "https://store/api/v1/write",
                "basicAuth": {
                    "username": {"name": "store", "key": "user"},
                    "password": {"name": "store", "key": "password"},
                },
            }
        ],
    },
}
RESOURCES: dict[str, Json | str] = {
    "gpu-monitor": gpu_monitor(),
    "gpu-monitor-prometheus": gpu_monitor(PROMETHEUS),
    "gpu-monitor-cronjob": gpu_monitor({"exporter": {"mode": "cronjob", "cronJob": {"nodeCount": 2}}}),
    "whatap-agent": SIMPLE,
}


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, and multi-line strings in literal style."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


@pytest.mark.parametrize("name", RESOURCES)
def test_rendered_objects_match_the_golden_files(name: str) -> None:
    found = rendered(RESOURCES[name])
    text = "---\n".join(
        yaml.dump(dict(one), Dumper=_Dumper, sort_keys=False, width=110)
        for one in (*found.objects, *found.seeds)
    )
    golden = FOLDER / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDENS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), "is the new one right? run `make goldens`"
