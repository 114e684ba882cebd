"""Queries to nvidia-smi: which calls one tick makes, and the parsed output of each."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuledger.host.commands import CommandResult, RunCommand
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.source import Clock
from gpuledger.sources.findings import SourceFindings
from gpuledger.sources.smi import cell_names
from gpuledger.sources.smi.command import Command
from gpuledger.sources.smi.csv import (
    ComputeApps,
    parse_query_apps,
    parse_query_gpu,
    rejected_field,
    replace_field,
)
from gpuledger.sources.smi.failures import describe_failure, failure_reason, is_fatal, unavailable_error
from gpuledger.sources.smi.loop_mode import ReportReader
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
    decode_output,
    parse_problem,
)
from gpuledger.sources.smi.processes import PmonUsage, listed_gpus, parse_pmon
from gpuledger.sources.smi.text_report import parse_text_report
from gpuledger.sources.smi.xml import parse_xml

_PMON = ("pmon", "-c", "1", "-s", "um")
# A call that failed is skipped for this many seconds.
RETRY_SECONDS = 60.0
# Bytes that nvidia-smi may print instead of GPUs, with the banner of a remote machine.
_LONGEST_MESSAGE = 64 * 1024


@dataclass(slots=True)
class SmiQueries:
    """Queries of one nvidia-smi command. XML is preferred; CSV and the text report are the fallback."""

    command: Command
    timeout: float
    clock: Clock
    run: RunCommand
    reports: ReportReader
    _fields: tuple[str, ...] = cell_names.QUERY_FIELDS
    _xml_retry_at: float = 0.0
    _pmon_retry_at: float = 0.0
    _pmon_cause: str = ""
    # Indexes of GPUs that pmon does not list.
    _unlisted: set[int] = field(default_factory=set)
    _unlisted_retry_at: float = 0.0

    def query_gpus(self, findings: SourceFindings) -> SmiOutput:
        """Return every GPU in the command's output. Raises SourceUnavailable if there is none."""
        if self.clock.elapsed() < self._xml_retry_at:
            try:
                return self._query_csv_and_report(findings)
            except SourceUnavailable:
                self._xml_retry_at = 0.0
        result = self.reports.read(lambda: self.run_smi("-q", "-x"), self.clock.elapsed)
        output = parse_xml(decode_output(result.stdout))
        if output.blocks:
            self._add_problems(result, output)
            return output
        if _reports_no_gpu(output) or is_fatal(result, self.command):
            raise self._no_gpu_error(result, output)
        if len(result.stdout) > _LONGEST_MESSAGE and not output.problems:
            raise SourceUnavailable(
                f"{self.command.program}: {len(result.stdout):,} bytes of output without a GPU; "
                "check --nvidia-smi-command: it is not nvidia-smi",
                "not_nvidia_smi",
            )
        try:
            output = self._query_csv_and_report(findings)
        except SourceUnavailable as fallback_error:
            error = unavailable_error(result, self.command, self.timeout)
            raise (error if result.exit_code else fallback_error) from None
        self._xml_retry_at = self.clock.elapsed() + RETRY_SECONDS
        return output

    def query_listing(self) -> GpuListing:
        """Return GPU indexes, MIG UUIDs and profiles; empty if `-L` fails."""
        return parse_gpu_listing(decode_output(self.run_smi("-L").stdout))

    def query_pmon(self, indexes: frozenset[int], findings: SourceFindings) -> PmonUsage:
        """Return the engine usage of processes on the GPUs with these indexes.

        A `pmon` that fails is retried after RETRY_SECONDS.
        """
        now = self.clock.elapsed()
        if now < self._pmon_retry_at:
            findings.note("utilization", "NOT_SUPPORTED", self._pmon_cause)
            return {}
        result = self.run_smi(*_PMON)
        output = decode_output(result.stdout)
        usage = parse_pmon(output, findings)
        cause = describe_failure(result, self.command)
        if usage is None or (cause and not usage):
            self._pmon_cause = f"pmon: {cause or 'the output is not a table'}"
            self._pmon_retry_at = now + RETRY_SECONDS
            findings.note("utilization", "NOT_SUPPORTED", self._pmon_cause)
        elif cause:
            findings.note("utilization", failure_reason(result), f"pmon: {cause}")
        if usage is not None:
            usage.update(self._query_further_gpus(indexes, listed_gpus(output), findings))
        return usage or {}

    def _query_further_gpus(
        self, indexes: frozenset[int], covered: frozenset[int], findings: SourceFindings
    ) -> PmonUsage:
        """Query the GPUs that the first `pmon` left out: it covers 4 GPUs, since driver 450 or so 16.

        One that is not listed even then is queried again after RETRY_SECONDS.
        """
        now = self.clock.elapsed()
        if now >= self._unlisted_retry_at:
            self._unlisted.clear()
        waiting = sorted(indexes - covered - self._unlisted) if covered else []
        usage: PmonUsage = {}
        for start in range(0, len(waiting), len(covered) or 1):
            group = waiting[start : start + len(covered)]
            result = self.run_smi(*_PMON, "-i", ",".join(map(str, group)))
            if cause := describe_failure(result, self.command):
                findings.note("utilization", failure_reason(result), f"pmon: {cause}")
            output = decode_output(result.stdout)
            usage.update(parse_pmon(output, findings) or {})
            if unlisted := set(group) - listed_gpus(output):
                self._unlisted |= unlisted
                self._unlisted_retry_at = now + RETRY_SECONDS
        return usage

    def run_smi(self, *arguments: str) -> CommandResult:
        """Run the command with these arguments."""
        return self.run(self.command.argv(*arguments), self.timeout)

    def _no_gpu_error(self, result: CommandResult, output: SmiOutput) -> SourceUnavailable:
        if result.exit_code == 0 and _reports_no_gpu(output):
            return SourceUnavailable(
                f"{self.command.program} finds no GPU: check lspci, and in a container which devices it has",
                "no_devices",
            )
        return unavailable_error(result, self.command, self.timeout)

    def _query_csv_and_report(self, findings: SourceFindings) -> SmiOutput:
        result = self._query_gpu_table()
        output = parse_query_gpu(decode_output(result.stdout))
        apps_result = self.run_smi("--query-compute-apps=" + ",".join(cell_names.QUERY_APPS), "--format=csv")
        apps = parse_query_apps(decode_output(apps_result.stdout))
        report_result = self.run_smi("-q")
        report = parse_text_report(decode_output(report_result.stdout))
        if not output.blocks and not report.blocks:
            raise self._no_gpu_error(result, output)
        if output.blocks:
            self._add_problems(result, output)
        else:
            output = report
        output.cuda = output.cuda or report.cuda
        apps_failure = describe_failure(apps_result, self.command)
        _note_app_problems(apps, findings)
        if apps_failure:
            findings.note("processes", failure_reason(apps_result), f"--query-compute-apps: {apps_failure}")
        is_complete = apps.has_table and not apps.problems and not apps_failure
        _add_processes(output, apps, report, apps_complete=is_complete)
        for block in output.blocks:
            if is_mig_enabled(block) and not report.blocks:
                output.mig_devices_unknown = True
                reason = failure_reason(report_result)
                detail = f"{block_bus_id(block)}: MIG is on, and only -q lists its instances: {reason}"
                findings.note("devices", "MIG_IDS_UNKNOWN", detail)
        return output

    def _query_gpu_table(self) -> CommandResult:
        """Run `--query-gpu`; a field that nvidia-smi rejects is omitted from then on."""
        while True:
            result = self.run_smi("--query-gpu=" + ",".join(self._fields), "--format=csv")
            rejected = rejected_field(result)
            if rejected not in self._fields or len(self._fields) == 1:
                return result
            self._fields = replace_field(self._fields, rejected)

    def _add_problems(self, result: CommandResult, output: SmiOutput) -> None:
        """Add what the command printed to stderr about single GPUs, and how it failed."""
        for line in decode_output(result.stderr).splitlines():
            found = parse_problem(line)
            if found and found.names_gpu:
                output.problems.append(found)
        failure = describe_failure(result, self.command)
        if failure:
            output.problems.append(SmiProblem(failure_reason(result), failure))


def _reports_no_gpu(output: SmiOutput) -> bool:
    return output.attached_gpus == 0 or any(problem.reason == "NO_DEVICES" for problem in output.problems)


def _note_app_problems(apps: ComputeApps, findings: SourceFindings) -> None:
    for problem in apps.problems:
        findings.note("processes", problem.reason, problem.detail)
        findings.invalid += problem.reason == "ROW_UNREADABLE"


def _add_processes(output: SmiOutput, apps: ComputeApps, report: SmiOutput, *, apps_complete: bool) -> None:
    """Add processes and MIG devices of the other two outputs to each GpuBlock.

    With MIG, the processes are those of the report alone: the CSV does not name instances.
    """
    # An integrated GPU has no bus id.
    report_blocks = {block_bus_id(block) or block_uuid(block): block for block in report.blocks}
    for block in output.blocks:
        bus, uuid = block_bus_id(block), block_uuid(block)
        listed = apps.take_processes(bus, uuid or "")
        found = report_blocks.pop(bus or uuid, GpuBlock(bus))
        if found.processes is None:
            block.processes = listed if apps_complete or listed else None
        elif found.mig_devices:
            block.processes = found.processes
        else:
            block.processes = found.processes + listed
        block.mig_devices = block.mig_devices or found.mig_devices
        block.process_list_message = found.process_list_message
