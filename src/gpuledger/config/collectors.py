"""The settings of the dialect `dcgm`, and its collectors file."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gpuledger.dialects.settings import DcgmSettings
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build_settings

if TYPE_CHECKING:
    from gpuledger.dialects.dcgm.collectors import Collectors
    from gpuledger.dialects.dcgm.field_definition import Schema

log = logging.getLogger("gpuledger.dcgm")

# Bytes. A file of all fields with long help texts has 30 KB.
_LONGEST: Final = 1024 * 1024
# Files of dcgm-exporter's image, which its chart and its systemd unit name.
_OF_ITS_IMAGE: Final = frozenset(
    f"/etc/dcgm-exporter/{name}.csv" for name in ("default-counters", "dcp-metrics-included")
)


def dcgm_settings(values: Mapping[str, Any]) -> DcgmSettings:
    """The settings of the dialect. As in dcgm-exporter, a job mapping directory adds the job label."""
    settings = build_settings(DcgmSettings, values)
    if values.get("job_map.dir") and "dcgm.job_label" not in values:
        return replace(settings, job_label=True)
    return settings


def read_collectors(path: str, schema: Schema = "4.8") -> Collectors:
    """The fields of a collectors file in a schema; gpuledger's defaults without a file.

    A file that exists in the image of dcgm-exporter only stands for the defaults, with a warning.
    Raises UsageError for a file that cannot be read or that has no supported field.
    """
    # Imported lazily: most nodes do not export the dialect.
    from gpuledger.dialects.dcgm.collectors import DEFAULT_COLLECTORS, parse_collectors

    if not path:
        return DEFAULT_COLLECTORS
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LONGEST + 1)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and path in _OF_ITS_IMAGE:
            log.warning("%s is a file of dcgm-exporter's image, not here: default fields are exported", path)
            return DEFAULT_COLLECTORS
        raise UsageError(f"cannot read the collectors file {path}: {error.strerror}") from None
    if len(content) > _LONGEST:
        raise UsageError(
            f"the collectors file {path} is larger than 1 MiB; expected a file such as default-counters.csv"
        )
    return parse_collectors(content, path, schema)
