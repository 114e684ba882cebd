"""Layouts of the structures that NVML fills, as `struct` formats over plain buffers.

A list of processes or samples is one buffer that is kept and unpacked in one go: ctypes structures would cost
an object per entry and field. Native alignment is that of the C compiler; a trailing `0Q` pads to 8 bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

# nvmlProcessInfo_v1_t: pid, usedGpuMemory.
PROCESS_V1: Final = Struct("@IQ")
# nvmlProcessInfo_v2_t, the same in v3: pid, usedGpuMemory, gpuInstanceId, computeInstanceId.
PROCESS_V2: Final = Struct("@IQII")
# v3 as a few drivers of branch 535 had it, under the same name: usedGpuCcProtectedMemory at the end.
PROCESS_R535: Final = Struct("@IQIIQ")
# nvmlProcessUtilizationSample_t: pid, timeStamp, smUtil, memUtil, encUtil, decUtil.
SAMPLE: Final = Struct("@IQIIII")
# nvmlProcessUtilizationInfo_v1_t: timeStamp, pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil.
SAMPLE_INFO: Final = Struct("@QIIIIIII0Q")
# nvmlProcessesUtilizationInfo_v1_t: version, processSamplesCount, lastSeenTimeStamp, procUtilArray.
SAMPLES_INFO: Final = Struct("@IIQP")
SAMPLES_INFO_VERSION: Final = 1 << 24 | SAMPLES_INFO.size
# nvmlMemory_t: total, free, used (reserved memory is counted as used).
MEMORY_V1: Final = Struct("@QQQ")
# nvmlMemory_v2_t: version, total, reserved, free, used.
MEMORY_V2: Final = Struct("@IQQQQ")
MEMORY_V2_VERSION: Final = 2 << 24 | MEMORY_V2.size
# nvmlFieldValue_t: fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value.
FIELD: Final = Struct("@IIqqIi8s")
# nvmlEventData_t: device, eventType, eventData, gpuInstanceId, computeInstanceId.
EVENT: Final = Struct("@PQQII")
# nvmlDeviceAttributes_t: multiprocessorCount, seven counts that are not used here, memorySizeMB.
ATTRIBUTES: Final = Struct("@I28xQ")
# nvmlGpmSupport_t: version, isSupportedDevice. Its version, and that of the next, is a bare number.
GPM_SUPPORT: Final = Struct("@II")
GPM_SUPPORT_VERSION: Final = 1
# nvmlGpmMetricsGet_t up to its array: version, numMetrics, sample1 (the older), sample2.
GPM_METRICS: Final = Struct("@IIPP")
GPM_METRICS_VERSION: Final = 1
# nvmlGpmMetric_t, an entry of the array: metricId, nvmlReturn, value, and three names.
GPM_METRIC: Final = Struct("@Iid3P")
# The array grew from 98 to 477 entries under one and the same version; room for the next growths.
GPM_MOST_METRICS: Final = 1024
# nvmlPciInfo_t from v2 on: busIdLegacy, domain, bus, device, and what is not used here.
PCI: Final = Struct("@16sIII8x32s")

# How nvmlFieldValue_t.value is to be read, by its valueType (nvmlValueType_t).
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

# NVML_VALUE_NOT_AVAILABLE in 32 bits; also "no such instance" in a process entry.
BLANK_32: Final = 0xFFFF_FFFF
# NVML_VALUE_NOT_AVAILABLE in 64 bits is all ones, DCGM's blanks begin here; no counter gets this far.
BLANK_64: Final = 0x7FFF_FFFF_FFFF_FFF0
