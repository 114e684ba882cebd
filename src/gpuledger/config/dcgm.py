"""What the `dcgm` dialect is made of, as a user set it: its collectors file read, its labels decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from gpuledger.config.exporter_flags import devices, host_engine, label_patterns, only, only_false
from gpuledger.dialects.dcgm.collectors import DEFAULT, Collectors, parse
from gpuledger.dialects.settings import DcgmSettings
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import Reload, boolean, build, choice, integer, setting, text
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings

# A file of all fields with long helps has 30 KB.
_LONGEST: Final = 1024 * 1024


def dcgm_settings(values: Mapping[str, Any]) -> DcgmSettings:
    """What is set about the dialect. As in dcgm-exporter, a directory of jobs by GPU makes jobs labels."""
    settings = build(DcgmSettings, values)
    if values.get("job_map.dir") and "dcgm.job_label" not in values:
        return replace(settings, job_label=True)
    return settings


def read_collectors(path: str) -> Collectors:
    """The fields that a collectors file asks for; those of gpuledger itself where no file is named.

    Raises UsageError for a file that cannot be read, or of which nothing can be told.
    """
    if not path:
        return DEFAULT
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LONGEST + 1)
    except OSError as error:
        raise UsageError(f"cannot read the collectors file {path}: {error.strerror}") from None
    if len(content) > _LONGEST:
        raise UsageError(
            f"the collectors file {path} is larger than 1 MiB; a file such as default-counters.csv is wanted"
        )
    return parse(content, path)


_WINDOWS = "events of a window are not counted; take increase(DCGM_EXP_XID_ERRORS_TOTAL[5m])"


def _dcgm(_value: object) -> Mapping[str, str]:
    return {"dialect": "dcgm"}


def _as(key: str) -> Callable[[str], Mapping[str, str]]:
    """The same text under another key; an empty one sets nothing."""
    return lambda value: {key: value} if value else {}


def _switch(key: str, yes: str = "true", no: str = "false") -> Callable[[bool], Mapping[str, str]]:
    return lambda value: {key: yes if value else no}


def _resources(names: str) -> Mapping[str, str]:
    usual = PodResourcesSettings().resources
    return {"kubernetes.resources": ",".join((*usual, names))} if names else {}


def _idle(name: str, why: str, variable: str) -> bool:
    """A switch that changes nothing."""
    return setting(
        f"dcgm_exporter.{name}",
        boolean,
        False,
        f"{why} [{variable}]",
        flags=("--" + name.replace("_", "-"),),
        variables=(variable,),
    )


def _refused(name: str, why: str, variable: str, remedy: str) -> bool:
    """A switch that may only be off."""
    return setting(
        f"dcgm_exporter.{name}",
        only_false(remedy),
        False,
        f"cannot be honoured: {why} [{variable}]",
        flags=("--" + name.replace("_", "-"),),
        metavar="false",
        variables=(variable,),
        bare=True,
    )


@dataclass(frozen=True, slots=True)
class DcgmExporterSettings:
    """What dcgm-exporter 4.8 takes. Any of its flags or DCGM_EXPORTER_* variables makes /metrics `dcgm`."""

    # The settings that they mean say whether they can change.
    reload: ClassVar[Reload] = Reload()

    collectors: str = setting(
        "dcgm_exporter.collectors",
        text,
        "",
        "--dcgm.collectors [DCGM_EXPORTER_COLLECTORS]",
        flags=("-f", "--collectors"),
        metavar="FILE",
        variables=("DCGM_EXPORTER_COLLECTORS",),
        means=_as("dcgm.collectors"),
        implies=_dcgm,
    )
    address: str = setting(
        "dcgm_exporter.listen",
        text,
        "",
        "--listen-address [DCGM_EXPORTER_LISTEN]",
        flags=("-a", "--address"),
        metavar="ADDR",
        variables=("DCGM_EXPORTER_LISTEN",),
        means=_as("listen_address"),
        implies=_dcgm,
    )
    # Unset, what they mean has defaults of its own.
    interval: int | None = setting(
        "dcgm_exporter.interval",
        integer(1, 3_600_000),
        None,
        "--slow-interval, in milliseconds; what is not slow is read at every --interval "
        "[DCGM_EXPORTER_INTERVAL]",
        flags=("-c", "--collect-interval"),
        metavar="MS",
        variables=("DCGM_EXPORTER_INTERVAL",),
        means=lambda value: {"slow_interval": f"{value}ms"},
        implies=_dcgm,
    )
    devices: str = setting(
        "dcgm_exporter.devices",
        devices,
        "",
        "--devices, as f (all), g (all GPUs) or g:0,2-3 [DCGM_EXPORTER_DEVICES_STR]",
        flags=("-d",),
        metavar="f|g:LIST",
        variables=("DCGM_EXPORTER_DEVICES_STR",),
        means=_as("devices"),
        implies=_dcgm,
    )
    kubernetes: bool | None = setting(
        "dcgm_exporter.kubernetes",
        boolean,
        None,
        "--kubernetes-enabled [DCGM_EXPORTER_KUBERNETES]",
        flags=("-k", "--kubernetes"),
        variables=("DCGM_EXPORTER_KUBERNETES",),
        means=_switch("kubernetes.enabled"),
        implies=_dcgm,
    )
    gpu_id_type: str = setting(
        "dcgm_exporter.kubernetes_gpu_id_type",
        choice("uid", "device-name"),
        "uid",
        "how device plugins name GPUs: every way is known, and this changes nothing "
        "[DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE]",
        flags=("--kubernetes-gpu-id-type",),
        metavar="uid|device-name",
        variables=("DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE",),
        implies=_dcgm,
    )
    pod_labels: bool = setting(
        "dcgm_exporter.kubernetes_enable_pod_labels",
        boolean,
        False,
        "--dcgm.pod-labels, all of them without a list [DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS]",
        flags=("--kubernetes-enable-pod-labels",),
        variables=("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS",),
        means=_switch("dcgm.pod_labels"),
        implies=lambda value: (
            {"dialect": "dcgm"} | ({"kubernetes.pod_label_allowlist": "*"} if value else {})
        ),
    )
    pod_label_patterns: str = setting(
        "dcgm_exporter.kubernetes_pod_label_allowlist_regex",
        label_patterns,
        "",
        "--pod-label-allowlist [DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX]",
        flags=("--kubernetes-pod-label-allowlist-regex",),
        metavar="LIST",
        variables=("DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX",),
        means=_as("kubernetes.pod_label_allowlist"),
        implies=_dcgm,
    )
    pod_uid: bool = setting(
        "dcgm_exporter.kubernetes_enable_pod_uid",
        boolean,
        False,
        "--dcgm.pod-uid [DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID]",
        flags=("--kubernetes-enable-pod-uid",),
        variables=("DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID",),
        means=_switch("dcgm.pod_uid"),
        implies=_dcgm,
    )
    virtual_gpus: bool = _idle(
        "kubernetes_virtual_gpus",
        "replicas are always followed; a GPU that several pods share bears no pod's name",
        "KUBERNETES_VIRTUAL_GPUS",
    )
    dra: bool = _idle(
        "kubernetes_enable_dra",
        "claims are always followed, and this changes nothing",
        "KUBERNETES_ENABLE_DRA",
    )
    resource_names: str = setting(
        "dcgm_exporter.nvidia_resource_names",
        text,
        "",
        "--kubernetes-resources, beside its usual ones [NVIDIA_RESOURCE_NAMES]",
        flags=("--nvidia-resource-names",),
        metavar="LIST",
        variables=("NVIDIA_RESOURCE_NAMES",),
        means=_resources,
    )
    socket: str = setting(
        "dcgm_exporter.pod_resources_kubelet_socket",
        text,
        "",
        "--pod-resources-socket [DCGM_POD_RESOURCES_KUBELET_SOCKET]",
        flags=("--pod-resources-kubelet-socket",),
        metavar="PATH",
        variables=("DCGM_POD_RESOURCES_KUBELET_SOCKET",),
        means=_as("kubernetes.pod_resources_socket"),
    )
    # Its flag, --hpc-job-mapping-dir, is the one of job_map.dir.
    job_map: str = setting(
        "dcgm_exporter.hpc_job_mapping_dir",
        text,
        "",
        "--hpc-job-mapping-dir [DCGM_HPC_JOB_MAPPING_DIR]",
        metavar="DIR",
        variables=("DCGM_HPC_JOB_MAPPING_DIR",),
        means=_as("job_map.dir"),
    )
    no_hostname: bool = setting(
        "dcgm_exporter.no_hostname",
        boolean,
        False,
        "--dcgm.hostname-label=false [DCGM_EXPORTER_NO_HOSTNAME]",
        flags=("-n", "--no-hostname"),
        variables=("DCGM_EXPORTER_NO_HOSTNAME",),
        means=_switch("dcgm.hostname_label", "false", "true"),
        implies=_dcgm,
    )
    old_namespace: bool = setting(
        "dcgm_exporter.use_old_namespace",
        boolean,
        False,
        "--dcgm.old-namespace [DCGM_EXPORTER_USE_OLD_NAMESPACE]",
        flags=("-o", "--use-old-namespace"),
        variables=("DCGM_EXPORTER_USE_OLD_NAMESPACE",),
        means=_switch("dcgm.old_namespace"),
        implies=_dcgm,
    )
    model_dashes: bool = setting(
        "dcgm_exporter.replace_blanks_in_model_name",
        boolean,
        False,
        "--dcgm.model-dashes [DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME]",
        flags=("--replace-blanks-in-model-name", "--rbmn"),
        variables=("DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME",),
        means=_switch("dcgm.model_dashes"),
        implies=_dcgm,
    )
    debug: bool = setting(
        "dcgm_exporter.debug",
        boolean,
        False,
        "--log-level debug [DCGM_EXPORTER_DEBUG]",
        flags=("--debug",),
        variables=("DCGM_EXPORTER_DEBUG",),
        means=lambda value: {"log.level": "debug"} if value else {},
    )
    host_engine: str = setting(
        "dcgm_exporter.remote_hostengine_info",
        host_engine,
        "",
        "this machine's own is not needed, and another's cannot be asked [DCGM_REMOTE_HOSTENGINE_INFO]",
        flags=("-r", "--remote-hostengine-info"),
        metavar="ADDR",
        variables=("DCGM_REMOTE_HOSTENGINE_INFO",),
    )
    validation: bool = _idle(
        "disable_startup_validate",
        "there is no such check, and this changes nothing",
        "DISABLE_STARTUP_VALIDATE",
    )
    bind_watch: bool = _idle(
        "enable_gpu_bind_unbind_watch",
        "GPUs that come and go are always seen, and this changes nothing",
        "DCGM_EXPORTER_ENABLE_GPU_BIND_UNBIND_WATCH",
    )
    config_map: str = setting(
        "dcgm_exporter.configmap_data",
        only(("", "none"), "mount the ConfigMap, and name the file by --collectors"),
        "none",
        "cannot be honoured: mount the ConfigMap [DCGM_EXPORTER_CONFIGMAP_DATA]",
        flags=("-m", "--configmap-data"),
        metavar="none",
        variables=("DCGM_EXPORTER_CONFIGMAP_DATA",),
    )
    switches: str = setting(
        "dcgm_exporter.switch_devices",
        only(("f",), "NVSwitches are not read"),
        "f",
        "cannot be honoured: NVSwitches are not read [DCGM_EXPORTER_OTHER_DEVICES_STR]",
        flags=("-s", "--switch-devices"),
        metavar="f",
        variables=("DCGM_EXPORTER_OTHER_DEVICES_STR",),
    )
    cpus: str = setting(
        "dcgm_exporter.cpu_devices",
        only(("f",), "CPUs are not read"),
        "f",
        "cannot be honoured: CPUs are not read [DCGM_EXPORTER_CPU_DEVICES_STR]",
        flags=("-p", "--cpu-devices"),
        metavar="f",
        variables=("DCGM_EXPORTER_CPU_DEVICES_STR",),
    )
    web_config: str = setting(
        "dcgm_exporter.web_config_file",
        text,
        "",
        "--web.config.file [DCGM_EXPORTER_WEB_CONFIG_FILE]",
        flags=("--web-config-file",),
        metavar="FILE",
        variables=("DCGM_EXPORTER_WEB_CONFIG_FILE",),
        means=_as("web.config.file"),
        implies=_dcgm,
    )
    systemd_socket: bool = _refused(
        "web_systemd_socket",
        "sockets of systemd",
        "DCGM_EXPORTER_SYSTEMD_SOCKET",
        "sockets of systemd are not taken; use --listen-address",
    )
    fake_gpus: bool = _refused(
        "fake_gpus",
        "--source simulator has made-up GPUs",
        "DCGM_EXPORTER_USE_FAKE_GPUS",
        "use --source simulator",
    )
    xid_window: str = setting(
        "dcgm_exporter.xid_count_window_size",
        only(("",), _WINDOWS),
        "",
        "cannot be honoured: events of a window are not counted [DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE]",
        flags=("-x", "--xid-count-window-size"),
        metavar="MS",
        variables=("DCGM_EXPORTER_XID_COUNT_WINDOW_SIZE",),
    )
    clock_window: str = setting(
        "dcgm_exporter.clock_events_count_window_size",
        only(("",), _WINDOWS),
        "",
        "cannot be honoured: events of a window are not counted "
        "[DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE]",
        flags=("--clock-events-count-window-size",),
        metavar="MS",
        variables=("DCGM_EXPORTER_CLOCK_EVENTS_COUNT_WINDOW_SIZE",),
    )
    dcgm_log: bool = _refused(
        "enable_dcgm_log",
        "there is no DCGM to log",
        "DCGM_EXPORTER_ENABLE_DCGM_LOG",
        "there is no DCGM here; use --log-level debug",
    )
    dump: bool = _refused(
        "dump_enabled",
        "gpuledger record keeps what was read",
        "DCGM_EXPORTER_DUMP_ENABLED",
        "there are no dumps; gpuledger record FILE keeps what was read",
    )
    pprof: bool = _refused("enable_pprof", "it is Go's", "DCGM_EXPORTER_ENABLE_PPROF", "it is Go's")
