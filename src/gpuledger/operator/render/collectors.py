"""The collectors file that a WhatapAgent's exporters begin with."""

from __future__ import annotations

from typing import Final

from gpuledger.dialects.dcgm.collectors import DEFAULT

# Where its manual has the file; it is mounted with its folder.
CSV_FILE: Final = "/etc/dcgm-exporter/whatap-dcgm-exporter.csv"


def collectors_csv() -> str:
    """The fields that are told without a file: those of the manual and dcgm-exporter's own."""
    lines = ["# FIELD, TYPE, HELP: what the exporters tell. A line that begins with # is not told."]
    for column in DEFAULT.columns:
        told = "label" if column.is_label else column.field.type
        help_text = (column.help or column.field.help).replace('"', "'")
        lines.append(f'{column.name("4.8")}, {told}, "{help_text}"')
    return "\n".join(lines) + "\n"
