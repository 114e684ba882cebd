"""Evaluates the user's queries on both pages, and finds those that would be empty or mean something else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuledger.migrate.advice import (
    Advice,
    advise_label,
    advise_metric,
    advise_values,
    combined_settings,
    dialect_of,
    dialects_of,
    page_findings,
)
from gpuledger.migrate.comparison import MetricChange, compare_pages
from gpuledger.migrate.evaluation import ANY, Evaluation, Row, Rows, SeriesStore, lost_metrics, number_of
from gpuledger.migrate.page import Page
from gpuledger.migrate.promql import (
    NAME,
    PLACEHOLDER,
    ParsedQuery,
    Rewriting,
    UnreadableQuery,
    all_nodes,
    has_absent,
    is_counted,
    made_labels,
    named_metrics,
    parse_query,
    reacts_to_absence,
    used_labels,
    write_query,
)
from gpuledger.migrate.report import MigrationFinding, MigrationReport
from gpuledger.migrate.user_queries import UserQueries, UserQuery, Variable
from gpuledger.migrate.variables import (
    Values,
    listed_label,
    numeric_values,
    query_values,
    variable_query,
    variable_values,
)

_RATES: Final = frozenset({"rate", "irate", "increase", "resets"})
_DIFFERENCES: Final = frozenset({"delta", "idelta", "deriv", "predict_linear"})
_AMBIGUOUS: Final = "several series of the new page match one, and Prometheus refuses that"
# Recording rules that use each other: deeper chains do not occur.
_PASSES: Final = 10


@dataclass(slots=True)
class _Side:
    """One page with everything that evaluating on it needs."""

    store: SeriesStore
    # The side with the old page, for the new one.
    before: _Side | None = None
    variables: dict[tuple[Variable, ...], Values] = field(default_factory=dict)

    def values(self, variables: tuple[Variable, ...]) -> Values:
        """The values of the variables: not known if the old page has none, because other pages have them."""
        if variables not in self.variables:
            known = self.before.values(variables) if self.before is not None else None
            try:
                self.variables[variables] = variable_values(variables, self.store, known)
            except UnreadableQuery:
                self.variables[variables] = dict.fromkeys((item.name for item in variables), None)
        return self.variables[variables]


def check_migration(old: Page, new: Page, user: UserQueries | None) -> MigrationReport:
    """Returns what would change for the queries of `user`, or only between the pages if it is None."""
    changes = compare_pages(old, new)
    report = MigrationReport(metrics=page_findings(changes, old, new), notes=[*old.notes, *new.notes])
    if user is not None:
        report.notes += user.notes
        _Check(old, new, changes, user, report).run()
    findings = report.queries if report.checked else report.metrics
    report.settings = combined_settings((text for one in findings for text in one.settings), new)
    return report


class _Check:
    def __init__(
        self,
        old: Page,
        new: Page,
        changes: Mapping[str, MetricChange],
        user: UserQueries,
        report: MigrationReport,
    ) -> None:
        self._old_page, self._new_page = old, new
        self._changes = changes
        self._queries = user.queries
        self._report = report
        self._parsed: dict[int, ParsedQuery | None] = {}
        self._old = self._new = _Side(SeriesStore())
        # Recorded metrics and their rules.
        self._recorded = {query.record for query in user.queries if query.record}

    def run(self) -> None:
        for index, query in enumerate(self._queries):
            try:
                self._parsed[index] = self._parse(query)
            except UnreadableQuery as error:
                self._report.queries.append(
                    MigrationFinding("unread", query.where, query.expression, str(error))
                )
        self._report.checked = len(self._queries)
        added, copied = self._labels_of_scrapes()
        self._old = _Side(SeriesStore.of_page(self._old_page, added, copied))
        self._new = _Side(SeriesStore.of_page(self._new_page, added, copied), self._old)
        for side in (self._old, self._new):
            self._record(side)
        for index, query in enumerate(self._queries):
            if index in self._parsed:
                self._check(query, self._parsed[index])

    def _parse(self, query: UserQuery) -> ParsedQuery | None:
        if query.is_variable:
            return variable_query(query.expression, query.variables)
        return parse_query(query.expression, numeric_values(query.variables))

    def _labels_of_scrapes(self) -> tuple[list[str], list[str]]:
        """Labels of the queries that the old page lacks: unknown ones, and exported ones of known labels."""
        pages = self._old_page.all_labels | self._new_page.all_labels
        used: set[str] = set()
        made = {label for query in self._queries for label in query.added}
        for index, parsed in self._parsed.items():
            if parsed is not None:
                used |= used_labels(parsed)
                made |= made_labels(parsed)
            used |= {listed_label(self._queries[index].expression)} - {""}
        lacking = used - self._old_page.all_labels - made - {NAME, "le"}
        missing = sorted(label for label in lacking if not PLACEHOLDER.search(label))
        copied = [
            name for name in missing if name[:9] == "exported_" and name.removeprefix("exported_") in pages
        ]
        added = [name for name in missing if name not in copied]
        if added:
            self._report.notes.append(
                f"the old page has no labels {', '.join(added)}: the scrape adds them; keep them there, or "
                "give them with --old-target and --new-target"
            )
        if copied:
            self._report.notes.append(
                f"{', '.join(copied)}: a scrape with honor_labels: false makes them; keep it so"
            )
        return added, copied

    def _record(self, side: _Side) -> None:
        """Adds the series of recording rules, which may use each other in any order."""
        pages = {name: list(rows) for name, rows in side.store.by_name.items() if name in self._recorded}
        before: dict[str, int] = {}
        for _ in range(_PASSES):
            results = [
                (query, self._result(query, parsed, side))
                for index, query in enumerate(self._queries)
                if query.record and (parsed := self._parsed.get(index)) is not None
            ]
            for name in self._recorded:
                side.store.by_name[name] = list(pages.get(name, []))
            for query, rows in results:
                side.store.add(query.record, rows, query.added)
            after = {name: len(side.store.by_name[name]) for name in self._recorded}
            if after == before:
                return
            before = after

    def _result(self, query: UserQuery, parsed: ParsedQuery, side: _Side) -> Rows:
        return Evaluation(side.store, parsed, side.values(query.variables)).result()

    def _check(self, query: UserQuery, parsed: ParsedQuery | None) -> None:
        if query.is_variable:
            self._check_variable(query, parsed)
            return
        assert parsed is not None
        old, new = self._evaluations(query, parsed)
        before, after = old.result(), new.result()
        lost = [*lost_metrics(parsed.node, old, new), *self._dormant(parsed)]
        changed = [change for name in named_metrics(parsed) if (change := self._changes.get(name))]
        gone = self._lost_labels(query, parsed, before, after)
        units = [change for change in changed if change.unit and not is_counted(parsed)]
        if new.ambiguous and not old.ambiguous:
            self._report_query("empty", query, parsed, lost, gone, _AMBIGUOUS)
        elif not before and not lost and not gone:
            self._report.empty_before.append(query.where)
        elif not after:
            # An alert about something absent ends when it is there.
            if lost or gone or not has_absent(parsed):
                self._report_query("empty", query, parsed, lost, gone)
        elif lost:
            fires = reacts_to_absence(parsed) and number_of(after) > number_of(before)
            kind = "fires" if fires else "part"
            self._report_query(kind, query, parsed, lost, gone)
        elif gone:
            self._report_query("labels", query, parsed, lost, gone)
        elif units:
            self._report_unit(query, parsed, units)
        elif wrong := self._wrong_types(parsed):
            self._report_query("type", query, parsed, wrong, set())

    def _dormant(self, parsed: ParsedQuery) -> list[str]:
        """Metrics of a dialect that the new page lacks, without a series now: an Xid that did not occur."""
        gone = set(dialects_of(self._old_page)) - set(dialects_of(self._new_page))
        names = (name for name in named_metrics(parsed) if name not in self._old_page.series)
        return [name for name in names if dialect_of(name) in gone]

    def _check_variable(self, query: UserQuery, parsed: ParsedQuery | None) -> None:
        sides = [
            query_values(query.expression, query.variables, side.store, side.values(query.variables))
            for side in (self._old, self._new)
        ]
        if sides[0] is not None and not sides[0]:
            self._report.empty_before.append(query.where)
        elif sides[1] is not None and not sides[1]:
            lost = [] if parsed is None else lost_metrics(parsed.node, *self._evaluations(query, parsed))
            label = listed_label(query.expression)
            gone = {label} - {""} if not lost else set()
            if parsed is not None:
                self._report_query("empty", query, parsed, lost, gone)
            else:
                self._report.queries.append(
                    MigrationFinding(
                        "empty", query.where, query.expression, f"no metric has the label {label}"
                    )
                )

    def _evaluations(self, query: UserQuery, parsed: ParsedQuery) -> tuple[Evaluation, Evaluation]:
        old, new = self._old, self._new
        return (
            Evaluation(old.store, parsed, old.values(query.variables)),
            Evaluation(new.store, parsed, new.values(query.variables)),
        )

    def _lost_labels(self, query: UserQuery, parsed: ParsedQuery, before: Rows, after: Rows) -> set[str]:
        """Labels that the query groups or joins by, or that people see, and that the new page lacks."""
        seen = (_label_names(before) - _label_names(after)) & query.shown if after else set()
        used = used_labels(parsed)
        for name in named_metrics(parsed):
            change = self._changes.get(name)
            if change is not None and not change.gone:
                seen |= used & set(change.lost)
        return seen

    def _wrong_types(self, parsed: ParsedQuery) -> list[str]:
        """Metrics within a function for counters of what is a gauge now, or the reverse."""
        found = []
        for node in all_nodes(parsed.node):
            if type(node).__name__ != "Call" or node.func.name not in _RATES | _DIFFERENCES:
                continue
            for argument in node.args:
                selector = getattr(argument, "vector_selector", None)
                change = self._changes.get(selector.name or "") if selector is not None else None
                wanted = "gauge" if node.func.name in _RATES else "counter"
                if change is not None and change.types and change.types[1] == wanted:
                    found.append(change.name)
        return found

    def _report_unit(self, query: UserQuery, parsed: ParsedQuery, changes: Sequence[MetricChange]) -> None:
        reason = "; ".join(f"{change.name}: {change.unit}" for change in changes)
        factors = {change.name: _back(change.factor) for change in changes if change.factor != 1.0}
        instead = write_query(parsed, Rewriting(factor=factors)) if factors else ""
        self._report.queries.append(
            MigrationFinding("unit", query.where, query.expression, reason, [], instead)
        )

    def _report_query(
        self,
        kind: str,
        query: UserQuery,
        parsed: ParsedQuery,
        lost: Sequence[str],
        gone: Iterable[str],
        reason: str = "",
    ) -> None:
        """Adds a finding about lost metrics and lost labels, with the advice for each."""
        reasons: dict[str, None] = {reason: None} if reason else {}
        settings: dict[str, None] = {}
        metrics: dict[str, Advice] = {}
        missing: dict[str, list[str]] = {}
        renamed: dict[str, str] = {}
        for name in dict.fromkeys(lost):
            change = self._changes.get(name)
            if name in self._recorded:
                reasons[f"{name}: the rule that records it returns nothing"] = None
            elif change is not None and change.types and kind == "type":
                reasons[f"{name} is a {change.types[1]} now"] = None
            elif name in self._new_page.series:
                self._explain_labels(parsed, name, reasons, settings, renamed)
            else:
                metrics[name] = advice = advise_metric(name, self._old_page, self._new_page)
                missing.setdefault(advice.reason, []).append(name)
                settings |= dict.fromkeys(advice.settings)
        for why, names in missing.items():
            absent = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not on the new page"
            reasons[f"{absent}: {why}" if why else absent] = None
        for label in sorted(set(gone) - set(renamed)):
            name = next((name for name in named_metrics(parsed) if self._is_lost(name, label)), "")
            new_name = self._changes[name].lost[label] if name else ""
            advice = advise_label(label, new_name, name)
            _add_advice(f"label {label} is gone", advice, reasons, settings)
            renamed |= {label: new_name} if new_name else {}
        reasons = reasons or {"its parts no longer match each other": None}
        changes = (self._changes.get(name) for name in named_metrics(parsed))
        reasons |= {f"{change.name}: {change.unit}": None for change in changes if change and change.unit}
        finding = MigrationFinding(kind, query.where, query.expression, "; ".join(reasons), list(settings))
        finding.instead = self._instead(query, parsed, metrics, renamed)
        self._report.queries.append(finding)

    def _is_lost(self, name: str, label: str) -> bool:
        change = self._changes.get(name)
        return change is not None and label in change.lost

    def _explain_labels(
        self,
        parsed: ParsedQuery,
        name: str,
        reasons: dict[str, None],
        settings: dict[str, None],
        renamed: dict[str, str],
    ) -> None:
        """Adds why the matchers of a selector match nothing on the new page."""
        change = self._changes.get(name, MetricChange(name))
        used = used_labels(parsed)
        explained = False
        for label in sorted(used & set(change.lost)):
            new_name = change.lost[label]
            advice = advise_label(label, new_name, name)
            text = f"{name} has no label {label}" + (f", but {new_name}" if new_name else "")
            _add_advice(text, advice, reasons, settings)
            renamed |= {label: new_name} if new_name else {}
            explained = True
        for label in sorted(used & set(change.values)):
            reasons[f"{label}: {change.values[label]}"] = None
            advice = advise_values(label, change.values[label])
            settings |= dict.fromkeys(advice.settings)
            reasons |= {advice.reason: None} if advice.reason else {}
            explained = True
        if not explained:
            reasons[f"no series of {name} on the new page has these label values"] = None

    def _instead(
        self, query: UserQuery, parsed: ParsedQuery, metrics: Mapping[str, Advice], renamed: Mapping[str, str]
    ) -> str:
        """The query rewritten for the new page; empty if that would be empty, too."""
        rewriting = Rewriting(
            renamed,
            {name: advice.metric for name, advice in metrics.items() if advice.metric},
            {name: advice.factor for name, advice in metrics.items() if advice.factor},
            {name: advice.matchers for name, advice in metrics.items() if advice.matchers},
        )
        if query.is_variable:
            return ""
        if rewriting.metric or rewriting.label:
            written = write_query(parsed, rewriting)
            try:
                again = parse_query(written, numeric_values(query.variables))
            except UnreadableQuery:
                return ""
            # The variables of the dashboard must be changed, too, if they are empty.
            values = {name: found or None for name, found in self._new.values(query.variables).items()}
            if Evaluation(self._new.store, again, values).result():
                return written
        return next((advice.query for advice in metrics.values() if advice.query), "")


def _add_advice(text: str, advice: Advice, reasons: dict[str, None], settings: dict[str, None]) -> None:
    reasons["; ".join(filter(None, (text, advice.reason)))] = None
    settings |= dict.fromkeys(advice.settings)


def _back(factor: float) -> str:
    """What converts new values to old ones, in PromQL."""
    return f"/ {factor:.15g}" if factor > 1 else f"* {1 / factor:.15g}"


def _label_names(rows: Iterable[Row]) -> set[str]:
    return {name for row in rows for name, text in row if text and text != ANY}
