"""The kinds of Grafana panels that the dashboards use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
# URL parameters of links: time range, data source and cluster.
SHARED_PARAMETERS = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"
# Sums of a time range have no data without recording rules.
_RECORDED_SUM = re.compile(r"(increase|min_over_time)\(gpuledger:")
DATASOURCE: Json = {"type": "prometheus", "uid": "${datasource}"}

GREEN, YELLOW, ORANGE, RED, BLUE, GREY = "green", "yellow", "orange", "red", "blue", "#8e8e8e"
Steps = Sequence[tuple[float | None, str]]
PLAIN: Steps = ((None, BLUE),)
GOOD_IS_ZERO: Steps = ((None, GREEN), (1, RED))
FULLNESS: Steps = ((None, GREEN), (0.8, YELLOW), (0.95, RED))


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel; `legend` names its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel without position; `size` is its width (of 24) and height."""

    title: str
    text: str
    size: tuple[int, int]
    body: Json = field(repr=False)

    def at(self, number: int, x: int, y: int) -> Json:
        """Returns the panel's JSON at a position."""
        width, height = self.size
        place = {"x": x, "y": y, "w": width, "h": height}
        default = self.body["fieldConfig"]["defaults"]
        if any(_RECORDED_SUM.search(target["expr"]) for target in self.body["targets"]):
            default["noValue"] += ", or the recording rules are missing"
        return {
            "id": number,
            "title": self.title,
            "description": self.text,
            "gridPos": place,
            "datasource": DATASOURCE,
            **self.body,
        }


@dataclass(frozen=True, slots=True)
class Column:
    """A numeric column of a table; `names` maps values to text and color."""

    title: str
    expr: str
    unit: str = "short"
    decimals: int | None = None
    steps: Steps | None = None
    names: Mapping[float, tuple[str, str]] | None = None


def targets(queries: Sequence[Query], *, instant: bool, table: bool = False) -> list[Json]:
    """Returns the JSON of queries, named by letters."""
    return [
        {
            "refId": chr(ord("A") + index),
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": query.expr,
            "legendFormat": query.legend or "__auto",
            "instant": instant,
            "range": not instant,
            "format": "table" if table else "time_series",
        }
        for index, query in enumerate(queries)
    ]


def thresholds(steps: Steps) -> Json:
    """Returns thresholds: colors by lowest value; the first one has none."""
    return {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in steps]}


def mappings(names: Mapping[float, tuple[str, str]]) -> list[Json]:
    """Returns value mappings to text and color."""
    options = {
        f"{value:g}": {"text": text, "color": color, "index": index}
        for index, (value, (text, color)) in enumerate(names.items())
    }
    return [{"type": "value", "options": options}]


def defaults(unit: str, decimals: int | None, empty: str, steps: Steps, **more: Any) -> Json:
    """Returns the default field configuration; `empty` is shown if there is no data."""
    result: Json = {"unit": unit, "noValue": empty, "color": {"mode": "thresholds"}, **more}
    if decimals is not None:
        result["decimals"] = decimals
    return {**result, "thresholds": thresholds(steps)}


_REDUCE: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def stat(
    title: str,
    text: str,
    expr: str,
    *,
    empty: str,
    unit: str = "short",
    decimals: int | None = None,
    steps: Steps = PLAIN,
    size: tuple[int, int] = (4, 4),
    names: Mapping[float, tuple[str, str]] | None = None,
) -> Panel:
    """Returns a panel with one number."""
    more: Json = {"mappings": mappings(names)} if names else {}
    body = {
        "type": "stat",
        "targets": targets([Query(expr)], instant=True),
        "fieldConfig": {"defaults": defaults(unit, decimals, empty, steps, **more), "overrides": []},
        "options": {
            "colorMode": "value",
            "graphMode": "none",
            "justifyMode": "auto",
            "orientation": "auto",
            "percentChangeColorMode": "standard",
            "reduceOptions": _REDUCE,
            "showPercentChange": False,
            "textMode": "value",
            "wideLayout": True,
        },
    }
    return Panel(title, text, size, body)


def series(
    title: str,
    text: str,
    queries: Sequence[Query],
    *,
    empty: str,
    unit: str = "short",
    decimals: int | None = None,
    stack: bool = False,
    lowest: float | None = 0,
    highest: float | None = None,
    steps: Steps | None = None,
    colors: Mapping[str, str] | None = None,
    size: tuple[int, int] = (12, 8),
) -> Panel:
    """Returns a time series panel, optionally stacked; `steps` are drawn as threshold lines."""
    custom: Json = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 40 if stack else 5,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if steps else "off"},
    }
    more: Json = {"custom": custom, "min": lowest, "max": highest, "color": {"mode": "palette-classic"}}
    more = {key: value for key, value in more.items() if value is not None}
    overrides = [
        {
            "matcher": {"id": "byName", "options": name},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
        }
        for name, color in (colors or {}).items()
    ]
    result = {"defaults": defaults(unit, decimals, empty, steps or PLAIN, **more), "overrides": overrides}
    body = {
        "type": "timeseries",
        "targets": targets(queries, instant=False),
        "fieldConfig": result,
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }
    return Panel(title, text, size, body)


def bars(
    title: str,
    text: str,
    query: Query,
    *,
    empty: str,
    unit: str = "short",
    decimals: int | None = None,
    steps: Steps = PLAIN,
    highest: float | None = None,
    size: tuple[int, int] = (12, 8),
) -> Panel:
    """Returns a panel with one bar per series, for its last value."""
    more: Json = {"min": 0} if highest is None else {"min": 0, "max": highest}
    body = {
        "type": "bargauge",
        "targets": targets([query], instant=True),
        "fieldConfig": {"defaults": defaults(unit, decimals, empty, steps, **more), "overrides": []},
        "options": {
            "displayMode": "basic",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
            "maxVizHeight": 300,
            "minVizHeight": 16,
            "minVizWidth": 8,
            "namePlacement": "left",
            "orientation": "horizontal",
            "reduceOptions": _REDUCE,
            "showUnfilled": True,
            "sizing": "auto",
            "valueMode": "color",
        },
    }
    return Panel(title, text, size, body)


def timeline(
    title: str,
    text: str,
    query: Query,
    *,
    empty: str,
    names: Mapping[float, tuple[str, str]],
    steps: Steps = PLAIN,
    size: tuple[int, int] = (24, 9),
) -> Panel:
    """Returns a state timeline: one colored band per series."""
    custom: Json = {"fillOpacity": 80, "lineWidth": 0}
    result = defaults("short", 0, empty, steps, custom=custom, mappings=mappings(names))
    body = {
        "type": "state-timeline",
        "targets": targets([query], instant=False),
        "fieldConfig": {"defaults": result, "overrides": []},
        "options": {
            "alignValue": "left",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "mergeValues": True,
            "perPage": 20,
            "rowHeight": 0.85,
            "showValue": "never",
            "tooltip": {"mode": "single", "sort": "none"},
        },
    }
    return Panel(title, text, size, body)


def table(
    title: str,
    text: str,
    labels: Mapping[str, str],
    columns: Sequence[Column],
    *,
    empty: str,
    sort: str,
    ascending: bool = False,
    links: Mapping[str, tuple[str, str]] | None = None,
    size: tuple[int, int] = (24, 9),
) -> Panel:
    """Returns a table with rows by `labels` (label to heading) and numeric `columns`.

    `links` maps a heading to (title, url).
    """
    several = len(columns) > 1
    fields = {f"Value #{chr(ord('A') + i)}" if several else "Value": c.title for i, c in enumerate(columns)}
    # If only the first query returns data, Grafana calls its column `Value`.
    renamed = {**labels, **fields, "Value": columns[0].title}
    organize = {
        "excludeByName": {"Time": True},
        "indexByName": {
            name: index for index, name in enumerate(sorted(renamed, key=lambda name: name == "uuid"))
        },
        "renameByName": renamed,
    }
    overrides = [
        # Grafana shows the text for no data also in each empty cell, for example of a row without namespace.
        {"matcher": {"id": "byRegexp", "options": "/.*/"}, "properties": [{"id": "noValue", "value": ""}]},
        *({"matcher": _by_name(c.title), "properties": _properties(c)} for c in columns),
        *(
            {
                "matcher": _by_name(heading),
                "properties": [{"id": "links", "value": [{"title": link, "url": url}]}],
            }
            for heading, (link, url) in (links or {}).items()
        ),
    ]
    custom: Json = {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False, "filterable": True}
    body = {
        "type": "table",
        "targets": targets([Query(c.expr) for c in columns], instant=True, table=True),
        "fieldConfig": {
            # With the unit of a number, Grafana formats labels that look like one: 4711 as "4.71 K".
            "defaults": defaults("string", None, empty, PLAIN, custom=custom),
            "overrides": overrides,
        },
        "transformations": [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}],
        "options": {
            "cellHeight": "sm",
            "frameIndex": 0,
            "showHeader": True,
            "sortBy": [{"displayName": sort, "desc": not ascending}],
        },
    }
    return Panel(title, text, size, body)


def _by_name(heading: str) -> Json:
    return {"id": "byName", "options": heading}


def _properties(column: Column) -> list[Json]:
    looks: list[Json] = [{"id": "unit", "value": column.unit}]
    if column.decimals is not None:
        looks.append({"id": "decimals", "value": column.decimals})
    if column.names is not None:
        looks.append({"id": "mappings", "value": mappings(column.names)})
    if column.steps is not None:
        looks.append({"id": "thresholds", "value": thresholds(column.steps)})
    if column.steps is not None or column.names is not None:
        looks.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
    return looks


def pie(
    title: str, text: str, query: Query, *, empty: str, unit: str, size: tuple[int, int] = (8, 8)
) -> Panel:
    """Returns a pie chart."""
    body = {
        "type": "piechart",
        "targets": targets([query], instant=True),
        "fieldConfig": {
            "defaults": defaults(unit, None, empty, PLAIN, color={"mode": "palette-classic"}),
            "overrides": [],
        },
        "options": {
            "displayLabels": ["percent"],
            "legend": {
                "displayMode": "table",
                "placement": "right",
                "showLegend": True,
                "calcs": [],
                "values": ["value"],
            },
            "orientation": "auto",
            "pieType": "donut",
            "reduceOptions": _REDUCE,
            "sort": "desc",
            "tooltip": {"mode": "single", "sort": "none"},
        },
    }
    return Panel(title, text, size, body)
