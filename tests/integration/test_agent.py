"""`gpuledger agent` as a program: start, reload, error messages and stop."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from os import environ, mkfifo
from pathlib import Path

import bcrypt
import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parse
from prometheus_client.samples import Sample

from gpuledger.agent.scrape.line_parser import page_format
from gpuledger.agent.scrape.page_cache import PageCache
from gpuledger.agent.scrape.series_labels import SeriesLabeler
from running import PATIENCE, Program, free_port, get, gpuledger, serving_prepared, wait_until


def write(file: Path, *addresses: str, key: str = "targetName") -> None:
    targets = [
        {key: f"t{number}", "type": "StaticEndpoints", "endpoints": [{"address": address}]}
        for number, address in enumerate(addresses)
    ]
    new = file.with_suffix(".new")
    new.write_text(
        yaml.safe_dump(
            {
                "features": {"openAgent": {"globalInterval": "500ms", "targets": targets}},
                "remote_write": [{"url": "http://127.0.0.1:1/write", "name": "nobody"}],
            }
        )
    )
    new.replace(file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "agent.yaml"


@pytest.fixture
def agent(file: Path, tmp_path: Path) -> Iterator[tuple[Program, str]]:
    write(file, "127.0.0.1:1")
    program = Program(
        [
            *(sys.executable, "-m", "gpuledger", "agent", "--config", str(file), "--drain", "0s"),
            *("--queue-directory", str(tmp_path / "queue"), "--listen-address", "127.0.0.1:0"),
            *("--look-interval", "100ms"),
        ],
        prepared=True,
    )
    port = program.wait_line(r"listening on \S+ port (\d+)")[1]
    yield program, f"http://127.0.0.1:{port}"
    assert program.stop() == 0


def metrics(url: str) -> str:
    return get(f"{url}/metrics").text


def test_a_changed_file_is_reloaded_and_an_invalid_one_is_ignored(
    agent: tuple[Program, str], file: Path
) -> None:
    program, url = agent
    wait_until(lambda: 'agent_targets{group="t0",state="down"} 1' in metrics(url), "the first scrape")
    write(file, "127.0.0.1:1", key="targetNam")
    program.wait_line(r"targetNam'; did you mean")
    assert "\ngpuledger_agent_config_last_reload_success 0\n" in metrics(url)
    assert 'agent_targets{group="t0",state="down"} 1' in metrics(url)
    assert "The configuration file is invalid" in get(url).text
    # Each signal has its line, the same error or not.
    program.process.send_signal(signal.SIGHUP)
    wait_until(lambda: sum("previous configuration" in line for line in tuple(program.lines)) == 2, "a line")
    with serving_prepared("--source", "simulator") as node:
        write(file, "127.0.0.1:1", f"127.0.0.1:{node.port}")
        wait_until(lambda: 'agent_targets{group="t1",state="up"} 1' in metrics(url), "the new target")
    assert "\ngpuledger_agent_config_last_reload_success 1\n" in metrics(url)
    assert get(f"{url}/-/ready").status_code == 200


def test_a_pipe_as_the_configuration_file_does_not_block_the_agent(
    agent: tuple[Program, str], file: Path
) -> None:
    program, url = agent
    file.unlink()
    mkfifo(file)
    program.wait_line(
        "is not a regular file and cannot be read again; the previous configuration remains in force"
    )
    assert get(f"{url}/-/ready").status_code == 200


def test_a_configuration_that_needs_a_cluster_is_rejected_without_one_also_on_reload(
    agent: tuple[Program, str], file: Path
) -> None:
    program, url = agent
    monitor = {"targetName": "m", "type": "PodMonitor", "selector": {}, "endpoints": [{"port": "metrics"}]}
    new = file.with_suffix(".new")
    new.write_text(file.read_text().replace("targets:", f"targets:\n    - {json.dumps(monitor)}"))
    new.replace(file)
    program.wait_line(
        r"no API server to discover targets or replicas with.*the previous configuration remains in force"
    )
    assert "\ngpuledger_agent_config_last_reload_success 0\n" in metrics(url)
    done = gpuledger("agent", "--config", str(file))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no API server to discover targets" in done.stderr


def test_a_missing_or_invalid_file_is_an_error_in_one_line(file: Path) -> None:
    write(file, "127.0.0.1:1", key="name")
    for flags, complaint in (((), "needs --config FILE"), (("--config", str(file)), "unknown key")):
        done = gpuledger("agent", *flags)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert complaint in done.stderr


@pytest.mark.parametrize("missing", ["cramjam", "re2"])
def test_a_missing_extra_is_an_error_in_one_line_that_names_it(
    missing: str, file: Path, tmp_path: Path
) -> None:
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('gone', name={missing!r})\n")
    bare = {"PYTHONPATH": f"{tmp_path}:{environ.get('PYTHONPATH', '')}"}
    done = gpuledger("agent", "--config", str(file), env=bare)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert missing in done.stderr
    assert "pip install 'gpuledger[cluster]'" in done.stderr
    assert "gpuledger_agent_targets" in gpuledger("metrics", env=bare).stdout


def test_a_web_config_protects_the_status_page_with_basic_auth(file: Path, tmp_path: Path) -> None:
    write(file, "127.0.0.1:1")
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    web = tmp_path / "web.yaml"
    web.write_text(yaml.safe_dump({"basic_auth_users": {"ann": hashed}}))
    program = Program(
        [
            *(sys.executable, "-m", "gpuledger", "agent", "--config", str(file), "--drain", "0s"),
            *("--queue-directory", str(tmp_path / "queue"), "--listen-address", "127.0.0.1:0"),
            *("--web.config.file", str(web)),
        ],
        prepared=True,
    )
    try:
        port = program.wait_line(r"listening on \S+ port (\d+)")[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE) as client:
            statuses = {
                path: client.get(path, auth=login).status_code
                for path, login in (
                    ("/", None),
                    ("/metrics", ("ann", "wrong")),
                    ("/metrics?", ("ann", "right")),
                    ("/-/ready", None),
                )
            }
        assert statuses == {"/": 401, "/metrics": 401, "/metrics?": 200, "/-/ready": 200}
    finally:
        assert program.stop() == 0


def test_a_real_node_exporter_page_is_read_completely_each_time() -> None:
    port = free_port()
    exporter = Program(["prometheus-node-exporter", f"--web.listen-address=127.0.0.1:{port}"])

    def answer() -> httpx.Response | None:
        try:
            return get(f"http://127.0.0.1:{port}/metrics")
        except httpx.TransportError:
            return None

    pages = PageCache(SeriesLabeler({"job": "node", "instance": "n"}))
    try:
        for _ in range(3):
            got = wait_until(answer, "node_exporter")
            series = {series_key(sample) for family in parse(got.text) for sample in family.samples}
            fmt = page_format(got.headers["content-type"])
            found = pages.read_page(got.content, fmt, honor=False)
            assert (found.counts.scraped, found.counts.kept, found.duplicates) == (
                len(series),
                len(series),
                0,
            )
            assert len(series) > 300
    finally:
        exporter.stop()


def series_key(sample: Sample) -> tuple[str, tuple[tuple[str, str], ...]]:
    return sample.name, tuple(sorted(sample.labels.items()))
