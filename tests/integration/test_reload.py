"""Reloading the settings of a running `gpuledger serve`: by SIGHUP, an editor, a ConfigMap."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest

from ledger_helpers import assert_books_balance
from running import PATIENCE, Server, gpuledger, serving_prepared, wait_until

QUICK = ("--source", "simulator", "--interval", "100ms", "--speed", "20")
LOOK = "reload: {interval: 50ms}\n"


def config_map(folder: Path, text: str, generation: int) -> Path:
    """Create or update a ConfigMap volume as the kubelet does."""
    content = folder / f"..{generation}"
    content.mkdir()
    (content / "gpuledger.yaml").write_text(text)
    (folder / "..data_tmp").symlink_to(content.name)
    (folder / "..data_tmp").replace(folder / "..data")
    link = folder / "gpuledger.yaml"
    if not link.is_symlink():
        link.symlink_to("..data/gpuledger.yaml")
    return link


def put(file: Path, text: str) -> None:
    """Replace the file atomically, as editors do."""
    aside = file.with_suffix(".new")
    aside.write_text(text)
    aside.replace(file)


def joules(text: str) -> dict[str, float]:
    """The energy counters of a page, without the prefix of their names."""
    found = re.findall(r"^\w+_energy_joules(?:_total)?(\{.*\}) (\S+)$", text, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


def reloads(server: Server, *, success: bool = True) -> Callable[[], bool]:
    line = f"gpuledger_config_last_reload_success {int(success)}\n"
    return lambda: line in server.get("/metrics/native").text


@contextmanager
def scraped(server: Server, path: str) -> Iterator[list[httpx.Response]]:
    """Scrape continuously over one connection until the end of the block."""
    answers: list[httpx.Response] = []
    enough = Event()

    def scrape() -> None:
        with httpx.Client(base_url=server.url, trust_env=False, timeout=PATIENCE) as client:
            while not enough.is_set():
                answers.append(client.get(path))

    thread = Thread(target=scrape)
    thread.start()
    try:
        wait_until(lambda: answers, "a first scrape")
        yield answers
    finally:
        enough.set()
        thread.join(PATIENCE)


def test_an_updated_config_map_takes_effect_without_a_gap_and_the_ledger_continues(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    file = config_map(folder, LOOK + "metric_prefix: site0\n", 0)
    flags = (*QUICK, "--config", str(file), "--state-dir", str(tmp_path / "books"))
    with serving_prepared(*flags) as server:
        server.wait_ticks(3)
        with scraped(server, "/metrics/energy") as answers:
            for generation in range(1, 4):
                config_map(folder, f"{LOOK}metric_prefix: site{generation}\n", generation)
                wait_until(
                    lambda generation=generation: f"site{generation}_" in answers[-1].text,  # type: ignore[misc]
                    f"the {generation}. state",
                )
        assert {answer.status_code for answer in answers} == {200}
        # Each page has one prefix, and no counter decreases after a change.
        assert all(len(set(re.findall(r"^site\d", answer.text, re.MULTILINE))) == 1 for answer in answers)
        before: dict[str, float] = {}
        for answer in answers:
            now = joules(answer.text)
            assert all(now[name] >= before[name] for name in now.keys() & before.keys())
            before = now
        assert before
        assert_books_balance(tmp_path / "books" / "simulator-k8s-node.db")


def test_sighup_reloads_immediately_when_file_checks_are_disabled(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    put(file, "reload: {interval: 0}\n")
    with serving_prepared(*QUICK, "--config", str(file)) as server:
        server.wait_ticks(1)
        put(file, "metric_prefix: site\n")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "site_energy_joules" in server.get().text, "the new settings")
        server.wait_line("settings reloaded: metric_prefix, reload.interval")


def test_sighup_without_a_file_changes_nothing() -> None:
    with serving_prepared(*QUICK) as server:
        server.wait_ticks(1)
        server.process.send_signal(signal.SIGHUP)
        server.wait_line("settings reloaded: nothing has changed")
        assert server.get().status_code == 200


@pytest.mark.parametrize("bad", ["a: [", "intervall: 1s", "interval: soon", "dialect: [proces]"])
def test_an_invalid_file_keeps_the_last_good_settings_and_is_reported_until_fixed(
    tmp_path: Path, bad: str
) -> None:
    file = tmp_path / "c.yaml"
    put(file, LOOK + "metric_prefix: site\n")
    with serving_prepared(*QUICK, "--config", str(file)) as server:
        server.wait_ticks(1)
        put(file, LOOK + bad)
        wait_until(reloads(server, success=False), "the report of the invalid file")
        assert "site_energy_joules" in server.get().text
        assert "the previous settings are in force" in server.get("/health").text
        ticks = re.search(r"^gpuledger_ticks_total (\d+)$", server.get("/metrics/native").text, re.MULTILINE)
        assert ticks is not None
        # Long enough for further checks: an unchanged file is not read again.
        server.wait_ticks(int(ticks[1]) + 5)
        errors = [line for line in server.lines if "level=error" in line and "gpuledger.reload" in line]
        assert len(errors) == 1
        put(file, LOOK + "metric_prefix: fixed\n")
        wait_until(reloads(server), "the fixed file")
        assert "fixed_energy_joules" in server.get().text
        assert "previous settings" not in server.get("/health").text


def test_settings_that_need_a_restart_are_named_and_the_others_apply(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    put(file, LOOK)
    with serving_prepared(
        "--interval", "100ms", "--config", str(file), env={"GPULEDGER_SOURCE": ""}
    ) as server:
        # The variable overrides the file for the source; state_dir does not change.
        put(file, f"{LOOK}source: simulator\nstate_dir: {tmp_path}\nmetric_prefix: site\n")
        named = server.wait_line('changed settings that need a restart of gpuledger: (.*)"')
        assert named[1] == "source"
        server.wait_line("settings reloaded: metric_prefix")
        wait_until(lambda: "settings that need a restart: source" in server.get("/health").text, "health")


def test_a_reload_during_a_pause_applies_and_the_pause_continues(tmp_path: Path) -> None:
    file, control = tmp_path / "c.yaml", tmp_path / "control.sock"
    put(file, LOOK)
    with serving_prepared(*QUICK, "--config", str(file), "--control.socket", str(control)) as server:
        server.wait_ticks(1)
        assert gpuledger("pause", "--control.socket", str(control)).returncode == 0
        put(file, LOOK + "metric_prefix: site\n")
        server.wait_line("settings reloaded: metric_prefix")
        assert "gpuledger_paused 1\n" in server.get("/metrics/native").text
        assert gpuledger("resume", "--config", str(file), "--control.socket", str(control)).returncode == 0
        wait_until(lambda: "site_energy_joules" in server.get().text, "data under the new name")
