"""The values that the variables of a dashboard have on one page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gpuledger.migrate.evaluation import ANY, Evaluation, SeriesStore
from gpuledger.migrate.promql import NAME, ParsedQuery, parse_query
from gpuledger.migrate.user_queries import Variable

# Functions of Grafana, not of PromQL: the greedy first group ends at the last comma.
_LABEL_VALUES: Final = re.compile(
    r"\s*label_values\(\s*(?:(?P<series>.*),)?\s*(?P<label>\w+)\s*\)\s*", re.DOTALL
)
_QUERY_RESULT: Final = re.compile(r"\s*query_result\((?P<series>.*)\)\s*", re.DOTALL)
_LABEL_NAMES: Final = re.compile(r"\s*label_names\(.*\)\s*", re.DOTALL)
_METRICS: Final = re.compile(r"\s*metrics\((?P<pattern>.*)\)\s*", re.DOTALL)

Values = dict[str, Sequence[str] | None]


def numeric_values(variables: Sequence[Variable]) -> dict[str, str]:
    """Returns the variables that have one number as their value."""
    return {
        item.name: item.values[0]
        for item in variables
        if item.kind != "query" and len(item.values) == 1 and re.fullmatch(r"\d+(\.\d+)?", item.values[0])
    }


def variable_values(variables: Sequence[Variable], store: SeriesStore, before: Values | None) -> Values:
    """Returns the values by name; None where they are not known. Variables may use earlier ones.

    `before` are those of the old page. What has none there is not known: other exporters have it.
    """
    found: Values = {}
    for variable in variables:
        if variable.kind != "query":
            found[variable.name] = variable.values or None
            continue
        values = query_values(variable.query, variables, store, found)
        if values:
            values = _extracted(values, variable.pattern)
        is_known = values if before is None else before.get(variable.name) is not None
        found[variable.name] = values if is_known else None
    return found


def _extracted(values: Sequence[str], pattern: str) -> Sequence[str] | None:
    """The values as the pattern of a variable makes them; None if Python cannot read it."""
    if not pattern:
        return values
    slashes = re.fullmatch(r"/(.*)/\w*", pattern, re.DOTALL)
    try:
        test = re.compile((slashes[1] if slashes else pattern).replace("(?<", "(?P<"))
    except re.error:
        return None
    group = "value" if "value" in test.groupindex else min(test.groups, 1)
    return sorted({match[group] or "" for text in values if (match := test.search(text))})


def query_values(
    query: str, variables: Sequence[Variable], store: SeriesStore, known: Values
) -> Sequence[str] | None:
    """The values of a query of Grafana: none if no series has any, None if they cannot be computed."""
    if names := _METRICS.fullmatch(query):
        try:
            return sorted(name for name in store.by_name if re.search(names["pattern"].strip("\"' "), name))
        except re.error:
            return None
    parsed = variable_query(query, variables)
    label = _LABEL_VALUES.fullmatch(query)
    if parsed is None and label is None:
        return None
    if parsed is None:
        rows = (labels for metrics in store.by_name.values() for labels in metrics)
        return _distinct([row.get(label["label"], "") for row in rows]) if label else None
    result = Evaluation(store, parsed, known).result()
    if label is None:
        # The texts of samples, from which a pattern takes the values.
        return None if result else ()
    return _distinct([dict(row).get(label["label"], "") for row in result])


def variable_query(query: str, variables: Sequence[Variable]) -> ParsedQuery | None:
    """The PromQL in a query of Grafana, or a plain selector; None if it has none. Raises UnreadableQuery."""
    found = _LABEL_VALUES.fullmatch(query) or _QUERY_RESULT.fullmatch(query)
    text = (found["series"] or "").strip() if found else query
    if not text or _METRICS.fullmatch(query) or _LABEL_NAMES.fullmatch(query):
        return None
    return parse_query(text, numeric_values(variables))


def listed_label(query: str) -> str:
    """The label that a variable lists; empty for another query."""
    found = _LABEL_VALUES.fullmatch(query)
    return found["label"] if found and found["label"] != NAME else ""


def _distinct(values: Sequence[str]) -> Sequence[str] | None:
    return None if ANY in values else sorted({text for text in values if text})
