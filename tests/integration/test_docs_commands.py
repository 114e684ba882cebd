"""The commands of README.md and docs run against the simulator and print what the pages show.

Each page is followed from top to bottom in an empty folder with the files that it shows. Names, addresses and
folders are those of the page, except for the REPLACED ones.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from getpass import getuser
from pathlib import Path
from time import strftime, time

import pytest

from builders import FakeClock
from doc_commands import NOT_RUN, RUN, Command, commands_of, missing_forms
from documentation import PAGES, ROOT, markdown
from gpuledger.app.flags import parse_command
from gpuledger.config.commands import NODE_GROUPS
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.ledger.store.retention import RetentionLimits
from gpuledger.ledger.store.store import Store
from gpuledger.model.settings import build_settings
from gpuledger.node.loop import Node
from gpuledger.sources.settings import SourceSettings
from gpuledger.sources.simulator.scenario_parser import parse_scenario
from gpuledger.sources.simulator.simulator import Simulator
from gpuledger.web.api.shown_quantities import SNAPSHOT_QUANTITIES
from gpuledger.workloads.owner_lookup import OwnerLookup
from prepared import MODULE, run_prepared
from running import PATIENCE, Program, Server, get, prometheus, serving_prepared, wait_until

pytestmark = pytest.mark.group("docs-commands")

WITH_COMMANDS = [page for page in PAGES if page.name != "CHANGELOG.md" and commands_of(page)]
NAMES = [str(page.relative_to(ROOT)) for page in WITH_COMMANDS]

# One node with the owners that the pages name.
_GPU = """
  - model: NVIDIA H100 80GB HBM3
    memory: 80GB
    empty_watts: 70
    resident_watts: 115
    load_watts: 570
    limit_watts: 700
    processes: ["""
_PROCESS = "{{name: python3, memory: 9GB, age: 1h, load: "
_POD = _PROCESS + "{load}, pod: {{namespace: {space}, name: {pod}, container: c}}}}"
_JOB = _PROCESS + "0.5, user: {user}, uid: {uid}, slurm: {{job: '{job}'}}}}"
_PODS = (
    ("ml", "train-0"),
    ("ml-research", "llama-pretrain-0"),
    ("vision", "detector-api-6c9d7f5b8-x2k4m"),
    ("vision-dev", "notebook"),
    ("lab", "b-1"),
)
SCENARIO = "gpus:" + "".join(
    f"{_GPU}{process}]"
    for process in (
        *(_POD.format(load=0.8, space=space, pod=pod) for space, pod in _PODS),
        _POD.format(load=0, space="notebooks", pod="jupyter-pavel"),
        _JOB.format(user="ann", uid=1001, job=4711),
        # The person who runs the tests, for `--mine`.
        _JOB.format(user=getuser(), uid=os.getuid(), job=4690),
        # Pods on one GPU: their energy is apportioned.
        ", ".join(_POD.format(load=0.4, space="inference", pod=f"chat-{number}") for number in (0, 1)),
        *[""] * 7,
    )
)
CONFIG = """
store: {hours: 3653d, detail: 3653d}
price: {gpu_hour: 2.40, kwh: 0.30, currency: EUR}
pue: 1.4
teams: [{team: vision, namespace: "vision*"}, {team: nlp, user: [ann]}, {team: research, namespace: ml*}]
"""
# Times in September, October and November 2026, the months of the pages.
MONTHS = (1_789_000_000, 1_792_000_000, 1_795_000_000)
# `idle` lists what has been held for half an hour; earlier books are shorter. Reads more than a minute apart
# would leave time unwatched.
TICK, TICKS, EARLIER = 55.0, 44, 12

# What a reader has in other places than this test: by pattern, a key of `World.places`.
REPLACED = (
    (r"https?://(?:prometheus:9090|metrics\.example\.com/prometheus)", "prometheus"),
    (r"http://lab:9410", "fleet"),
    (r"https?://(?:node-?\d:94\d\d|localhost:9400)|localhost:9400", "node"),
    (r"\bgpu-[12]\b(?!:)", "node"),
    (r"^(?:FILE|/etc/gpuledger/config.yaml)$", "config"),
    (r"^URL$", "prometheus"),
    (r"^DIR$", "textfiles"),
    (r"(?:/srv|/mnt|/backup|/var/lib|/etc/gpuledger)(?=/)", "folder"),
    (r"\b1/2_0\b", "gpu"),
    (r"^(?:last month|yesterday)$", "month"),
)
# Words of commands that would take long, wait or open a terminal, by what stands in their place.
SHORTENED = {"30m": "1s", "10m": "1s", "60s": "0.1s", "2m": "0.1s", "8h": "1s"}
# Exit codes that are an answer: something here does not work, no GPU is free, queries change.
ANSWERS = {"doctor": (0, 1), "free": (0, 1), "migrate": (0, 1)}
# Outputs that depend on what is not here, by page.
SHOWN_ELSEWHERE = {
    "finance.md": "made by benchmarks/finance_month.py from a month with its prices",
    "receipts.md": "an example of tests/receipt_books.py: test_advice",
    "energy.md": "the kinds of splits depend on when readings fall: tests/unit/ledger",
    "cost-per-token.md": "needs a gateway and an engine: the examples of test_report_tokens",
    "troubleshooting.md": "depends on the machine: tests/unit/cli/test_doctor.py",
}
# Commands of gpuledger that a test of another file runs, because they need what is not here.
ELSEWHERE = {
    "selftest": "half a minute, on real GPUs: tests/unit/selftest",
    "books merge": "needs the exports of several nodes: tests/unit/ledger/books",
    "slurm": "needs Slurm: tests/slurm",
    "fleet": "serves until it is stopped: the fixture starts one; test_fleet",
    "demo": "makes a day of books: test_demo",
    "agent": "needs a configuration with its targets: test_agent",
    "": "the image's default command",
    "completion": "test_completion",
    "man": "test_completion",
}
# Programs behind a pipe that this machine has.
PIPES = ("grep ", "jq ", "head")
# Flags of commands that do not end, or that need a node with TLS (test_web_config).
WAITING = {"--help", "--every", "--interval", "--password-file", "--cert-file"}


@dataclass
class World:
    """The programs that a reader reaches, and the reader's settings."""

    places: dict[str, str]
    environment: dict[str, str]
    books: Path


def write_books(folder: Path, moment: float, ticks: int) -> None:
    """Minutes of the node, from this time on: a node that ran from one to the next would take long."""
    clock = FakeClock(moment)
    limits = RetentionLimits(detail=float("inf"), hours=float("inf"))
    store = Store(folder, "simulator", "", clock, limits)
    ledger, lookup = Ledger(LedgerSettings(), store), OwnerLookup(str)
    node = Node(
        Simulator(parse_scenario(SCENARIO, "docs"), SourceSettings(), clock),
        name=lookup.assign_owners,
        post=ledger.post,
        publish=lambda state: None,
        required_quantities=lambda: SNAPSHOT_QUANTITIES | ledger.required_quantities,
        clock=clock,
        interval=TICK,
    )
    try:
        for _ in range(ticks):
            node.tick()
            clock.advance(TICK)
    finally:
        store.close()


def followed(text: str, places: dict[str, str]) -> str:
    """A word or line of a page with the places of this test."""
    for pattern, place in REPLACED:
        text = re.sub(pattern, lambda _, place=place: places[place], text)  # type: ignore[misc]
    return text


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("docs")
    (folder / "node.yaml").write_text(SCENARIO)
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "bin").mkdir()
    for name in ("python", "torchrun"):
        (folder / "bin" / name).symlink_to("/bin/true")
    books = folder / "books"
    books.mkdir()
    for moment in (*MONTHS, time() - 7 * 86_400):
        write_books(books, moment, EARLIER)
    write_books(books, time() - TICKS * TICK - 20, TICKS)
    (folder / "live").mkdir()
    shutil.copy(
        books / "simulator.db", folder / "live" / f"simulator-{str(folder).replace('/', '_')}_node.yaml.db"
    )
    environment = {
        "GPULEDGER_CONFIG": str(folder / "config.yaml"),
        "GPULEDGER_SOURCE": f"simulator:{folder / 'node.yaml'}",
        "GPULEDGER_STATE_DIR": str(books),
        "GPULEDGER_CONTROL_SOCKET": str(folder / "control.sock"),
        "GPULEDGER_FREE_FOR": "0s",
        "GPULEDGER_FREE_ANYWAY": "true",
        "GPULEDGER_TEXTFILE_DIR": str(folder),
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
    }
    with ExitStack() as stack:
        # It keeps no books, so that those above remain as they are.
        node = stack.enter_context(
            serving_prepared(env={**environment, "GPULEDGER_STATE_DIR": str(folder / "live")})
        )
        node.wait_ticks(2)
        scrape = f"""
            scrape_configs:
              - job_name: gpuledger
                scrape_interval: 500ms
                honor_labels: true
                static_configs: [{{targets: ["127.0.0.1:{node.port}"], labels: {{cluster: a}}}}]
        """
        scraping = stack.enter_context(prometheus(scrape))
        scraping.wait_query("gpuledger_device_energy_joules_total offset 1s")
        fleet = Program(
            [*MODULE, "fleet", "--node", node.url, "--listen-address", "127.0.0.1:0"], prepared=True
        )
        stack.callback(fleet.stop)
        port = fleet.wait_line(r"listening on \S+ port (\d+)")[1]
        places = {
            "node": node.url,
            "fleet": f"http://127.0.0.1:{port}",
            "prometheus": scraping.url,
            "month": "2026-10",
            # A Prometheus has only the samples since the test began.
            "scraped month": strftime("%Y-%m"),
            "gpu": "1",
            "config": environment["GPULEDGER_CONFIG"],
            "textfiles": str(folder),
        }
        yield World(places, environment, books)


class Reader:
    """A reader in an empty folder. Commands of `serve` run until the next one, or until the page ends."""

    def __init__(self, world: World, page: Path, folder: Path) -> None:
        self.world, self.page, self.folder = world, page, folder
        self.places = {**world.places, "folder": str(folder)}
        self.stack = ExitStack()
        self.server: Server | None = None
        (folder / "train").symlink_to("/bin/true")
        (folder / "rules").symlink_to(ROOT / "deploy/prometheus/rules")
        (folder / "dashboards").symlink_to(ROOT / "deploy/grafana/dashboards")
        (folder / "gpu.json").symlink_to(ROOT / "deploy/grafana/dashboards/gpuledger-usage.json")
        for content in markdown(page).blocks:
            if named := re.match(r"# (\w[\w-]*\.yaml)\n", content):
                (folder / named[1]).write_text(content)

    def run(self, command: Command) -> str:
        """Run one command; returns what it prints. Fails if it fails."""
        if command.program == "curl":
            return self._shell(followed(command.line, self.places), "")
        if not command.words:
            return ""
        words = [SHORTENED.get(word, followed(word, self.places)) for word in command.words]
        if "--prometheus" in words and "--in" in words:
            words[words.index("--in") + 1] = self.places["scraped month"]
        self._prepare(words)
        if {words[0], " ".join(words[:2])} & ELSEWHERE.keys() or WAITING & {*words}:
            return ""
        if words[0] == "serve":
            self._serve(words[1:])
            return ""
        try:
            environment = {**os.environ, **self.world.environment}
            if words[0] == "migrate":
                # It has other settings than the node.
                del environment["GPULEDGER_CONFIG"]
            if words[:2] == ["books", "forget"]:
                environment["GPULEDGER_STATE_DIR"] = self._copy_of_books()
            done = run_prepared([*MODULE, *words], environment, PATIENCE)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{words}: does not end")
        assert done.returncode in ANSWERS.get(words[0], (0,)), f"{words}: {done.stderr}{done.stdout[-500:]}"
        return self._shell(command.pipe, done.stdout) if command.pipe.startswith(PIPES) else done.stdout

    def _prepare(self, words: list[str]) -> None:
        """Make what the reader of these words has already."""
        for word in words:
            if word.startswith(f"{self.folder}/"):
                Path(word).parent.mkdir(parents=True, exist_ok=True)
            if "textfile" in word or word.startswith(f"{self.folder}/ledgers"):
                Path(word).mkdir(parents=True, exist_ok=True)
            scenario = self.folder / word.removeprefix("simulator:")
            if word.startswith("simulator:") and scenario.suffix == ".yaml" and not scenario.exists():
                scenario.write_text(SCENARIO)
        if words[0] == "demo" and "--state-dir" in words:
            (self.folder / words[-1]).mkdir()
            (self.folder / words[-1] / "demo.yaml").write_text(CONFIG)
        if "old.txt" in words:
            for name in ("old.txt", "new.txt"):
                (self.folder / name).write_text(get(f"{self.places['node']}/metrics").text)
        if "--after" in words and not (before := self.folder / words[words.index("--after") + 1]).exists():
            self.run(
                Command(
                    "", "gpuledger", ("report", "--by", "team", "--in", "2026-09", "--statement", before.name)
                )
            )

    def _copy_of_books(self) -> str:
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        return str(shutil.copytree(self.world.books, copy))

    def _serve(self, words: list[str]) -> None:
        _, read = parse_command("serve", "", "", NODE_GROUPS, words)
        values = read()
        for group in NODE_GROUPS.values():
            build_settings(group, values)
        if str(values.get("source", "")).startswith(("simulator", "replay")):
            self.stack.close()
            environment = {
                **self.world.environment,
                "GPULEDGER_STATE_DIR": "none",
                "GPULEDGER_CONTROL_SOCKET": "none",
            }
            # A tick each two seconds of the scenario: each process that runs for four is seen.
            faster = () if "--speed" in words else ("--speed", "20", "--interval", "100ms")
            self.server = self.stack.enter_context(serving_prepared(*words, *faster, env=environment))
            self.server.wait_ticks(4 if "--state-dir" in words else 1)
            self.places["node"] = self.server.url

    def _shell(self, line: str, given: str) -> str:
        if line.startswith("curl -sN"):
            line = f"timeout 1 {line} || true"
        done = subprocess.run(["bash", "-c", line], input=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout


def errors_of(reader: Reader, command: Command) -> list[str]:
    """Run a command; returns why it failed, or what it does not print although the page shows it."""
    try:
        printed = reader.run(command)
    except (AssertionError, pytest.fail.Exception) as error:
        return [str(error)]
    if not command.shown or not printed or reader.page.name in SHOWN_ELSEWHERE:
        return []
    return [f"{command.line}: prints no line with {form}" for form in missing_forms(command.shown, printed)]


def runs(reader: Reader, command: Command) -> bool:
    return not errors_of(reader, command)


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=NAMES)
def test_commands_run_and_print_what_the_page_shows(
    page: Path, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reader = Reader(world, page, tmp_path)
    failed = []
    with reader.stack:
        for command in commands_of(page):
            if command.program not in RUN:
                assert command.program in NOT_RUN, f"{command.line}: run it, or say in NOT_RUN why not"
                continue
            if reader.server is not None and "--state-dir" in command.words:
                # The books that the page's own node writes meanwhile.
                with suppress(AssertionError):
                    wait_until(partial(runs, reader, command), "the books", PATIENCE / 6)
            failed += errors_of(reader, command)
    assert not failed, "\n".join(failed)


def test_targets_of_make_in_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        word
        for page in WITH_COMMANDS
        for command in commands_of(page)
        if command.program == "make"
        for word in command.line.split()[1:]
        if re.fullmatch(r"[a-z0-9-]+", word) and not word.startswith("-")
    }
    assert {"run", "test", "site"} & named
    assert named - targets - {"127"} == set()


def test_the_parser_finds_commands_and_what_is_shown_below(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "    sudo gpuledger report --by team | head      # a comment\n"
        "    docker run gpuledger:1 && ./gpuledger doctor\n\n"
        "```\nteam   GPU-hours   kWh  cost EUR\nred   3     1.2      0.30\ntotal  3     1.2   0.30\n```\n"
        "```console\n$ gpuledger pause\npaused until 12:00 (x)\n```\n"
    )
    report, docker, doctor, pause = commands_of(page)
    assert (report.words, report.pipe) == (("report", "--by", "team"), "head")
    assert (docker.program, doctor.words, pause.words) == ("docker", ("doctor",), ("pause",))
    assert missing_forms(doctor.shown, "team  GPU-hours  kWh  cost EUR\ntotal 5 6 7") == []
    assert missing_forms(doctor.shown, "team  GPU-hours  kWh  cost EUR") == ["total"]
    assert missing_forms(doctor.shown, "user  kWh  cost EUR") == ["GPU-hours cost kWh team", "total"]
    assert missing_forms(pause.shown, "paused until 13:30 (x)") == []
    assert missing_forms(['up{gpu="0",pod="a"} 1'], 'up{gpu="1",namespace="x"} 1') == ["gpu pod up"]
