"""Which series a query would return on a page: their labels, without values.

A comparison with a number may return any of its series, so all are kept: a query counts as empty only if no
value could fill it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from gpuledger.migrate.page import Labels, Page
from gpuledger.migrate.promql import NAME, PLACEHOLDER, ParsedQuery, all_nodes, children

# The value of a label that the scrape adds and that no page shows: it matches everything.
ANY: Final = "\0any"

# A series of a result: pairs of label and value, the name of the metric among them.
Row = frozenset[tuple[str, str]]
Rows = frozenset[Row]
# A scalar is a vector with one series without labels, because it can never be empty.
_SCALAR: Final[Rows] = frozenset({frozenset()})
_KEEPS_NAME: Final = frozenset(
    {"last_over_time", "first_over_time", "sort", "sort_desc", "sort_by_label", "sort_by_label_desc", "info"}
)
_KEEPS_LABELS: Final = frozenset({"topk", "bottomk", "limitk", "limit_ratio"})
_COMPARISONS: Final = frozenset({"==", "!=", ">", "<", ">=", "<="})
_FILTERS: Final = _COMPARISONS | {"and", "unless"}
_NO_VECTOR: Final = frozenset({"time", "pi", "scalar", "vector", "day_of_week", "hour", "minute", "month"})

# The values of a variable; None if they are not known.
VariableValues = Mapping[str, Sequence[str] | None]


@dataclass(slots=True)
class SeriesStore:
    """The series of one page, of which recording rules make more."""

    by_name: dict[str, list[Labels]] = field(default_factory=dict)

    @classmethod
    def of_page(cls, page: Page, added: Iterable[str] = (), copied: Iterable[str] = ()) -> SeriesStore:
        """The series of a page; `added` are labels of unknown value, `copied` those such as exported_pod."""
        unknown = dict.fromkeys(added, ANY)
        copies = {name: name.removeprefix("exported_") for name in copied}

        def complete(labels: Labels) -> Labels:
            found = {name: text for name, text in labels.items() if text}
            exported = {name: found[bare] for name, bare in copies.items() if bare in found}
            return {**unknown, **exported, **found}

        return cls({name: [complete(row.labels) for row in rows] for name, rows in page.series.items()})

    def add(self, name: str, rows: Rows, labels: Labels) -> None:
        """Adds what a recording rule would record."""
        recorded = [{**{key: text for key, text in row if key != NAME}, **labels} for row in rows]
        if recorded:
            self.by_name.setdefault(name, []).extend(recorded)


class Evaluation:
    """Evaluates one query on a store. `rows_of` returns the series of a selector."""

    def __init__(self, store: SeriesStore, query: ParsedQuery, variables: VariableValues) -> None:
        self._store = store
        self._values = [variables.get(name) for name in query.variables]
        self._node = query.node
        # Whether Prometheus refuses a join of the result, because several series match one.
        self.ambiguous = False

    def result(self) -> Rows:
        """The series of the whole query."""
        return self.rows(self._node)

    def rows_of(self, selector: Any) -> Rows:
        """The series that a selector matches."""
        matchers = selector.matchers
        groups = matchers.or_matchers or [matchers.matchers]
        return frozenset().union(*(self._selected(selector.name, group) for group in groups))

    def _selected(self, name: str | None, matchers: list[Any]) -> set[Row]:
        # A variable may be the name of any label.
        known = (matcher for matcher in matchers if not PLACEHOLDER.search(matcher.name))
        tests = [(matcher.name, self._test(matcher)) for matcher in known]
        if name is not None:
            tests.append((NAME, self._name_test(name)))
        name_tests = [test for label, test in tests if label == NAME]
        found = set()
        for metric, rows in self._store.by_name.items():
            if all(test(metric) for test in name_tests):
                for labels in rows:
                    if all(label == NAME or test(labels.get(label, "")) for label, test in tests):
                        found.add(frozenset({**labels, NAME: metric}.items()))
        return found

    def _name_test(self, name: str) -> Callable[[str], bool]:
        if PLACEHOLDER.search(name):
            return self._pattern_test(re.escape(name))
        return lambda text: text == name

    def _test(self, matcher: Any) -> Callable[[str], bool]:
        """Whether a matcher accepts a value; a value that is not known is always accepted."""
        operator, wanted = str(matcher.op).rpartition(".")[2], matcher.value
        negative, is_pattern = operator.startswith("Not"), operator in ("Re", "NotRe")
        if PLACEHOLDER.search(wanted):
            if negative:
                return lambda _: True
            test = self._pattern_test(wanted if is_pattern else re.escape(wanted))
        elif is_pattern:
            test = _compiled(wanted)
        else:
            test = wanted.__eq__
        return lambda text: text == ANY or test(text) is not negative

    def _pattern_test(self, pattern: str) -> Callable[[str], bool]:
        def alternatives(found: re.Match[str]) -> str:
            values = self._values[int(found[1])]
            if values is None:
                return ".*"
            return f"(?:{'|'.join(map(re.escape, values))})" if values else r"(?!)"

        return _compiled(PLACEHOLDER.sub(alternatives, pattern))

    def rows(self, node: Any) -> Rows:
        """The series of a part of the query."""
        kind = type(node).__name__
        if kind == "VectorSelector":
            return self.rows_of(node)
        if kind == "MatrixSelector":
            return self.rows_of(node.vector_selector)
        if kind in ("ParenExpr", "SubqueryExpr"):
            return self.rows(node.expr)
        if kind == "UnaryExpr":
            return _without(self.rows(node.expr), {NAME})
        if kind == "BinaryExpr":
            return self._binary(node)
        if kind == "AggregateExpr":
            return self._aggregation(node)
        return self._call(node) if kind == "Call" else _SCALAR

    def _aggregation(self, node: Any) -> Rows:
        rows = self.rows(node.expr)
        operator = str(node.op)
        if operator in _KEEPS_LABELS:
            return rows
        if node.modifier is None:
            grouped: Rows = frozenset({frozenset()}) if rows else frozenset()
        elif str(node.modifier.type).endswith("Without"):
            grouped = _without(rows, {NAME, *self._names(node.modifier.labels)})
        else:
            grouped = _only(rows, self._names(node.modifier.labels))
        if operator == "count_values":
            label = str(node.param).strip('"')
            return frozenset(row | {(label, ANY)} for row in grouped)
        return grouped

    def _names(self, labels: list[str]) -> set[str]:
        """Names of labels, of which a variable may be one or several."""
        found: set[str] = set()
        for label in labels:
            variable = PLACEHOLDER.fullmatch(label)
            found |= {label} if variable is None else set(self._values[int(variable[1])] or ())
        return found

    def _call(self, node: Any) -> Rows:
        name = node.func.name
        if name in ("absent", "absent_over_time"):
            return frozenset() if self.rows(node.args[0]) else _SCALAR
        if name in _NO_VECTOR and not (node.args and name not in ("scalar", "vector")):
            return _SCALAR
        vectors = [self.rows(argument) for argument in node.args if _is_vector(argument)]
        rows = vectors[0] if vectors else _SCALAR
        if name == "label_replace":
            return _label_replaced(rows, *(str(text.val) for text in node.args[1:5]))
        if name == "label_join":
            target, separator, *sources = (str(text.val) for text in node.args[1:])
            return frozenset(_joined(dict(row), target, separator, sources) for row in rows)
        if name in ("histogram_quantile", "histogram_fraction"):
            return _without(rows, {NAME, "le"})
        return rows if name in _KEEPS_NAME else _without(rows, {NAME})

    def _binary(self, node: Any) -> Rows:
        left, right = self.rows(node.lhs), self.rows(node.rhs)
        operator = str(node.op)
        if not _is_vector(node.lhs) or not _is_vector(node.rhs):
            rows = left if _is_vector(node.lhs) else right
            gives_numbers = node.modifier is not None and node.modifier.return_bool
            compares = operator in _COMPARISONS and not gives_numbers
            return rows if compares else _without(rows, {NAME})
        key = _key_of(node.modifier and node.modifier.matching)
        if operator == "or":
            known = {key(row) for row in left}
            return left | {row for row in right if key(row) not in known}
        others = {key(row): row for row in right}
        if operator == "unless":
            # A filter may leave none of the others.
            return frozenset(row for row in left if key(row) not in others or _has_filter(node.rhs))
        if operator == "and":
            return frozenset(row for row in left if key(row) in others)
        self.ambiguous |= _is_ambiguous(node, left, right, key)
        return _joined_sides(node, left, right, key)


def _is_vector(node: Any) -> bool:
    kind = type(node).__name__
    if kind in ("ParenExpr", "UnaryExpr"):
        return _is_vector(node.expr)
    if kind == "BinaryExpr":
        return _is_vector(node.lhs) or _is_vector(node.rhs)
    if kind == "Call":
        return not str(node.func.return_type).endswith("Scalar")
    return kind not in ("NumberLiteral", "StringLiteral")


Key = Callable[[Row], Row]


def _key_of(matching: Any) -> Key:
    if matching is None:
        return lambda row: frozenset(pair for pair in row if pair[0] != NAME)
    labels = set(matching.labels)
    if str(matching.type).endswith("Include"):
        return lambda row: frozenset(pair for pair in row if pair[0] in labels)
    return lambda row: frozenset(pair for pair in row if pair[0] not in labels and pair[0] != NAME)


def _is_ambiguous(node: Any, left: Rows, right: Rows, key: Key) -> bool:
    """Whether a side that must have one series for a match has several, and no filter that may leave one."""
    group = str(node.modifier.card).rpartition(".")[2] if node.modifier is not None else ""
    matched = set(map(key, left)) & set(map(key, right))
    sides = [(node.lhs, left, "OneToMany"), (node.rhs, right, "ManyToOne")]
    for side, rows, when in sides:
        keys = [found for found in map(key, rows) if found in matched]
        is_one = group in ("", "OneToOne", when)
        if is_one and len(set(keys)) < len(keys) and not _has_filter(side):
            return True
    return False


def _has_filter(node: Any) -> bool:
    """Whether a part of a query compares, so that values decide which series it returns."""
    return any(str(getattr(part, "op", "")) in _FILTERS for part in all_nodes(node))


def _joined_sides(node: Any, left: Rows, right: Rows, key: Key) -> Rows:
    """The series of arithmetic or a comparison of two vectors."""
    group = str(node.modifier.card).rpartition(".")[2] if node.modifier is not None else ""
    many, one = (right, left) if group == "OneToMany" else (left, right)
    partners = {key(row): dict(row) for row in one}
    found = set()
    for row in many:
        partner = partners.get(key(row))
        if partner is None:
            continue
        if group in ("ManyToOne", "OneToMany"):
            labels = {name: text for name, text in row if name != NAME}
            included = node.modifier.group_labels or []
            labels |= {name: partner[name] for name in included if name in partner}
            found.add(frozenset(labels.items()))
        else:
            found.add(key(row))
    return frozenset(found)


def _without(rows: Rows, names: set[str]) -> Rows:
    return frozenset(frozenset(pair for pair in row if pair[0] not in names) for row in rows)


def _only(rows: Rows, names: set[str]) -> Rows:
    return frozenset(frozenset(pair for pair in row if pair[0] in names) for row in rows)


def _label_replaced(rows: Rows, target: str, replacement: str, source: str, pattern: str) -> Rows:
    test = _pattern(pattern)
    found = set()
    for row in rows:
        labels = dict(row)
        value = labels.get(source, "")
        match = test.fullmatch(value) if test and value != ANY else None
        if value == ANY:
            labels[target] = ANY
        elif match is not None:
            template = re.sub(r"\$\{?(\w+)\}?", r"\\g<\1>", replacement.replace("\\", r"\\"))
            try:
                labels[target] = match.expand(template) or ""
            except (re.error, IndexError):
                labels[target] = ""
        found.add(frozenset((name, text) for name, text in labels.items() if text))
    return frozenset(found)


def _joined(labels: dict[str, str], target: str, separator: str, sources: list[str]) -> Row:
    values = [labels.get(name, "") for name in sources]
    text = ANY if ANY in values else separator.join(values)
    return frozenset((name, value) for name, value in {**labels, target: text}.items() if value)


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str] | None:
    try:
        return re.compile(text, re.DOTALL)
    except re.error:
        return None


def _compiled(text: str) -> Callable[[str], bool]:
    """Tests a whole value. A pattern that only Go understands accepts everything."""
    pattern = _pattern(text)
    return lambda value: pattern is None or value == ANY or pattern.fullmatch(value) is not None


def lost_metrics(node: Any, old: Evaluation, new: Evaluation) -> list[str]:
    """Returns the metrics that a part of a query selects on the old page and not on the new one.

    Both sides of an `or` may be names of the same metric: one that only the new page has replaces the other,
    and the second does not matter where the first always has its series.
    """
    if type(node).__name__ == "VectorSelector":
        before, after = (_metrics_of(side.rows_of(node)) for side in (old, new))
        is_renamed = not before & after and len(after) >= len(before)
        return [] if is_renamed else sorted(before - after)
    parts = [(part, lost_metrics(part, old, new)) for part in children(node)]
    if str(getattr(node, "op", "")) == "or":
        (first, first_lost), _ = parts
        always = 0 if first_lost or _has_filter(first) else number_of(old.rows(first))
        if always and always == number_of(old.rows(node)):
            return []
        replaced = any(not lost and new.rows(part) and not old.rows(part) for part, lost in parts)
        if replaced and number_of(new.rows(node)) >= number_of(old.rows(node)):
            return []
    return [name for _, lost in parts for name in lost]


def _metrics_of(rows: Rows) -> set[str]:
    return {text for row in rows for name, text in row if name == NAME}


def number_of(rows: Rows) -> int:
    """Returns the number of series, whatever their metrics: another name of the same metric is not less."""
    return len({frozenset(pair for pair in row if pair[0] != NAME) for row in rows})
