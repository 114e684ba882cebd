"""Parser of amdgpu's `gpu_metrics` file: a table of the power firmware with a version in its header.

Versions differ in field offsets, so a table is read only with the layout of exactly its version and size
(`kgd_pp_interface.h` of Linux 6.12; 1.6 to 1.8 as in ROCm's `rocm_smi_gpu_metrics.h`; 1.9 describes itself).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from struct import Struct, error, unpack_from
from typing import Final

# Values by field: a number, or a list for an array; None where the firmware has no value (all bits are 1).
Scalar = int | None
MetricsFields = Mapping[str, Scalar | list[Scalar]]

_HEADER: Final = Struct("<HBB")
_WIDTHS: Final = {"B": 1, "H": 2, "I": 4, "Q": 8}
_MOST_PARTITIONS: Final = 8


class UnreadableMetrics(ValueError):
    """The table is cut short, or its version is unknown; the text names size, format and content."""


@dataclass(frozen=True, slots=True)
class GpuMetrics:
    """One table. `version` is (format, content).

    `partitions` are the blocks of the compute partitions, by number; empty before version 1.6.
    """

    version: tuple[int, int]
    fields: MetricsFields
    partitions: tuple[MetricsFields, ...] = field(default=())

    def scalar(self, name: str) -> int | None:
        """The value of a field that is no array; None if it is absent or the version does not have it."""
        found = self.fields.get(name)
        return found if isinstance(found, int) else None

    def array(self, name: str) -> list[int]:
        """The values of an array that are not absent."""
        return present_values(self.fields, name)


def present_values(fields: MetricsFields, name: str) -> list[int]:
    """The values of an array of these fields that are not absent; none if the version does not have it."""
    found = fields.get(name)
    return [value for value in found if value is not None] if isinstance(found, list) else []


# Each group is a type code of struct, for arrays with a count, and names. Alignment is that of the C ABI.
_TEMPERATURES = """
H: temperature_edge temperature_hotspot temperature_mem temperature_vrgfx temperature_vrsoc
   temperature_vrmem"""
_ACTIVITIES = "H: average_gfx_activity average_umc_activity average_mm_activity average_socket_power"
_CLOCKS = """
H: average_gfxclk_frequency average_socclk_frequency average_uclk_frequency average_vclk0_frequency
   average_dclk0_frequency average_vclk1_frequency average_dclk1_frequency current_gfxclk current_socclk
   current_uclk current_vclk0 current_dclk0 current_vclk1 current_dclk1
I: throttle_status
H: current_fan_speed"""
_V1_0 = f"""Q: system_clock_counter {_TEMPERATURES} {_ACTIVITIES} I: energy_accumulator {_CLOCKS}
B: pcie_link_width pcie_link_speed"""
_V1_1 = f"""{_TEMPERATURES} {_ACTIVITIES} Q: energy_accumulator system_clock_counter {_CLOCKS}
H: pcie_link_width pcie_link_speed I: gfx_activity_acc mem_activity_acc H4: temperature_hbm"""
_V1_2 = f"{_V1_1} Q: firmware_timestamp"
_V1_3 = f"{_V1_2} H: voltage_soc voltage_gfx voltage_mem Q: indep_throttle_status"

_INSTINCT = """
H: temperature_hotspot temperature_mem temperature_vrsoc curr_socket_power average_gfx_activity
   average_umc_activity"""
_LINKS = """
H: pcie_link_width pcie_link_speed xgmi_link_width xgmi_link_speed
I: gfx_activity_acc mem_activity_acc
Q: pcie_bandwidth_acc pcie_bandwidth_inst pcie_l0_to_recov_count_acc pcie_replay_count_acc
   pcie_replay_rover_count_acc"""
_NAKS = "I: pcie_nak_sent_count_acc pcie_nak_rcvd_count_acc"
_XGMI = "Q8: xgmi_read_data_acc xgmi_write_data_acc"
_XCD_CLOCKS = """
Q: firmware_timestamp H8: current_gfxclk H4: current_socclk current_vclk0 current_dclk0 H: current_uclk"""
_RESIDENCIES = """
I: accumulation_counter prochot_residency_acc ppt_residency_acc socket_thm_residency_acc
   vr_thm_residency_acc hbm_thm_residency_acc gfxclk_lock_status"""
_V1_4 = f"""{_INSTINCT} H4: vcn_activity Q: energy_accumulator system_clock_counter
I: throttle_status gfxclk_lock_status {_LINKS} {_XGMI} {_XCD_CLOCKS}"""
_V1_5 = f"""{_INSTINCT} H4: vcn_activity H32: jpeg_activity Q: energy_accumulator system_clock_counter
I: throttle_status gfxclk_lock_status {_LINKS} {_NAKS} {_XGMI} {_XCD_CLOCKS}"""
_V1_6 = f"""{_INSTINCT} Q: energy_accumulator system_clock_counter {_RESIDENCIES} {_LINKS} {_NAKS} {_XGMI}
{_XCD_CLOCKS} H: num_partition X: xcp_stats I: pcie_lc_perf_other_end_recovery"""
_PADDING: Final = "padding"
_LINK_STATUS = f"H8: xgmi_link_status H: {_PADDING}"


def _v1_7(bandwidth: str) -> str:
    return f"""{_INSTINCT} Q: {bandwidth} energy_accumulator system_clock_counter {_RESIDENCIES} {_LINKS}
{_NAKS} {_XGMI} {_LINK_STATUS} {_XCD_CLOCKS} H: num_partition X: xcp_stats
I: pcie_lc_perf_other_end_recovery"""


_CORES = "H: temperature_gfx temperature_soc H8: temperature_core H2: temperature_l3"
_APU_ACTIVITIES = "H: average_gfx_activity average_mm_activity"
_APU_REST = """
H: average_socket_power average_cpu_power average_soc_power average_gfx_power H8: average_core_power
H: average_gfxclk_frequency average_socclk_frequency average_uclk_frequency average_fclk_frequency
   average_vclk_frequency average_dclk_frequency current_gfxclk current_socclk current_uclk current_fclk
   current_vclk current_dclk
H8: current_coreclk H2: current_l3clk I: throttle_status H: fan_pwm"""
_V2_0 = f"Q: system_clock_counter {_CORES} {_APU_ACTIVITIES} {_APU_REST}"
_V2_1 = f"{_CORES} {_APU_ACTIVITIES} Q: system_clock_counter {_APU_REST}"
_V2_2 = f"{_V2_1} Q: indep_throttle_status"
_V2_3 = f"""{_V2_2} H: average_temperature_gfx average_temperature_soc H8: average_temperature_core
H2: average_temperature_l3"""
_V2_4 = f"""{_V2_3} H: average_cpu_voltage average_soc_voltage average_gfx_voltage average_cpu_current
average_soc_current average_gfx_current"""
_V3_0 = """
H: temperature_gfx temperature_soc H16: temperature_core H: temperature_skin average_gfx_activity
   average_vcn_activity
H8: average_ipu_activity H16: average_core_c0_activity
H: average_dram_reads average_dram_writes average_ipu_reads average_ipu_writes
Q: system_clock_counter I: average_socket_power H: average_ipu_power
I: average_apu_power average_gfx_power average_dgpu_power average_all_core_power
H16: average_core_power
H: average_sys_power stapm_power_limit current_stapm_power_limit average_gfxclk_frequency
   average_socclk_frequency average_vpeclk_frequency average_ipuclk_frequency average_fclk_frequency
   average_vclk_frequency average_uclk_frequency average_mpipu_frequency
H16: current_coreclk H: current_core_maxfreq current_gfx_maxfreq
I: throttle_residency_prochot throttle_residency_spl throttle_residency_fppt throttle_residency_sppt
   throttle_residency_thm_core throttle_residency_thm_gfx throttle_residency_thm_soc
   time_filter_alphavalue"""

_LAYOUTS: Final = {
    (1, 0): _V1_0,
    (1, 1): _V1_1,
    (1, 2): _V1_2,
    (1, 3): _V1_3,
    (1, 4): _V1_4,
    (1, 5): _V1_5,
    (1, 6): _V1_6,
    (1, 7): _v1_7("vram_max_bandwidth"),
    (1, 8): _v1_7("mem_max_bandwidth"),
    (2, 0): _V2_0,
    (2, 1): _V2_1,
    (2, 2): _V2_2,
    (2, 3): _V2_3,
    (2, 4): _V2_4,
    (3, 0): _V3_0,
}
_PARTITION = "I8: gfx_busy_inst H{jpegs}: jpeg_busy H4: vcn_busy Q8: gfx_busy_acc"
# The block of one partition, by version of the table.
_PARTITIONS: Final = {
    (1, 6): _PARTITION.format(jpegs=32),
    (1, 7): _PARTITION.format(jpegs=32) + " gfx_below_host_limit_acc",
    (1, 8): _PARTITION.format(jpegs=40)
    + """ gfx_below_host_limit_ppt_acc gfx_below_host_limit_thm_acc gfx_low_utilization_acc
    gfx_below_host_limit_total_acc""",
}
VERSIONS: Final = (*_LAYOUTS, (1, 9))

# Fields of version 1.9, by number ("Add helper macros to define metrics struct", amd-gfx, September 2025).
_ATTRIBUTES: Final = (
    "temperature_hotspot",
    "temperature_mem",
    "temperature_vrsoc",
    "curr_socket_power",
    "average_gfx_activity",
    "average_umc_activity",
    "mem_max_bandwidth",
    "energy_accumulator",
    "system_clock_counter",
)
_ATTRIBUTE_TYPES: Final = "BbHhIiQq"
_BLOCK: Final = "X"


@dataclass(frozen=True, slots=True)
class FieldPlace:
    """Where a field is: offset in bytes, type code of struct, and count (0: a single value)."""

    name: str
    offset: int
    code: str
    count: int


@dataclass(frozen=True, slots=True)
class MetricsLayout:
    """The fields of one version and its size in bytes; `partition` is the layout of a partition's block."""

    size: int
    places: tuple[FieldPlace, ...]
    partition: MetricsLayout | None = None


@cache
def metrics_layout(version: tuple[int, int]) -> MetricsLayout:
    """The layout of a version with fixed offsets. Raises KeyError for another one."""
    blocks = _PARTITIONS.get(version)
    partition = None if blocks is None else _place_fields(blocks, 0)
    return _place_fields(_LAYOUTS[version], _HEADER.size, partition)


def parse_gpu_metrics(raw: bytes) -> GpuMetrics:
    """Parse the content of the file. Raises UnreadableMetrics."""
    if len(raw) < _HEADER.size:
        raise UnreadableMetrics(f"gpu_metrics has {len(raw)} bytes, less than its header")
    size, *version = _HEADER.unpack_from(raw)
    name = f"gpu_metrics of {size} bytes, format {version[0]}, content {version[1]}"
    if len(raw) < size:
        raise UnreadableMetrics(f"{name}: only {len(raw)} bytes could be read")
    key = (version[0], version[1])
    if key == (1, 9):
        return GpuMetrics(key, _parse_attributes(raw[:size], name))
    if key not in _LAYOUTS:
        raise UnreadableMetrics(f"{name}: this version is unknown")
    layout = metrics_layout(key)
    if layout.size != size:
        raise UnreadableMetrics(f"{name}: this version has {layout.size} bytes")
    return GpuMetrics(key, _read_fields(raw, layout, 0), tuple(_read_partitions(raw, layout)))


def _place_fields(text: str, start: int, partition: MetricsLayout | None = None) -> MetricsLayout:
    places: list[FieldPlace] = []
    offset, widest, code, count = start, 1, "H", 0
    for word in text.split():
        if word.endswith(":"):
            code, count = word[0], int(word[1:-1] or 0)
            continue
        if code == _BLOCK:
            assert partition is not None
            width, length = 8, _MOST_PARTITIONS * partition.size
        else:
            width = _WIDTHS[code]
            length = width * (count or 1)
        offset += -offset % width
        widest = max(widest, width)
        places.append(FieldPlace(word, offset, code, count))
        offset += length
    return MetricsLayout(offset + -offset % widest, tuple(places), partition)


def _read_fields(raw: bytes, layout: MetricsLayout, base: int) -> MetricsFields:
    found: dict[str, Scalar | list[Scalar]] = {}
    for place in layout.places:
        if place.code == _BLOCK or place.name == _PADDING:
            continue
        absent = (1 << 8 * _WIDTHS[place.code]) - 1
        values = unpack_from(f"<{place.count or 1}{place.code}", raw, base + place.offset)
        present = [None if value == absent else value for value in values]
        found[place.name] = present if place.count else present[0]
    return found


def _read_partitions(raw: bytes, layout: MetricsLayout) -> Iterator[MetricsFields]:
    if layout.partition is None:
        return
    place = next(place for place in layout.places if place.code == _BLOCK)
    for number in range(_MOST_PARTITIONS):
        yield _read_fields(raw, layout.partition, place.offset + number * layout.partition.size)


def _parse_attributes(raw: bytes, name: str) -> MetricsFields:
    """Read version 1.9: packed pairs of a code (unit, type, number of the field, count) and values."""
    found: dict[str, Scalar | list[Scalar]] = {}
    try:
        (attributes,) = unpack_from("<i", raw, _HEADER.size)
        offset = _HEADER.size + 4
        for _ in range(attributes):
            (code,) = unpack_from("<Q", raw, offset)
            kind, number, count = code >> 20 & 15, code >> 10 & 1023, code & 1023
            form = Struct(f"<{count}{_ATTRIBUTE_TYPES[kind]}")
            values = form.unpack_from(raw, offset + 8)
            offset += 8 + form.size
            if number < len(_ATTRIBUTES) and count:
                absent = (1 << 8 * form.size // count) - 1
                present = [None if value == absent else value for value in values]
                found[_ATTRIBUTES[number]] = present[0] if count == 1 else present
    except (error, IndexError):
        raise UnreadableMetrics(f"{name}: its attributes are cut short or of an unknown type") from None
    return found
