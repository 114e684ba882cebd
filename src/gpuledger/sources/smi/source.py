"""The Source that runs an nvidia-smi command, here or through ssh."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpuledger.host.commands import CommandRunner, RunCommand
from gpuledger.model.devices import Instance
from gpuledger.model.down_reasons import describe_down
from gpuledger.model.errors import SourceUnavailable
from gpuledger.model.process import GpuProcess
from gpuledger.model.quantities import (
    COLUMNS,
    PCIE_SAMPLES,
    PCIE_WIDTH_MAX,
    Quantity,
    limit_link_width,
)
from gpuledger.model.snapshot import (
    LISTED_RULES,
    NVIDIA_RULES,
    CollectorRun,
    MeterRules,
    Reading,
    Snapshot,
    SourceInfo,
)
from gpuledger.model.source import Clock, Host
from gpuledger.sources.device_selection import DeviceSelection
from gpuledger.sources.findings import SourceFindings
from gpuledger.sources.smi.cell_values import parse_index
from gpuledger.sources.smi.columns import PART, ColumnReader
from gpuledger.sources.smi.command import Command
from gpuledger.sources.smi.loop_mode import ReportReader, StartLoop
from gpuledger.sources.smi.parsed_gpus import (
    GpuListing,
    ParsedGpu,
    block_bus_id,
    block_uuid,
    build_gpu,
    build_instances,
    down_reason,
    is_mig_enabled,
    parse_values,
)
from gpuledger.sources.smi.parsed_output import Cells, GpuBlock, SmiOutput, SmiProblem
from gpuledger.sources.smi.processes import build_processes, collect_process_lists
from gpuledger.sources.smi.queries import RETRY_SECONDS, SmiQueries
from gpuledger.sources.smi.settings import SmiSettings

log = logging.getLogger("gpuledger.smi")

_MIG_IDS = ("index", "gpu_instance_id", "compute_instance_id")


class SmiSource:
    """Reads GPUs and processes from an nvidia-smi command.

    Calls per tick: `-q -x`; `pmon` if there are processes, once for the 4 or 16 GPUs that it covers;
    `--query-gpu` if `wanted` has COLUMNS; `-L` only when the topology changes. A slow command is read in its
    loop mode, if `start_loop` can start one.
    nvidia-smi has no energy counter and no timestamped samples: both are absent, not zero. `host` identifies
    the pids as printed; for a remote command it must not look them up on this machine. `devices` selects GPUs
    by index, UUID or PCI bus id; empty selects all. `slot_width` returns the lanes of the slot of a PCI bus
    id, None if unknown.
    """

    def __init__(
        self,
        settings: SmiSettings,
        devices: tuple[str, ...],
        host: Host,
        clock: Clock,
        run: RunCommand | None = None,
        start_loop: StartLoop | None = None,
        slot_width: Callable[[str], int | None] = lambda _: None,
    ) -> None:
        command = Command(settings.command)
        reports = ReportReader(command, settings.timeout, start_loop)
        self._queries = SmiQueries(command, settings.timeout, clock, run or CommandRunner(), reports)
        self._column_reader = ColumnReader(settings, command, clock, self._queries.run_smi)
        self._slot_width = slot_width
        self.selection = DeviceSelection(devices)
        self._host = host
        self._clock = clock
        self._info = SourceInfo("smi", detail="remote" if command.is_remote else "")
        self._known: dict[str, ParsedGpu] = {}
        self._complete = False
        self._listing = GpuListing()
        self._listed_topology: Sequence[object] = ()
        self._listing_retry_at = 0.0
        self._logged: set[str] = set()

    @property
    def has_local_pids(self) -> bool:
        """See Source: false if the command runs on another machine."""
        return not self._info.detail

    @property
    def info(self) -> SourceInfo:
        """Name `smi`, with detail `remote` for ssh; versions are empty until the first read."""
        return self._info

    def read(self, wanted: frozenset[Quantity]) -> Snapshot:
        """Read one tick. Raises SourceUnavailable if the command cannot be run or reports no GPU."""
        unix, began = self._clock.unix(), self._clock.elapsed()
        findings = SourceFindings(logged=self._logged)
        output = self._query_gpus(findings)
        gpus_queried = self._clock.elapsed()
        if COLUMNS in wanted:
            self._column_reader.add_columns(output, findings)
        if PCIE_SAMPLES in wanted:
            self._log_unmeasured_pcie()
        columns_queried = self._clock.elapsed()
        parsed_gpus = self._parse_gpus(output, findings)
        self._info = replace(
            self._info,
            driver_version=output.driver or self._info.driver_version,
            cuda_version=output.cuda or self._info.cuda_version,
            exit_code=self._column_reader.exit_code if COLUMNS in wanted else 0,
        )
        listed = self._clock.elapsed()

        lists = collect_process_lists(parsed_gpus, findings)
        facts = self._host.identify({pid for pids in lists.values() for pid in pids or ()}, unix)
        identified = self._clock.elapsed()

        # With MIG on, pmon prints only dashes.
        used = [each.gpu.index for each in parsed_gpus if not each.mig and lists.get(each.gpu.uuid)]
        usage = self._queries.query_pmon(frozenset(used), findings) if used else {}
        sampled = self._clock.elapsed()

        readings: list[Reading] = []
        for parsed in parsed_gpus:
            processes = {
                device.uuid: build_processes(device, lists[device.uuid], facts, usage)
                for device in parsed.devices
                if device.uuid in lists
            }
            lanes = self._slot_width(parsed.gpu.pci_bus_id) if PCIE_WIDTH_MAX in wanted else None
            rules = NVIDIA_RULES if parsed.mig and output.mig_devices_unknown else LISTED_RULES
            readings.extend(_build_readings(parsed, processes, wanted, findings, lanes, rules))
        seconds = {
            "devices": listed - columns_queried + gpus_queried - began,
            "readings": self._clock.elapsed() - sampled,
            "processes": identified - listed,
            "utilization": sampled - identified,
        }
        if COLUMNS in wanted:
            seconds[PART] = columns_queried - gpus_queried
        return Snapshot(
            unix,
            began,
            self._info,
            tuple(sorted(readings, key=lambda reading: reading.device.gpu.index)),
            failures=tuple(findings.failures),
            collected=tuple(
                CollectorRun(part, spent, findings.error_of(part)) for part, spent in seconds.items()
            ),
            invalid=findings.invalid,
            devices_failed=not self._complete or output.mig_devices_unknown,
        )

    def close(self) -> None:
        """End the loop mode; no other resource is held between ticks."""
        self._queries.reports.close()

    def _log_unmeasured_pcie(self) -> None:
        if PCIE_SAMPLES.key not in self._logged:
            self._logged.add(PCIE_SAMPLES.key)
            log.warning(
                "--smi.pcie-throughput has no effect: nvidia-smi does not print PCIe rates; read NVML in its "
                "place (--source nvml), or remove the flag"
            )

    def _query_gpus(self, findings: SourceFindings) -> SmiOutput:
        try:
            return self._queries.query_gpus(findings)
        except SourceUnavailable as error:
            kind, _, code = error.reason.partition("_")
            exit_code = int(code) if kind == "exit" and code != "0" else -1
            self._info = replace(self._info, exit_code=exit_code)
            raise

    def _parse_gpus(self, output: SmiOutput, findings: SourceFindings) -> list[ParsedGpu]:
        """Return the selected GPUs: those in the output, and known ones that only an error mentions."""
        self._complete = output.is_complete
        if not output.is_complete and not output.problems:
            detail = f"{output.attached_gpus} GPUs attached, {len(output.blocks)} in the output"
            findings.note("devices", "INCOMPLETE", detail)
        listing = self._update_listing(output)
        parsed_gpus: dict[str, ParsedGpu] = {}
        for position, block in enumerate(output.blocks):
            parsed = self._parse_gpu(block, position, output, listing, findings)
            if parsed is None:
                self._complete = False
            elif parsed.gpu.uuid in parsed_gpus:
                self._complete = False
                detail = f"{parsed.gpu.uuid}: reported for two GPUs, the second is {block_bus_id(block)}"
                findings.note("devices", "DUPLICATE_UUID", detail)
            else:
                parsed_gpus[parsed.gpu.uuid] = parsed
        for problem in output.problems:
            known = self._find_by_bus_id(problem.bus) or self._find_by_index(problem)
            findings.note("devices", problem.reason, problem.detail, known.gpu if known else None)
            if known:
                # The cells of an earlier reading are no longer valid.
                lost = replace(known, block=GpuBlock(known.gpu.pci_bus_id), down=problem.reason)
                parsed_gpus.setdefault(known.gpu.uuid, lost)
            elif problem.names_gpu:
                # It was lost before the first reading.
                self._complete = False
        # What a command that failed or was cut left out is not known to be gone.
        if output.is_complete or not output.problems:
            self._add_missing(parsed_gpus, findings)
        self._known = ({} if self._complete else self._known) | parsed_gpus
        if self._complete:
            self.selection.compare(parsed.gpu for parsed in parsed_gpus.values())
            self.selection.log_omission()
        return [parsed for parsed in parsed_gpus.values() if self.selection.takes(parsed.gpu)]

    def _add_missing(self, parsed_gpus: dict[str, ParsedGpu], findings: SourceFindings) -> None:
        """Add known GPUs that nothing mentions as down, unless another one is in their slot now."""
        slots = {parsed.gpu.pci_bus_id for parsed in parsed_gpus.values()}
        for uuid, known in self._known.items():
            is_replaced = bool(known.gpu.pci_bus_id) and known.gpu.pci_bus_id in slots
            if uuid not in parsed_gpus and not is_replaced and self.selection.takes(known.gpu):
                self._complete = False
                detail = f"GPU {known.gpu.index} ({uuid}) was here and is not in the output any more"
                # What nvidia-smi said of it before remains the reason.
                reason = known.down or "NOT_FOUND"
                findings.note("devices", reason, detail, known.gpu)
                parsed_gpus[uuid] = replace(known, block=GpuBlock(known.gpu.pci_bus_id), down=reason)

    def _parse_gpu(
        self, block: GpuBlock, position: int, output: SmiOutput, listing: GpuListing, findings: SourceFindings
    ) -> ParsedGpu | None:
        findings.reject("a cell of nvidia-smi", "printed twice or unreadable", count=block.invalid_cells)
        down = down_reason(block)
        uuid = block_uuid(block)
        known = self._known.get(uuid) if uuid else self._find_by_bus_id(block_bus_id(block))
        if uuid is None:
            detail = f"GPU {block_bus_id(block) or position}: no UUID" + (f": {down}" if down else "")
            findings.note("devices", down or "UUID_UNKNOWN", detail, known.gpu if known else None)
            return replace(known, block=block, down=down or "UNKNOWN") if known else None
        # A GPU that is down may report wrong facts: prefer the earlier ones.
        if down and known:
            gpu = known.gpu
        else:
            index = self._find_index(block, uuid, position, output, listing)
            gpu = build_gpu(block, uuid, index, findings)
        if down:
            findings.note("readings", down, f"GPU {gpu.index} ({uuid}) {describe_down(down)}", gpu)
            return ParsedGpu(gpu, block, instances=known.instances if known else {}, down=down)
        mig = is_mig_enabled(block)
        return ParsedGpu(gpu, block, mig, build_instances(gpu, block, listing, findings) if mig else {})

    def _find_index(
        self, block: GpuBlock, uuid: str, position: int, output: SmiOutput, listing: GpuListing
    ) -> int:
        """Return the GPU's index: from its cells, else from the listing, else its position in the output.

        The position is used only if the output holds all GPUs or this GPU is new.
        """
        index = parse_index(block.cells.get("index", ""))
        if index is not None:
            return index
        if uuid in listing.indexes:
            return listing.indexes[uuid]
        known = self._known.get(uuid)
        return position if not output.lacks_gpu or known is None else known.gpu.index

    def _find_by_bus_id(self, bus: str) -> ParsedGpu | None:
        return next((parsed for parsed in self._known.values() if bus and parsed.gpu.pci_bus_id == bus), None)

    def _find_by_index(self, problem: SmiProblem) -> ParsedGpu | None:
        """The known GPU that a message without a bus id names."""
        if problem.bus or problem.index is None:
            return None
        return next((each for each in self._known.values() if each.gpu.index == problem.index), None)

    def _update_listing(self, output: SmiOutput) -> GpuListing:
        """Call `-L` if it is needed: for MIG UUIDs, and for indexes when GPUs may be missing."""
        mig_devices = [cells for block in output.blocks for cells in block.mig_devices]
        if not mig_devices and not output.lacks_gpu:
            return GpuListing()
        topology = [
            (block_uuid(block), [[cells.get(name) for name in _MIG_IDS] for cells in block.mig_devices])
            for block in output.blocks
        ]
        now = self._clock.elapsed()
        is_complete = self._listing.indexes and len(self._listing.mig_devices) >= len(mig_devices)
        if topology != self._listed_topology or (not is_complete and now >= self._listing_retry_at):
            self._listing = self._queries.query_listing()
            self._listed_topology, self._listing_retry_at = topology, now + RETRY_SECONDS
        return self._listing


def _build_readings(
    parsed: ParsedGpu,
    processes: dict[str, tuple[GpuProcess, ...] | None],
    wanted: frozenset[Quantity],
    findings: SourceFindings,
    lanes: int | None,
    rules: MeterRules,
) -> list[Reading]:
    """Build the Reading of one Gpu in a slot with so many lanes, followed by those of its Instances."""
    readings = []
    # The reason of a GPU that is down is known: its cells need not repeat it.
    cell_findings = SourceFindings() if parsed.down else findings
    for device in parsed.devices:
        cells: Cells = parsed.block.cells
        if isinstance(device, Instance):
            # Those of a GPU that is down are from an earlier reading.
            cells = {} if parsed.down else parsed.instances[device]
        values, supported = parse_values(device, cells, wanted, cell_findings)
        limit_link_width(values, lanes)
        readings.append(
            Reading(
                device,
                up=not parsed.down,
                values=values,
                # A Gpu with Instances has no own list.
                processes=None if parsed.down else processes.get(device.uuid, ()),
                samples=None,
                supported=supported,
                mig_enabled=bool(parsed.instances) if parsed.down else parsed.mig,
                raw=parsed.block.raw if device is parsed.gpu else {},
                down_reason=parsed.down,
                rules=rules,
            )
        )
    return readings
