"""dcgm-exporter's flags and variables mean here what they meant there, or are errors that say what to do."""

from __future__ import annotations

from typing import Any

import pytest

from gpuledger.app.flags import parse, parser
from gpuledger.config.assemble import assemble
from gpuledger.config.dcgm import dcgm_settings, read_collectors
from gpuledger.config.node import COLLECT, NODE
from gpuledger.dialects.settings import DEFAULT, DialectSettings
from gpuledger.http.settings import HttpSettings
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build
from gpuledger.workloads.pod_resources.settings import PodResourcesSettings


def settings(*arguments: str, groups: dict[str, type] = NODE, **variables: str) -> dict[str, Any]:
    given = parse(parser("serve", "", "", groups), groups.values(), arguments, variables)
    return assemble(groups.values(), given.flags, variables, given.config)


def means(values: dict[str, Any]) -> dict[str, Any]:
    """What was set by gpuledger's own keys."""
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
def test_a_flag_and_its_variable_set_the_same_and_make_metrics_dcgm(
    arguments: list[str], variable: tuple[str, str] | None, found: dict[str, Any]
) -> None:
    assert means(settings(*arguments)) == {**found, "dialect": ("dcgm",)}
    if variable is not None:
        name, value = variable
        assert means(settings(**{f"DCGM_EXPORTER_{name}": value})) == {**found, "dialect": ("dcgm",)}


def test_the_environment_of_the_documents_container_is_all_that_is_needed() -> None:
    values = settings(
        DCGM_EXPORTER_LISTEN=":9400",
        DCGM_EXPORTER_KUBERNETES="true",
        DCGM_EXPORTER_COLLECTORS="/etc/dcgm-exporter/whatap-dcgm-exporter.csv",
    )
    assert build(DialectSettings, values).dialect == ("dcgm",)
    (listen,) = build(HttpSettings, values).listen_address
    assert str(listen) == ":9400"
    assert dcgm_settings(values).collectors == "/etc/dcgm-exporter/whatap-dcgm-exporter.csv"


def test_a_dialect_that_is_asked_for_beats_one_that_is_implied() -> None:
    assert settings("-k", GPULEDGER_DIALECT="native")["dialect"] == ("native",)
    assert settings("--dialect", "native,dcgm", DCGM_EXPORTER_KUBERNETES="1")["dialect"] == ("native", "dcgm")


def test_a_service_called_dcgm_exporter_changes_nothing() -> None:
    values = settings(DCGM_EXPORTER_PORT="tcp://10.0.0.1:9400", DCGM_EXPORTER_SERVICE_HOST="10.0.0.1")
    assert values == {}
    assert build(DialectSettings, values).dialect == DEFAULT


def test_a_flag_beats_a_variable_whichever_program_it_is_of() -> None:
    assert settings("-c", "2000", GPULEDGER_SLOW_INTERVAL="7s")["slow_interval"] == 2.0
    assert settings("--slow-interval", "7s", DCGM_EXPORTER_INTERVAL="2000")["slow_interval"] == 7.0


def test_in_one_place_gpuledgers_own_name_beats_the_others() -> None:
    assert settings("--slow-interval", "7s", "-c", "2000")["slow_interval"] == 7.0
    assert settings(GPULEDGER_SLOW_INTERVAL="7s", DCGM_EXPORTER_INTERVAL="2000")["slow_interval"] == 7.0


def test_variables_without_dcgm_in_their_purpose_do_not_choose_the_dialect() -> None:
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
    assert means(values) == {
        "kubernetes.resources": (*usual, "nvidia.com/a100", "nvidia.com/a10"),
        "kubernetes.pod_resources_socket": "/run/kubelet.sock",
        "job_map.dir": "/run/jobs",
        "log.format": "logfmt",
        "log.level": "debug",
    }


def test_who_has_jobs_by_gpu_gets_them_as_labels_unless_they_are_refused() -> None:
    assert dcgm_settings(settings("--hpc-job-mapping-dir", "/run/jobs")).job_label
    assert not dcgm_settings(settings("--hpc-job-mapping-dir=/a", "--dcgm.job-label=false")).job_label
    assert not dcgm_settings({}).job_label


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-m", "gpu:metrics"], "mount the ConfigMap"),
        (["-s", "s:0"], "NVSwitches are not read"),
        (["-p", "c"], "CPUs are not read"),
        (["-d", "i:0"], "instances are told beside their GPU"),
        (["-d", "g:3-1"], "the lower first"),
        (["-d", "g:0,9999"], "indices from 0 to 1023"),
        (["-d", "0,1"], "g:0,2-3 is wanted"),
        (["-c", "50"], "at least 0.1 s"),
        (["-c", "soon"], "a whole number"),
        (["-a", "nowhere"], "-a: an address such as"),
        (["-r", "gpu-node-3:5555"], "run gpuledger there"),
        (["-x", "300000"], "increase"),
        (["--fake-gpus"], "--source simulator"),
        (["--web-systemd-socket=true"], "--listen-address"),
        (["--enable-dcgm-log"], "--log-level debug"),
        (["--dump-enabled"], "record FILE"),
        (["--kubernetes-gpu-id-type", "index"], "uid, device-name"),
        (["--kubernetes-pod-label-allowlist-regex", "app|team"], "--pod-label-allowlist"),
    ],
)
def test_what_cannot_be_honoured_is_an_error_that_says_what_to_do(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings(*arguments)
    assert said in str(caught.value)
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
def test_what_asks_for_nothing_is_taken(arguments: list[str]) -> None:
    assert means(settings(*arguments)) == {}


def test_an_error_names_the_variable_that_was_set() -> None:
    with pytest.raises(UsageError, match="DCGM_EXPORTER_INTERVAL: a whole number"):
        settings(DCGM_EXPORTER_INTERVAL="30s")


def test_a_command_that_writes_a_file_does_not_take_them() -> None:
    assert settings(groups=COLLECT, DCGM_EXPORTER_LISTEN=":9400") == {}


def test_extra_labels_are_pairs_and_none_of_dcgm_exporters() -> None:
    assert dcgm_settings(settings("--dcgm.labels", "cluster=west,rack=7")).labels == (
        ("cluster", "west"),
        ("rack", "7"),
    )
    for wrong in ("west", "0=a", "__x=a", "pod=a", "DCGM_FI_DEV_NAME=x"):
        with pytest.raises(UsageError, match=r"--dcgm\.labels: "):
            settings("--dcgm.labels", wrong)


def test_labels_and_schema_can_be_written_as_yaml_has_them(tmp_path: Any) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("dcgm: {schema: 4.9, labels: {cluster: west}}\n")
    found = dcgm_settings(settings("--config", str(file)))
    assert (found.schema, found.labels) == ("4.9", (("cluster", "west"),))


def test_a_collectors_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Any) -> None:
    with pytest.raises(UsageError, match=r"cannot read the collectors file .*none\.csv: No such file"):
        read_collectors(str(tmp_path / "none.csv"))
    huge = tmp_path / "huge.csv"
    huge.write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(UsageError, match="larger than 1 MiB"):
        read_collectors(str(huge))
