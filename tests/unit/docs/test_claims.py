"""What the documentation says of the program: commands, flags, families, labels, scenarios that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from functools import cache
from importlib import import_module
from io import StringIO
from itertools import chain
from pathlib import Path

import pytest

from documentation import NAMES, PAGES, markdown
from gpuledger.agent.families import SPECS as AGENT
from gpuledger.cli.main import COMMANDS
from gpuledger.dialects.catalogue import dialects
from gpuledger.dialects.settings import DialectSettings
from gpuledger.operator.families import SPECS as OPERATOR
from gpuledger.sources.simulator.reader import parse

each_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)

# The words after `gpuledger` in a command, up to where a shell or a sentence ends it.
CALL = re.compile(
    r"(?:^|[\s/\"'`(])gpuledger(?=[ \t]|$)((?:[ \t]+(?!#)(?:'[^'\n]*'|\"[^\"\n]*\"|[^\s|&;)`'\"]+)+)*)",
    re.MULTILINE,
)
# Where the word is a release of Helm's, or a directory.
NO_CALL = re.compile(r"\bhelm [^\n]*|/run/gpuledger")
NO_FAMILY = {
    # Volumes of the compose stack.
    "gpuledger_ledger",
    "gpuledger_prometheus",
    "gpuledger_grafana",
    # Families that only the other exporter has.
    "gpu_process_start_time_seconds",
    "my_gpu_process_gpu_process_count",
}
FAMILY = re.compile(
    r"(?<![\w:/-])(?:gpuledger|my_gpu_process|gpu_process|gpu_session|gpu_total)_[a-z0-9_]+(?![\w:]*:)"
)
SELECTOR = re.compile(r"(?<![\w:])([a-zA-Z_]\w*)\{([^{}]*)\}")
OF_A_SCRAPE = {"instance", "job", "node", "cluster"}
ENDINGS = ("", "_bucket", "_sum", "_count")


@each_page
def test_a_command_has_only_flags_that_its_help_lists(page: Path) -> None:
    for command, words in chain.from_iterable(map(commands, code(page))):
        unknown = [flag for flag in flags(words) if flag not in flags_of(command)]
        assert not unknown, f"gpuledger {command}: {unknown} is not in its --help"


def test_commands_are_found_as_people_write_them() -> None:
    text = """
        $ gpuledger report --by pod | head      # --no-flag
        docker compose exec nvidiaexport gpuledger pause --for 10m && gpuledger resume
        .venv/bin/gpuledger serve --source simulator \\
            --speed=10
        gpuledger --version-of-none
        gpuledger serve --nvidia-smi-command "ssh a@b --x nvidia-smi"
        image: gpuledger:0.1.0
        helm upgrade --install gpuledger deploy/helm/gpuledger --namespace gpu-monitoring
        docker run --tmpfs /run/gpuledger --read-only gpuledger:0.1.0
    """
    assert list(commands(text)) == [
        ("report", ["--by", "pod"]),
        ("pause", ["--for", "10m"]),
        ("resume", []),
        ("serve", ["--source", "simulator", "--speed=10"]),
        ("serve", ["--version-of-none"]),
        ("serve", ["--nvidia-smi-command", "ssh a@b --x nvidia-smi"]),
    ]
    assert list(flags(["--speed=10", "-f", "x", "--", "-"])) == ["--speed", "-f"]
    assert "--source" in flags_of("serve")
    assert "--version-of-none" not in flags_of("serve")


@each_page
def test_a_family_that_is_named_is_in_the_catalogue(page: Path) -> None:
    told = catalogue()
    for name in chain.from_iterable(map(families, code(page))):
        if name.endswith("_"):
            assert any(one.startswith(name) for one in told), f"{name}...: no family begins so"
        else:
            assert name in told, f"{name}: not in `gpuledger metrics`"


@each_page
def test_a_label_that_is_named_is_one_of_its_family(page: Path) -> None:
    for name, matchers in SELECTOR.findall("\n".join(code(page))):
        if name in labels():
            unknown = label_names(matchers) - labels()[name] - OF_A_SCRAPE
            assert not unknown, f"{name} has no label {unknown}"


def test_labels_are_found_as_people_write_them() -> None:
    written = 'pid="1",gpu=~"0|1", pod!="a=b{}",command!~"x",...'
    assert label_names(written) == {"pid", "gpu", "pod", "command"}
    assert labels()["gpu_process_count"] == {"gpu"}


@each_page
def test_a_scenario_can_be_simulated(page: Path) -> None:
    for block in markdown(page).blocks:
        if re.search(r"^gpus:$", block, re.MULTILINE):
            assert parse(block, "of the page").gpus


def code(page: Path) -> Iterator[str]:
    """Blocks and spans: where a page says what is to be typed."""
    read = markdown(page)
    return chain(read.blocks, read.spans)


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each call of the program in it: the command, and the words after it."""
    for call in CALL.finditer(NO_CALL.sub("", text.replace("\\\n", " "))):
        words = shlex.split(call[1])
        if words and words[0] in COMMANDS:
            yield words[0], words[1:]
        elif words and words[0].startswith("-") and words[0] not in ("--help", "--version"):
            yield "serve", words


def flags(words: list[str]) -> Iterator[str]:
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            yield word.partition("=")[0]


@cache
def flags_of(command: str) -> frozenset[str]:
    shown = StringIO()
    with redirect_stdout(shown), suppress(SystemExit):
        import_module(f"gpuledger.cli.{command}").run(["--help"])
    return frozenset(re.findall(r"(?<![\w-])--?[A-Za-z][\w.-]*", shown.getvalue()))


def label_names(matchers: str) -> set[str]:
    return set(re.findall(r"(\w+)(?=!?[=~])", re.sub(r'"[^"]*"', "", matchers)))


def families(text: str) -> Iterator[str]:
    for name in FAMILY.findall(text):
        if name not in NO_FAMILY:
            yield name


@cache
def catalogue() -> frozenset[str]:
    told = [dialect.specs for dialect in dialects(DialectSettings(), "0").values()]
    specs = chain.from_iterable([*told, AGENT, OPERATOR])
    return frozenset(f"{spec.name}{ending}" for spec in specs for ending in ENDINGS)


@cache
def labels() -> dict[str, set[str]]:
    """The labels of each family, whichever dialect tells it."""
    found: dict[str, set[str]] = {}
    for dialect in dialects(DialectSettings(), "0").values():
        for spec in dialect.specs:
            found.setdefault(spec.name, set()).update(spec.labels)
    found.update((spec.name, set(spec.labels)) for spec in (*AGENT, *OPERATOR))
    return found
