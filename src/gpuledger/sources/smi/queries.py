"""Queries to nvidia-smi: which calls one tick makes, and the parsed output of each."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.source import Clock
from gpuledger.sources.findings import SourceFindings
from gpuledger.sources.smi import cell_names
from gpuledger.sources.smi.command import (
    FATAL_EXIT_CODES,
    Command,
    CommandOutcome,
    CommandResult,
    NotStarted,
    RunCommand,
    describe_failure,
    failure_reason,
    unavailable_error,
)
from gpuledger.sources.smi.csv import ComputeApps, parse_query_apps, parse_query_gpu, rejected_field
from gpuledger.sources.smi.parsed_gpus import (
    GpuListing,
    block_bus_id,
    block_uuid,
    is_mig_enabled,
    parse_gpu_listing,
)
from gpuledger.sources.smi.parsed_output import (
    GpuBlock,
    SmiOutput,
    SmiProblem,
    SmiProcess,
    decode_output,
    stdout_text,
)
from gpuledger.sources.smi.processes import PmonUsage, parse_pmon
from gpuledger.sources.smi.text_report import parse_text_report
from gpuledger.sources.smi.xml import parse_xml

# A call that failed is skipped for this many seconds.
RETRY_SECONDS = 60.0


@dataclass(slots=True)
class _RetryDelay:
    """The time until a failed call may be retried, and why it failed."""

    until: float = 0.0
    cause: str = ""

    def start(self, now: float, cause: str) -> None:
        self.until, self.cause = now + RETRY_SECONDS, cause

    def is_over(self, now: float) -> bool:
        return now >= self.until


@dataclass(slots=True)
class SmiQueries:
    """Queries of one nvidia-smi command. XML is preferred; CSV and the text report are the fallback."""

    command: Command
    timeout: float
    clock: Clock
    run: RunCommand
    _fields: list[str] = field(default_factory=lambda: list(cell_names.QUERY_FIELDS))
    _xml: _RetryDelay = field(default_factory=_RetryDelay)
    _pmon: _RetryDelay = field(default_factory=_RetryDelay)

    def query_gpus(self, findings: SourceFindings) -> SmiOutput:
        """Return every GPU in the command's output. Raises SourceUnavailable if there is none."""
        if not self._xml.is_over(self.clock.elapsed()):
            try:
                return self._query_csv_and_report(findings)
            except SourceUnavailable:
                self._xml = _RetryDelay()
        outcome = self.run_smi("-q", "-x")
        if isinstance(outcome, NotStarted):
            raise unavailable_error(outcome, self.command, self.timeout)
        output = parse_xml(stdout_text(outcome))
        if output.blocks:
            _add_exit_problem(outcome, output, self.command)
            return output
        if _reports_no_gpu(output) or self._is_fatal(outcome):
            raise self._no_gpu_error(outcome, output)
        try:
            output = self._query_csv_and_report(findings)
        except SourceUnavailable as fallback_error:
            raise (
                unavailable_error(outcome, self.command, self.timeout)
                if outcome.exit_code
                else fallback_error
            ) from None
        self._xml.start(self.clock.elapsed(), "")
        return output

    def query_listing(self) -> GpuListing:
        """Return GPU indexes, MIG UUIDs and profiles; empty if `-L` fails."""
        return parse_gpu_listing(stdout_text(self.run_smi("-L")))

    def query_pmon(self, findings: SourceFindings) -> PmonUsage:
        """Return the engine usage of processes. A `pmon` that fails is retried after RETRY_SECONDS."""
        now = self.clock.elapsed()
        if not self._pmon.is_over(now):
            findings.note("utilization", "NOT_SUPPORTED", self._pmon.cause)
            return PmonUsage()
        outcome = self.run_smi("pmon", "-c", "1", "-s", "um")
        if isinstance(outcome, NotStarted):
            usage, cause = PmonUsage(), outcome.detail
        else:
            usage = parse_pmon(stdout_text(outcome), findings)
            cause = describe_failure(outcome, self.command)
        if not usage.has_table or (cause and not usage.usage):
            cause = f"pmon: {cause or 'the output is not a table'}"
            self._pmon.start(now, cause)
            findings.note("utilization", "NOT_SUPPORTED", cause)
        elif cause:
            findings.note("utilization", failure_reason(outcome), f"pmon: {cause}")
        return usage

    def run_smi(self, *arguments: str) -> CommandOutcome:
        """Run the command with these arguments."""
        return self.run(self.command.argv(*arguments), self.timeout)

    def _is_fatal(self, outcome: CommandResult) -> bool:
        no_connection = self.command.is_remote and outcome.exit_code == 255
        return (
            outcome.timed_out
            or no_connection
            or outcome.exit_code < 0
            or outcome.exit_code in FATAL_EXIT_CODES
        )

    def _no_gpu_error(self, outcome: CommandResult, output: SmiOutput) -> SourceUnavailable:
        if outcome.exit_code == 0 and _reports_no_gpu(output):
            return SourceUnavailable(
                f"{self.command.program} finds no GPU: check lspci, and in a container which devices it has",
                "no_devices",
            )
        return unavailable_error(outcome, self.command, self.timeout)

    def _query_csv_and_report(self, findings: SourceFindings) -> SmiOutput:
        outcome = self._query_gpu_table()
        output = parse_query_gpu(stdout_text(outcome))
        apps_outcome = self.run_smi("--query-compute-apps=" + ",".join(cell_names.QUERY_APPS), "--format=csv")
        apps = parse_query_apps(stdout_text(apps_outcome))
        report_outcome = self.run_smi("-q")
        report = parse_text_report(stdout_text(report_outcome))
        if not output.blocks and not report.blocks:
            if isinstance(outcome, CommandResult):
                raise self._no_gpu_error(outcome, output)
            raise unavailable_error(outcome, self.command, self.timeout)
        if not output.blocks:
            output = report
        elif isinstance(outcome, CommandResult):
            _add_exit_problem(outcome, output, self.command)
        output.cuda = output.cuda or report.cuda
        _note_app_problems(apps, apps_outcome, self.command, findings)
        _add_processes(output, apps, report, apps_complete=_succeeded(apps_outcome) and not apps.problems)
        for block in output.blocks:
            if is_mig_enabled(block) and not report.blocks:
                output.mig_devices_unknown = True
                reason = failure_reason(report_outcome)
                detail = f"{block_bus_id(block)}: MIG is on, and only -q lists its instances: {reason}"
                findings.note("devices", "MIG_IDS_UNKNOWN", detail)
        return output

    def _query_gpu_table(self) -> CommandOutcome:
        """Run `--query-gpu`; a field that nvidia-smi rejects is omitted from then on."""
        while True:
            outcome = self.run_smi("--query-gpu=" + ",".join(self._fields), "--format=csv")
            if isinstance(outcome, NotStarted):
                return outcome
            rejected = rejected_field(stdout_text(outcome) + "\n" + decode_output(outcome.stderr))
            if rejected not in self._fields or len(self._fields) == 1:
                return outcome
            self._fields.remove(rejected)


def _succeeded(outcome: CommandOutcome) -> bool:
    return (
        isinstance(outcome, CommandResult)
        and outcome.exit_code == 0
        and not outcome.timed_out
        and not outcome.overran
    )


def _reports_no_gpu(output: SmiOutput) -> bool:
    return output.attached_gpus == 0 or any(problem.reason == "NO_DEVICES" for problem in output.problems)


def _add_exit_problem(outcome: CommandResult, output: SmiOutput, command: Command) -> None:
    failure = describe_failure(outcome, command)
    if failure:
        output.problems.append(SmiProblem(failure_reason(outcome), failure))


def _note_app_problems(
    apps: ComputeApps, outcome: CommandOutcome, command: Command, findings: SourceFindings
) -> None:
    for problem in apps.problems:
        findings.note("processes", problem.reason, problem.detail)
        findings.invalid += problem.reason == "ROW_UNREADABLE"
    if isinstance(outcome, CommandResult) and (failure := describe_failure(outcome, command)):
        findings.note("processes", failure_reason(outcome), f"--query-compute-apps: {failure}")


def _add_processes(output: SmiOutput, apps: ComputeApps, report: SmiOutput, *, apps_complete: bool) -> None:
    """Add processes and MIG devices of the other two outputs to each GpuBlock."""
    report_blocks = {block_bus_id(block): block for block in report.blocks}
    for block in output.blocks:
        bus = block_bus_id(block)
        report_block = report_blocks.get(bus)
        if report_block is not None and not block.mig_devices:
            block.mig_devices = report_block.mig_devices
        listed = apps.processes_of(bus, block_uuid(block) or "") if apps.has_table else []
        is_list = apps.has_table and (apps_complete or bool(listed))
        block.processes = _merge_processes(listed if is_list else None, report_block)
        if report_block is not None:
            block.process_list_message = report_block.process_list_message


def _merge_processes(
    listed: list[SmiProcess] | None, report_block: GpuBlock | None
) -> list[SmiProcess] | None:
    """Merge the lists of CSV and report. With MIG use the report alone: the CSV does not name instances."""
    reported = report_block.processes if report_block is not None else None
    if reported is None or listed is None:
        return listed if reported is None else reported
    return reported if report_block is not None and report_block.mig_devices else reported + listed
