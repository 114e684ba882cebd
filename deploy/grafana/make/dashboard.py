"""A dashboard: rows of panels laid out on the grid, the variables, the links to the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from panels import DATASOURCE, Json, Panel
from promql import of_gpu, of_node, once, with_node

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
) -> Json:
    """The whole JSON, with no id and nothing to ask at import: as provisioning wants it."""
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
        "links": [_siblings()],
        "templating": {"list": [*_shared(by_owner), *variables]},
        "panels": _laid_out(rows),
    }


def _siblings() -> Json:
    return {
        "type": "dashboards",
        "title": "gpuledger",
        "tags": [TAG],
        "icon": "external link",
        "tooltip": "The other dashboards, with the same choice and time",
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "url": "",
    }


def _laid_out(rows: Sequence[tuple[str, Sequence[Panel]]]) -> list[Json]:
    """Panels from left to right; a new line where the next does not fit, and at each row's heading."""
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


def _choice(name: str, label: str, text: str, query: str, regex: str = "", *, hidden: bool = False) -> Json:
    """A variable of many values, All among them; `.*` for All also matches where the label is missing."""
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


def number(name: str, label: str, text: str, value: str) -> Json:
    """A number that stays as it is until somebody types another, here or in the address: var-NAME=..."""
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


def _shared(by_owner: bool) -> list[Json]:
    """Hidden where nothing is of an owner, the namespace is still handed on to the other dashboards."""
    datasource: dict[str, Any] = {
        "name": "datasource",
        "label": "Data source",
        "description": "The Prometheus that scrapes gpuledger",
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
    nodes = once(info, "node", "instance")
    names = with_node(of_node("gpuledger_device_info", 'mig_instance=""'))
    labelled = once(f'label_join({names}, "text", " ", "node", "gpu", "name")', "text", "uuid")
    owners = of_gpu("gpuledger_owner_allocated_seconds_total", 'namespace!=""')
    return [
        datasource,
        _choice(
            "cluster",
            "Cluster",
            "The label `cluster` of the scrape, where there is one",
            "label_values(gpuledger_build_info, cluster)",
        ),
        _choice(
            "node",
            "Node",
            "Shown by the scrape's label `node`, else by its address; chosen by the address, which is "
            "always there",
            f"query_result({nodes})",
            r'/node="(?<text>[^"]+)|instance="(?<value>[^"]+)/g',
        ),
        _choice(
            "gpu",
            "GPU",
            "Shown by node, number and model, chosen by UUID",
            f"query_result({labelled})",
            r'/text="(?<text>[^"]+)|uuid="(?<value>[^"]+)/g',
        ),
        _choice(
            "namespace",
            "Namespace",
            "Of the owners; All includes those who have none",
            f"label_values({owners}, namespace)",
            hidden=not by_owner,
        ),
    ]
