"""Files of deploy/compose and deploy/systemd: programs accept their flags, and all referenced files exist."""

from __future__ import annotations

import http.server
import re
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from gpuledger import __version__
from gpuledger.dialects.dcgm.collectors import DEFAULT_COLLECTORS
from prepared import MODULE
from running import PATIENCE, Program, get, gpuledger, one_line, serving_prepared, wait_until
from stack import COLLECTORS, COMPOSE, DEPLOY, EXPORTER, SETTINGS, compose

# One worker, which caches what docker-compose prints.
pytestmark = pytest.mark.group("stack-files")

BASE = "docker-compose.yaml"
OVERRIDES = sorted(file.name for file in COMPOSE.glob("*.yaml") if file.name != BASE)
SYSTEMD = DEPLOY / "systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
# The entrypoint of images with a tag that ends in -smi begins with this.
ENTRYPOINT = ("serve", "--web.listen-address")


def services(*overrides: str) -> dict[str, dict[str, Any]]:
    return dict(compose(BASE, *overrides)["services"])


def test_names_ports_and_network_are_those_of_document_004() -> None:
    whole = compose()
    names = {name: service["container_name"] for name, service in whole["services"].items()}
    assert names == {"nvidiaexport": "nvidia_exporter", "prometheus": "prometheus", "grafana": "grafana"}
    ports = {
        (port["published"], port["target"])
        for service in whole["services"].values()
        for port in service["ports"]
    }
    assert ports == {(9835, 9835), (9090, 9090), (3000, 3000)}
    assert whole["networks"] == {"promnet": {"driver": "bridge"}}
    for service in whole["services"].values():
        assert list(service["networks"]) == ["promnet"]
        assert service["restart"] == "always"
        assert service["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("override", OVERRIDES)
def test_docker_compose_accepts_every_override(override: str) -> None:
    assert services(override)


def test_all_gpus_are_used_by_default() -> None:
    (device,) = compose()["services"]["nvidiaexport"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu", "utility"]}


def test_each_override_uses_another_kind_of_gpu_access() -> None:
    cdi = services("cdi.yaml")["nvidiaexport"]["deploy"]["resources"]["reservations"]["devices"]
    assert cdi == [{"driver": "cdi", "device_ids": ["nvidia.com/gpu=all"], "capabilities": ["gpu"]}]
    mounted = services("devices.yaml")["nvidiaexport"]
    assert sorted(mounted["devices"]) == ["/dev/nvidia0:/dev/nvidia0", "/dev/nvidiactl:/dev/nvidiactl"]
    assert any(
        volume.startswith("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1:") for volume in mounted["volumes"]
    )
    simulated = services("simulator.yaml")["nvidiaexport"]
    assert "devices" not in simulated and "deploy" not in simulated


def test_the_user_of_grafana_is_set_as_in_the_document() -> None:
    assert compose(env={"GRA_UID": "1234", "GRA_GID": "100"})["services"]["grafana"]["user"] == "1234:100"
    assert compose()["services"]["grafana"]["user"] == "472:0"


@pytest.mark.parametrize("override", ["", *OVERRIDES])
def test_images_are_pinned_and_gpuledger_has_this_version(override: str) -> None:
    for name, service in services(*filter(None, [override])).items():
        assert re.fullmatch(r"[\w./]+:v?\d+\.\d+\.\d+(-smi)?", service["image"]), name
    assert services()["nvidiaexport"]["image"] == f"gpuledger:{__version__}-smi"


@pytest.mark.parametrize("override", ["", *OVERRIDES])
def test_mounted_files_exist_and_are_read_only(override: str) -> None:
    whole = compose(BASE, *filter(None, [override]))
    for service in whole["services"].values():
        for volume in service["volumes"]:
            source, _, mode = volume.split(":")
            if source.startswith(str(DEPLOY)):
                assert Path(source).exists(), source
            if source.startswith("/"):
                assert mode == "ro", volume
            else:
                assert source in whole["volumes"], volume


def test_a_mount_point_exists_in_a_read_only_mount() -> None:
    mounts = [volume.split(":")[:2] for volume in services("alertmanager.yaml")["prometheus"]["volumes"]]
    places = {target: Path(source) for source, target in mounts}
    assert (places["/etc/prometheus"] / "alertmanagers").is_dir()
    discovered = yaml.safe_load(next(places["/etc/prometheus/alertmanagers"].glob("*.yml")).read_text())
    assert discovered == [{"targets": ["alertmanager:9093"]}]
    assert "alertmanager" in services("alertmanager.yaml")


def test_prometheus_scrapes_the_service_with_the_settings_of_the_document() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    general = config["global"]
    assert [general[key] for key in ("scrape_interval", "scrape_timeout", "evaluation_interval")] == [
        "15s",
        "15s",
        "2m",
    ]
    assert general["external_labels"] == {"monitor": "codelab-monitor"}
    assert general["query_log_file"] == "/prometheus/query_log_file.log"
    (job,) = config["scrape_configs"]
    assert (job["job_name"], job["scrape_interval"], job["metrics_path"]) == (
        "monitoring-item",
        "10s",
        "/metrics",
    )
    ((target,),) = (entry["targets"] for entry in job["static_configs"])
    name, _, port = target.partition(":")
    assert {int(entry["target"]) for entry in services()[name]["ports"]} == {int(port)}
    assert job["static_configs"][0]["labels"] == {"service": "monitor-1"}


def test_grafana_finds_its_dashboards_and_prometheus() -> None:
    stack = services()
    mounts = dict(volume.split(":")[1::-1] for volume in stack["grafana"]["volumes"])
    provisioning = Path(mounts["/etc/grafana/provisioning"])
    (provider,) = yaml.safe_load(next((provisioning / "dashboards").glob("*.yaml")).read_text())["providers"]
    dashboards = Path(mounts[provider["options"]["path"]])
    (source,) = yaml.safe_load(next((provisioning / "datasources").glob("*.yaml")).read_text())["datasources"]
    name, _, port = source["url"].removeprefix("http://").partition(":")
    assert {entry["target"] for entry in stack[name]["ports"]} == {int(port)}
    # The collectors file of the stack has all fields of the dcgm dialect that dashboards use.
    fields = {
        field for file in dashboards.glob("*.json") for field in re.findall(r"DCGM_FI_\w+", file.read_text())
    }
    assert fields
    assert fields <= set(re.findall(r"^DCGM_FI_\w+", COLLECTORS.read_text(), re.MULTILINE))


def test_prometheus_and_alertmanager_know_all_their_flags() -> None:
    stack = services("alertmanager.yaml")
    for program, name in (("prometheus", "prometheus"), ("prometheus-alertmanager", "alertmanager")):
        known = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
        for flag in stack[name]["command"]:
            assert f"  {flag.split('=')[0]}=" in known.stdout + known.stderr, flag


@pytest.mark.parametrize("override", ["", "simulator.yaml"])
def test_the_exporter_accepts_its_command_and_its_health_check_passes(override: str) -> None:
    service = services(*filter(None, [override]))["nvidiaexport"]
    mounts = dict(volume.split(":")[1::-1] for volume in service["volumes"])
    command = [word.replace("/etc/gpuledger", mounts["/etc/gpuledger"]) for word in service["command"]]
    # Works without a GPU, and if another program uses port 9835.
    flags = [
        *ENTRYPOINT,
        "127.0.0.1:0",
        *command,
        "--dcgm.collectors",
        str(COLLECTORS),
        "--source",
        "simulator",
    ]
    program = Program([*MODULE, *flags], env=service["environment"], prepared=True)
    try:
        port = program.wait_line(r"listening on \S+ port (\d+)")[1]
        check = [sys.executable if word == "python3" else word for word in service["healthcheck"]["test"][1:]]
        check = [word.replace("9835", port) for word in check]
        assert subprocess.run(check, timeout=PATIENCE, check=False).returncode == 0
        page = wait_until(lambda: page_with_readings(port), "a page with readings")
        for family in (
            "nvidia_smi_gpu_info",
            "gpuledger_device_up",
            "gpu_total_processes",
            "gpu_total_sessions",
        ):
            assert f"\n{family}" in page
        assert "\nDCGM_FI_DEV_GPU_TEMP" in page and "\nmy_gpu_process_active" in page
    finally:
        program.stop()
    # The check tests the program, so it fails without it.
    assert subprocess.run(check, timeout=PATIENCE, check=False, stderr=subprocess.DEVNULL).returncode != 0


def page_with_readings(port: str) -> str:
    page = get(f"http://127.0.0.1:{port}/metrics").text
    return page if "\nnvidia_smi_gpu_info{" in page else ""


def test_the_health_check_fails_if_the_program_returns_an_error() -> None:
    class FailingHandler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(503)

        def log_message(self, format: str, *words: object) -> None:  # noqa: A002  # named as in the library
            return

    with http.server.HTTPServer(("127.0.0.1", 0), FailingHandler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        check = services()["nvidiaexport"]["healthcheck"]["test"][3:]
        code = check[0].replace("9835", str(server.server_port))
        assert subprocess.run([sys.executable, "-c", code], timeout=PATIENCE, check=False).returncode == 1
        server.shutdown()


def test_the_collectors_file_includes_all_default_fields() -> None:
    named = {line.split(",")[0] for line in COLLECTORS.read_text().splitlines() if not line.startswith("#")}
    assert {column.field.name("4.8") for column in DEFAULT_COLLECTORS.columns} < named
    page = gpuledger("collect", "--source", "simulator", "--stdout", "--dialect", "dcgm", *EXPORTER)
    assert page.returncode == 0
    # An invalid line would cause a warning.
    assert [line for line in page.stderr.splitlines() if "simulated data" not in line] == []
    assert yaml.safe_load(SETTINGS.read_text())["dcgm"]["collectors"] == f"/etc/gpuledger/{COLLECTORS.name}"


def test_the_documentation_names_every_file_image_and_unit() -> None:
    page = (DEPLOY.parent / "docs/compose.md").read_text()
    assert set(re.findall(r"^\| `([\w-]+\.yaml)` \|", page, re.MULTILINE)) == set(OVERRIDES)
    images = {service["image"] for service in services("alertmanager.yaml").values()}
    assert set(re.findall(r"(?:gpuledger|prom/prometheus|grafana/grafana):[\w.-]*\d[\w.-]*", page)) <= images
    documented = set(re.findall(r"^\| `(gpuledger[\w-]*)\.\w+` \|", page, re.MULTILINE))
    assert documented == {unit.stem for unit in UNITS}


def exec_start(unit: Path) -> list[str]:
    (command,) = re.findall(r"^ExecStart=(.+)$", unit.read_text(), re.MULTILINE)
    assert command.split()[0] == "/usr/bin/gpuledger"
    return list(command.split()[1:])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_program_accepts_the_flags_of_the_unit(unit: Path, tmp_path: Path) -> None:
    words = exec_start(unit)
    variables = dict(re.findall(r"^Environment=(\w+)=(.*)$", unit.read_text(), re.MULTILINE))
    variables = {key: value.replace("/var/lib", str(tmp_path)) for key, value in variables.items()}
    if words[0] == "serve":
        with serving_prepared(*words[1:], "--source", "simulator", env=variables) as server:
            assert "gpuledger_device_up" in server.wait_ticks()
            server.process.send_signal(1)
            server.wait_line("SIGHUP|settings|reload")
    elif "--every" in words:
        command = [*MODULE, *words, "--source", "simulator", "--textfile-dir", str(tmp_path)]
        program = Program(command, env=variables, prepared=True)
        wait_until(lambda: list(tmp_path.glob("*.prom")), "the file")
        assert program.stop() == 0
    elif words[0] == "slurm":
        # Without Slurm's commands it says so, in one line.
        done = gpuledger(*words, env=variables | {"PATH": str(tmp_path)})
        assert "sacct is not installed here" in one_line(done, 1)
    else:
        done = gpuledger(*words, "--source", "simulator", "--textfile-dir", str(tmp_path), env=variables)
        assert done.returncode == 0, done.stderr
        assert list(tmp_path.glob("*.prom"))


def test_systemd_analyze_accepts_the_units_and_rates_them_as_hardened(tmp_path: Path) -> None:
    program = tmp_path / "gpuledger"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copies = []
    for unit in sorted(SYSTEMD.glob("gpuledger*")):
        copy = tmp_path / unit.name
        copy.write_text(unit.read_text().replace("/usr/bin/gpuledger", str(program)))
        copies.append(str(copy))
    verified = subprocess.run(
        ["systemd-analyze", "verify", *copies], capture_output=True, text=True, check=False
    )
    assert (verified.returncode, verified.stderr) == (0, "")
    for unit in (copy for copy in copies if copy.endswith(".service")):
        # 10 is an unrestricted service; 3.0 allows reading processes of other users.
        words = ["systemd-analyze", "security", "--offline=true", "--threshold=30", "--no-pager", unit]
        judged = subprocess.run(words, capture_output=True, text=True, check=False)
        assert judged.returncode == 0, judged.stdout.splitlines()[-1]
