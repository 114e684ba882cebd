"""The calls of one tick: which questions are put to the command, and what is made of the answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.source import Clock
from gpuledger.sources.findings import Findings
from gpuledger.sources.smi import names
from gpuledger.sources.smi.answer import Answer, Block, Row, Trouble, decoded, told
from gpuledger.sources.smi.command import (
    HOPELESS,
    Command,
    NotStarted,
    Outcome,
    Ran,
    Runner,
    meaning,
    reason,
    unavailable,
)
from gpuledger.sources.smi.csv import Apps, parse_query_apps, parse_query_gpu, refused_field
from gpuledger.sources.smi.machine import Listing, bus_of, mig_enabled, parse_listing, uuid_of
from gpuledger.sources.smi.processes import Activity, parse_pmon
from gpuledger.sources.smi.report import parse_report
from gpuledger.sources.smi.xml import parse_xml

# How long what did not work is not tried again, in seconds.
RETRY = 60.0


@dataclass(slots=True)
class _Pause:
    """Whether something that failed is due another try."""

    until: float = 0.0
    why: str = ""

    def failed(self, now: float, why: str) -> None:
        self.until, self.why = now + RETRY, why

    def over(self, now: float) -> bool:
        return now >= self.until


@dataclass(slots=True)
class Questions:
    """Asks one nvidia-smi command. The XML is preferred; CSV and the report stand in where it fails."""

    command: Command
    timeout: float
    clock: Clock
    run: Runner
    _fields: list[str] = field(default_factory=lambda: list(names.QUERY_FIELDS))
    _xml: _Pause = field(default_factory=_Pause)
    _pmon: _Pause = field(default_factory=_Pause)

    def machine(self, findings: Findings) -> Answer:
        """Every GPU that the command tells of. Raises SourceUnavailable when it tells of none."""
        if not self._xml.over(self.clock.elapsed()):
            try:
                return self._by_csv(findings)
            except SourceUnavailable:
                self._xml = _Pause()
        outcome = self.ask("-q", "-x")
        if isinstance(outcome, NotStarted):
            raise unavailable(outcome, self.command, self.timeout)
        answer = parse_xml(told(outcome))
        if answer.blocks:
            _note_end(outcome, answer, self.command)
            return answer
        if _says_none(answer) or self._is_hopeless(outcome):
            raise self._nothing(outcome, answer)
        try:
            answer = self._by_csv(findings)
        except SourceUnavailable as also:
            raise (unavailable(outcome, self.command, self.timeout) if outcome.code else also) from None
        self._xml.failed(self.clock.elapsed(), "")
        return answer

    def listing(self) -> Listing:
        """Indexes, MIG UUIDs and profiles; empty where `-L` fails."""
        return parse_listing(told(self.ask("-L")))

    def activity(self, findings: Findings) -> Activity:
        """What the processes kept busy. A command that cannot tell is asked again after a minute."""
        now = self.clock.elapsed()
        if not self._pmon.over(now):
            findings.note("utilization", "NOT_SUPPORTED", self._pmon.why)
            return Activity()
        outcome = self.ask("pmon", "-c", "1", "-s", "um")
        if isinstance(outcome, NotStarted):
            activity, why = Activity(), outcome.detail
        else:
            activity = parse_pmon(told(outcome), findings)
            why = meaning(outcome, self.command)
        if not activity.told or (why and not activity.usage):
            why = f"pmon: {why or 'its answer is no table'}"
            self._pmon.failed(now, why)
            findings.note("utilization", "NOT_SUPPORTED", why)
        elif why:
            findings.note("utilization", reason(outcome), f"pmon: {why}")
        return activity

    def ask(self, *arguments: str) -> Outcome:
        """Run the command with these arguments."""
        return self.run(self.command.words(*arguments), self.timeout)

    def _is_hopeless(self, outcome: Ran) -> bool:
        no_connection = self.command.remote and outcome.code == 255
        return outcome.timed_out or no_connection or outcome.code < 0 or outcome.code in HOPELESS

    def _nothing(self, outcome: Ran, answer: Answer) -> SourceUnavailable:
        if outcome.code == 0 and _says_none(answer):
            return SourceUnavailable(
                f"{self.command.program} finds no GPU: check lspci, and in a container what it was given",
                "no_devices",
            )
        return unavailable(outcome, self.command, self.timeout)

    def _by_csv(self, findings: Findings) -> Answer:
        outcome = self._query_gpu()
        answer = parse_query_gpu(told(outcome))
        apps_outcome = self.ask("--query-compute-apps=" + ",".join(names.QUERY_APPS), "--format=csv")
        apps = parse_query_apps(told(apps_outcome))
        report_outcome = self.ask("-q")
        report = parse_report(told(report_outcome))
        if not answer.blocks and not report.blocks:
            if isinstance(outcome, Ran):
                raise self._nothing(outcome, answer)
            raise unavailable(outcome, self.command, self.timeout)
        if not answer.blocks:
            answer = report
        elif isinstance(outcome, Ran):
            _note_end(outcome, answer, self.command)
        answer.cuda = answer.cuda or report.cuda
        _note_apps(apps, apps_outcome, self.command, findings)
        _join(answer, apps, report, apps_whole=_ended_well(apps_outcome) and not apps.troubles)
        for block in answer.blocks:
            if mig_enabled(block) and not report.blocks:
                answer.parts_unknown = True
                why = reason(report_outcome)
                detail = f"{bus_of(block)}: MIG is on, and only -q tells its instances: {why}"
                findings.note("devices", "MIG_IDS_UNKNOWN", detail)
        return answer

    def _query_gpu(self) -> Outcome:
        """The table of GPUs. A field that this driver does not know is left out from then on."""
        while True:
            outcome = self.ask("--query-gpu=" + ",".join(self._fields), "--format=csv")
            if isinstance(outcome, NotStarted):
                return outcome
            refused = refused_field(told(outcome) + "\n" + decoded(outcome.stderr))
            if refused not in self._fields or len(self._fields) == 1:
                return outcome
            self._fields.remove(refused)


def _ended_well(outcome: Outcome) -> bool:
    return isinstance(outcome, Ran) and outcome.code == 0 and not outcome.timed_out and not outcome.overran


def _says_none(answer: Answer) -> bool:
    return answer.expected == 0 or any(trouble.reason == "NO_DEVICES" for trouble in answer.troubles)


def _note_end(outcome: Ran, answer: Answer, command: Command) -> None:
    how = meaning(outcome, command)
    if how:
        answer.troubles.append(Trouble(reason(outcome), how))


def _note_apps(apps: Apps, outcome: Outcome, command: Command, findings: Findings) -> None:
    for trouble in apps.troubles:
        findings.note("processes", trouble.reason, trouble.detail)
        findings.invalid += trouble.reason == "ROW_UNREADABLE"
    if isinstance(outcome, Ran) and (how := meaning(outcome, command)):
        findings.note("processes", reason(outcome), f"--query-compute-apps: {how}")


def _join(answer: Answer, apps: Apps, report: Answer, *, apps_whole: bool) -> None:
    """Give each Block its processes and MIG devices, from whichever form tells them."""
    reports = {bus_of(block): block for block in report.blocks}
    for block in answer.blocks:
        bus = bus_of(block)
        twin = reports.get(bus)
        if twin is not None and not block.parts:
            block.parts = twin.parts
        rows = apps.of(bus, uuid_of(block) or "") if apps.told else []
        listed = apps.told and (apps_whole or bool(rows))
        block.rows = _joined(rows if listed else None, twin)
        if twin is not None:
            block.rows_said = twin.rows_said


def _joined(rows: list[Row] | None, twin: Block | None) -> list[Row] | None:
    """Both lists together; on MIG only the report's, for the CSV does not say on which instance."""
    others = twin.rows if twin is not None else None
    if others is None or rows is None:
        return rows if others is None else others
    return others if twin is not None and twin.parts else others + rows
