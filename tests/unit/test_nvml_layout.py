"""Our layouts and numbers are NVIDIA's own, as nvidia-ml-py has them."""

import ctypes
import subprocess
import sys

import pynvml
import pytest

from gpuledger.model.quantities import QUANTITIES
from gpuledger.sources.nvml import codes, fields, structs


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (structs.PROCESS_V2, pynvml.c_nvmlProcessInfo_v2_t),
        (structs.PROCESS_R535, pynvml.c_nvmlProcessDetail_v1_t),
        (structs.SAMPLE, pynvml.c_nvmlProcessUtilizationSample_t),
        (structs.SAMPLE_INFO, pynvml.c_nvmlProcessUtilizationInfo_v1_t),
        (structs.SAMPLES_INFO, pynvml.c_nvmlProcessesUtilizationInfo_v1_t),
        (structs.MEMORY_V1, pynvml.c_nvmlMemory_t),
        (structs.MEMORY_V2, pynvml.c_nvmlMemory_v2_t),
        (structs.FIELD, pynvml.c_nvmlFieldValue_t),
        (structs.EVENT, pynvml.c_nvmlEventData_t),
        (structs.ATTRIBUTES, pynvml.c_nvmlDeviceAttributes),
        (structs.PCI, pynvml.nvmlPciInfo_t),
        (structs.GPM_SUPPORT, pynvml.c_nvmlGpmSupport_t),
        (structs.GPM_METRIC, pynvml.c_nvmlGpmMetric_t),
    ],
)
def test_a_layout_is_as_long_as_nvidias(ours, theirs):
    assert ours.size == ctypes.sizeof(theirs)


def test_the_metrics_begin_where_nvidias_do_and_have_room_for_more_of_them():
    theirs = pynvml.c_nvmlGpmMetricsGet_t
    assert structs.GPM_METRICS.size == theirs.metrics.offset
    assert structs.GPM_MOST_METRICS > pynvml.NVML_GPM_METRIC_MAX


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (structs.GPM_SUPPORT_VERSION, pynvml.NVML_GPM_SUPPORT_VERSION),
        (structs.GPM_METRICS_VERSION, pynvml.NVML_GPM_METRICS_GET_VERSION),
        (structs.MEMORY_V2_VERSION, pynvml.nvmlMemory_v2),
        (structs.SAMPLES_INFO_VERSION, pynvml.ProcessesUtilizationInfo_v1),
        (structs.BLANK_32, pynvml.NVML_VALUE_NOT_AVAILABLE_uint.value),
        (structs.UNSIGNED_INT, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT),
        (set(structs.VALUE_TYPES), set(range(pynvml.NVML_VALUE_TYPE_COUNT))),
    ],
)
def test_a_number_is_nvidias(ours, theirs):
    assert ours == theirs


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("energy", "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION"),
        ("memory_temperature", "NVML_FI_DEV_MEMORY_TEMP"),
        ("pcie_tx", "NVML_FI_DEV_PCIE_COUNT_TX_BYTES"),
        ("pcie_rx", "NVML_FI_DEV_PCIE_COUNT_RX_BYTES"),
        ("ecc_corrected", "NVML_FI_DEV_ECC_SBE_AGG_TOTAL"),
        ("ecc_uncorrected", "NVML_FI_DEV_ECC_DBE_AGG_TOTAL"),
    ],
)
def test_a_field_id_is_nvidias(key, name):
    ours = {field.quantity.key: field.field_id for field in fields.FIELDS}
    assert ours[key] == getattr(pynvml, name)


def test_every_quantity_is_read_one_way():
    read = [*fields.RATES, *fields.MEMORY, fields.ACTIVITY]
    read += [each.quantity for each in (*fields.NUMBERS, *fields.FIELDS)]
    assert sorted(quantity.key for quantity in read) == sorted(QUANTITIES)


def test_every_call_that_is_asked_exists_in_nvidia_ml_py():
    asked = {number.call for number in fields.NUMBERS}
    asked |= {field.fallback.call for field in fields.FIELDS if field.fallback}
    assert asked <= set(dir(pynvml))


def test_the_return_codes_are_nvidias():
    theirs = {
        value: name.removeprefix("NVML_ERROR_")
        for name, value in vars(pynvml).items()
        if name.startswith("NVML_ERROR_") and isinstance(value, int)
    }
    assert theirs.items() <= codes.NAMES.items()


def test_a_return_code_is_called_as_nvidia_does():
    ours = {name: value for name, value in vars(codes).items() if name.isupper() and isinstance(value, int)}
    assert len(ours) > 15
    assert ours == {
        name: getattr(pynvml, "NVML_SUCCESS" if name == "SUCCESS" else f"NVML_ERROR_{name}") for name in ours
    }


def test_a_program_that_reads_the_driver_does_not_hold_nvidia_ml_py_in_memory():
    script = "import gpuledger.sources.nvml.source, sys; print('pynvml' in sys.modules)"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, check=True, text=True
    )
    assert done.stdout == "False\n"
