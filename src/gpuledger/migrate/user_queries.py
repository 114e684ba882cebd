"""The queries of a user's rules and dashboards, and the variables of the dashboards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpuledger.host.files import read_at_most
from gpuledger.host.yaml_documents import InvalidYaml, parse_yaml, read_utf8
from gpuledger.model.errors import UsageError

_LONGEST: Final = 64 << 20
_YAML: Final = (".yml", ".yaml", ".rules")
# Labels that legends of panels and annotations of alerts show.
_SHOWN: Final = re.compile(r"\{\{\s*\.?(\w+)\s*\}\}|\$labels\.(\w+)")
_PROMETHEUS: Final = ("prom", "victoria", "mimir", "cortex", "thanos", "-- mixed --")
_OTHER: Final = (
    *("loki", "influx", "cloudwatch", "elasticsearch", "graphite", "tempo", "mysql", "postgres", "mssql"),
    *("zabbix", "azure", "stackdriver", "opensearch", "jaeger", "testdata", "-- grafana --", "clickhouse"),
)


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a dashboard: its kind, its query, and values that are written down."""

    name: str
    kind: str
    query: str
    values: tuple[str, ...] = ()
    # What takes the values from the results of the query.
    pattern: str = ""


@dataclass(frozen=True, slots=True)
class UserQuery:
    """One query: where it stands, what it is, and the labels that people see of its result.

    `is_variable` means that it lists the values of a variable: Grafana's functions around PromQL.
    `record` is the name that a recording rule gives to the result, with the labels that it adds.
    """

    where: str
    expression: str
    shown: frozenset[str] = frozenset()
    record: str = ""
    added: Mapping[str, str] = field(default_factory=dict)
    variables: tuple[Variable, ...] = ()
    is_variable: bool = False


@dataclass(slots=True)
class UserQueries:
    """All queries, rules first in their order, and notes about what was not read."""

    queries: list[UserQuery] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_user_queries(rules: list[Path], dashboards: list[Path]) -> UserQueries:
    """Reads files, and all files of directories. Raises UsageError for a file that has no query at all."""
    found = UserQueries()
    for path in rules:
        _read_all(path, _YAML, found, _read_rules, "rules")
    for path in dashboards:
        _read_all(path, (".json", *_YAML), found, _read_dashboard, "dashboards")
    return found


def _read_all(path: Path, endings: tuple[str, ...], found: UserQueries, read: Any, what: str) -> None:
    files = sorted(file for file in path.rglob("*") if file.suffix in endings) if path.is_dir() else [path]
    before = len(found.queries)
    for file in files:
        so_far = len(found.queries) + len(found.notes)
        try:
            read(_documents(file), str(file), found)
        except (ValueError, RecursionError) as error:
            if not path.is_dir():
                raise UsageError(f"{file} cannot be read: {error}") from None
            found.notes.append(f"{file} is skipped: {error}")
        if so_far == len(found.queries) + len(found.notes):
            found.notes.append(f"{file} has no queries")
    if len(found.queries) == before:
        raise UsageError(f"{path} has no {what} with queries; expected {' or '.join(endings)} files")


def _documents(file: Path) -> list[Any]:
    """The documents of a JSON or YAML file. Raises ValueError with the reason."""
    try:
        if file.suffix == ".json":
            return [json.loads(read_at_most(file, _LONGEST))]
        parts = re.split(r"(?m)^---(?:[ \t].*)?$", read_utf8(file))
        return [parse_yaml(part, quickly=True) for part in parts if part.strip()]
    except OSError as error:
        raise ValueError(error.strerror) from None
    except InvalidYaml as error:
        raise ValueError(f"it is not YAML: {error}") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON (line {error.lineno})") from None


def _maps_below(value: Any) -> Iterator[dict[str, Any]]:
    """Yields all mappings in a document, also in the texts of a ConfigMap and the items of a List."""
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict):
            yield current
            waiting += reversed(list(current.values()))
        elif isinstance(current, list):
            waiting += reversed(current)


def _with_embedded(documents: list[Any], file: str, found: UserQueries) -> Iterator[Any]:
    """Yields documents, and those that are texts in ConfigMaps and GrafanaDashboards."""
    for document in documents:
        yield document
        for holder in _maps_below(document):
            # A GrafanaDashboard has its dashboard in spec.json.
            key = {"ConfigMap": "data", "GrafanaDashboard": "spec"}.get(str(holder.get("kind")), "")
            texts = holder.get(key)
            for name, text in texts.items() if isinstance(texts, dict) else ():
                if not isinstance(text, str) or "expr" not in text:
                    continue
                try:
                    yield json.loads(text) if text.lstrip()[:1] == "{" else parse_yaml(text)
                except ValueError as error:
                    found.notes.append(f"{file}: {name} is skipped: {error}")


def _read_rules(documents: list[Any], file: str, found: UserQueries) -> None:
    for document in _with_embedded(documents, file, found):
        for holder in _maps_below(document):
            for rule in holder["rules"] if isinstance(holder.get("rules"), list) else ():
                # A rule of Grafana has several queries, in data[].model.
                for part in _maps_below(rule):
                    if part.get("expr") is not None:
                        expression = str(part["expr"])
                        found.queries.append(_rule(rule, expression, str(holder.get("name", "")), file))


def _rule(rule: dict[str, Any], expression: str, group: str, file: str) -> UserQuery:
    record = str(rule.get("record") or "")
    name = record or str(rule.get("alert") or rule.get("title") or "")
    texts = json.dumps([rule.get("annotations"), rule.get("labels")], default=str)
    labels = rule.get("labels")
    return UserQuery(
        f"{Path(file).name}: {group}: {'record' if record else 'alert'} {name}",
        expression,
        _shown(texts),
        record,
        {str(key): str(text) for key, text in labels.items()} if record and isinstance(labels, dict) else {},
    )


def _shown(text: str) -> frozenset[str]:
    return frozenset(first or second for first, second in _SHOWN.findall(text)) - {"value"}


def _read_dashboard(documents: list[Any], file: str, found: UserQueries) -> None:
    for document in _with_embedded(documents, file, found):
        if isinstance(document, dict) and document.get("kind") not in ("ConfigMap", "GrafanaDashboard"):
            _Dashboard(document, file, found).read()


@dataclass(slots=True)
class _Dashboard:
    """One dashboard of any version: in each, a query is a mapping with `expr` below a panel's title."""

    document: dict[str, Any]
    file: str
    found: UserQueries
    variables: tuple[Variable, ...] = ()
    # Names of data sources and variables that are no Prometheus.
    foreign: set[str] = field(default_factory=set)

    def read(self) -> None:
        """Adds the queries."""
        self._read_variables()
        name = Path(self.file).name
        for variable in self.variables:
            if variable.kind == "query" and variable.query:
                where = f"{name}: variable {variable.name}"
                query = UserQuery(where, variable.query, variables=self.variables, is_variable=True)
                self.found.queries.append(query)
        self._walk(self.document, name, None)

    def _read_variables(self) -> None:
        found: list[tuple[Variable, Any]] = []
        for holder in _maps_below(self.document):
            listed = holder.get("list") if "list" in holder else holder.get("variables")
            for entry in listed if isinstance(listed, list) else ():
                variable = _variable(entry) if isinstance(entry, dict) else None
                if variable is None:
                    continue
                if variable.kind == "datasource" and _is_foreign(variable.query):
                    self.foreign.add(variable.name)
                elif variable.kind not in ("datasource", "adhoc"):
                    spec = entry["spec"] if isinstance(entry.get("spec"), dict) else entry
                    found.append((variable, spec.get("datasource")))
        known = {one.name: one for one, source in found if not self._source_is_foreign(source)}
        self.variables = tuple(known.values())

    def _walk(self, value: Any, where: str, source: Any) -> None:
        if isinstance(value, list):
            for inner in value:
                self._walk(inner, where, source)
        if not isinstance(value, dict):
            return
        title = value.get("title")
        if isinstance(title, str) and title and value is not self.document:
            where = f"{Path(self.file).name}: {title}"
        source = value.get("datasource") or source
        expression = value.get("expr")
        if isinstance(expression, str) and expression.strip():
            self._add(value, where, source)
        library = value.get("libraryPanel")
        if isinstance(library, dict) and not value.get("targets") and not self._has_element(library):
            name = library.get("name") or library.get("uid")
            self.found.notes.append(
                f"{where}: the library panel {name} is not in this file; export the dashboard for sharing"
            )
        for key, inner in value.items():
            if key not in ("templating", "datasource", "libraryPanel"):
                self._walk(inner, where, source)

    def _has_element(self, library: dict[str, Any]) -> bool:
        elements = self.document.get("__elements")
        return isinstance(elements, dict) and library.get("uid") in elements

    def _add(self, target: dict[str, Any], where: str, source: Any) -> None:
        if self._source_is_foreign(source):
            self.found.notes.append(f"{where}: skipped, its data source is no Prometheus")
            return
        legend = str(target.get("legendFormat") or "")
        query = UserQuery(where, target["expr"], _shown(legend), variables=self.variables)
        self.found.queries.append(query)

    def _source_is_foreign(self, source: Any) -> bool:
        if isinstance(source, dict):
            source = source.get("type") or source.get("uid") or source.get("name") or ""
        text = str(source or "")
        variable = re.fullmatch(r"\$\{?(\w+)\}?", text)
        return variable[1] in self.foreign if variable else _is_foreign(text)


def _is_foreign(name: str) -> bool:
    lowered = name.lower()
    return any(word in lowered for word in _OTHER) and not any(word in lowered for word in _PROMETHEUS)


def _variable(entry: dict[str, Any]) -> Variable | None:
    kind = str(entry.get("type") or entry.get("kind") or "").removesuffix("Variable").lower()
    spec = entry["spec"] if isinstance(entry.get("spec"), dict) else entry
    name = spec.get("name")
    if not isinstance(name, str) or not kind:
        return None
    query = _query_text(spec.get("query") or spec.get("definition"))
    current = spec.get("current")
    value = current.get("value") if isinstance(current, dict) else None
    values = [str(item) for item in (value if isinstance(value, list) else [value]) if item not in (None, "")]
    if kind == "custom":
        values = [part.rpartition(" : ")[2].strip() for part in query.split(",") if part.strip()]
    elif kind in ("constant", "textbox", "interval") and not values:
        values = [query.split(",")[0]] if query else []
    known = tuple(text for text in values if text not in ("$__all", "$__auto_interval_" + name))
    return Variable(name, kind, query, known, str(spec.get("regex") or "") if kind == "query" else "")


def _query_text(query: Any) -> str:
    """The text of a variable's query, which newer versions of Grafana write as a mapping."""
    if isinstance(query, str):
        return query
    if not isinstance(query, dict):
        return ""
    if isinstance(query.get("spec"), dict):
        return _query_text(query["spec"])
    for key in ("query", "expr"):
        if isinstance(query.get(key), str):
            return str(query[key])
    if query.get("label"):
        metric = str(query.get("metric") or "")
        return f"label_values({metric + ', ' if metric else ''}{query['label']})"
    return _query_text(query["query"]) if isinstance(query.get("query"), dict) else ""
