"""Who names the pods, by settings and by what answers; and what doctor says of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builders import FakeClock
from gpuledger.app.diagnosis import run_checks
from gpuledger.app.flags import parse, parser
from gpuledger.kubernetes.client import ApiClient
from gpuledger.kubernetes.settings import KubernetesSettings, is_enabled, node_name
from gpuledger.model.checks import Finding, Verdict
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build
from gpuledger.workloads.pods.checks import API, LOGS, NAMES, NODE, PODS, SLICES, kubernetes_checks
from gpuledger.workloads.pods.logs import PodNames, pod_logs, spare_logs
from gpuledger.workloads.pods.open import open_kubernetes
from gpuledger.workloads.pods.watch import PodWatch
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


def given(*words: str) -> KubernetesSettings:
    """The settings that a command line makes."""
    groups = {"Kubernetes": KubernetesSettings}
    flags = parse(parser("serve", "", "", groups), groups.values(), words, {}).flags
    from gpuledger.config.assemble import assemble

    return build(KubernetesSettings, assemble(groups.values(), flags, {}, None))


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
def test_kubernetes_is_on_where_it_is_seen_or_asked_for(
    words: tuple[str, ...], environment: dict[str, str], kubelet: bool, on: bool, tmp_path: Path
) -> None:
    folder = tmp_path if kubelet else tmp_path / "none"
    assert is_enabled(given(*words), environment, folder) is on


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("--kubernetes-enabled=maybe",), "auto, true or false"),
        (("--kubernetes-api", "10.0.0.1:6443"), "a URL such as"),
        (("--pod-label-allowlist", "a*b"), "only at the end"),
        (("--kubernetes-names", "dns"), "one of auto, api, logs, none"),
    ],
)
def test_a_wrong_setting_says_what_is_wanted(words: tuple[str, ...], wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        given(*words)


@pytest.mark.parametrize(
    ("flag", "environment", "name"),
    [("given", {"NODE_NAME": "env"}, "given"), ("", {"NODE_NAME": "env"}, "env"), ("", {}, "host-1.example")],
)
def test_the_node_is_named_by_flag_environment_or_hostname(
    flag: str, environment: dict[str, str], name: str
) -> None:
    assert node_name(flag, environment, "Host-1.example") == name


@pytest.mark.parametrize(
    ("words", "environment", "maps", "slices"),
    [
        ((), {}, ["pod_logs"], False),
        ((), IN_CLUSTER, ["pods", "pod_logs"], True),
        (("--kubernetes-names", "api"), IN_CLUSTER, ["pods"], True),
        (("--kubernetes-names", "logs"), IN_CLUSTER, ["pod_logs"], True),
        (("--kubernetes-names", "none"), IN_CLUSTER, [], True),
    ],
)
def test_the_maps_are_those_that_the_settings_ask_for(
    words: tuple[str, ...], environment: dict[str, str], maps: list[str], slices: bool
) -> None:
    made = open_kubernetes(given(*words), "node-1", environment, FakeClock())
    assert [one.health.name for one in made.pods.maps] == maps
    assert (made.slices is not None) is slices


def test_names_from_an_api_that_is_nowhere_are_refused() -> None:
    with pytest.raises(UsageError, match="there is no API server to ask"):
        open_kubernetes(given("--kubernetes-names", "api"), "node-1", {}, FakeClock())


def joined(server: ApiServer, files: Path) -> tuple[PodNames, PodWatch, Any]:
    watch = PodWatch(ApiClient(server.access), "node-1", clock=FakeClock(), random=NoWait())
    logs = spare_logs(watch, files, clock=FakeClock())
    return PodNames(watch, logs), watch, logs


def test_while_the_server_answers_the_log_files_are_not_read(server: ApiServer, files: Path) -> None:
    names, watch, logs = joined(server, files)
    logs.refresh()
    assert len(names.value) == 0
    server.watches.append(chunks())
    server.pods = [a_pod("u1")]
    watch._turn()
    logs.refresh()
    assert names.value is watch.value
    assert (len(names.value), len(logs.value), logs.health.success) == (1, 0, True)


def test_when_the_server_fails_the_log_files_stand_behind_what_it_said(
    server: ApiServer, files: Path
) -> None:
    names, watch, logs = joined(server, files)
    server.watches += [chunks(), status(500)]
    server.pods = [a_pod("u1")]
    watch._turn()
    watch._turn()
    logs.refresh()
    assert not watch.health.success
    value = names.value
    assert {pod.uid for pod in value} == {"u1", UID}
    assert value.container(ID)
    assert names.value is value


def test_without_any_map_there_are_no_pods() -> None:
    assert (len(PodNames().value), PodNames().maps) == (0, ())


def test_log_files_alone_are_a_map_too(files: Path) -> None:
    logs = pod_logs(files, clock=FakeClock())
    names = PodNames(logs=logs)
    logs.refresh()
    assert names.value is logs.value
    assert names.maps == (logs,)


def test_where_kubernetes_is_off_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys; import gpuledger.kubernetes.settings, gpuledger.workloads.pods.open\n"
        "print({'ssl', 'h11', 'json', 'yaml'} & set(sys.modules) or 'none')"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "none"


def look(
    *words: str, environment: dict[str, str] | None = None, kubelet: Path = Path("/nowhere")
) -> dict[str, Finding]:
    checks = kubernetes_checks(given(*words), "node-1", environment or {}, kubelet=kubelet)
    return {finding.check: finding for finding in run_checks(checks)}


def test_doctor_is_silent_where_there_is_no_kubernetes() -> None:
    found = look()
    assert [(one.check, one.verdict) for one in found.values()] == [(NAMES, Verdict.SKIPPED)]


def test_doctor_finds_all_well(server: ApiServer, files: Path) -> None:
    server.pods = [a_pod("u1"), a_pod("u2", "two")]
    server.watches.append(chunks())
    found = look("--kubernetes-api", server.access.url, "--pod-logs", str(files))
    assert {one.verdict for check, one in found.items() if check != SLICES} == {Verdict.WORKS}
    assert found[NODE].why == "2 pods on node-1"
    assert found[NAMES].why == "from the API server"
    assert found[SLICES].verdict is Verdict.SKIPPED


def test_doctor_tells_the_missing_rule_and_whether_the_files_stand_in(server: ApiServer, files: Path) -> None:
    message = 'User "system:serviceaccount:a:b" cannot list'
    for logs, verdict, names in (
        (files, Verdict.WARNING, "from the names of log files"),
        (files / "none", Verdict.FAILS, "from nowhere"),
    ):
        server.lists.append(status(403, message))
        found = look("--kubernetes-api", server.access.url, "--pod-logs", str(logs))
        assert found[API].verdict is Verdict.WORKS
        assert found[PODS].verdict is verdict
        assert 'resources: ["pods"], verbs: ["list", "watch"]' in found[PODS].remedy
        assert found[NAMES].why.startswith(names)


def test_doctor_tells_that_watching_alone_is_forbidden(server: ApiServer, files: Path) -> None:
    server.pods = [a_pod()]
    server.watches.append(status(403))
    found = look("--kubernetes-api", server.access.url, "--pod-logs", str(files))
    assert found[PODS].verdict is Verdict.WARNING
    assert "listed, but not watched" in found[PODS].why


def test_doctor_doubts_a_node_name_without_pods(server: ApiServer) -> None:
    server.watches.append(chunks())
    found = look("--kubernetes-api", server.access.url)
    assert found[NODE].verdict is Verdict.WARNING
    assert "--node-name" in found[NODE].remedy


def test_doctor_tells_a_server_that_is_not_there_and_skips_what_it_would_say(tmp_path: Path) -> None:
    with serving() as gone:
        url = gone.access.url
    found = look("--kubernetes-api", url, "--pod-logs", str(tmp_path / "none"))
    assert found[API].verdict is Verdict.FAILS
    assert {found[PODS].verdict, found[SLICES].verdict} == {Verdict.SKIPPED}


def test_doctor_tells_log_files_that_are_not_mounted(tmp_path: Path) -> None:
    found = look("--pod-logs", str(tmp_path / "none"), kubelet=tmp_path)
    assert found[LOGS].verdict is Verdict.FAILS
    assert "mount the node's /var/log" in found[LOGS].remedy
    assert found[API].verdict is Verdict.SKIPPED


def test_doctor_tells_links_of_containers_that_are_not_mounted(files: Path) -> None:
    (files / f"containers/logged_ml_main-{ID}.log").unlink()
    found = look("--pod-logs", str(files), kubelet=files)
    assert found[LOGS].verdict is Verdict.WARNING
    assert "mount all of the node's /var/log" in found[LOGS].remedy
