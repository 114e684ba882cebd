"""The compose stack in deploy/: its files, and its Prometheus and Alertmanager as real processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import yaml

from running import PATIENCE, Program, Prometheus, free_port, get, wait_until
from yaml_files import load_yaml

DEPLOY = Path(__file__).parents[1] / "deploy"
COMPOSE = DEPLOY / "compose"
PROMETHEUS = DEPLOY / "prometheus"
RULES = (PROMETHEUS / "rule.yml", PROMETHEUS / "activity.yml", *sorted((PROMETHEUS / "rules").glob("*.yml")))
SETTINGS = COMPOSE / "gpuledger/gpuledger.yaml"
COLLECTORS = COMPOSE / "gpuledger/dcgm.csv"
# Flags of the stack's exporter, with paths of this checkout instead of the container's.
EXPORTER = ("--config", str(SETTINGS), "--dcgm.collectors", str(COLLECTORS))


def compose(*files: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Configuration that docker-compose merges from these files, or from those that .env names."""
    return dict(load_yaml(_run_compose(files, tuple((env or {}).items()))))


# Cached, because docker-compose needs a second of CPU time.
@cache
def _run_compose(files: tuple[str, ...], env: tuple[tuple[str, str], ...]) -> str:
    flags = [word for file in files for word in ("-f", file)]
    done = subprocess.run(
        ["docker-compose", *flags, "config"],
        cwd=COMPOSE,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env={key: value for key, value in os.environ.items() if not key.startswith("GRA_")} | dict(env),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def alerts() -> dict[str, dict[str, Any]]:
    """All alerts of the stack, by name."""
    found: dict[str, dict[str, Any]] = {}
    for file in RULES:
        for group in load_yaml(file.read_text())["groups"]:
            for rule in group["rules"]:
                if "alert" in rule:
                    assert rule["alert"] not in found
                    found[rule["alert"]] = {**rule, "file": file}
    return found


def copy_rules(folder: Path, interval: str) -> list[str]:
    """Copies the stack's rules to a folder, evaluated at this interval; returns the files."""
    copies = []
    for file in RULES:
        copy = folder / file.relative_to(DEPLOY / "prometheus")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(
            re.sub(r"^(    interval:) \d+s$", rf"\1 {interval}", file.read_text(), flags=re.MULTILINE)
        )
        copies.append(str(copy))
    return copies


def configuration(
    folder: Path, targets: Sequence[str], interval: str, alertmanager: str = "", evaluation: str = ""
) -> str:
    """The stack's prometheus.yml with other targets and paths that exist here, scraping and (unless
    `evaluation` is given) evaluating rules at this interval.
    """
    config = load_yaml((DEPLOY / "prometheus/prometheus.yml").read_text())
    config["global"]["query_log_file"] = str(folder / "query_log_file.log")
    config["global"]["evaluation_interval"] = evaluation or interval
    config["rule_files"] = [str(folder / "prometheus" / file) for file in config["rule_files"]]
    copy_rules(folder / "prometheus", evaluation or interval)
    (manager,) = config["alerting"]["alertmanagers"]
    manager["file_sd_configs"] = [{"files": [str(folder / "alertmanagers/*.yml")]}]
    (job,) = config["scrape_configs"]
    job["scrape_interval"] = job["scrape_timeout"] = interval
    job["static_configs"][0]["targets"] = list(targets)
    job["file_sd_configs"] = [{"files": [str(folder / "targets/*.yml")]}]
    if alertmanager:
        (folder / "alertmanagers").mkdir()
        (folder / "alertmanagers/here.yml").write_text(json.dumps([{"targets": [alertmanager]}]))
    return str(yaml.safe_dump(config, sort_keys=False))


class StackPrometheus(Prometheus):
    """The stack's Prometheus with a configuration of `configuration`, run in its folder."""

    def __init__(self, folder: Path, config: str) -> None:
        self.folder = folder
        super().__init__(folder, config, free_port())

    def labels(self, expression: str) -> list[dict[str, str]]:
        rows: list[Any] = list(self.query(expression))
        return [row["metric"] for row in rows]

    def error(self, expression: str) -> str:
        """Error of a query; empty if it succeeds."""
        return str(get(self.url + "/api/v1/query", params={"query": expression}).json().get("error", ""))


@contextmanager
def stack_prometheus(
    folder: Path,
    targets: Sequence[str],
    alertmanager: str = "",
    interval: str = "1s",
    evaluation: str = "",
) -> Iterator[StackPrometheus]:
    program = StackPrometheus(folder, configuration(folder, targets, interval, alertmanager, evaluation))
    try:
        yield program
    finally:
        program.stop()


class Alertmanager(Program):
    """A real Alertmanager with the stack's configuration."""

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        super().__init__(
            [
                "prometheus-alertmanager",
                f"--config.file={COMPOSE / 'alertmanager/alertmanager.yml'}",
                f"--storage.path={folder}",
                f"--web.listen-address={self.address}",
                "--cluster.listen-address=",
            ]
        )
        wait_until(lambda: self.get("/api/v2/status"), "Alertmanager to answer")

    def get(self, path: str) -> Any:
        try:
            return get(f"http://{self.address}{path}").json()
        except httpx.TransportError:
            assert self.process.poll() is None, "\n".join(self.lines)
            return None

    def alert(self, name: str) -> list[dict[str, Any]]:
        """Alerts with that name that Prometheus has sent."""
        return [alert for alert in self.get("/api/v2/alerts") or () if alert["labels"]["alertname"] == name]


@contextmanager
def alertmanager(folder: Path) -> Iterator[Alertmanager]:
    program = Alertmanager(folder)
    try:
        yield program
    finally:
        program.stop()
