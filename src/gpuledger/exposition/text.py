"""Families as Prometheus text 0.0.4."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from itertools import chain
from math import isfinite

from gpuledger.exposition.merging import merge
from gpuledger.model.family import Distribution, Family, FamilySpec, LabelValues


def page(families: Iterable[Family], header: Callable[[FamilySpec], str], end: str = "") -> bytes:
    """Each family's header and samples together; a family without a finite sample leaves no trace.

    Families of the same spec are joined first; raises ValueError when two specs share a name.
    """
    parts: list[str] = []
    for family in merge(families):
        spec = family.spec
        lines = _sample_lines(spec.name, spec.labels, family.samples)
        lines += _distribution_lines(spec.name, spec.labels, family.distributions)
        if lines:
            parts.append(header(spec))
            parts += lines
    parts.append(end)
    # A lone surrogate, which a name that was not cleaned could carry, costs its own letter and not the page.
    return "".join(parts).encode("utf-8", "replace")


def number(value: float) -> str:
    """A value as both formats read it back exactly; empty for NaN and infinities, which are no values.

    Integral floats lose their `.0`: a page of counts is a quarter smaller, and repr of the rest is the
    shortest text that gives the same float.
    """
    if type(value) is int:
        return str(value)
    plain = float(value)
    return repr(plain).removesuffix(".0") if isfinite(plain) else ""


def escape(text: str) -> str:
    """A label value between quotes: backslash, quote and line feed are spelled with a backslash."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _sample_lines(name: str, labels: tuple[str, ...], samples: Mapping[LabelValues, float]) -> list[str]:
    """One line, with its line feed, per sample whose value is finite.

    Raises TypeError when a sample has more or fewer values than there are labels: the dialect is wrong.
    """
    template = _template(name, labels)
    pairs: Iterable[tuple[LabelValues, float]] = samples.items()
    if _needs_escape("".join(chain.from_iterable(samples))):
        pairs = [(tuple(map(escape, values)), value) for values, value in pairs]
    return [template % (*values, text) for values, value in pairs if (text := number(value))]


def _distribution_lines(
    name: str, labels: tuple[str, ...], distributions: Mapping[LabelValues, Distribution]
) -> list[str]:
    """A histogram's buckets, sum and count, series by series."""
    lines = []
    for values, told in distributions.items():
        buckets: dict[LabelValues, float] = {
            (*values, repr(float(bound))): count
            for bound, count in zip(told.bounds, told.counts, strict=True)
        }
        buckets[*values, "+Inf"] = told.count
        lines += _sample_lines(f"{name}_bucket", (*labels, "le"), buckets)
        lines += _sample_lines(f"{name}_sum", labels, {values: told.sum})
        lines += _sample_lines(f"{name}_count", labels, {values: told.count})
    return lines


def _needs_escape(text: str) -> bool:
    # Asked once of a whole family: nearly all families have nothing to escape.
    return '"' in text or "\\" in text or "\n" in text


@lru_cache(maxsize=4096)
def _template(name: str, labels: tuple[str, ...]) -> str:
    if not labels:
        return f"{name} %s\n"
    inner = ",".join(f'{label}="%s"' for label in labels)
    return f"{name}{{{inner}}} %s\n"


TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# The format knows neither: client_golang writes both so.
_TYPES = {"info": "gauge", "unknown": "untyped"}


def encode_text(families: Iterable[Family]) -> bytes:
    """The page: HELP, TYPE and samples of each family together. Raises ValueError as `lines.page` does."""
    return page(families, _text_header)


@lru_cache(maxsize=4096)
def _text_header(spec: FamilySpec) -> str:
    written = spec.help.replace("\\", r"\\").replace("\n", r"\n")
    about = f"# HELP {spec.name} {written}\n" if written else ""
    return f"{about}# TYPE {spec.name} {_TYPES.get(spec.type, spec.type)}\n"


OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def encode_openmetrics(families: Iterable[Family]) -> bytes:
    """The page, `# EOF` included. Sample names are those of text 0.0.4, so that a scraper which switches
    formats keeps its series. Raises ValueError as `lines.page` does.
    """
    return page(families, _openmetrics_header, end="# EOF\n")


@lru_cache(maxsize=4096)
def _openmetrics_header(spec: FamilySpec) -> str:
    name, kind = _name_and_type(spec)
    lines = [f"# TYPE {name} {kind}\n"]
    # The unit must end the family's name, and an info has none.
    if spec.unit and kind != "info" and name.endswith(f"_{spec.unit}"):
        lines.append(f"# UNIT {name} {spec.unit}\n")
    if spec.help:
        lines.append(f"# HELP {name} {escape(spec.help)}\n")
    return "".join(lines)


def _name_and_type(spec: FamilySpec) -> tuple[str, str]:
    """The family's name without the suffix that its type adds to samples.

    A counter or info that a document named without that suffix cannot be one here: the counter becomes
    unknown and the info a gauge, so that the series keeps its name.
    """
    if spec.type == "counter":
        bare = spec.name.removesuffix("_total")
        return (bare, "counter") if bare != spec.name else (spec.name, "unknown")
    if spec.type == "info":
        bare = spec.name.removesuffix("_info")
        return (bare, "info") if bare != spec.name else (spec.name, "gauge")
    return spec.name, spec.type
