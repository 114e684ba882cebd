"""What keeps a metric or a label of another exporter: a setting of gpuledger, or a query to use instead."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.dcgm.collectors import BY_NAME, DEFAULT_COLLECTORS, UNSUPPORTED_FIELDS, V1_FIELDS
from gpuledger.dialects.dcgm.field_definition import Field, Schema
from gpuledger.dialects.native.quantity_metrics import QUANTITY_METRICS
from gpuledger.dialects.settings import DialectSettings
from gpuledger.migrate.comparison import MetricChange
from gpuledger.migrate.page import Page
from gpuledger.migrate.report import MigrationFinding

# Size of a unit of the DCGM fields in base units; all others are base units.
_SIZES: Final[Mapping[str, float]] = {
    "%": 0.01,
    "MiB": 1048576,
    "MHz": 1e6,
    "mJ": 1e-3,
    "ns": 1e-9,
    "thousands of KiB per second": 1_024_000,
}
_ENERGY_NAMES: Final = re.compile(
    r"(\w+?)_(energy_(?:measured_)?joules(_total)?|(?:sm|memory)_utilization_ratio|memory_used_bytes|start_time_seconds|active)"
)
# Metrics that no dialect exports, and the query with the same meaning.
_INSTEAD: Final[Mapping[str, str]] = {
    "DCGM_EXP_XID_ERRORS_COUNT": "increase(DCGM_EXP_XID_ERRORS_TOTAL[5m])",
    "DCGM_EXP_CLOCK_EVENTS_COUNT": "increase(gpuledger_device_throttled_seconds_total[5m]) > 0",
    "DCGM_EXP_CLOCK_EVENTS_TOTAL": "gpuledger_device_throttled_seconds_total",
    "gpu_process_start_time_seconds": "gpuledger_process_start_time_seconds",
    "gpu_device_info": "gpuledger_device_info",
    "dcgm_exporter_build_info": "gpuledger_build_info",
}
# By the end of the name, behind the prefix that --metric-prefix sets.
_INSTEAD_BY_END: Final[Mapping[str, str]] = {
    "_gpu_energy_joules_total": "gpuledger_device_energy_joules_total",
    "_gpu_process_count": "gpu_process_count",
}
_LABEL_SETTINGS: Final[Mapping[str, str]] = {
    "pod_uid": "--dcgm.pod-uid",
    "hpc_job": "--dcgm.job-label",
    "Hostname": "--dcgm.hostname-label",
    "hostname": "--dcgm.hostname-label",
    "pod_name": "--dcgm.old-namespace",
    "pod_namespace": "--dcgm.old-namespace",
    "container_name": "--dcgm.old-namespace",
    "node": "--node-name NAME",
    "gpu_memory": "--process.memory-label",
}
_LABEL_REASONS: Final[Mapping[str, str]] = {
    "energy_estimated": "the part that was not shared is the family my_gpu_process_energy_measured_joules",
    "start_time": "the start is the family gpuledger_process_start_time_seconds",
    "gi_id": "the instance is part of the label gpu, such as 0_2_0",
    "ci_id": "the instance is part of the label gpu, such as 0_2_0",
}
_PODS: Final = frozenset({"pod", "namespace", "container"})


@dataclass(slots=True)
class Advice:
    """Settings of `gpuledger serve`, a metric of the new page to query instead, and an explanation.

    `factor` is what follows the metric in PromQL, such as `* 100`; `matchers` are labels that it needs.
    `query` is used where no single metric has the meaning.
    """

    settings: list[str] = field(default_factory=list)
    metric: str = ""
    factor: str = ""
    matchers: dict[str, str] = field(default_factory=dict)
    query: str = ""
    reason: str = ""


def advise_metric(name: str, old: Page, new: Page) -> Advice:
    """Returns what keeps a metric that the new page lacks."""
    advice = Advice()
    if name in UNSUPPORTED_FIELDS:
        advice.reason = UNSUPPORTED_FIELDS[name]
    dialect = _dialects_by_metric().get(name)
    instead = _INSTEAD.get(name, "")
    if not instead and dialect is None:
        instead = next((query for end, query in _INSTEAD_BY_END.items() if name.endswith(end)), "")
    dcgm = BY_NAME.get(name) or V1_FIELDS.get(name)
    energy = _ENERGY_NAMES.fullmatch(name)
    if dcgm is not None:
        _advise_field(advice, name, dcgm, new)
    elif instead:
        advice.metric, advice.query = ("", instead) if "(" in instead else (instead, "")
        needed = _dialects_by_metric().get(advice.metric)
        if needed and advice.metric not in new.series:
            advice.settings.append(f"--dialect {needed}")
    elif energy and "process_name" in old.label_names(name):
        _advise_energy(advice, energy, new)
    elif dialect:
        _advise_dialect(advice, dialect, name, new)
    elif name.startswith("nvidia_smi_"):
        _advise_dialect(advice, "smi", name, new)
    elif name.startswith(("DCGM_FI_", "dcgm_")):
        advice.reason = advice.reason or "gpuledger does not export this field"
    else:
        advice.reason = advice.reason or "gpuledger has nothing of this name"
    return advice


@cache
def _dialects_by_metric() -> dict[str, str]:
    dialects = create_dialects(DialectSettings(), "")
    return {spec.name: name for name, dialect in reversed(dialects.items()) for spec in dialect.specs}


def dialect_of(name: str) -> str:
    """Returns the dialect that has a metric, or would have it; empty for metrics of others."""
    prefixes = {"DCGM_": "dcgm", "nvidia_smi_": "smi"}
    found = (dialect for prefix, dialect in prefixes.items() if name.startswith(prefix))
    return _dialects_by_metric().get(name) or next(found, "")


def dialects_of(page: Page) -> list[str]:
    """Returns the dialects of which a page has metrics, in the order of the default page."""
    found = set(map(dialect_of, page.series))
    return [name for name in create_dialects(DialectSettings(), "") if name in found]


def _advise_dialect(advice: Advice, dialect: str, name: str, new: Page) -> None:
    if dialect not in dialects_of(new):
        advice.settings.append(f"--dialect {dialect}")
    elif dialect == "smi":
        advice.settings.append("--source smi")
        advice.reason = "NVML has no such column; nvidia-smi has it if its driver does"
    else:
        advice.reason = f"the page has the dialect {dialect}, but this machine reports no {name}"


def _advise_energy(advice: Advice, found: re.Match[str], new: Page) -> None:
    if "energy" not in dialects_of(new) and not any(name.endswith("_energy_joules") for name in new.series):
        advice.settings.append("--dialect energy")
    if found[1] != DialectSettings().metric_prefix:
        advice.settings.append(f"--metric-prefix {found[1]}")
    if found[3]:
        advice.settings.append("--metric-total-suffix")
        bare = found[0].removesuffix("_total")
        advice.metric = bare if bare in new.series else ""


def _advise_field(advice: Advice, name: str, dcgm: Field, new: Page) -> None:
    schema: Schema = "4.9" if name == dcgm.name("4.9") and name != dcgm.name("4.8") else "4.8"
    other: Schema = "4.8" if schema == "4.9" else "4.9"
    has_dcgm = "dcgm" in dialects_of(new)
    if not has_dcgm:
        advice.settings.append("--dialect dcgm")
    if schema == "4.9" or (dcgm.name(other) != name and dcgm.name(other) in new.series):
        advice.settings.append(f"--dcgm.schema {schema}")
    column = next((item for item in DEFAULT_COLLECTORS.columns if item.field is dcgm), None)
    if column is None or name in V1_FIELDS or column.name(schema) != name:
        advice.settings.append("--dcgm.collectors FILE")
        advice.reason = f"the collectors file needs a line {name}"
    elif has_dcgm and not advice.settings:
        advice.reason = f"the page has the dialect dcgm, but this machine reports no {name}"
    if dcgm.name(other) != name and dcgm.name(other) in new.series:
        advice.metric = dcgm.name(other)
        advice.factor = _factor(dcgm.scale(other).unit, dcgm.scale(schema).unit)
    elif not advice.metric:
        _advise_native(advice, dcgm, schema, new)


def _advise_native(advice: Advice, dcgm: Field, schema: Schema, new: Page) -> None:
    quantity = dcgm.quantities[0] if dcgm.quantities and dcgm.derive is None else None
    for metric in QUANTITY_METRICS:
        if metric.quantity is quantity and metric.spec.name in new.series:
            advice.metric = metric.spec.name
            advice.factor = _factor("", dcgm.scale(schema).unit)
            advice.matchers = {metric.spec.labels[-1]: metric.label} if metric.label else {}
            return


def _factor(new: str, old: str) -> str:
    """What converts a value in the new unit to the old one, in PromQL."""
    ratio = _SIZES.get(new, 1.0) / _SIZES.get(old, 1.0)
    if ratio == 1:
        return ""
    return f"* {ratio:.15g}" if ratio > 1 else f"/ {1 / ratio:.15g}"


def advise_label(label: str, renamed: str, name: str) -> Advice:
    """Returns what keeps a label of a metric that the new page lacks; `renamed` is its new name."""
    advice = Advice()
    bare = label.removeprefix("exported_")
    is_dcgm = name.startswith(("DCGM_", "dcgm_"))
    if {label.lower(), renamed.lower()} == {"hostname"}:
        advice.settings.append(f"--dcgm.schema {'4.9' if label == 'hostname' else '4.8'}")
    elif label == "uuid" and is_dcgm:
        advice.settings.append("--dcgm.old-namespace")
    elif bare != label and (renamed == bare or bare in _PODS):
        advice.reason = f"a scrape with honor_labels: false renames {bare} to {label}"
    elif label in _LABEL_REASONS:
        advice.reason = _LABEL_REASONS[label]
    elif label in _LABEL_SETTINGS:
        advice.settings.append(_LABEL_SETTINGS[label])
    elif label in BY_NAME and renamed in BY_NAME[label].names:
        advice.settings.append(f"--dcgm.schema {'4.8' if label == BY_NAME[label].name('4.8') else '4.9'}")
    elif label.startswith("DCGM_"):
        advice.settings.append("--dcgm.collectors FILE")
        advice.reason = f"the collectors file needs a line {label}, label"
    elif bare in _PODS:
        advice.settings.append("--kubernetes-enabled")
        advice.reason = "the label needs an owner: a pod that has the device alone"
    elif is_dcgm and not renamed:
        advice.settings.append(f"--dcgm.labels {label}=VALUE")
        advice.reason = f"or --dcgm.pod-labels with --pod-label-allowlist {label}, if it is a label of pods"
    return advice


def advise_values(label: str, form: str) -> Advice:
    """Returns what keeps the form of a label's values."""
    advice = Advice()
    before, _, after = form.partition(" becomes ")
    if label == "job":
        old = form.partition('" against ')[0].strip('"')
        advice.reason = f"a relabeling of the scrape keeps it: {{targetLabel: job, replacement: {old}}}"
    if label == "modelName" and "-" in before and " " in after:
        advice.settings.append("--dcgm.model-dashes")
    elif label == "pid" and before.startswith('"gpu'):
        advice.settings.append("--process.pid-label gpu-prefixed")
    elif label == "gpu" and "_" in before:
        advice.settings.append("--process.mig-label device")
    return advice


def combined_settings(found: Iterable[str], new: Page) -> list[str]:
    """Returns all settings once; dialects together with those that the new page has."""
    settings = dict.fromkeys(found)
    dialects = [text.split()[1] for text in settings if text.startswith("--dialect ")]
    others = [text for text in settings if not text.startswith("--dialect ")]
    if not dialects:
        return others
    names = dict.fromkeys([*dialects_of(new), *dialects])
    return [f"--dialect {','.join(names)}", *others]


def page_findings(changes: Mapping[str, MetricChange], old: Page, new: Page) -> list[MigrationFinding]:
    """Returns findings by metric; a label that many metrics lose is one finding."""
    found: list[MigrationFinding] = []
    labels: dict[tuple[str, str], list[str]] = {}
    for name, change in changes.items():
        if change.gone:
            advice = advise_metric(name, old, new)
            matchers = ", ".join(f'{label}="{text}"' for label, text in advice.matchers.items())
            metric = f"{advice.metric}{{{matchers}}}" if matchers else advice.metric
            instead = advice.query or " ".join(filter(None, (metric, advice.factor)))
            found.append(MigrationFinding("empty", "page", name, advice.reason, advice.settings, instead))
        if change.types:
            found.append(MigrationFinding("type", "page", name, "{} becomes {}".format(*change.types)))
        if change.unit:
            found.append(MigrationFinding("unit", "page", name, change.unit))
        for label, renamed in change.lost.items():
            labels.setdefault((label, renamed), []).append(name)
        for label, form in change.values.items():
            labels.setdefault((label, f"values: {form}"), []).append(name)
    for (label, renamed), names in labels.items():
        is_form = renamed.startswith("values: ")
        advice = (
            advise_values(label, renamed.removeprefix("values: "))
            if is_form
            else advise_label(label, renamed, names[0])
        )
        of = names[0] if len(names) == 1 else f"{len(names)} metrics such as {names[0]}"
        new_name = renamed if is_form else f"its values have the label {renamed}" if renamed else ""
        why = "; ".join(filter(None, (new_name, advice.reason)))
        found.append(MigrationFinding("labels", "page", f"label {label} of {of}", why, advice.settings))
    return found
