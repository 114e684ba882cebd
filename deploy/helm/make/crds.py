"""Writes the operator's CRDs, which gpuledger.operator defines."""

from __future__ import annotations

from pathlib import Path

import yaml

from gpuledger.operator.crd_definitions import gpu_monitor_crd, whatap_agent_crd


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, so that kubectl accepts the files too."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  (PyYAML's signature)
        return True


def write_crds(folder: Path) -> None:
    """Write one file per CRD, named after it."""
    folder.mkdir(parents=True, exist_ok=True)
    for crd in (gpu_monitor_crd(), whatap_agent_crd()):
        text = yaml.dump(crd, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
        about = "# Written by `make chart` from src/gpuledger/operator/schema.\n"
        (folder / f"{crd['metadata']['name']}.yaml").write_text(about + text, encoding="utf-8")
