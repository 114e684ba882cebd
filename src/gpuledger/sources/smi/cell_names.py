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
    # Lifetime totals, in CSV and up to Volta in XML; from Turing on, the XML has only their terms.
    q.ECC_CORRECTED: ("ecc_errors/aggregate/single_bit/total", "ecc.errors.corrected.aggregate.total"),
    q.ECC_UNCORRECTED: ("ecc_errors/aggregate/double_bit/total", "ecc.errors.uncorrected.aggregate.total"),
}

_ECC = "ecc_errors/aggregate/"
# Sums used when none of a quantity's names has a value; every term must have one.
GPU_CELL_SUMS: dict[Quantity, tuple[tuple[str, ...], ...]] = {
    q.ECC_CORRECTED: ((_ECC + "sram_correctable", _ECC + "dram_correctable"),),
    q.ECC_UNCORRECTED: (
        (_ECC + "sram_uncorrectable", _ECC + "dram_uncorrectable"),
        (
            _ECC + "sram_uncorrectable_parity",
            _ECC + "sram_uncorrectable_secded",
            _ECC + "dram_uncorrectable",
        ),
        (
            _ECC + "sram_uncorrectable_parity",
            _ECC + "sram_uncorrectable_sec_ded",
            _ECC + "dram_uncorrectable",
        ),
    ),
}

# The text of `-q` calls the memory of a MIG device "shared".
MIG_CELLS: dict[Quantity, tuple[str, ...]] = {
    q.MEMORY_TOTAL: ("fb_memory_usage/total", "shared_fb_memory_usage/total"),
    q.MEMORY_USED: ("fb_memory_usage/used", "shared_fb_memory_usage/used"),
    q.MEMORY_FREE: ("fb_memory_usage/free", "shared_fb_memory_usage/free"),
    q.MEMORY_RESERVED: ("fb_memory_usage/reserved", "shared_fb_memory_usage/reserved"),
}

# A GPU that reports an error for all of these is down.
LIVENESS_QUANTITIES = (q.MEMORY_TOTAL, q.MEMORY_USED, q.TEMPERATURE, q.PERFORMANCE_STATE, q.POWER, q.SM_CLOCK)

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
    "temperature.gpu",
    "temperature.memory",
    "fan.speed",
    "pstate",
    "clocks.gr",
    "clocks.sm",
    "clocks.mem",
    "clocks.video",
    "ecc.errors.corrected.aggregate.total",
    "ecc.errors.uncorrected.aggregate.total",
    # Newer drivers accept this old name; their header has the new one, `clocks_event_reasons.active`.
    "clocks_throttle_reasons.active",
)
# Queried in place of a field that nvidia-smi no longer has.
SUCCESSORS = {"driver_version": "kmd_version"}
QUERY_APPS = ("gpu_uuid", "gpu_bus_id", "pid", "process_name", "used_gpu_memory")
