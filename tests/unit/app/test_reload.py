"""Reloading settings of a running node: what changes, what is kept, what is reported."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from ctypes import CDLL
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuledger.app import reload as reload_module
from gpuledger.app.node_assembly import AssembledNode, assemble_node
from gpuledger.app.reload import Reloader
from gpuledger.config.commands import ALL_GROUPS, NODE_GROUPS
from gpuledger.config.load import load_values
from gpuledger.dialects.settings import DialectSettings
from gpuledger.http.routes import Request, Response
from gpuledger.ledger.energy.booking import EnergyPolicy
from gpuledger.model.node_state import ReloadHealth
from gpuledger.model.settings import ReloadPolicy
from gpuledger.outputs.responses import describe_health
from gpuledger.sources.nvml.source import NvmlSource
from nvml.library import NvmlGpu, NvmlProcess, NvmlState, count, load
from running import PATIENCE

LISTEN = "listen_address: ['127.0.0.1:0=process,energy', '127.0.0.1:0=native']\n"


@dataclass
class Serving:
    """A node assembled from a file as by `gpuledger serve`, with manual ticks and without HTTP."""

    file: Path
    made: AssembledNode
    reloader: Reloader
    listen: str

    def write(self, text: str) -> None:
        self.file.write_text(self.listen + text)
        self.reloader.reload()
        self.made.parts.node.tick()

    def get(self, path: str = "/metrics", listener: int = 0) -> str:
        response = self.made.listeners[listener][1].respond(Request("GET", path))
        assert response.status == 200
        return response.body.decode()

    @property
    def health(self) -> ReloadHealth:
        health = self.made.parts.pages.state.health.reload
        assert health is not None
        return health


ALONE = {
    # Never use clusters, kubelets and container runtimes of the test machine.
    "kubernetes.enabled": ["false"],
    "slurm.enabled": ["false"],
    "containers.docker_socket": [""],
    "containers.podman_socket": [""],
    "control.socket": ["none"],
    "state_dir": ["none"],
}


def serving(file: Path, source: str, listen: str = LISTEN) -> Serving:
    file.write_text(listen)

    def read() -> dict[str, Any]:
        flags = {**ALONE, "source": [source]}
        return load_values(NODE_GROUPS.values(), flags, {}, file, ALL_GROUPS)

    values = read()
    made = assemble_node(values)
    reloader = Reloader(read, values, NODE_GROUPS.values(), [file], made.parts, made.listeners)
    found = Serving(file, made, reloader, listen)
    made.parts.node.tick()
    return found


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[Serving]:
    found = serving(tmp_path / "c.yaml", "simulator")
    yield found
    found.made.parts.stop()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CDLL:
    """The test library in this process, used by every new NVML source."""
    state = NvmlState(tmp_path / "state", [NvmlGpu(NvmlProcess(7, sm=40)), NvmlGpu()])
    monkeypatch.setenv("TEST_NVML_STATE", str(state.write().path))
    loaded = load()
    defaults = NvmlSource.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "load", lambda: loaded)
    return loaded


@pytest.fixture
def real(tmp_path: Path, library: CDLL) -> Iterator[Serving]:
    found = serving(tmp_path / "c.yaml", "nvml")
    yield found
    found.made.parts.stop()


def test_a_node_starts_with_a_successful_reload_state(simulated: Serving) -> None:
    simulated.made.parts.node.tick()
    text = simulated.get("/metrics/native")
    assert "gpuledger_config_last_reload_success 1\n" in text
    assert "gpuledger_config_last_reload_success_timestamp_seconds" in text


def test_settings_of_dialects_change_and_the_page_stays_available(simulated: Serving) -> None:
    assert "my_gpu_process_energy_joules" in simulated.get()
    simulated.file.write_text(LISTEN + "metric_prefix: site\nprocess: {pid_label: gpu-prefixed}\n")
    simulated.reloader.reload()
    # Also before the next tick: the current NodeState, exported by the new dialects.
    text = simulated.get()
    assert "site_energy_joules" in text
    assert "my_gpu_process" not in text
    assert 'pid="gpu0_' in text


def test_dialects_and_path_of_the_metrics_page_change(tmp_path: Path) -> None:
    found = serving(tmp_path / "c.yaml", "simulator", listen="listen_address: ['127.0.0.1:0']\n")
    assert "gpu_process_count" in found.get()
    found.write("metrics_path: /m\ndialect: native")
    assert "gpu_process_count" not in found.get("/m")
    assert "gpuledger_device_up" in found.get("/m")
    assert found.made.listeners[0][1].respond(Request("GET", "/metrics")).status == 404
    found.made.parts.stop()


def test_web_page_and_api_can_be_turned_off_and_on(simulated: Serving) -> None:
    route = simulated.made.listeners[0][1]

    def statuses() -> list[int]:
        return [route.respond(Request("GET", path)).status for path in ("/", "/api/v1/recent")]

    found = [statuses()]
    for page in ("landing", "off", "full"):
        simulated.write(f"web: {{page: '{page}'}}")
        found.append(statuses())
    assert found == [[200, 200], [200, 404], [404, 404], [200, 200]]


@pytest.mark.parametrize(
    ("text", "continues"),
    [("web: {page: landing}", False), ("web: {page: 'off'}", False), ("interval: 2s", True)],
)
def test_open_streams_end_when_the_api_is_turned_off(simulated: Serving, text: str, continues: bool) -> None:
    route = simulated.made.listeners[0][1]

    def opened() -> Response:
        found = route.respond(Request("GET", "/api/v1/events"))
        assert isinstance(found, Response)
        return found

    async def scenario() -> tuple[bool, bool]:
        response = opened()
        assert response.stream is not None
        stream, waiting = response.stream(), response.stream
        woken = asyncio.Event()
        stream.begin(woken.set)
        assert stream.take()
        await asyncio.to_thread(simulated.write, text)
        await asyncio.wait_for(woken.wait(), PATIENCE)
        # Requested before the reload, started after it.
        late = waiting()
        late.begin(lambda: None)
        found = stream.take() is not None, late.take() is not None
        stream.end()
        late.end()
        return found

    assert asyncio.run(scenario()) == (continues, continues)
    simulated.write("web: {page: full}")
    reopened = opened().stream
    assert reopened is not None
    assert reopened().take()


def test_prices_change_without_a_restart(simulated: Serving) -> None:
    simulated.write("price: {kwh: 0.5, currency: EUR}")
    assert simulated.health.pending == ()


def test_the_interval_changes(simulated: Serving) -> None:
    simulated.write("interval: 250ms")
    health = simulated.made.parts.pages.state.health
    assert (health.interval, health.configured_interval) == (0.25, 0.25)


def test_counters_and_sessions_continue_after_a_reload(simulated: Serving) -> None:
    ledger = simulated.made.parts.ledger
    before = simulated.made.parts.pages.state.ledger
    sessions = [session.first_seen for session in ledger.sessions.open()]
    simulated.write("metric_prefix: site\nmetric_retention: 1m\nenergy: {policy: measured}\ninterval: 500ms")
    after = simulated.made.parts.pages.state.ledger
    assert simulated.made.parts.ledger is ledger
    assert sessions
    assert [session.first_seen for session in ledger.sessions.open()] == sessions
    assert after.energy.totals.keys() == before.energy.totals.keys()
    assert all(after.energy.totals[uuid] >= joules for uuid, joules in before.energy.totals.items())
    assert set(after.energy.imbalance.values()) <= {0}


def test_a_new_energy_policy_applies_to_later_bookings(simulated: Serving) -> None:
    energy = simulated.made.parts.ledger.energy
    simulated.write("energy: {policy: measured, empty_watts: 55, resident_watts: 77}")
    assert {book.policy for book in energy.gpu_ledgers.values()} == {EnergyPolicy.MEASURED}
    floors = {(book.floors.floors.empty, book.floors.floors.resident) for book in energy.gpu_ledgers.values()}
    assert floors == {(55_000, 77_000)}


def test_settings_that_need_a_restart_are_logged_once_and_the_others_are_applied(
    simulated: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "gpuledger.reload"):
        simulated.write("state_dir: /elsewhere\nprocess: {max_per_device: 5}\nmetric_prefix: site\n")
        simulated.write("state_dir: /elsewhere\nprocess: {max_per_device: 5}\nmetric_prefix: site\n")
    # The flag overrides the file, so state_dir does not change.
    assert [record.message for record in caplog.records] == [
        "changed settings that need a restart of gpuledger: process.max_per_device",
        "settings reloaded: metric_prefix",
        "settings reloaded: nothing has changed",
    ]
    assert "site_energy_joules" in simulated.get()
    assert simulated.health.pending == ("process.max_per_device",)
    assert "settings that need a restart: process.max_per_device" in describe_health(
        simulated.made.parts.pages.state
    )


def test_a_new_listen_address_waits_for_a_restart_and_the_old_one_still_answers(simulated: Serving) -> None:
    simulated.file.write_text("listen_address: ['127.0.0.1:9']\nmetric_prefix: site\n")
    simulated.reloader.reload()
    assert "site_energy_joules" in simulated.get()
    simulated.made.parts.node.tick()
    assert simulated.health.pending == ("listen_address",)


BAD = [
    ("intervall: 1s", "unknown key 'intervall'; did you mean 'interval'?"),
    # The next start would refuse it.
    ("web.config.file: /none/web.yaml", "/none/web.yaml"),
    ("interval: soon", "interval: expected a duration such as"),
    ("a: [", "is not YAML"),
    ("dialect: [proces]", "unknown dialect 'proces'; did you mean 'process'?"),
]


@pytest.mark.parametrize(("text", "line"), BAD, ids=[text for text, _ in BAD])
def test_an_invalid_file_keeps_the_last_good_settings_and_is_reported(
    simulated: Serving, caplog: pytest.LogCaptureFixture, text: str, line: str
) -> None:
    simulated.write("metric_prefix: site")
    taken = simulated.health.last_success
    # A listener without its own dialects exports those of `dialect`.
    simulated.file.write_text(f"metric_prefix: other\n{text}")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "gpuledger.reload"):
        simulated.reloader.reload()
    simulated.made.parts.node.tick()
    assert simulated.health == ReloadHealth(False, taken, simulated.health.error)
    assert line in simulated.health.error
    assert len(caplog.records) == 1
    assert line in caplog.records[0].message
    assert "site_energy_joules" in simulated.get()
    text = simulated.get("/metrics/native")
    assert "gpuledger_config_last_reload_success 0\n" in text
    assert line in describe_health(simulated.made.parts.pages.state)


def test_a_missing_file_keeps_the_last_good_settings_until_a_valid_one_appears(
    simulated: Serving,
) -> None:
    simulated.write("metric_prefix: site")
    simulated.file.unlink()
    simulated.reloader.reload()
    simulated.made.parts.node.tick()
    assert "cannot read the configuration" in simulated.health.error
    assert "site_energy_joules" in simulated.get()
    simulated.write("metric_prefix: other")
    assert simulated.health.success
    assert simulated.health.error == ""
    assert "other_energy_joules" in simulated.get()


def test_an_internal_error_keeps_the_last_good_settings(
    simulated: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(reload_module, "build_dialects", broken)
    simulated.write("metric_prefix: site")
    assert "internal error" in simulated.health.error
    assert "my_gpu_process_energy_joules" in simulated.get()


def test_an_invalid_file_is_read_only_once(simulated: Serving, caplog: pytest.LogCaptureFixture) -> None:
    simulated.file.write_text("a: [")
    with caplog.at_level(logging.ERROR, "gpuledger.reload"):
        for _ in range(6):
            simulated.reloader.reload_if_changed()
    assert len(caplog.records) == 1


def test_a_changed_file_is_applied_at_the_second_check(simulated: Serving) -> None:
    simulated.file.write_text(LISTEN + "metric_prefix: site")
    simulated.reloader.reload_if_changed()
    assert "my_gpu_process_energy_joules" in simulated.get()
    simulated.reloader.reload_if_changed()
    assert "site_energy_joules" in simulated.get()


def test_the_interval_of_checks_is_itself_reloaded(simulated: Serving) -> None:
    assert simulated.reloader.period == 5.0
    simulated.write("reload: {interval: 1s}")
    assert simulated.reloader.period == 1.0
    simulated.write("reload: {interval: 0}")
    assert simulated.reloader.period is None


def test_quantities_of_an_unlisted_dialect_are_still_read_after_a_reload(
    tmp_path: Path, library: CDLL
) -> None:
    found = serving(tmp_path / "c.yaml", "nvml", listen="listen_address: ['127.0.0.1:0=process']\n")
    parts = found.made.parts
    listed = parts.pages.required_quantities()
    found.get("/metrics/native")
    queried, before = parts.pages.required_quantities(), parts.pages
    found.write("metric_prefix: site")
    assert parts.pages is not before
    assert listed < parts.pages.required_quantities() == queried
    parts.stop()


def test_a_hardware_source_is_replaced_between_two_ticks(real: Serving, library: CDLL) -> None:
    def indices() -> list[str]:
        seen = real.made.parts.pages.state.snapshot
        assert seen is not None
        return [str(reading.device.gpu.index) for reading in seen.readings]

    old = real.made.parts.source
    assert indices() == ["0", "1"]
    real.write("devices: ['1']\nslow_interval: 1s")
    assert indices() == ["1"]
    assert real.made.parts.source is not old
    # Two were initialized, one was shut down.
    assert count(library, "nvmlInitWithFlags") - count(library, "nvmlShutdown") == 1
    real.write("")
    assert indices() == ["0", "1"]


def test_settings_of_a_simulated_source_wait_for_a_restart(simulated: Serving) -> None:
    source = simulated.made.parts.source
    simulated.write("devices: ['1']")
    assert simulated.made.parts.source is source
    assert simulated.health.pending == ("devices",)


def test_a_reload_during_a_pause_does_not_open_the_driver(real: Serving, library: CDLL) -> None:
    real.made.parts.node.pause(600)
    started = count(library, "nvmlInitWithFlags")
    real.write("devices: ['1']\nmetric_prefix: site")
    assert count(library, "nvmlInitWithFlags") == started == count(library, "nvmlShutdown")
    assert real.made.parts.pages.state.health.paused
    assert real.health.success


def test_owner_indexes_are_replaced_and_read_before_they_are_used(real: Serving, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "0").write_text("4711\n")
    real.write(f"job_map: {{dir: {tmp_path / 'jobs'}}}")
    state = real.made.parts.pages.state
    assert [(one.name, one.success) for one in state.health.owner_indexes] == [("job_map", True)]
    assert state.snapshot is not None
    assert [one.workload.job for one in state.snapshot.allocations] == ["4711"]
    indexes = real.made.parts.owner_indexes
    real.write("")
    assert real.made.parts.pages.state.health.owner_indexes == ()
    assert not any(one._thread.is_alive() for one in indexes._indexes)  # type: ignore[attr-defined]


def test_unchanged_owner_indexes_are_kept(real: Serving, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    text = f"job_map: {{dir: {tmp_path / 'jobs'}}}\n"
    real.write(text)
    indexes = real.made.parts.owner_indexes
    real.write(text + "metric_prefix: site")
    assert real.made.parts.owner_indexes is indexes


def test_a_changed_file_that_a_setting_names_is_reloaded(
    simulated: Serving, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("1")
    monkeypatch.setattr(DialectSettings, "reload", ReloadPolicy(files=("node_name",)))
    simulated.write(f"node_name: {table}")
    dialects = simulated.made.parts.pages
    table.write_text("22")
    simulated.reloader.reload_if_changed()
    simulated.reloader.reload_if_changed()
    assert simulated.made.parts.pages is not dialects


def test_a_hanging_tick_delays_a_reload_and_is_logged_once(
    simulated: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node, between = simulated.made.parts.node, simulated.made.parts.node.between_ticks
    simulated.file.write_text(LISTEN + "metric_prefix: site")
    with monkeypatch.context() as patch:
        patch.setattr(node, "between_ticks", lambda: between(0.01))
        node._ticking.acquire()
        with caplog.at_level(logging.ERROR, "gpuledger.reload"):
            for _ in range(4):
                simulated.reloader.reload_if_changed()
        node._ticking.release()
    assert len(caplog.records) == 1
    assert "has not returned" in caplog.records[0].message
    simulated.reloader.reload_if_changed()
    assert "site_energy_joules" in simulated.get()


def test_the_log_level_changes(simulated: Serving) -> None:
    simulated.write("log: {level: debug}")
    assert logging.getLogger().level == logging.DEBUG
