"""Names of the cells of nvidia-smi's outputs, for each quantity, format and driver version.

Names with `/` are paths in the XML of `-q -x` (schemas v10 to v13) and in the text of `-q`, lower case with
underscores; names with `.` are fields of `--query-gpu`. The first name that has a value is used.
"""

from __future__ import annotations

from gpuledger.model import quantities as q
from gpuledger.model.quantities import Quantity

# Of the whole machine. Driver 610 has both names; the old ones end with CUDA 14.
DRIVER = ("kmd_version", "driver_version")
CUDA = ("cuda_umd_version", "cuda_version")
ATTACHED_GPUS = ("attached_gpus", "count")

UUID = ("uuid", "gpu_uuid")
NAME = ("product_name", "name", "gpu_name")
BUS = ("pci/pci_bus_id", "pci/bus_id", "pci.bus_id", "gpu_bus_id")
INDEX = ("index",)
SERIAL = ("serial", "serial_number", "gpu_serial")
MINOR = ("minor_number",)
VBIOS = ("vbios_version",)
ARCHITECTURE = ("product_architecture",)
COMPUTE_CAPABILITY = ("compute_cap",)
MIG_MODE = ("mig_mode/current_mig", "mig_mode/current", "mig.mode.current")

# Also in process lists.
MIG_GI = ("gpu_instance_id",)
MIG_CI = ("compute_instance_id",)
MIG_SM_COUNT = ("device_attributes/shared/multiprocessor_count",)
MIG_UUID = ("uuid", "mig_uuid")

PROCESS_PID = ("pid", "process_id")
PROCESS_NAME = ("process_name", "name")
PROCESS_TYPE = ("type",)
PROCESS_MEMORY = ("used_memory", "used_gpu_memory")

GPU_CELLS: dict[Quantity, tuple[str, ...]] = {
    q.UTILIZATION: ("utilization/gpu_util", "utilization/gpu", "utilization.gpu"),
    q.MEMORY_UTILIZATION: ("utilization/memory_util", "utilization/memory", "utilization.memory"),
    q.ENCODER_UTILIZATION: ("utilization/encoder_util", "utilization/encoder", "utilization.encoder"),
    q.DECODER_UTILIZATION: ("utilization/decoder_util", "utilization/decoder", "utilization.decoder"),
    q.MEMORY_TOTAL: ("fb_memory_usage/total", "memory.total"),
    q.MEMORY_USED: ("fb_memory_usage/used", "memory.used"),
    q.MEMORY_FREE: ("fb_memory_usage/free", "memory.free"),
    q.MEMORY_RESERVED: ("fb_memory_usage/reserved", "memory.reserved"),
    # `power_draw` is nvmlDeviceGetPowerUsage; newer schemas split it into average (the same) and instant.
    q.POWER: (
        "gpu_power_readings/power_draw",
        "power_readings/power_draw",
        "power.draw",
        "gpu_power_readings/average_power_draw",
        "gpu_power_readings/instant_power_draw",
        "gpu_power_readings/instantaneous_power_draw",
        "power.draw.average",
        "power.draw.instant",
    ),
    # The requested limit is nvmlDeviceGetPowerManagementLimit; the enforced limit may be lower.
    q.POWER_LIMIT: (
        "gpu_power_readings/requested_power_limit",
        "power_readings/power_limit",
        "power.limit",
        "gpu_power_readings/current_power_limit",
        "power_readings/enforced_power_limit",
        "enforced.power.limit",
    ),
    q.POWER_LIMIT_MAX: (
        "gpu_power_readings/max_power_limit",
        "power_readings/max_power_limit",
        "power.max_limit",
    ),
    q.TEMPERATURE: ("temperature/gpu_temp", "temperature/gpu_current_temp", "temperature.gpu"),
    q.MEMORY_TEMPERATURE: (
        "temperature/memory_temp",
        "temperature/memory_current_temp",
        "temperature.memory",
    ),
    q.FAN_SPEED: ("fan_speed", "fan.speed"),
    q.GRAPHICS_CLOCK: ("clocks/graphics_clock", "clocks/graphics", "clocks.current.graphics", "clocks.gr"),
    q.SM_CLOCK: ("clocks/sm_clock", "clocks/sm", "clocks.current.sm", "clocks.sm"),
    q.MEMORY_CLOCK: ("clocks/mem_clock", "clocks/memory", "clocks.current.memory", "clocks.mem"),
    q.VIDEO_CLOCK: ("clocks/video_clock", "clocks/video", "clocks.current.video", "clocks.video"),
    q.PERFORMANCE_STATE: ("performance_state", "pstate"),
    q.PCIE_REPLAYS: ("pci/replay_counter", "pci/replays_since_reset"),
    q.PCIE_GENERATION: (
        "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
        "pci/gpu_link_info/pcie_generation/current",
        "pcie.link.gen.current",
        "pcie.link.gen.gpucurrent",
    ),
    q.PCIE_GENERATION_MAX: (
        "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
        "pci/gpu_link_info/pcie_generation/max",
        "pcie.link.gen.max",
    ),
    q.PCIE_GENERATION_GPU_MAX: (
        "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen",
        "pci/gpu_link_info/pcie_generation/device_max",
        "pcie.link.gen.gpumax",
    ),
    q.PCIE_WIDTH: (
        "pci/pci_gpu_link_info/link_widths/current_link_width",
        "pci/gpu_link_info/link_width/current",
        "pcie.link.width.current",
    ),
    q.PCIE_WIDTH_MAX: (
        "pci/pci_gpu_link_info/link_widths/max_link_width",
        "pci/gpu_link_info/link_width/max",
        "pcie.link.width.max",
    ),
    q.POWER_INSTANT: (
        "gpu_power_readings/instant_power_draw",
        "gpu_power_readings/instantaneous_power_draw",
        "power.draw.instant",
    ),
    q.POWER_LIMIT_MANAGEMENT: (
        "gpu_power_readings/requested_power_limit",
        "power_readings/power_limit",
        "power.limit",
    ),
    q.POWER_LIMIT_MIN: (
        "gpu_power_readings/min_power_limit",
        "power_readings/min_power_limit",
        "power.min_limit",
    ),
    q.POWER_LIMIT_DEFAULT: (
        "gpu_power_readings/default_power_limit",
        "power_readings/default_power_limit",
        "power.default_limit",
    ),
    q.BAR1_TOTAL: ("bar1_memory_usage/total",),
    q.BAR1_USED: ("bar1_memory_usage/used",),
    q.BAR1_FREE: ("bar1_memory_usage/free",),
    q.TEMPERATURE_SLOWDOWN: ("temperature/gpu_temp_slow_threshold", "temperature/gpu_slowdown_temp"),
    q.TEMPERATURE_SHUTDOWN: ("temperature/gpu_temp_max_threshold", "temperature/gpu_shutdown_temp"),
    q.APP_SM_CLOCK: (
        "applications_clocks/graphics_clock",
        "applications_clocks/graphics",
        "clocks.applications.graphics",
    ),
    q.APP_MEMORY_CLOCK: (
        "applications_clocks/mem_clock",
        "applications_clocks/memory",
        "clocks.applications.memory",
    ),
    q.MAX_GRAPHICS_CLOCK: ("max_clocks/graphics_clock", "max_clocks/graphics", "clocks.max.graphics"),
    q.MAX_SM_CLOCK: ("max_clocks/sm_clock", "max_clocks/sm", "clocks.max.sm"),
    q.MAX_MEMORY_CLOCK: ("max_clocks/mem_clock", "max_clocks/memory", "clocks.max.memory"),
    q.MAX_VIDEO_CLOCK: ("max_clocks/video_clock", "max_clocks/video"),
    q.COMPUTE_MODE: ("compute_mode",),
    q.PERSISTENCE_MODE: ("persistence_mode",),
    q.VIRTUALIZATION_MODE: ("gpu_virtualization_mode/virtualization_mode",),
    q.RECOVERY_ACTION: ("gpu_recovery_action",),
    q.FABRIC_STATE: ("fabric/state", "fabric.state"),
    q.MIG_MODE: MIG_MODE,
    q.CLOCK_EVENT_REASONS: ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
    # Counters of the same reasons as NVML fields 74 and 76.
    q.POWER_VIOLATION: (
        "clocks_event_reasons_counters/clocks_event_reasons_counters_sw_power_cap",
        "clocks_event_reasons_counters/sw_power_capping",
        "clocks_event_reasons_counters.sw_power_cap",
    ),
    q.SYNC_BOOST_VIOLATION: (
        "clocks_event_reasons_counters/clocks_event_reasons_counters_sync_boost",
        "clocks_event_reasons_counters/sync_boost",
        "clocks_event_reasons_counters.sync_boost",
    ),
    q.SOFTWARE_THERMAL_TIME: (
        "clocks_event_reasons_counters/clocks_event_reasons_counters_sw_therm_slowdown",
        "clocks_event_reasons_counters/sw_thermal_slowdown",
        "clocks_event_reasons_counters.sw_thermal_slowdown",
    ),
    q.HARDWARE_THERMAL_TIME: (
        "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_therm_slowdown",
        "clocks_event_reasons_counters/hw_thermal_slowdown",
        "clocks_event_reasons_counters.hw_thermal_slowdown",
    ),
    q.POWER_BRAKE_TIME: (
        "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_power_brake",
        "clocks_event_reasons_counters/hw_power_braking",
        "clocks_event_reasons_counters.hw_power_brake_slowdown",
    ),
    q.RETIRED_PAGES_CORRECTABLE: (
        "retired_pages/multiple_single_bit_retirement/retired_count",
        "retired_pages/single_bit_ecc",
        "retired_pages.single_bit_ecc.count",
    ),
    q.RETIRED_PAGES_UNCORRECTABLE: (
        "retired_pages/double_bit_retirement/retired_count",
        "retired_pages/double_bit_ecc",
        "retired_pages.double_bit.count",
    ),
    q.RETIRED_PAGES_PENDING: (
        "retired_pages/pending_retirement",
        "retired_pages/pending_blacklist",
        "retired_pages/pending_page_blacklist",
        "retired_pages.pending",
    ),
    q.REMAPPED_ROWS_CORRECTABLE: (
        "remapped_rows/remapped_row_corr",
        "remapped_rows/correctable_error",
        "remapped_rows.correctable",
    ),
    q.REMAPPED_ROWS_UNCORRECTABLE: (
        "remapped_rows/remapped_row_unc",
        "remapped_rows/uncorrectable_error",
        "remapped_rows.uncorrectable",
    ),
    q.ROW_REMAP_PENDING: (
        "remapped_rows/remapped_row_pending",
        "remapped_rows/pending",
        "remapped_rows.pending",
    ),
    q.ROW_REMAP_FAILURE: (
        "remapped_rows/remapped_row_failure",
        "remapped_rows/remapping_failure_occurred",
        "remapped_rows.failure",
    ),
    q.ECC_CORRECTED_VOLATILE: (
        "ecc_errors/volatile/single_bit/total",
        "ecc.errors.corrected.volatile.total",
    ),
    q.ECC_UNCORRECTED_VOLATILE: (
        "ecc_errors/volatile/double_bit/total",
        "ecc.errors.uncorrected.volatile.total",
    ),
    # Lifetime totals, in CSV and up to Volta in XML; from Turing on, the XML has only their terms.
    q.ECC_CORRECTED: ("ecc_errors/aggregate/single_bit/total", "ecc.errors.corrected.aggregate.total"),
    q.ECC_UNCORRECTED: ("ecc_errors/aggregate/double_bit/total", "ecc.errors.uncorrected.aggregate.total"),
}

_CORRECTED = (("sram_correctable", "dram_correctable"),)
_UNCORRECTED = (
    ("sram_uncorrectable", "dram_uncorrectable"),
    ("sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable"),
    ("sram_uncorrectable_parity", "sram_uncorrectable_sec_ded", "dram_uncorrectable"),
)


def _ecc_sums(span: str, sums: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(f"ecc_errors/{span}/{name}" for name in names) for names in sums)


# Sums used when none of a quantity's names has a value; every term must have one.
GPU_CELL_SUMS: dict[Quantity, tuple[tuple[str, ...], ...]] = {
    q.ECC_CORRECTED: _ecc_sums("aggregate", _CORRECTED),
    q.ECC_UNCORRECTED: _ecc_sums("aggregate", _UNCORRECTED),
    q.ECC_CORRECTED_VOLATILE: _ecc_sums("volatile", _CORRECTED),
    q.ECC_UNCORRECTED_VOLATILE: _ecc_sums("volatile", _UNCORRECTED),
}

# The reasons for the current clocks by the end of their names, and their bits in nvmlClocksEventReasons.
CLOCK_REASONS = {
    "gpu_idle": 0x1,
    "idle": 0x1,
    "applications_clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
    "display_clocks_setting": 0x100,
    "display_clock_setting": 0x100,
}
# Drivers 535 to 560 have these in place of a recovery action; later ones call both deprecated.
RESET_REQUIRED = ("gpu_reset_status/reset_required", "reset_status.reset_required")
DRAIN_AND_RESET = (
    "gpu_reset_status/drain_and_reset_recommended",
    "reset_status.drain_and_reset_recommended",
)
CLOCK_REASON_LISTS = ("clocks_event_reasons/", "clocks_throttle_reasons/")

# The text of `-q` calls the memory of a MIG device "shared".
MIG_CELLS: dict[Quantity, tuple[str, ...]] = {
    q.MEMORY_TOTAL: ("fb_memory_usage/total", "shared_fb_memory_usage/total"),
    q.MEMORY_USED: ("fb_memory_usage/used", "shared_fb_memory_usage/used"),
    q.MEMORY_FREE: ("fb_memory_usage/free", "shared_fb_memory_usage/free"),
    q.MEMORY_RESERVED: ("fb_memory_usage/reserved", "shared_fb_memory_usage/reserved"),
}

# A GPU that reports errors for the first of these groups, and no value, is down. A card that cannot be used
# may still report the second group, which counts only if the first one is not supported.
LIVENESS_QUANTITIES = (
    (q.MEMORY_TOTAL, q.MEMORY_USED, q.TEMPERATURE, q.SM_CLOCK),
    (q.PERFORMANCE_STATE, q.POWER),
)

# Fields for `--query-gpu`, by the names that the oldest drivers support.
QUERY_FIELDS = (
    "index",
    "uuid",
    "pci.bus_id",
    "name",
    "serial",
    "vbios_version",
    "driver_version",
    "count",
    "compute_cap",
    "mig.mode.current",
    "utilization.gpu",
    "utilization.memory",
    "utilization.encoder",
    "utilization.decoder",
    "memory.total",
    "memory.used",
    "memory.free",
    "memory.reserved",
    "power.draw",
    "power.limit",
    "power.max_limit",
    "power.min_limit",
    "power.default_limit",
    "persistence_mode",
    "compute_mode",
    "temperature.gpu",
    "temperature.memory",
    "fan.speed",
    "pstate",
    "clocks.gr",
    "clocks.sm",
    "clocks.mem",
    "clocks.video",
    "clocks.max.graphics",
    "clocks.max.sm",
    "clocks.max.memory",
    "clocks.applications.graphics",
    "clocks.applications.memory",
    "ecc.errors.corrected.volatile.total",
    "ecc.errors.uncorrected.volatile.total",
    "retired_pages.single_bit_ecc.count",
    "retired_pages.double_bit.count",
    "retired_pages.pending",
    "ecc.errors.corrected.aggregate.total",
    "ecc.errors.uncorrected.aggregate.total",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    # Newer drivers accept this old name; their header has the new one, `clocks_event_reasons.active`.
    "clocks_throttle_reasons.active",
)
# Queried in place of a field that nvidia-smi no longer has.
SUCCESSORS = {"driver_version": "kmd_version"}
QUERY_APPS = ("gpu_uuid", "gpu_bus_id", "pid", "process_name", "used_gpu_memory")
