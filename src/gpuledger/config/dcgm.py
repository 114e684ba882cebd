"""What the `dcgm` dialect is made of, as a user set it: its collectors file read, its labels decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from gpuledger.dialects.dcgm.collectors import DEFAULT, Collectors, parse
from gpuledger.dialects.settings import DcgmSettings
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build

# A file of all fields with long helps has 30 KB.
_LONGEST: Final = 1024 * 1024


def dcgm_settings(values: Mapping[str, Any]) -> DcgmSettings:
    """What is set about the dialect. As in dcgm-exporter, a directory of jobs by GPU makes jobs labels."""
    settings = build(DcgmSettings, values)
    if values.get("job_map.dir") and "dcgm.job_label" not in values:
        return replace(settings, job_label=True)
    return settings


def read_collectors(path: str) -> Collectors:
    """The fields that a collectors file asks for; those of gpuledger itself where no file is named.

    Raises UsageError for a file that cannot be read, or of which nothing can be told.
    """
    if not path:
        return DEFAULT
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LONGEST + 1)
    except OSError as error:
        raise UsageError(f"cannot read the collectors file {path}: {error.strerror}") from None
    if len(content) > _LONGEST:
        raise UsageError(
            f"the collectors file {path} is larger than 1 MiB; a file such as default-counters.csv is wanted"
        )
    return parse(content, path)
