"""The operator's CRDs, out of the program's own description of its resources."""

from __future__ import annotations

from pathlib import Path

import yaml

from gpuledger.operator.crd_definitions import gpu_monitor_crd, whatap_agent_crd


class _Dumper(yaml.SafeDumper):
    """No anchors: kubectl takes the files as well."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  (PyYAML's)
        return True


def write(folder: Path) -> None:
    """A file for each, by the CRD's name."""
    folder.mkdir(parents=True, exist_ok=True)
    for crd in (gpu_monitor_crd(), whatap_agent_crd()):
        text = yaml.dump(crd, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
        about = "# Written by `make chart` from src/gpuledger/operator/schema.\n"
        (folder / f"{crd['metadata']['name']}.yaml").write_text(about + text, encoding="utf-8")
