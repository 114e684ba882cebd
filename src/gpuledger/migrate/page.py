"""One metrics page: its series with labels and values, types and help texts."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from struct import unpack
from typing import Final

from gpuledger.agent.scrape.line_parser import (
    EOF_LINE,
    OPENMETRICS,
    TEXT_FORMAT,
    BadLine,
    ParsedSample,
    parse_labels,
)
from gpuledger.model.errors import UsageError

# Without the name of the metric.
Labels = Mapping[str, str]
# Bytes of a page after decompression.
LONGEST_PAGE: Final = 256 << 20
_GZIP: Final = b"\x1f\x8b"
# What libraries of Go, Python and Java, and scrapers, add to a page: no fact about GPUs.
_OWN_PREFIXES: Final = ("go_", "promhttp_", "python_", "scrape_", "jvm_")
# Of the process of the exporter. Other `process_*`, as those of nvitop-exporter, are of processes on GPUs.
_OWN_NAMES: Final = re.compile(
    "process_(cpu(_user|_system)?_seconds_total|(open|max)_fds|(virtual|resident)_memory(_max)?_bytes|heap_bytes"
    "|start_time_seconds|threads|network_(receive|transmit)_bytes_total)"
)
# What Prometheus adds to each scrape.
_OF_SCRAPES: Final = ("up", "scrape_duration_seconds", "scrape_samples_scraped")


def describes_the_program(name: str) -> bool:
    """Returns whether a metric is about the exporting program itself."""
    return name == "up" or name.startswith(_OWN_PREFIXES) or _OWN_NAMES.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Series:
    """One sample of a page."""

    labels: Labels
    value: float


@dataclass(slots=True)
class Page:
    """The series by name of the metric; types and help texts by name of the sample or its family."""

    origin: str
    series: dict[str, list[Series]] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    helps: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def type_of(self, name: str) -> str:
        """Returns the type of a metric; empty if the page does not have it, or calls it unknown."""
        families = (name, name.removesuffix("_total"), name.removesuffix("_info"))
        found = next((self.types[family] for family in families if family in self.types), "")
        return "" if found in ("unknown", "untyped") else found

    def label_names(self, name: str) -> frozenset[str]:
        """Returns the labels that series of a metric have with a value."""
        found = (label for row in self.series.get(name, ()) for label, text in row.labels.items() if text)
        return frozenset(found)

    @property
    def all_labels(self) -> frozenset[str]:
        """All labels of all series."""
        return frozenset().union(*map(self.label_names, self.series))


def parse_page(content: bytes, origin: str) -> Page:
    """Parses text 0.0.4 or OpenMetrics, also compressed by gzip.

    Timestamps and exemplars are ignored. A line that is neither a sample nor a comment (a native histogram, a
    name in quotes) is skipped with a note. Raises UsageError for a page with more such lines than samples.
    """
    lines = _decompressed(content, origin).split(b"\n")
    page = Page(origin)
    refused: list[str] = []
    page_format = TEXT_FORMAT
    if EOF_LINE in lines[-3:]:
        page_format, lines = OPENMETRICS, lines[: lines.index(EOF_LINE)]
    for number, line in enumerate(lines, 1):
        text = line.removesuffix(b"\r")
        try:
            sample = page_format.parse_line(text)
            if sample is None:
                _read_comment(page, text)
            else:
                _add(page, sample)
        except (BadLine, UnicodeDecodeError) as error:
            refused.append(f"line {number}: {error}")
    samples = sum(map(len, page.series.values()))
    if len(refused) > samples or not samples:
        what = f"has {samples} samples and {len(refused)} other lines" if samples else "has no metrics"
        why = f" ({refused[0]})" if refused else ""
        raise UsageError(f"{origin} {what}{why}; expected a page such as /metrics of an exporter")
    if refused:
        page.notes.append(f"{origin}: {len(refused)} lines are skipped; {refused[0]}")
    return page


def _decompressed(content: bytes, origin: str) -> bytes:
    if not content.startswith(_GZIP):
        return content
    try:
        with gzip.GzipFile(fileobj=BytesIO(content)) as file:
            found = file.read(LONGEST_PAGE + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{origin} is not valid gzip: {error}") from None
    if len(found) > LONGEST_PAGE:
        raise UsageError(f"{origin} is larger than {LONGEST_PAGE >> 20} MiB; expected a metrics page")
    return found


def _read_comment(page: Page, line: bytes) -> None:
    words = line.decode("utf-8", "replace").split(None, 3)
    if len(words) == 4 and words[0] == "#" and words[1] in ("TYPE", "HELP"):
        (page.types if words[1] == "TYPE" else page.helps).setdefault(words[2], words[3])


def _add(page: Page, sample: ParsedSample) -> None:
    labels = parse_labels(sample.series)
    name = labels.pop("__name__")
    if name.endswith(":"):
        raise BadLine(f"{name!r} is a key of YAML and no metric")
    (value,) = unpack("<d", sample.value)
    page.series.setdefault(name, []).append(Series(labels, value))


def with_target_labels(page: Page, target: Labels, *, honor_labels: bool) -> Page:
    """Returns the page as Prometheus stores it: with the labels of the target, and with `up`.

    Without honor_labels, a label of the page that the target has too becomes `exported_NAME`.
    """

    def stored(labels: Labels) -> dict[str, str]:
        found = {name: text for name, text in labels.items() if text}
        for name, text in target.items():
            if name in found and not honor_labels:
                found[_exported(name, found)] = found[name]
            if name not in found or not honor_labels:
                found[name] = text
        return found

    series = {
        name: [Series(stored(row.labels), row.value) for row in rows] for name, rows in page.series.items()
    }
    for name in _OF_SCRAPES:
        series.setdefault(name, [Series(target, 1.0)])
    return Page(page.origin, series, page.types, page.helps, page.notes)


def _exported(name: str, labels: Labels) -> str:
    renamed = f"exported_{name}"
    return _exported(renamed, labels) if renamed in labels else renamed


def names_of(*pages: Page) -> Iterator[str]:
    """Yields the metrics of all pages, each once, without those about the programs themselves."""
    for name in dict.fromkeys(name for page in pages for name in page.series):
        if not describes_the_program(name):
            yield name
