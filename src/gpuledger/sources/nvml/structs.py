"""Layouts of the structures that NVML fills, as `struct` formats over plain buffers.

A list of processes or samples is unpacked at once from a reused buffer: ctypes structures would create an
object per entry and field. Native alignment matches the C compiler; a trailing `0Q` pads to 8 bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

# nvmlProcessInfo_v1_t: pid, usedGpuMemory.
PROCESS_V1: Final = Struct("@IQ")
# nvmlProcessInfo_v2_t, the same in v3: pid, usedGpuMemory, gpuInstanceId, computeInstanceId.
PROCESS_V2: Final = Struct("@IQII")
# v3 of a few drivers of branch 535, under the same name: usedGpuCcProtectedMemory at the end.
PROCESS_R535: Final = Struct("@IQIIQ")
# nvmlProcessUtilizationSample_t: pid, timeStamp, smUtil, memUtil, encUtil, decUtil.
SAMPLE: Final = Struct("@IQIIII")
# nvmlProcessUtilizationInfo_v1_t: timeStamp, pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil.
SAMPLE_INFO: Final = Struct("@QIIIIIII0Q")
# nvmlProcessesUtilizationInfo_v1_t: version, processSamplesCount, lastSeenTimeStamp, procUtilArray.
SAMPLES_INFO: Final = Struct("@IIQP")
SAMPLES_INFO_VERSION: Final = 1 << 24 | SAMPLES_INFO.size
# nvmlMemory_t: total, free, used (which includes reserved memory).
MEMORY_V1: Final = Struct("@QQQ")
# nvmlMemory_v2_t: version, total, reserved, free, used.
MEMORY_V2: Final = Struct("@IQQQQ")
MEMORY_V2_VERSION: Final = 2 << 24 | MEMORY_V2.size
# nvmlFieldValue_t: fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value.
FIELD: Final = Struct("@IIqqIi8s")
# nvmlEventData_t: device, eventType, eventData, gpuInstanceId, computeInstanceId.
EVENT: Final = Struct("@PQQII")
# nvmlDeviceAttributes_t: multiprocessorCount, seven unused counts, memorySizeMB.
ATTRIBUTES: Final = Struct("@I28xQ")
# nvmlAccountingStats_t: time, startTime, isRunning; the other members are unused.
ACCOUNTING_STATS: Final = Struct("@16xQQI20x")
# nvmlGpmSupport_t: version, isSupportedDevice. The versions of GPM structures do not include the size.
GPM_SUPPORT: Final = Struct("@II")
GPM_SUPPORT_VERSION: Final = 1
# nvmlGpmMetricsGet_t up to its array: version, numMetrics, sample1 (the older), sample2.
GPM_METRICS: Final = Struct("@IIPP")
GPM_METRICS_VERSION: Final = 1
# nvmlGpmMetric_t, an entry of the array: metricId, nvmlReturn, value, and three names.
GPM_METRIC: Final = Struct("@Iid3P")
# The array grew from 98 to 477 entries without a new version; leave room for more.
GPM_MAX_METRICS: Final = 1024
# nvmlPciInfo_t since v2: busIdLegacy, domain, bus, device; the other members are unused.
PCI: Final = Struct("@16sIII8x32s")

# Layout of nvmlFieldValue_t.value by its valueType (nvmlValueType_t).
UNSIGNED_INT: Final = 1
VALUE_TYPES: Final = {
    0: Struct("@d"),
    UNSIGNED_INT: Struct("@I4x"),
    2: Struct("@L"),
    3: Struct("@Q"),
    4: Struct("@q"),
    5: Struct("@i4x"),
    6: Struct("@H6x"),
}

# NVML_VALUE_NOT_AVAILABLE in 32 bits; in a process entry also "no MIG instance".
BLANK_32: Final = 0xFFFF_FFFF
# NVML_VALUE_NOT_AVAILABLE in 64 bits is all ones; DCGM's blank values start here. No counter gets this high.
BLANK_64: Final = 0x7FFF_FFFF_FFFF_FFF0
