"""dcgm-exporter's flags and variables with their equivalents."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from re import fullmatch
from typing import Final

from gpuledger.config.compatibility import compatible, settings_group
from gpuledger.model.settings import boolean, choice, integer, text
from gpuledger.sources.settings import parse_group
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings

# Hosts up to the first dot. nvidia-dcgm is the GPU Operator's Service, which routes to the caller's own node.
_THIS_MACHINE: Final = frozenset({"", "localhost", "127", "::1", "nvidia-dcgm"})


def _parse_host_engine(value: object) -> str:
    """The address of this machine's DCGM host engine, `HOST[:PORT]`; ValueError for another machine."""
    written = text(value).strip()
    host = fullmatch(r"\[?(.*?)\]?(:\d+)?", written)
    if host is None or host[1].split(".", 1)[0] not in _THIS_MACHINE:
        raise ValueError(
            "expected an address of this machine such as localhost:5555: remote host engines are not "
            "supported; run gpuledger there"
        )
    return written


def _parse_label_patterns(value: object) -> str:
    """Label names, `*` at the end for a prefix, from regular expressions that match names or prefixes."""
    names = []
    for pattern in filter(None, (part.strip() for part in text(value).split(","))):
        plain = pattern.removeprefix("^").removesuffix("$").replace("\\.", ".")
        found = fullmatch(r"([\w./-]*?)(\.\*)?", plain)
        if found is None:
            raise ValueError(
                "expected names and prefixes such as ^app$ and ^team/.*; else use --pod-label-allowlist"
            )
        # A regular expression without $ matches longer names, too.
        open_end = found[2] is not None or not pattern.endswith("$")
        names.append(found[1] + ("*" if open_end else ""))
    return ",".join(names)


def _pod_label_implications(value: bool) -> Mapping[str, str]:
    return {"dialect": "dcgm"} | ({"kubernetes.pod_label_allowlist": "*"} if value else {})


def _resources(names: str) -> Mapping[str, str]:
    usual = PodResourcesSettings().resources
    return {"kubernetes.resources": ",".join((*usual, names))} if names else {}


_flag = partial(compatible, "dcgm_exporter")
# Flags that select the dialect.
_dcgm = partial(_flag, implies="dcgm")

# The flags and variables of dcgm-exporter 4.8 that have an equivalent. The flag --hpc-job-mapping-dir belongs
# to job_map.dir.
DcgmExporterSettings = settings_group(
    "DcgmExporterSettings",
    _dcgm("-f --collectors FILE [DCGM_EXPORTER_COLLECTORS]", "--dcgm.collectors", "dcgm.collectors"),
    _dcgm("-a --address ADDR [DCGM_EXPORTER_LISTEN]", "--listen-address", "listen_address", name="listen"),
    _dcgm(
        "-c --collect-interval MS [DCGM_EXPORTER_INTERVAL]",
        "--slow-interval, in milliseconds; other fields are read every --interval",
        lambda value: {"slow_interval": f"{value}ms"},
        integer(1, 3_600_000),
        name="interval",
    ),
    _dcgm(
        "-d f|g:LIST [DCGM_EXPORTER_DEVICES_STR]",
        "--devices, as f (all), g (all GPUs) or g:0,2-3",
        "devices",
        parse_group,
        name="devices",
    ),
    _dcgm(
        "-k --kubernetes [DCGM_EXPORTER_KUBERNETES]", "--kubernetes-enabled", "kubernetes.enabled", boolean
    ),
    _dcgm(
        "--kubernetes-gpu-id-type uid|device-name [DCGM_EXPORTER_KUBERNETES_GPU_ID_TYPE]",
        "no effect: GPU ids of device plugins are recognized in all forms",
        parse=choice("uid", "device-name"),
    ),
    _flag(
        "--kubernetes-enable-pod-labels [DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS]",
        "--dcgm.pod-labels; all labels without an allowlist",
        "dcgm.pod_labels",
        boolean,
        implies=_pod_label_implications,
    ),
    _dcgm(
        "--kubernetes-pod-label-allowlist-regex LIST [DCGM_EXPORTER_KUBERNETES_POD_LABEL_ALLOWLIST_REGEX]",
        "--pod-label-allowlist",
        "kubernetes.pod_label_allowlist",
        _parse_label_patterns,
    ),
    _dcgm(
        "--kubernetes-enable-pod-uid [DCGM_EXPORTER_KUBERNETES_ENABLE_POD_UID]",
        "--dcgm.pod-uid",
        "dcgm.pod_uid",
        boolean,
    ),
    _flag(
        "--nvidia-resource-names LIST [NVIDIA_RESOURCE_NAMES]",
        "--kubernetes-resources, in addition to its defaults",
        _resources,
    ),
    _flag(
        "--pod-resources-kubelet-socket PATH [DCGM_POD_RESOURCES_KUBELET_SOCKET]",
        "--pod-resources-socket",
        "kubernetes.pod_resources_socket",
    ),
    _flag(
        "--dcgm-exporter.hpc-job-mapping-dir DIR [DCGM_HPC_JOB_MAPPING_DIR]",
        "--hpc-job-mapping-dir",
        "job_map.dir",
    ),
    _dcgm(
        "-n --no-hostname [DCGM_EXPORTER_NO_HOSTNAME]",
        "--dcgm.hostname-label=false",
        lambda value: {"dcgm.hostname_label": "false" if value else "true"},
        boolean,
    ),
    _dcgm(
        "-o --use-old-namespace [DCGM_EXPORTER_USE_OLD_NAMESPACE]",
        "--dcgm.old-namespace",
        "dcgm.old_namespace",
        boolean,
    ),
    _dcgm(
        "--replace-blanks-in-model-name --rbmn [DCGM_EXPORTER_REPLACE_BLANKS_IN_MODEL_NAME]",
        "--dcgm.model-dashes",
        "dcgm.model_dashes",
        boolean,
        name="replace_blanks_in_model_name",
    ),
    _flag(
        "--debug [DCGM_EXPORTER_DEBUG]",
        "--log-level debug",
        lambda value: {"log.level": "debug"} if value else {},
        boolean,
    ),
    _flag(
        "-r --remote-hostengine-info ADDR [DCGM_REMOTE_HOSTENGINE_INFO]",
        "no effect: there is no host engine here; those of other machines are not supported",
        parse=_parse_host_engine,
    ),
    _dcgm("--web-config-file FILE [DCGM_EXPORTER_WEB_CONFIG_FILE]", "--web.config.file", "web.config.file"),
    _flag(
        "--web-systemd-socket [DCGM_EXPORTER_SYSTEMD_SOCKET]",
        "--systemd-socket",
        "systemd_socket",
        boolean,
        implies=lambda value: {"dialect": "dcgm"} if value else {},
    ),
)
