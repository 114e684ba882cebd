"""A real Prometheus scrapes the chart's exporter with the configuration that Prometheus Operator makes of the
chart's ServiceMonitor or PodMonitor.

Not real: service discovery. Static targets carry the `__meta_kubernetes_*` labels that the rendered Service
and DaemonSet would give them in a cluster. Prometheus runs the relabelings of the operator and of the chart.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import bcrypt
import pytest
import yaml

from certificates import Certificates
from chart import MATRIX, main_container, of_kind, render
from dashboards import EVERYTHING, FIXED, PanelQuery, each_dashboard, panel, panel_queries, substituted
from integration.test_chart_runs import local_command, put_files
from monitors import (
    DEFAULT,
    OPENSHIFT_USER_WORKLOAD,
    OperatedPrometheus,
    SecretKey,
    scrape_configs,
    with_static_targets,
)
from nvml.library import NvmlGpu, NvmlState, build
from running import Program, Prometheus, free_port, get, prometheus, wait_for_each, wait_until
from service_discovery import Target, daemonset_pod, endpoint_targets, pod_targets
from stack import COLLECTORS

pytestmark = pytest.mark.group("monitors")


class Owner(NamedTuple):
    """Namespace and pod of a process."""

    namespace: str
    pod: str


SIMULATED = {"source": "simulator"}
KINDS = {"ServiceMonitor": "serviceMonitor", "PodMonitor": "podMonitor"}
# The owner of process 20351 of the simulated node.
OWNER = Owner("vision", "detector-api-6c9d7f5b8-x2k4m")
FAST = {"enabled": True, "interval": "1s", "scrapeTimeout": "1s"}
# The chart's default namespace of `render`.
NAMESPACE = "gpus"
MONITORED = {
    name: values
    for name, values in MATRIX.items()
    if any(values.get(key, {}).get("enabled") for key in KINDS.values())
}


def targets(values: Mapping[str, Any], address: str = "127.0.0.1", node: str = "node-1") -> list[Target]:
    """All targets that Prometheus discovers for the monitor of the chart."""
    (workload,) = of_kind("DaemonSet", values)
    pod = daemonset_pod(workload, node=node, address=address)
    if of_kind("PodMonitor", values):
        return pod_targets(pod)
    return [target for one in of_kind("Service", values) for target in endpoint_targets(one, pod)]


def monitor(values: Mapping[str, Any]) -> dict[str, Any]:
    (found,) = [one for one in render(values) if one["kind"] in KINDS]
    return found


def secrets_of(*keys: str, **texts: str) -> dict[SecretKey, str]:
    """The Secret `scrape` with these entries; those of `keys` have any text."""
    entries = {**dict.fromkeys(keys, "text"), **texts}
    return {(NAMESPACE, "scrape", key): text for key, text in entries.items()}


def configuration(
    values: Mapping[str, Any],
    folder: Path,
    operated: OperatedPrometheus = DEFAULT,
    found: Sequence[Target] | None = None,
) -> str:
    """Configuration of the operator's Prometheus, with the rules of the chart, evaluated every second."""
    rules = [group for one in of_kind("PrometheusRule", values) for group in one["spec"]["groups"]]
    file = folder / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{**group, "interval": "1s"} for group in rules]}))
    configs = scrape_configs(monitor(values), operated)
    discovered = targets(values) if found is None else found
    return str(
        yaml.safe_dump(
            {
                "global": operated.global_section(),
                "rule_files": [str(file)],
                "scrape_configs": [with_static_targets(config, discovered) for config in configs],
            },
            sort_keys=False,
        )
    )


@contextmanager
def exporter(values: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Iterator[Program]:
    """The chart's exporter with its arguments and files, on this machine."""
    with tempfile.TemporaryDirectory(prefix="gpuledger-chart-") as folder:
        put_files(dict(values), Path(folder))
        settings = Path(folder, "gpuledger.yaml")
        settings.write_text(settings.read_text().replace("/etc/gpuledger/config", folder))
        # Without this, all exporters of the machine would share its ledger.
        kept = str(values.get("state", {}).get("dir", folder))
        command = local_command(main_container(values)["args"], Path(folder))
        program = Program([word.replace("/var/lib/gpuledger", kept) for word in command], env, prepared=True)
        try:
            program.wait_line("listening on")
            yield program
        finally:
            assert program.stop() == 0


# Series of the same exporter without the labels of a cluster, to compare with.
PLAIN = """
global: {{scrape_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: gpuledger
    honor_labels: true
    static_configs: [{{targets: ["{address}"], labels: {{node: node-1}}}}]
"""


@dataclass(frozen=True)
class InstalledChart:
    """The chart with this kind of monitor, the operator's Prometheus, and one with a plain configuration."""

    kind: str
    values: Mapping[str, Any]
    real: Prometheus
    plain: Prometheus

    @property
    def instance(self) -> str:
        return f"127.0.0.1:{self.values['port']}"

    def series(self, selector: str) -> list[dict[str, str]]:
        """Labels of the series that the operator's Prometheus selects."""
        return labels_of(self.real, selector)


def labels_of(real: Prometheus, expression: str) -> list[dict[str, str]]:
    rows: list[Any] = list(real.query(expression))
    return [row["metric"] for row in rows]


@pytest.fixture(scope="module", params=KINDS)
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[InstalledChart]:
    values = {
        **SIMULATED,
        "port": free_port(),
        "extraPorts": [{"name": "smi", "port": free_port(), "dialects": ["smi"], "scrape": False}],
        "dialect": ["native", "process", "session", "energy", "dcgm"],
        "dcgm": {"collectors": COLLECTORS.read_text()},
        "config": {"interval": "500ms", "energy.zero_hold": "2s"},
        "rules": {"enabled": True},
        # With the alerts of busy machines.
        "mode": "daemonset",
        "gpu-session-monitoring": {"enabled": True},
        KINDS[request.param]: FAST,
    }
    folder = tmp_path_factory.mktemp("monitors")
    with (
        exporter(values),
        prometheus(configuration(values, folder)) as real,
        prometheus(PLAIN.format(address=f"127.0.0.1:{values['port']}", rules=folder / "rules.yml")) as plain,
    ):
        real.wait_query('ALERTS{alertname="LongRunningGPUProcess"}')
        for each in (real, plain):
            each.wait_query("rate(gpuledger_energy_joules_total[5m])")
        yield InstalledChart(request.param, values, real, plain)


@pytest.mark.parametrize("values", MONITORED.values(), ids=MONITORED)
def test_promtool_accepts_the_scrape_configuration(values: Mapping[str, Any], tmp_path: Path) -> None:
    """With static targets: Debian's Prometheus 2.42 is built without service discovery of Kubernetes."""
    operated = OperatedPrometheus(secrets=secrets_of("user", "word"))
    file = tmp_path / "prometheus.yml"
    file.write_text(configuration(values, tmp_path, operated))
    done = subprocess.run(["promtool", "check", "config", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_monitor_scrapes_with_tls_and_a_password(kind: str, tmp_path: Path) -> None:
    """The operator writes the certificate into a file and the password into the configuration."""
    made = Certificates(tmp_path)
    secret = {"name": "scrape", "key": "ca"}
    values = {
        **SIMULATED,
        "port": free_port(),
        "web": {
            "config": {
                "tls_server_config": {
                    "cert_file": str(made.crt("server")),
                    "key_file": str(made.key("server")),
                },
                "basic_auth_users": {"prometheus": bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()},
            }
        },
        KINDS[kind]: {
            **FAST,
            "tlsConfig": {"ca": {"secret": secret}, "serverName": "localhost"},
            "basicAuth": {part: {"name": "scrape", "key": part} for part in ("username", "password")},
        },
    }
    (tmp_path / f"secret_{NAMESPACE}_scrape_ca").write_text(made.crt("ca").read_text())
    operated = OperatedPrometheus(
        certificates=str(tmp_path),
        secrets=secrets_of(username="prometheus", password="secret"),
    )
    with exporter(values), prometheus(configuration(values, tmp_path, operated)) as real:
        real.wait_query("up == 1")


def test_openshift_renames_labels_of_owners(tmp_path: Path) -> None:
    """Its Prometheus for user workloads overrides honorLabels and enforces the namespace."""
    values = {**SIMULATED, "port": free_port(), "serviceMonitor": FAST}
    with exporter(values), prometheus(configuration(values, tmp_path, OPENSHIFT_USER_WORKLOAD)) as real:
        real.wait_query("gpuledger_process_info")
        (process,) = labels_of(real, 'gpuledger_process_info{pid="20351"}')
        assert (process["namespace"], process["pod"]) == (NAMESPACE, "gpuledger-node-1")
        assert (process["exported_namespace"], process["exported_pod"]) == (OWNER.namespace, OWNER.pod)


def replaced_pods(kind: str, ports: Sequence[int], folder: Path) -> dict[str, Any]:
    """The operator's configuration for the old and the new pod of a node."""
    name = KINDS[kind]
    values = {**SIMULATED, "rules": {"enabled": True}, name: FAST}
    found = []
    for pod, port in zip(("gpuledger-old", "gpuledger-new"), ports, strict=True):
        found += [{**one, "__meta_kubernetes_pod_name": pod} for one in targets({**values, "port": port})]
    return dict(yaml.safe_load(configuration(values, folder, found=found)))


def test_the_energy_of_a_replaced_pod_is_that_of_its_ledger(tmp_path: Path) -> None:
    """Also with two scrapers: the ServiceMonitor and the PodMonitor. The next pod continues the ledger."""
    ports = (free_port(), free_port())
    first, second = (replaced_pods(kind, ports, tmp_path) for kind in KINDS)
    first["scrape_configs"] += second["scrape_configs"]
    settings = {"config": {"interval": "500ms", "energy.zero_hold": "3s"}, "serviceMonitor": FAST}
    state = {"source": "nvml", **settings, "state": {"dir": str(tmp_path / "state")}}
    card = NvmlGpu(energy=1_000_000, power=200_000)
    driver = NvmlState(tmp_path / "driver", [card]).write()
    env = {"LD_LIBRARY_PATH": str(build().parent), "TEST_NVML_STATE": str(driver.path)}
    energy = "gpuledger_device_energy_joules_total"

    def scrapes(port: int) -> str:
        return f'min(count_over_time(gpuledger_ticks_total{{instance="127.0.0.1:{port}"}}[1m])) > 8'

    with prometheus(str(yaml.safe_dump(first))) as real:
        started = time.monotonic()
        with exporter({**state, "port": ports[0]}, env):
            ((_, begins),) = (row["value"][::-1] for row in real.wait_query(f"count({energy})"))
            real.wait_query(scrapes(ports[0]))
        # The test library counts from each start of the program: 200 W in mJ/s.
        card.numbers["energy"] += int(200_000 * (time.monotonic() - started))
        driver.write()
        with exporter({**state, "port": ports[1]}, env):
            real.wait_query(scrapes(ports[1]))
            ends = time.time()
        both = {one["instance"] for one in labels_of(real, f"last_over_time({energy}[1m])")}
        assert both == {f"127.0.0.1:{port}" for port in ports}
        window = f"[{int(ends - begins)}s] @ {ends:.3f}"

        def number(expression: str) -> float:
            (row,) = real.query(expression)
            return float(row["value"][1])

        at = [f"sum(max by (uuid) ({energy} @ {moment:.3f}))" for moment in (ends, begins)]
        booked = number(" - ".join(at))
        title = panel("gpuledger-energy", "GPU energy")["targets"][0]["expr"]
        shown = number(substituted(title, {**FIXED, **EVERYTHING}).replace(f"[{FIXED['__range']}]", window))
        assert shown == pytest.approx(booked / 3.6e6, rel=0.1)


# From here on with `installed`, which runs until the end.
def test_a_port_that_another_scraper_reads_is_not_scraped(installed: InstalledChart) -> None:
    answer = get(installed.real.url + "/api/v1/targets").json()["data"]
    assert [one["scrapeUrl"] for one in answer["activeTargets"]] == [f"http://{installed.instance}/metrics"]
    dropped = {one["discoveredLabels"]["__address__"] for one in answer["droppedTargets"]}
    assert dropped == {f"127.0.0.1:{installed.values['extraPorts'][0]['port']}"}


def test_the_target_has_the_labels_of_the_exporters_pod_and_node(installed: InstalledChart) -> None:
    service = {"service": "gpuledger"} if installed.kind == "ServiceMonitor" else {}
    assert installed.series("up") == [
        {
            "__name__": "up",
            "job": "gpuledger",
            "instance": installed.instance,
            "namespace": NAMESPACE,
            "pod": "gpuledger-node-1",
            "container": "exporter",
            "endpoint": "metrics",
            "node": "node-1",
            **service,
        }
    ]


def test_no_label_is_renamed_to_exported(installed: InstalledChart) -> None:
    names = get(installed.real.url + "/api/v1/labels").json()["data"]
    assert [name for name in names if name.startswith("exported_")] == []


def test_series_of_an_owner_have_the_pod_and_namespace_of_the_owner(installed: InstalledChart) -> None:
    (process,) = installed.series('gpuledger_process_info{pid="20351"}')
    assert (process["namespace"], process["pod"]) == (OWNER.namespace, OWNER.pod)
    assert (process["job"], process["instance"]) == ("gpuledger", installed.instance)
    assert process["node"] == "node-1"


OWNED = (
    "gpuledger_process_info",
    "gpuledger_energy_joules_total",
    "my_gpu_process_energy_joules",
    "gpu_process_info",
    "DCGM_FI_DEV_GPU_UTIL",
)


@pytest.mark.parametrize("family", OWNED)
def test_what_has_no_pod_does_not_get_the_exporters_pod(installed: InstalledChart, family: str) -> None:
    """Owner labels are exported even if they are empty: Prometheus sets a missing label to the target's."""
    series = installed.series(family)
    assert [one for one in series if "pod" not in one]
    assert [one for one in series if one.get("namespace") == NAMESPACE] == []
    assert [one for one in series if "gpuledger" in one.get("pod", "")] == []


def test_series_of_a_gpu_have_the_exporters_pod(installed: InstalledChart) -> None:
    """They have no owner labels, so Prometheus sets those of the target."""
    for series in installed.series("gpuledger_device_power_watts"):
        assert (series["namespace"], series["pod"]) == (NAMESPACE, "gpuledger-node-1")


def test_every_rule_of_the_chart_is_evaluated_without_error(installed: InstalledChart) -> None:
    groups = get(installed.real.url + "/api/v1/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 20
    assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []


RECORDED = (
    "gpuledger:device:info",
    "gpuledger:gpu_utilization:ratio",
    "gpuledger:device_memory_used:ratio",
    "gpuledger:device:name",
)
# Without target labels, so that they go on when these change.
RECORDED_COUNTERS = (
    "gpuledger:gpu_seconds:max",
    "gpuledger:energy_joules:max",
    "gpuledger:owner_held:ratio1h",
    "gpuledger:namespace_power:watts5m",
)


@pytest.mark.parametrize("record", RECORDED)
def test_a_recording_rule_selects_the_series(installed: InstalledChart, record: str) -> None:
    wait_until(lambda: installed.series(record), record)
    assert {series["instance"] for series in installed.series(record)} == {installed.instance}


@pytest.mark.parametrize("record", RECORDED_COUNTERS)
def test_a_recorded_counter_has_no_target_labels(installed: InstalledChart, record: str) -> None:
    wait_until(lambda: installed.series(record), record)
    labels = set().union(*installed.series(record))
    assert not labels & {"instance", "job", "node", "endpoint", "service"}
    namespaces = {series.get("namespace", "") for series in installed.series(record)}
    assert NAMESPACE not in namespaces


def test_the_exporters_namespace_has_no_power(installed: InstalledChart) -> None:
    record = "gpuledger:namespace_power:watts5m"
    wait_until(lambda: installed.series(record), record)
    namespaces = {series.get("namespace", "") for series in installed.series(record)}
    assert NAMESPACE not in namespaces
    assert {OWNER.namespace, ""} <= namespaces


def test_an_alert_names_the_owner_and_the_node(installed: InstalledChart) -> None:
    (labels,) = installed.series('ALERTS{alertname="LongRunningGPUProcess", pid="20351"}')
    assert (labels["namespace"], labels["pod"]) == (OWNER.namespace, OWNER.pod)
    assert labels["node"] == "node-1"


@each_dashboard
@pytest.mark.parametrize("namespace", [".*", "vision"])
def test_a_panel_has_the_rows_of_a_scrape_without_kubernetes(
    installed: InstalledChart, uid: str, namespace: str
) -> None:
    """Labels of the exporter's pod neither hide rows nor add any, also if a namespace is selected."""

    def has_the_same_rows(query: PanelQuery) -> None:
        expression = substituted(query.expression, {**FIXED, **EVERYTHING, "namespace": namespace})
        assert len(labels_of(installed.real, expression)) == len(labels_of(installed.plain, expression))

    wait_for_each(panel_queries(uid), has_the_same_rows)
