"""Encodes families as Prometheus text 0.0.4 and as OpenMetrics 1.0."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import chain
from math import isfinite

from gpuledger.exposition.merging import merge_families
from gpuledger.model.family import Distribution, Family, FamilySpec, LabelValues


def render_page(families: Iterable[Family], header: Callable[[FamilySpec], str], end: str = "") -> bytes:
    """Renders the header and the samples of each family; omits families without a finite sample.

    Families of the same spec are merged first. Raises ValueError if two specs have the same name.
    """
    parts: list[str] = []
    for family in merge_families(families):
        spec = family.spec
        lines = _sample_lines(spec.name, spec.labels, family.samples)
        lines += _distribution_lines(spec.name, spec.labels, family.distributions)
        if lines:
            parts.append(header(spec))
            parts += lines
    parts.append(end)
    # A lone surrogate in a name is replaced instead of failing the page.
    return "".join(parts).encode("utf-8", "replace")


def format_number(value: float) -> str:
    """Formats a value exactly; returns an empty text for NaN and infinities, which are not exported.

    Integral floats have no `.0`, which makes a page of counts a quarter smaller. For other floats, repr is
    the shortest exact text.
    """
    if type(value) is int:
        return str(value)
    plain = float(value)
    return repr(plain).removesuffix(".0") if isfinite(plain) else ""


def escape_label_value(text: str) -> str:
    """Escapes backslash, quote and line feed of a label value with a backslash."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _sample_lines(name: str, labels: tuple[str, ...], samples: Mapping[LabelValues, float]) -> list[str]:
    """Returns one line, with line feed, per sample with a finite value.

    Raises TypeError if the number of label values differs from that of labels: an error in the dialect.
    """
    template = _template(name, labels)
    pairs: Iterable[tuple[LabelValues, float]] = samples.items()
    if _needs_escape("".join(chain.from_iterable(samples))):
        pairs = [(tuple(map(escape_label_value, values)), value) for values, value in pairs]
    return [template % (*values, text) for values, value in pairs if (text := format_number(value))]


def _distribution_lines(
    name: str, labels: tuple[str, ...], distributions: Mapping[LabelValues, Distribution]
) -> list[str]:
    """Returns the lines of a histogram: buckets, sum and count of each series."""
    lines = []
    for values, distribution in distributions.items():
        buckets: dict[LabelValues, float] = {
            (*values, repr(float(bound))): count
            for bound, count in zip(distribution.bounds, distribution.counts, strict=True)
        }
        buckets[*values, "+Inf"] = distribution.count
        lines += _sample_lines(f"{name}_bucket", (*labels, "le"), buckets)
        lines += _sample_lines(f"{name}_sum", labels, {values: distribution.sum})
        lines += _sample_lines(f"{name}_count", labels, {values: distribution.count})
    return lines


def _needs_escape(text: str) -> bool:
    # Called once per family: nearly all families have nothing to escape.
    return '"' in text or "\\" in text or "\n" in text


@lru_cache(maxsize=4096)
def _template(name: str, labels: tuple[str, ...]) -> str:
    if not labels:
        return f"{name} %s\n"
    inner = ",".join(f'{label}="%s"' for label in labels)
    return f"{name}{{{inner}}} %s\n"


TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Text 0.0.4 has neither type; client_golang writes them like this.
_TYPES = {"info": "gauge", "unknown": "untyped"}


def encode_text(families: Iterable[Family]) -> bytes:
    """Encodes families as text 0.0.4. Raises ValueError like `render_page`."""
    return render_page(families, _text_header)


@lru_cache(maxsize=4096)
def _text_header(spec: FamilySpec) -> str:
    written = spec.help.replace("\\", r"\\").replace("\n", r"\n")
    about = f"# HELP {spec.name} {written}\n" if written else ""
    return f"{about}# TYPE {spec.name} {_TYPES.get(spec.type, spec.type)}\n"


OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def encode_openmetrics(families: Iterable[Family]) -> bytes:
    """Encodes families as OpenMetrics. Raises ValueError like `render_page`.

    Sample names are those of text 0.0.4, so series do not change when a scraper switches formats.
    """
    return render_page(families, _openmetrics_header, end="# EOF\n")


@lru_cache(maxsize=4096)
def _openmetrics_header(spec: FamilySpec) -> str:
    name, kind = _name_and_type(spec)
    lines = [f"# TYPE {name} {kind}\n"]
    # OpenMetrics requires that the name ends in the unit. An info has no unit.
    if spec.unit and kind != "info" and name.endswith(f"_{spec.unit}"):
        lines.append(f"# UNIT {name} {spec.unit}\n")
    if spec.help:
        lines.append(f"# HELP {name} {escape_label_value(spec.help)}\n")
    return "".join(lines)


def _name_and_type(spec: FamilySpec) -> tuple[str, str]:
    """Returns the OpenMetrics name (without the suffix that the type adds to samples) and type of a family.

    In OpenMetrics, a counter or info needs that suffix. Without it, a counter becomes unknown and an info a
    gauge, so that the series keeps its name.
    """
    if spec.type == "counter":
        bare = spec.name.removesuffix("_total")
        return (bare, "counter") if bare != spec.name else (spec.name, "unknown")
    if spec.type == "info":
        bare = spec.name.removesuffix("_info")
        return (bare, "info") if bare != spec.name else (spec.name, "gauge")
    return spec.name, spec.type
