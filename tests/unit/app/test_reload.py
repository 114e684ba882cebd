"""Settings taken into a node that runs: what changes, what stays, what is said."""

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
from gpuledger.app.reload import Reloader
from gpuledger.app.wiring import Assembly, assemble_node
from gpuledger.config.assemble import assemble
from gpuledger.config.node import EVERYTHING, NODE
from gpuledger.dialects.settings import DialectSettings
from gpuledger.http.routes import Request, Response
from gpuledger.ledger.energy.booking import Policy
from gpuledger.model.node_state import ReloadHealth
from gpuledger.model.settings import Reload
from gpuledger.outputs.responses import describe
from gpuledger.sources.nvml.source import NvmlSource
from nvml.library import NvmlGpu, NvmlProcess, NvmlState, count, load

LISTEN = "listen_address: ['127.0.0.1:0=process,energy', '127.0.0.1:0=native']\n"


@dataclass
class Serving:
    """What `gpuledger serve` assembles from a file, ticked by hand and asked without HTTP."""

    file: Path
    made: Assembly
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
        health = self.made.parts.pages.page.health.reload
        assert health is not None
        return health


ALONE = {
    # Never the clusters, kubelets and container runtimes of the machine that tests.
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
        return assemble(NODE.values(), flags, {}, file, EVERYTHING)

    values = read()
    made = assemble_node(values)
    reloader = Reloader(read, values, NODE.values(), [file], made.parts, made.listeners)
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
    """The test library in this process, found by every NVML source made anew."""
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


def test_at_the_start_the_settings_are_good(simulated: Serving) -> None:
    simulated.made.parts.node.tick()
    told = simulated.get("/metrics/native")
    assert "gpuledger_config_last_reload_success 1\n" in told
    assert "gpuledger_config_last_reload_success_timestamp_seconds" in told


def test_how_dialects_spell_changes_and_the_page_is_never_away(simulated: Serving) -> None:
    assert "my_gpu_process_energy_joules" in simulated.get()
    simulated.file.write_text(LISTEN + "metric_prefix: site\nprocess: {pid_label: gpu-prefixed}\n")
    simulated.reloader.reload()
    # Before the next tick, too: the Page that there is, told by the new dialects.
    told = simulated.get()
    assert "site_energy_joules" in told
    assert "my_gpu_process" not in told
    assert 'pid="gpu0_' in told


def test_which_dialects_a_page_has_and_where_it_is_changes(tmp_path: Path) -> None:
    found = serving(tmp_path / "c.yaml", "simulator", listen="listen_address: ['127.0.0.1:0']\n")
    assert "gpu_process_count" in found.get()
    found.write("metrics_path: /m\ndialect: native")
    assert "gpu_process_count" not in found.get("/m")
    assert "gpuledger_device_up" in found.get("/m")
    assert found.made.listeners[0][1].respond(Request("GET", "/metrics")).status == 404
    found.made.parts.stop()


def test_page_and_api_come_and_go(simulated: Serving) -> None:
    route = simulated.made.listeners[0][1]

    def statuses() -> list[int]:
        return [route.respond(Request("GET", path)).status for path in ("/", "/api/v1/recent")]

    found = [statuses()]
    for page in ("landing", "off", "full"):
        simulated.write(f"web: {{page: '{page}'}}")
        found.append(statuses())
    assert found == [[200, 200], [200, 404], [404, 404], [200, 200]]


@pytest.mark.parametrize(
    ("text", "goes_on"),
    [("web: {page: landing}", False), ("web: {page: 'off'}", False), ("interval: 2s", True)],
)
def test_open_streams_end_where_the_api_is_taken_away(simulated: Serving, text: str, goes_on: bool) -> None:
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
        await asyncio.wait_for(woken.wait(), 20)
        # Answered before the reload, begun after it.
        late = waiting()
        late.begin(lambda: None)
        found = stream.take() is not None, late.take() is not None
        stream.end()
        late.end()
        return found

    assert asyncio.run(scenario()) == (goes_on, goes_on)
    simulated.write("web: {page: full}")
    anew = opened().stream
    assert anew is not None
    assert anew().take()


def test_prices_change_without_a_restart(simulated: Serving) -> None:
    simulated.write("price: {kwh: 0.5, currency: EUR}")
    assert simulated.health.pending == ()


def test_the_interval_changes(simulated: Serving) -> None:
    simulated.write("interval: 250ms")
    health = simulated.made.parts.pages.page.health
    assert (health.interval, health.asked_interval) == (0.25, 0.25)


def test_counters_and_sessions_go_on(simulated: Serving) -> None:
    ledger = simulated.made.parts.ledger
    before = simulated.made.parts.pages.page.ledger
    sessions = [one.first_seen for one in ledger.sessions.open()]
    simulated.write("metric_prefix: site\nmetric_retention: 1m\nenergy: {policy: measured}\ninterval: 500ms")
    after = simulated.made.parts.pages.page.ledger
    assert simulated.made.parts.ledger is ledger
    assert sessions
    assert [one.first_seen for one in ledger.sessions.open()] == sessions
    assert after.energy.totals.keys() == before.energy.totals.keys()
    assert all(after.energy.totals[uuid] >= joules for uuid, joules in before.energy.totals.items())
    assert set(after.energy.imbalance.values()) <= {0}


def test_the_policy_holds_for_what_is_booked_from_then_on(simulated: Serving) -> None:
    energy = simulated.made.parts.ledger.energy
    simulated.write("energy: {policy: measured, empty_watts: 55, resident_watts: 77}")
    assert {book.policy for book in energy.books.values()} == {Policy.MEASURED}
    floors = {(book.floors.floors.empty, book.floors.floors.resident) for book in energy.books.values()}
    assert floors == {(55_000, 77_000)}


def test_what_needs_a_restart_is_said_once_in_one_line_and_the_rest_is_taken(
    simulated: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "gpuledger.reload"):
        simulated.write("state_dir: /elsewhere\nprocess: {max_per_device: 5}\nmetric_prefix: site\n")
        simulated.write("state_dir: /elsewhere\nprocess: {max_per_device: 5}\nmetric_prefix: site\n")
    # The flag beats the file: there state_dir does not change.
    assert [record.message for record in caplog.records] == [
        "changed, but only a restart makes it so: process.max_per_device",
        "settings read anew: metric_prefix",
        "settings read anew: nothing has changed",
    ]
    assert "site_energy_joules" in simulated.get()
    assert simulated.health.pending == ("process.max_per_device",)
    assert "wait for a restart: process.max_per_device" in describe(simulated.made.parts.pages.page)


def test_another_address_waits_for_a_restart_and_the_old_one_answers(simulated: Serving) -> None:
    simulated.file.write_text("listen_address: ['127.0.0.1:9']\nmetric_prefix: site\n")
    simulated.reloader.reload()
    assert "site_energy_joules" in simulated.get()
    simulated.made.parts.node.tick()
    assert simulated.health.pending == ("listen_address",)


BAD = [
    ("intervall: 1s", "unknown key 'intervall'; did you mean 'interval'?"),
    ("interval: soon", "interval: a duration such as"),
    ("a: [", "is not YAML"),
    ("dialect: [proces]", "unknown dialect 'proces'; did you mean 'process'?"),
]


@pytest.mark.parametrize(("text", "line"), BAD, ids=[text for text, _ in BAD])
def test_a_bad_file_keeps_the_last_good_settings_and_is_told(
    simulated: Serving, caplog: pytest.LogCaptureFixture, text: str, line: str
) -> None:
    simulated.write("metric_prefix: site")
    taken = simulated.health.last_success
    # Without its own dialects a listener tells those of `dialect`.
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
    told = simulated.get("/metrics/native")
    assert "gpuledger_config_last_reload_success 0\n" in told
    assert line in describe(simulated.made.parts.pages.page)


def test_a_missing_file_keeps_the_last_good_settings_and_a_good_one_is_taken_again(
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


def test_an_error_of_our_own_keeps_the_last_good_settings(
    simulated: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(reload_module, "vocabularies", broken)
    simulated.write("metric_prefix: site")
    assert "internal error" in simulated.health.error
    assert "my_gpu_process_energy_joules" in simulated.get()


def test_a_bad_file_is_read_once_and_not_at_every_look(
    simulated: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    simulated.file.write_text("a: [")
    with caplog.at_level(logging.ERROR, "gpuledger.reload"):
        for _ in range(6):
            simulated.reloader.look()
    assert len(caplog.records) == 1


def test_a_changed_file_is_taken_at_the_second_look(simulated: Serving) -> None:
    simulated.file.write_text(LISTEN + "metric_prefix: site")
    simulated.reloader.look()
    assert "my_gpu_process_energy_joules" in simulated.get()
    simulated.reloader.look()
    assert "site_energy_joules" in simulated.get()


def test_the_period_of_looking_is_itself_a_setting(simulated: Serving) -> None:
    assert simulated.reloader.period == 5.0
    simulated.write("reload: {interval: 1s}")
    assert simulated.reloader.period == 1.0
    simulated.write("reload: {interval: 0}")
    assert simulated.reloader.period is None


def test_what_an_unlisted_dialect_needs_is_read_on_after_a_reload(tmp_path: Path, library: CDLL) -> None:
    found = serving(tmp_path / "c.yaml", "nvml", listen="listen_address: ['127.0.0.1:0=process']\n")
    parts = found.made.parts
    unasked = parts.pages.wants()
    found.get("/metrics/native")
    asked, before = parts.pages.wants(), parts.pages
    found.write("metric_prefix: site")
    assert parts.pages is not before
    assert unasked < parts.pages.wants() == asked
    parts.stop()


def test_a_source_of_hardware_is_replaced_between_two_ticks(real: Serving, library: CDLL) -> None:
    def told() -> list[str]:
        seen = real.made.parts.pages.page.snapshot
        assert seen is not None
        return [str(reading.device.gpu.index) for reading in seen.readings]

    old = real.made.parts.source
    assert told() == ["0", "1"]
    real.write("devices: ['1']\nslow_interval: 1s")
    assert told() == ["1"]
    assert real.made.parts.source is not old
    # Two were started, and one is left.
    assert count(library, "nvmlInitWithFlags") - count(library, "nvmlShutdown") == 1
    real.write("")
    assert told() == ["0", "1"]


def test_a_source_that_makes_data_up_would_begin_anew_and_waits_for_a_restart(simulated: Serving) -> None:
    source = simulated.made.parts.source
    simulated.write("devices: ['1']")
    assert simulated.made.parts.source is source
    assert simulated.health.pending == ("devices",)


def test_in_a_pause_settings_are_taken_and_the_driver_is_left_alone(real: Serving, library: CDLL) -> None:
    real.made.parts.node.pause(600)
    started = count(library, "nvmlInitWithFlags")
    real.write("devices: ['1']\nmetric_prefix: site")
    assert count(library, "nvmlInitWithFlags") == started == count(library, "nvmlShutdown")
    assert real.made.parts.pages.page.health.paused
    assert real.health.success


def test_maps_of_owners_are_made_anew_and_asked_before_they_count(real: Serving, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "0").write_text("4711\n")
    real.write(f"job_map: {{dir: {tmp_path / 'jobs'}}}")
    page = real.made.parts.pages.page
    assert [(one.name, one.success) for one in page.health.maps] == [("job_map", True)]
    assert page.snapshot is not None
    assert [one.workload.job for one in page.snapshot.allocations] == ["4711"]
    maps = real.made.parts.maps
    real.write("")
    assert real.made.parts.pages.page.health.maps == ()
    assert not any(one._thread.is_alive() for one in maps._maps)  # type: ignore[attr-defined]


def test_maps_that_did_not_change_stay(real: Serving, tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    asked = f"job_map: {{dir: {tmp_path / 'jobs'}}}\n"
    real.write(asked)
    maps = real.made.parts.maps
    real.write(asked + "metric_prefix: site")
    assert real.made.parts.maps is maps


def test_a_file_that_a_setting_names_is_looked_at_and_its_part_made_anew(
    simulated: Serving, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("1")
    monkeypatch.setattr(DialectSettings, "reload", Reload(files=("node_name",)))
    simulated.write(f"node_name: {table}")
    dialects = simulated.made.parts.pages
    table.write_text("22")
    simulated.reloader.look()
    simulated.reloader.look()
    assert simulated.made.parts.pages is not dialects


def test_a_tick_that_hangs_puts_a_reload_off_and_it_is_said_once(
    simulated: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node, between = simulated.made.parts.node, simulated.made.parts.node.between_ticks
    simulated.file.write_text(LISTEN + "metric_prefix: site")
    with monkeypatch.context() as patch:
        patch.setattr(node, "between_ticks", lambda: between(0.01))
        node._ticking.acquire()
        with caplog.at_level(logging.ERROR, "gpuledger.reload"):
            for _ in range(4):
                simulated.reloader.look()
        node._ticking.release()
    assert len(caplog.records) == 1
    assert "has not come back" in caplog.records[0].message
    simulated.reloader.look()
    assert "site_energy_joules" in simulated.get()


def test_the_log_changes_its_level(simulated: Serving) -> None:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers
    try:
        simulated.write("log: {level: debug}")
        assert root.level == logging.DEBUG
    finally:
        root.handlers = handlers
        root.setLevel(level)
