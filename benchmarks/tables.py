"""What a benchmark found, put into a document between two marks."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path


def write_between(file: Path, marks: tuple[str, str], lines: Iterable[str]) -> None:
    """Replace what stands between the marks, which stay."""
    begin, end = marks
    inside = "\n".join((begin, *lines, end))
    text = file.read_text(encoding="utf-8")
    file.write_text(re.sub(f"{begin}.*{end}", lambda _: inside, text, flags=re.DOTALL), "utf-8")
