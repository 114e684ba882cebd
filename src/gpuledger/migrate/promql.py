"""PromQL of dashboards and rules: parsed by the library promql-parser, with Grafana's variables in it.

The library knows no variables. Each becomes a text that it accepts in its place, and that text becomes the
variable again when the query is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from gpuledger.exposition.text import escape_label_value
from gpuledger.model.errors import missing_package_error
from gpuledger.model.text import to_short_line

# Grafana's forms: $name, ${name}, ${name:format}, [[name]], [[name:format]]; $1 is a group of label_replace.
_VARIABLE: Final = re.compile(
    r"\$\{([A-Za-z_]\w*)(?:[.:][^}]*)?\}|\$([A-Za-z_]\w*)|\[\[([A-Za-z_]\w*)(?::[^\]]*)?\]\]"
)
PLACEHOLDER: Final = re.compile(r"gpuledger_variable_(\d+)_")
_COMMENT: Final = re.compile(r"#[^\n]*")
# The unit of a variable in brackets that is a number, as in [${__range_s}s].
_UNIT: Final = re.compile(r"(?:ms|[smhdwy])?")
# Seconds that stand for the first variable in brackets. Nobody writes such a duration.
_RANGE_SECONDS: Final = 4261
# Characters of a query: real ones have some thousand. The parser's time is quadratic.
_LONGEST: Final = 10_000
# Levels of nesting: the parser is recursive.
_DEEPEST: Final = 200
# The label with the name of the metric.
NAME: Final = "__name__"
_TOO_LONG: Final = "it is too long or nested too deeply"
_OPERATORS: Final = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


class UnreadableQuery(ValueError):
    """The text is no PromQL; the message is one line."""


def promql_parser() -> Any:
    """The library. Raises UsageError with the remedy where it is not installed."""
    try:
        import promql_parser as library
    except ModuleNotFoundError:
        hint = "without --rules and --dashboards only the pages are compared"
        raise missing_package_error("reading queries", "promql-parser", "migrate", hint) from None
    return library


@dataclass(slots=True)
class ParsedQuery:
    """A query with variables. `variables` are their names in the order of placeholders."""

    text: str
    node: Any = None
    variables: list[str] = field(default_factory=list)
    # Texts of the parsed query, and what stands in the original.
    originals: dict[str, str] = field(default_factory=dict)

    def selectors(self) -> Iterator[Any]:
        """Yields all vector selectors."""
        return (node for node in all_nodes(self.node) if type(node).__name__ == "VectorSelector")


def parse_query(text: str, numbers: Mapping[str, str] | None = None) -> ParsedQuery:
    """Parses a query. `numbers` are values of variables that are numbers. Raises UnreadableQuery."""
    if len(text) > _LONGEST or _depth(text) > _DEEPEST:
        raise UnreadableQuery(_TOO_LONG)
    known = numbers or {}
    library = promql_parser()
    failure = ""
    # A variable outside of quotes may be a name or a number.
    for choose in (known.get, lambda _: "1"):
        query = ParsedQuery(text)
        try:
            query.node = library.parse(_substituted(query, choose))
        except ValueError as error:
            failure = failure or to_short_line(error)
            continue
        if _levels(query.node) > _DEEPEST:
            raise UnreadableQuery(_TOO_LONG)
        return query
    raise UnreadableQuery(failure)


def _levels(node: Any) -> int:
    """The number of levels of a query."""
    levels, current = 0, [node]
    while current:
        levels, current = levels + 1, [child for parent in current for child in children(parent)]
    return levels


def _depth(text: str) -> int:
    deepest = depth = 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        deepest = max(deepest, depth)
    return deepest


def _substituted(query: ParsedQuery, number_of: Callable[[str], str | None]) -> str:
    """The query with a text in place of each variable, by where it stands."""
    parts: list[str] = []
    quote, brackets, position, text = "", 0, 0, query.text
    while position < len(text):
        found = _VARIABLE.match(text, position)
        if found:
            name = found[1] or found[2] or found[3]
            position = found.end()
            if brackets and not quote:
                unit = _UNIT.match(text, position)
                position = unit.end() if unit else position
                parts.append(_duration_stand_in(query, text[found.start() : position]))
            else:
                parts.append(_stand_in(query, name, found[0], quote, number_of))
            continue
        if not quote and (comment := _COMMENT.match(text, position)):
            position = comment.end()
            continue
        sign = text[position]
        if quote:
            if sign == "\\" and quote != "`":
                parts.append(text[position : position + 2])
                position += 2
                continue
            quote = "" if sign == quote else quote
        elif sign in "\"'`":
            quote = sign
        else:
            brackets += (sign == "[") - (sign == "]")
        parts.append(sign)
        position += 1
    return "".join(parts)


def _duration_stand_in(query: ParsedQuery, written: str) -> str:
    duration = _duration(timedelta(seconds=_RANGE_SECONDS + len(query.originals)))
    query.originals[duration] = written
    return duration


def _stand_in(
    query: ParsedQuery, name: str, written: str, quote: str, number_of: Callable[[str], str | None]
) -> str:
    number = None if quote else number_of(name) or ("300" if name.startswith("__") else None)
    if number is not None:
        return number
    query.variables.append(name)
    placeholder = f"gpuledger_variable_{len(query.variables) - 1}_"
    query.originals[placeholder] = written
    return placeholder


def all_nodes(node: Any) -> Iterator[Any]:
    """Yields a node and all nodes below it."""
    waiting = [node]
    while waiting:
        current = waiting.pop()
        if current is None:
            continue
        yield current
        waiting += children(current)


def children(node: Any) -> list[Any]:
    """Returns the expressions of which a node consists."""
    kind = type(node).__name__
    if kind == "BinaryExpr":
        return [node.lhs, node.rhs]
    if kind == "Call":
        return list(node.args)
    if kind == "MatrixSelector":
        return [node.vector_selector]
    if kind == "AggregateExpr":
        # The parameter is no expression if it is a plain number or text.
        return [node.expr, *([node.param] if type(node.param).__module__.startswith("promql") else [])]
    return [node.expr] if kind in ("ParenExpr", "UnaryExpr", "SubqueryExpr") else []


def named_metrics(parsed: ParsedQuery) -> list[str]:
    """Returns the metrics that a query selects by name, each once."""
    return list(dict.fromkeys(str(node.name) for node in parsed.selectors() if node.name))


def used_labels(parsed: ParsedQuery) -> set[str]:
    """The labels that a query matches, groups or joins by, or copies from."""
    found: set[str] = set()
    for node in all_nodes(parsed.node):
        kind = type(node).__name__
        if kind == "VectorSelector":
            groups = [node.matchers.matchers, *node.matchers.or_matchers]
            found |= {matcher.name for group in groups for matcher in group}
        elif kind == "AggregateExpr" and node.modifier is not None:
            found |= set(node.modifier.labels) if str(node.modifier.type).endswith("By") else set()
        elif kind == "BinaryExpr" and node.modifier is not None:
            matching = node.modifier.matching
            on = matching is not None and str(matching.type).endswith("Include")
            found |= {*(matching.labels if on else ()), *(node.modifier.group_labels or ())}
        elif kind == "Call" and node.func.name == "label_replace":
            found.add(str(node.args[3].val))
        elif kind == "Call" and node.func.name == "label_join":
            found |= {str(text.val) for text in node.args[3:]}
    return found - {NAME} - made_labels(parsed)


def made_labels(parsed: ParsedQuery) -> set[str]:
    """The labels that functions of a query make."""
    calls = (node for node in all_nodes(parsed.node) if type(node).__name__ == "Call")
    made = {str(node.args[1].val) for node in calls if node.func.name in ("label_replace", "label_join")}
    counted = (node for node in all_nodes(parsed.node) if str(getattr(node, "op", "")) == "count_values")
    return made | {str(node.param).strip('"') for node in counted}


def has_absent(parsed: ParsedQuery) -> bool:
    """Returns whether a query has absent() or absent_over_time()."""
    calls = (node for node in all_nodes(parsed.node) if type(node).__name__ == "Call")
    return any(node.func.name.startswith("absent") for node in calls)


def reacts_to_absence(parsed: ParsedQuery) -> bool:
    """Returns whether a query may return more because a series is absent."""
    return has_absent(parsed) or any(
        str(getattr(node, "op", "")) == "unless" for node in all_nodes(parsed.node)
    )


def is_counted(parsed: ParsedQuery) -> bool:
    """Whether the query counts series whatever their values, so that no unit matters."""
    return str(getattr(parsed.node, "op", "")) in ("count", "group")


Rename = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Rewriting:
    """What `write_query` changes: labels by name, and metrics: the new name, or a factor beside it."""

    label: Mapping[str, str] = field(default_factory=dict)
    metric: Mapping[str, str] = field(default_factory=dict)
    factor: Mapping[str, str] = field(default_factory=dict)
    matchers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def write_query(query: ParsedQuery, rewriting: Rewriting) -> str:
    """Returns the query as PromQL with the changes of `rewriting`, and with its variables again."""
    written = _Writer(rewriting).write(query.node)
    for stand_in, original in query.originals.items():
        written = written.replace(stand_in, original)
    return written


class _Writer:
    def __init__(self, rewriting: Rewriting) -> None:
        self._changes = rewriting

    def write(self, node: Any) -> str:
        kind = type(node).__name__
        if kind == "VectorSelector":
            return self._scaled(self._selector(node), node.name)
        if kind == "MatrixSelector":
            return self._range(node)
        if kind == "StringLiteral":
            return f'"{escape_label_value(node.val)}"'
        if kind == "ParenExpr":
            return f"({self.write(node.expr)})"
        if kind == "UnaryExpr":
            return f"-{self.write(node.expr)}"
        if kind == "BinaryExpr":
            return self._binary(node)
        if kind == "AggregateExpr":
            return self._aggregation(node)
        if kind == "Call":
            return self._call(node)
        if kind == "SubqueryExpr":
            step = "" if node.step is None else _duration(node.step)
            return f"{self.write(node.expr)}[{_duration(node.range)}:{step}]{_modifiers(node)}"
        return str(node)

    def _scaled(self, written: str, name: str | None) -> str:
        factor = self._changes.factor.get(name or "", "")
        return f"({written} {factor})" if factor else written

    def _selector(self, node: Any, window: str = "") -> str:
        """Name and matchers changed, then the window of a range, and the modifiers as they are."""
        more = self._changes.matchers.get(node.name or "", {})
        added = [f'{name}="{escape_label_value(text)}"' for name, text in more.items()]
        groups = node.matchers.or_matchers or [node.matchers.matchers]
        inner = " or ".join(", ".join([*map(self._matcher, group), *added]) for group in groups)
        name = self._changes.metric.get(node.name or "", node.name or "")
        return f"{name}{f'{{{inner}}}' if inner or not name else ''}{window}{_modifiers(node)}"

    def _matcher(self, matcher: Any) -> str:
        operator = _OPERATORS[str(matcher.op).rpartition(".")[2]]
        return f'{self._label(matcher.name)}{operator}"{escape_label_value(matcher.value)}"'

    def _range(self, node: Any) -> str:
        return self._selector(node.vector_selector, f"[{_duration(node.range)}]")

    def _call(self, node: Any) -> str:
        arguments = [self.write(argument) for argument in node.args]
        if node.func.name in ("label_replace", "label_join"):
            arguments[1:] = [self._label_text(text) for text in arguments[1:]]
        written = f"{node.func.name}({', '.join(arguments)})"
        ranges = (argument for argument in node.args if type(argument).__name__ == "MatrixSelector")
        for argument in ranges:
            written = self._scaled(written, argument.vector_selector.name)
        return written

    def _label_text(self, written: str) -> str:
        bare = written.strip('"')
        return (
            f'"{self._label(bare)}"' if written.startswith('"') and bare in self._changes.label else written
        )

    def _aggregation(self, node: Any) -> str:
        parameter = "" if node.param is None else f"{self._parameter(node.param)}, "
        grouping = ""
        if node.modifier is not None:
            word = str(node.modifier.type).rpartition(".")[2].lower()
            grouping = f" {word} ({self._labels(node.modifier.labels)})"
        return f"{node.op}{grouping} ({parameter}{self.write(node.expr)})"

    def _parameter(self, value: Any) -> str:
        """A number or a text is no node."""
        is_node = type(value).__module__.startswith("promql")
        return self.write(value) if is_node else str(value)

    def _binary(self, node: Any) -> str:
        words = [str(node.op)]
        modifier = node.modifier
        if modifier is not None:
            words += ["bool"] if modifier.return_bool else []
            if modifier.matching is not None:
                word = "on" if str(modifier.matching.type).endswith("Include") else "ignoring"
                words.append(f"{word} ({self._labels(modifier.matching.labels)})")
            side = {"ManyToOne": "group_left", "OneToMany": "group_right"}
            group = side.get(str(modifier.card).rpartition(".")[2])
            words += [f"{group} ({self._labels(modifier.group_labels or [])})"] if group else []
        return f"{self.write(node.lhs)} {' '.join(words)} {self.write(node.rhs)}"

    def _labels(self, names: list[str]) -> str:
        return ", ".join(map(self._label, names))

    def _label(self, name: str) -> str:
        return self._changes.label.get(name, name)


def _duration(value: timedelta) -> str:
    return str(promql_parser().display_duration(value))


def _modifiers(node: Any) -> str:
    """The modifiers `offset` and `@` of a selector or a subquery."""
    written = ""
    if node.offset is not None:
        sign = "-" if node.offset < timedelta() else ""
        written = f" offset {sign}{_duration(abs(node.offset))}"
    if node.at is not None:
        kind = str(node.at.type).rpartition(".")[2]
        written += f" @ {node.at.at.timestamp():.3f}" if kind == "At" else f" @ {kind.lower()}()"
    return written
