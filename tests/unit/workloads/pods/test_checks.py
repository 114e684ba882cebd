"""Sources of pod names by settings and availability, and the checks of `doctor` for them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders import FakeClock
from gpuledger.app.diagnosis import run_checks
from gpuledger.app.flags import build_parser, parse_flags
from gpuledger.kubernetes.api_client import ApiClient
from gpuledger.kubernetes.settings import KubernetesSettings, is_kubernetes_enabled, node_name
from gpuledger.model.checks import Finding, Verdict
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build_settings
from gpuledger.workloads.owner_index_setup import open_kubernetes_indexes
from gpuledger.workloads.pods.checks import (
    API,
    LOGS,
    NAMES,
    NODE,
    PODS,
    SLICES,
    kubernetes_checks,
    read_claims,
)
from gpuledger.workloads.pods.claims import NO_CLAIMS, ClaimUse
from gpuledger.workloads.pods.pod_logs import PodIndexes, open_pod_log_index
from gpuledger.workloads.pods.pod_watch import PodWatch
from pods_server import ApiServer, NoWait, a_pod, chunks, serving, status

UID, ID = "0f3c1f0e-1111-4222-8333-444455556666", "a" * 64
IN_CLUSTER = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with serving() as running:
        yield running


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """/var/log of a node with one pod."""
    (tmp_path / f"pods/ml_logged_{UID}/main").mkdir(parents=True)
    (tmp_path / "containers").mkdir()
    link = tmp_path / f"containers/logged_ml_main-{ID}.log"
    link.symlink_to(f"/var/log/pods/ml_logged_{UID}/main/0.log")
    return tmp_path


def settings_from(*words: str) -> KubernetesSettings:
    """The settings of a command line."""
    groups = {"Kubernetes": KubernetesSettings}
    flags = parse_flags(build_parser("serve", "", "", groups), groups.values(), words, {}).flags
    from gpuledger.config.load import load_values

    return build_settings(KubernetesSettings, load_values(groups.values(), flags, {}, None))


@pytest.mark.parametrize(
    ("words", "environment", "kubelet", "on"),
    [
        ((), {}, False, False),
        ((), IN_CLUSTER, False, True),
        ((), {}, True, True),
        (("--kubernetes-api", "https://k"), {}, False, True),
        (("--kubernetes-enabled",), {}, False, True),
        (("--kubernetes-enabled", "true"), {}, False, True),
        (("-kubernetes-enabled=false",), IN_CLUSTER, True, False),
        (("--kubernetes-enabled", "false"), IN_CLUSTER, True, False),
        (("--kubernetes-enabled=auto",), {}, True, True),
        (("--kubernetes-enabled", "auto"), {}, True, True),
        (("--kubernetes-enabled", "auto"), {}, False, False),
    ],
)
def test_kubernetes_is_enabled_if_detected_or_configured(
    words: tuple[str, ...], environment: dict[str, str], kubelet: bool, on: bool, tmp_path: Path
) -> None:
    folder = tmp_path if kubelet else tmp_path / "none"
    assert is_kubernetes_enabled(settings_from(*words), environment, folder) is on


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--kubernetes-enabled=maybe",), "auto, true or false"),
        (("--kubernetes-api", "10.0.0.1:6443"), "a URL such as"),
        (("--pod-label-allowlist", "a*b"), "only at the end"),
        (("--kubernetes-names", "dns"), "one of auto, api, logs, none"),
    ],
)
def test_an_invalid_setting_says_what_is_expected(words: tuple[str, ...], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        settings_from(*words)


@pytest.mark.parametrize(
    ("flag", "environment", "name"),
    [("given", {"NODE_NAME": "env"}, "given"), ("", {"NODE_NAME": "env"}, "env"), ("", {}, "host-1.example")],
)
def test_the_node_name_comes_from_flag_environment_or_hostname(
    flag: str, environment: dict[str, str], name: str
) -> None:
    assert node_name(flag, environment, "Host-1.example") == name


@pytest.mark.parametrize(
    ("words", "environment", "indexes", "slices"),
    [
        ((), {}, ["pod_logs"], False),
        ((), IN_CLUSTER, ["pods", "pod_logs"], True),
        (("--kubernetes-names", "api"), IN_CLUSTER, ["pods"], True),
        (("--kubernetes-names", "logs"), IN_CLUSTER, ["pod_logs"], True),
        (("--kubernetes-names", "none"), IN_CLUSTER, [], True),
    ],
)
def test_the_settings_select_the_indexes(
    words: tuple[str, ...], environment: dict[str, str], indexes: list[str], slices: bool
) -> None:
    pods, opened = open_kubernetes_indexes(settings_from(*words), "node-1", environment, FakeClock())
    assert [one.health.name for one in pods.indexes] == indexes
    assert (opened is not None) is slices


def test_names_from_a_missing_api_server_are_refused() -> None:
    with pytest.raises(UsageError, match="needs an API server"):
        open_kubernetes_indexes(settings_from("--kubernetes-names", "api"), "node-1", {}, FakeClock())


def open_indexes(server: ApiServer, files: Path) -> tuple[PodIndexes, PodWatch, Any]:
    watch = PodWatch(ApiClient(server.access), "node-1", clock=FakeClock(), random=NoWait())
    logs = open_pod_log_index(files, watch, clock=FakeClock())
    return PodIndexes(watch, logs), watch, logs


def test_log_files_are_not_read_while_the_server_responds(server: ApiServer, files: Path) -> None:
    names, watch, logs = open_indexes(server, files)
    logs.refresh()
    assert len(names.value) == 0
    server.watches.append(chunks())
    server.pods = [a_pod("u1")]
    watch._list_and_watch()
    logs.refresh()
    assert names.value is watch.value
    assert (len(names.value), len(logs.value), logs.health.success) == (1, 0, True)


def test_log_files_add_pods_while_the_server_fails(server: ApiServer, files: Path) -> None:
    names, watch, logs = open_indexes(server, files)
    server.watches += [chunks(), status(500)]
    server.pods = [a_pod("u1")]
    watch._list_and_watch()
    watch._list_and_watch()
    logs.refresh()
    assert not watch.health.success
    value = names.value
    assert {pod.uid for pod in value} == {"u1", UID}
    assert value.by_container(ID)
    assert names.value is value


def test_without_indexes_there_are_no_pods() -> None:
    assert (len(PodIndexes().value), PodIndexes().indexes) == (0, ())


def test_pods_can_come_from_log_files_alone(files: Path) -> None:
    logs = open_pod_log_index(files, clock=FakeClock())
    names = PodIndexes(logs=logs)
    logs.refresh()
    assert names.value is logs.value
    assert names.indexes == (logs,)


def test_heavy_modules_are_not_loaded_without_kubernetes() -> None:
    code = (
        "import sys; import gpuledger.kubernetes.settings, gpuledger.workloads.owner_index_setup\n"
        "print({'ssl', 'h11', 'json', 'yaml'} & set(sys.modules) or 'none')"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "none", "import these inside the function that uses them"


def findings(
    *words: str, environment: dict[str, str] | None = None, kubelet: Path = Path("/nowhere")
) -> dict[str, Finding]:
    checks = kubernetes_checks(settings_from(*words), "node-1", environment or {}, kubelet=kubelet)
    return {finding.check: finding for finding in run_checks(checks)}


def test_doctor_skips_pod_checks_without_kubernetes() -> None:
    found = findings()
    assert [(one.check, one.verdict) for one in found.values()] == [(NAMES.check, Verdict.SKIPPED)]


def test_doctor_passes_with_a_working_server_and_log_files(server: ApiServer, files: Path) -> None:
    server.pods = [a_pod("u1"), a_pod("u2", "two")]
    server.watches.append(chunks())
    found = findings("--kubernetes-api", server.access.url, "--pod-logs", str(files))
    assert {one.verdict for check, one in found.items() if check != SLICES.check} == {Verdict.WORKS}
    assert found[NODE.check].why == "2 pods on node-1"
    assert found[NAMES.check].why == "from the API server"
    assert found[SLICES.check].verdict is Verdict.SKIPPED


def test_doctor_reports_the_missing_rule_and_whether_log_files_are_used(
    server: ApiServer, files: Path
) -> None:
    message = 'User "system:serviceaccount:a:b" cannot list'
    for logs, verdict, names in (
        (files, Verdict.WARNING, "from the names of log files"),
        (files / "none", Verdict.FAILS, "not known"),
    ):
        server.lists.append(status(403, message))
        found = findings("--kubernetes-api", server.access.url, "--pod-logs", str(logs))
        assert found[API.check].verdict is Verdict.WORKS
        assert found[PODS.check].verdict is verdict
        assert 'resources: ["pods"], verbs: ["list", "watch"]' in found[PODS.check].remedy
        assert found[NAMES.check].why.startswith(names)


def test_doctor_reports_a_missing_permission_to_watch(server: ApiServer, files: Path) -> None:
    server.pods = [a_pod()]
    server.watches.append(status(403))
    found = findings("--kubernetes-api", server.access.url, "--pod-logs", str(files))
    assert found[PODS.check].verdict is Verdict.WARNING
    assert "listed, but not watched" in found[PODS.check].why


def test_doctor_warns_about_a_node_name_without_pods(server: ApiServer) -> None:
    server.watches.append(chunks())
    found = findings("--kubernetes-api", server.access.url)
    assert found[NODE.check].verdict is Verdict.WARNING
    assert "--node-name" in found[NODE.check].remedy


def test_doctor_reports_an_unreachable_server_and_skips_its_checks(tmp_path: Path) -> None:
    with serving() as gone:
        url = gone.access.url
    found = findings("--kubernetes-api", url, "--pod-logs", str(tmp_path / "none"))
    assert found[API.check].verdict is Verdict.FAILS
    assert {found[PODS.check].verdict, found[SLICES.check].verdict} == {Verdict.SKIPPED}


def test_doctor_reports_log_files_that_are_not_mounted(tmp_path: Path) -> None:
    found = findings("--pod-logs", str(tmp_path / "none"), kubelet=tmp_path)
    assert found[LOGS.check].verdict is Verdict.FAILS
    assert "mount the node's /var/log" in found[LOGS.check].remedy
    assert found[API.check].verdict is Verdict.SKIPPED


def test_doctor_reports_container_links_that_are_not_mounted(files: Path) -> None:
    (files / f"containers/logged_ml_main-{ID}.log").unlink()
    found = findings("--pod-logs", str(files), kubelet=files)
    assert found[LOGS.check].verdict is Verdict.WARNING
    assert "mount all of the node's /var/log" in found[LOGS.check].remedy


def test_without_an_api_server_claims_in_use_are_not_known() -> None:
    settings, used = KubernetesSettings(), (ClaimUse(("ops", "all"), "watch-1"),)
    assert read_claims(settings, {}, FakeClock(), ()) == (NO_CLAIMS, None)
    claims, error = read_claims(settings, {}, FakeClock(), used)
    assert (claims, "no API server" in str(error)) == (NO_CLAIMS, True)
