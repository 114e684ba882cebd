"""A dashboard: rows of panels on the grid, variables, and links to the other dashboards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from panels import DATASOURCE, Json, Panel
from promql import deduplicated, of_gpu, of_node, with_node

TAG = "gpuledger"
_WIDTH = 24


def dashboard(
    uid: str,
    title: str,
    text: str,
    rows: Sequence[tuple[str, Sequence[Panel]]],
    variables: Sequence[Json] = (),
    since: str = "now-6h",
    *,
    by_owner: bool = False,
    by_node: bool = True,
) -> Json:
    """Returns the JSON of a dashboard for provisioning: without id and without inputs."""
    return {
        "id": None,
        "uid": uid,
        "title": title,
        "description": text,
        "tags": [TAG],
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": 39,
        "version": 1,
        "refresh": "1m",
        "time": {"from": since, "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [_dashboard_links()],
        "templating": {"list": [*_shared_variables(by_owner, by_node), *variables]},
        "panels": _place_panels(rows),
    }


def _dashboard_links() -> Json:
    return {
        "type": "dashboards",
        "title": "gpuledger",
        "tags": [TAG],
        "icon": "external link",
        "tooltip": "Other gpuledger dashboards, with the same variables and time range",
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "url": "",
    }


def _place_panels(rows: Sequence[tuple[str, Sequence[Panel]]]) -> list[Json]:
    """Places panels from left to right; starts a new line at headings and where a panel does not fit."""
    placed: list[Json] = []
    y = 0
    for heading, panels in rows:
        place = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
        number = len(placed) + 1
        placed.append(
            {
                "id": number,
                "type": "row",
                "title": heading,
                "collapsed": False,
                "gridPos": place,
                "panels": [],
            }
        )
        y, x, tallest = y + 1, 0, 0
        for panel in panels:
            width, height = panel.size
            if x + width > _WIDTH:
                y, x, tallest = y + tallest, 0, 0
            placed.append(panel.at(len(placed) + 1, x, y))
            x, tallest = x + width, max(tallest, height)
        y += tallest
    return placed


def _query_variable(
    name: str, label: str, text: str, query: str, regex: str = "", *, hidden: bool = False
) -> Json:
    """Returns a multi-value variable with All; its value `.*` also matches series without the label."""
    return {
        "name": name,
        "label": label,
        "description": text,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        "regex": regex,
        "refresh": 2,
        "sort": 7,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"], "selected": True},
        "options": [],
        "hide": 2 if hidden else 0,
        "skipUrlSync": False,
    }


def number_variable(name: str, label: str, text: str, value: str) -> Json:
    """Returns a text box with a number, which can also be set in the URL (`var-NAME=...`)."""
    chosen = {"text": value, "value": value, "selected": True}
    return {
        "name": name,
        "label": label,
        "description": text,
        "type": "textbox",
        "query": value,
        "current": chosen,
        "options": [chosen],
        "hide": 0,
        "skipUrlSync": False,
    }


def _shared_variables(by_owner: bool, by_node: bool) -> list[Json]:
    """Returns the variables of all dashboards. They are hidden where unused, but kept for links."""
    datasource: dict[str, Any] = {
        "name": "datasource",
        "label": "Data source",
        "description": "Prometheus that scrapes gpuledger",
        "type": "datasource",
        "query": "prometheus",
        "regex": "",
        "refresh": 1,
        "multi": False,
        "includeAll": False,
        "current": {"text": "Prometheus", "value": "prometheus", "selected": True},
        "options": [],
        "hide": 0,
        "skipUrlSync": False,
    }
    info = 'gpuledger_build_info{cluster=~"$cluster"}'
    nodes = deduplicated(info, "node", "instance")
    names = with_node(of_node("gpuledger_device_info", 'mig_instance=""'))
    labelled = deduplicated(f'label_join({names}, "text", " ", "node", "gpu", "name")', "text", "uuid")
    owners = of_gpu("gpuledger_owner_allocated_seconds_total", 'namespace!=""')
    return [
        datasource,
        _query_variable(
            "cluster",
            "Cluster",
            "Label `cluster` of the scrape, if there is one",
            "label_values(gpuledger_build_info, cluster)",
        ),
        _query_variable(
            "node",
            "Node",
            "Shown by the label `node` of the scrape, else by address; selected by address",
            f"query_result({nodes})",
            r'/node="(?<text>[^"]+)|instance="(?<value>[^"]+)/g',
            hidden=not by_node,
        ),
        _query_variable(
            "gpu",
            "GPU",
            "Shown by node, index and model; selected by UUID",
            f"query_result({labelled})",
            r'/text="(?<text>[^"]+)|uuid="(?<value>[^"]+)/g',
            hidden=not by_node,
        ),
        _query_variable(
            "namespace",
            "Namespace",
            "Namespace of the owner; All includes owners without a namespace",
            f"label_values({owners}, namespace)",
            hidden=not by_owner,
        ),
    ]
