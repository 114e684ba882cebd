"""dcgm-exporter's flags and variables set their equivalents, or are errors with a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.app.flags import build_parser, parse_flags
from gpuledger.config.collectors import dcgm_settings, read_collectors
from gpuledger.config.commands import COLLECT_GROUPS, NODE_GROUPS
from gpuledger.config.load import load_values
from gpuledger.dialects.settings import DEFAULT_DIALECTS, DialectSettings
from gpuledger.http.settings import HttpSettings
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build_settings
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings


def settings(*arguments: str, groups: dict[str, type] = NODE_GROUPS, **variables: str) -> dict[str, Any]:
    given = parse_flags(build_parser("serve", "", "", groups), groups.values(), arguments, variables)
    return load_values(groups.values(), given.flags, variables, given.config)


def own_keys(values: dict[str, Any]) -> dict[str, Any]:
    """The values of gpuledger's own keys."""
    return {key: value for key, value in values.items() if not key.startswith("dcgm_exporter.")}


@pytest.mark.parametrize(
    ("arguments", "variable", "found"),
    [
        (["-f", "/etc/a.csv"], ("COLLECTORS", "/etc/a.csv"), {"dcgm.collectors": "/etc/a.csv"}),
        (["--collectors=/etc/a.csv"], None, {"dcgm.collectors": "/etc/a.csv"}),
        (["-c", "5000"], ("INTERVAL", "5000"), {"slow_interval": 5.0}),
        (["--collect-interval", "30000"], None, {"slow_interval": 30.0}),
        (["-k"], ("KUBERNETES", "true"), {"kubernetes.enabled": "true"}),
        (["-k=false"], ("KUBERNETES", "false"), {"kubernetes.enabled": "false"}),
        (["--kubernetes", "true"], None, {"kubernetes.enabled": "true"}),
        (["--kubernetes-gpu-id-type", "device-name"], ("KUBERNETES_GPU_ID_TYPE", "device-name"), {}),
        (
            ["--web-config-file", "/etc/web.yml"],
            ("WEB_CONFIG_FILE", "/etc/web.yml"),
            {"web.config.file": "/etc/web.yml"},
        ),
        (["-n"], ("NO_HOSTNAME", "1"), {"dcgm.hostname_label": False}),
        (["-o"], ("USE_OLD_NAMESPACE", "true"), {"dcgm.old_namespace": True}),
        (["-rbmn"], ("REPLACE_BLANKS_IN_MODEL_NAME", "true"), {"dcgm.model_dashes": True}),
        (["-d", "f"], ("DEVICES_STR", "f"), {}),
        (["-d", "g"], ("DEVICES_STR", "g"), {}),
        (["-d", "g:0,2-4"], ("DEVICES_STR", "g:0,2-4"), {"devices": ("0", "2", "3", "4")}),
        (["--kubernetes-enable-pod-uid"], ("KUBERNETES_ENABLE_POD_UID", "true"), {"dcgm.pod_uid": True}),
        (
            ["--kubernetes-enable-pod-labels"],
            ("KUBERNETES_ENABLE_POD_LABELS", "true"),
            {"dcgm.pod_labels": True, "kubernetes.pod_label_allowlist": ("*",)},
        ),
        (
            ["--kubernetes-pod-label-allowlist-regex", r"^app$,^team/.*"],
            ("KUBERNETES_POD_LABEL_ALLOWLIST_REGEX", r"^app$,^team/.*"),
            {"kubernetes.pod_label_allowlist": ("app", "team/*")},
        ),
    ],
)
def test_a_flag_and_its_variable_are_equivalent_and_select_the_dialect_dcgm(
    arguments: list[str], variable: tuple[str, str] | None, found: dict[str, Any]
) -> None:
    assert own_keys(settings(*arguments)) == {**found, "dialect": ("dcgm",)}
    if variable is not None:
        name, value = variable
        assert own_keys(settings(**{f"DCGM_EXPORTER_{name}": value})) == {**found, "dialect": ("dcgm",)}


def test_the_environment_of_the_documented_container_is_sufficient() -> None:
    values = settings(
        DCGM_EXPORTER_LISTEN=":9400",
        DCGM_EXPORTER_KUBERNETES="true",
        DCGM_EXPORTER_COLLECTORS="/etc/dcgm-exporter/whatap-dcgm-exporter.csv",
    )
    assert build_settings(DialectSettings, values).dialect == ("dcgm",)
    (listen,) = build_settings(HttpSettings, values).listen_address
    assert str(listen) == ":9400"
    assert dcgm_settings(values).collectors == "/etc/dcgm-exporter/whatap-dcgm-exporter.csv"


def test_a_configured_dialect_overrides_an_implied_one_of_dcgm_exporter() -> None:
    assert settings("-k", GPULEDGER_DIALECT="native")["dialect"] == ("native",)
    assert settings("--dialect", "native,dcgm", DCGM_EXPORTER_KUBERNETES="1")["dialect"] == ("native", "dcgm")


def test_variables_of_a_service_named_dcgm_exporter_are_ignored() -> None:
    values = settings(DCGM_EXPORTER_PORT="tcp://10.0.0.1:9400", DCGM_EXPORTER_SERVICE_HOST="10.0.0.1")
    assert values == {}
    assert build_settings(DialectSettings, values).dialect == DEFAULT_DIALECTS


def test_a_flag_overrides_a_variable_of_either_program() -> None:
    assert settings("-c", "2000", GPULEDGER_SLOW_INTERVAL="7s")["slow_interval"] == 2.0
    assert settings("--slow-interval", "7s", DCGM_EXPORTER_INTERVAL="2000")["slow_interval"] == 7.0


def test_in_one_place_the_name_of_gpuledger_overrides_the_alias() -> None:
    assert settings("--slow-interval", "7s", "-c", "2000")["slow_interval"] == 7.0
    assert settings(GPULEDGER_SLOW_INTERVAL="7s", DCGM_EXPORTER_INTERVAL="2000")["slow_interval"] == 7.0


def test_generic_variables_do_not_select_the_dialect() -> None:
    values = settings(
        NVIDIA_RESOURCE_NAMES="nvidia.com/a100,nvidia.com/a10",
        DCGM_POD_RESOURCES_KUBELET_SOCKET="unix:///run/kubelet.sock",
        DCGM_HPC_JOB_MAPPING_DIR="/run/jobs",
        DCGM_EXPORTER_LOG_FORMAT="text",
        KUBERNETES_VIRTUAL_GPUS="true",
        KUBERNETES_ENABLE_DRA="true",
        DCGM_EXPORTER_DEBUG="true",
    )
    usual = PodResourcesSettings().resources
    assert own_keys(values) == {
        "kubernetes.resources": (*usual, "nvidia.com/a100", "nvidia.com/a10"),
        "kubernetes.pod_resources_socket": "/run/kubelet.sock",
        "job_map.dir": "/run/jobs",
        "log.format": "logfmt",
        "log.level": "debug",
    }


@pytest.mark.parametrize(
    ("written", "devices"),
    [("f", ()), ("g", ()), (" f ", ()), ("g:0,2-4", ("0", "2", "3", "4")), ("0,GPU-f", ("0", "GPU-f"))],
)
def test_the_long_flag_of_devices_takes_both_forms(written: str, devices: tuple[str, ...]) -> None:
    assert settings("--devices", written)["devices"] == devices


def test_a_job_mapping_directory_adds_the_job_label_unless_disabled() -> None:
    assert dcgm_settings(settings("--hpc-job-mapping-dir", "/run/jobs")).job_label
    assert not dcgm_settings(settings("--hpc-job-mapping-dir=/a", "--dcgm.job-label=false")).job_label
    assert not dcgm_settings({}).job_label


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-m", "gpu:metrics"], "mount the ConfigMap"),
        (["-s", "s:0"], "NVSwitches are not read"),
        (["-p", "c"], "CPUs are not read"),
        (["-d", "i:0"], "MIG instances are exported with their GPU"),
        (["--devices", "i"], "MIG instances are exported with their GPU"),
        (["--devices", "g:0,9999"], "indices from 0 to 1023"),
        (["-d", "g:3-1"], "the lower one first"),
        (["-d", "g:0,9999"], "indices from 0 to 1023"),
        (["-d", "0,1"], "expected f, g or g:0,2-3"),
        (["-c", "50"], "at least 0.1 s"),
        (["-c", "soon"], "expected an integer"),
        (["-a", "nowhere"], "-a: expected an address such as"),
        (["-r", "gpu-node-3:5555"], "run gpuledger there"),
        (["-x", "60000"], "increase(DCGM_EXP_XID"),
        (["--clock-events-count-window-size", "1"], "increase(gpuledger_device_throttled"),
        (["--fake-gpus"], "--source simulator"),
        (["--enable-dcgm-log"], "--log-level debug"),
        (["--dump-enabled"], "record FILE"),
        (["--kubernetes-gpu-id-type", "index"], "uid, device-name"),
        (["--kubernetes-pod-label-allowlist-regex", "app|team"], "--pod-label-allowlist"),
    ],
)
def test_an_unsupported_flag_is_an_error_with_a_remedy(arguments: list[str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings(*arguments)
    assert words in str(caught.value)
    assert str(caught.value).startswith(arguments[0].split("=")[0] + ":")


@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "none"],
        ["-s", "f"],
        ["-p", "f"],
        ["-r", "localhost:5555"],
        ["-r", "[::1]:5555"],
        ["-r", "nvidia-dcgm.gpu-operator.svc:5555"],
        ["--fake-gpus=false"],
        ["--enable-pprof=false"],
        ["--kubernetes-virtual-gpus"],
        ["--disable-startup-validate"],
    ],
)
def test_flags_without_effect_are_accepted(arguments: list[str]) -> None:
    assert own_keys(settings(*arguments)) == {}


def test_an_error_names_the_variable() -> None:
    with pytest.raises(UsageError, match="DCGM_EXPORTER_INTERVAL: expected an integer"):
        settings(DCGM_EXPORTER_INTERVAL="30s")


def test_collect_ignores_variables_of_the_server() -> None:
    assert settings(groups=COLLECT_GROUPS, DCGM_EXPORTER_LISTEN=":9400") == {}


def test_extra_labels_are_pairs_and_not_labels_of_dcgm_exporter() -> None:
    assert dcgm_settings(settings("--dcgm.labels", "cluster=west,rack=7")).labels == (
        ("cluster", "west"),
        ("rack", "7"),
    )
    for wrong in ("west", "0=a", "__x=a", "pod=a", "DCGM_FI_DEV_NAME=x", "a=1,b=2,a=3"):
        with pytest.raises(UsageError, match=r"--dcgm\.labels: "):
            settings("--dcgm.labels", wrong)


def test_labels_and_schema_are_accepted_as_yaml_values(tmp_path: Any) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("dcgm: {schema: 4.9, labels: {cluster: west, rack: 007, row: null, at: 1:30}}\n")
    found = dcgm_settings(settings("--config", str(file)))
    assert found.schema == "4.9"
    assert found.labels == (("cluster", "west"), ("rack", "007"), ("row", ""), ("at", "1:30"))
    file.write_text("dcgm: {labels: {rack: [1]}}\n")
    with pytest.raises(UsageError, match=r"dcgm\.labels: expected text"):
        settings("--config", str(file))


def test_an_unreadable_collectors_file_is_an_error_that_names_it(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match=r"cannot read the collectors file .*none\.csv: No such file"):
        read_collectors(str(tmp_path / "none.csv"))
    huge = tmp_path / "huge.csv"
    huge.write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        read_collectors(str(huge))
