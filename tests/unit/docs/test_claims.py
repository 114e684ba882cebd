"""Commands, flags, families, labels and scenarios in the documentation exist in the program."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout, suppress
from functools import cache
from importlib import import_module
from io import StringIO
from itertools import chain
from pathlib import Path

import pytest

from documentation import NAMES, PAGES, ROOT, markdown
from gpuledger.agent.families import SPECS as AGENT
from gpuledger.app.flags import FOREIGN_FLAGS
from gpuledger.cli.main import COMMANDS
from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.settings import DialectSettings
from gpuledger.model.errors import UsageError
from gpuledger.operator.families import SPECS as OPERATOR
from gpuledger.sources.simulator.scenario_parser import parse_scenario

each_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)

# The words after `gpuledger` in a command, up to the end of the command in a shell or a sentence.
CALL = re.compile(
    r"(?:^|[\s/\"'`(])gpuledger(?=[ \t]|$)((?:[ \t]+(?!#)(?:'[^'\n]*'|\"[^\"\n]*\"|[^\s|&;)`'\"]+)+)*)",
    re.MULTILINE,
)
# Here the word is a Helm release or a directory.
NO_CALL = re.compile(r"\bhelm [^\n]*|/run/gpuledger")
FLAG = re.compile(r"(?<![\w-])--[a-z][\w.-]*\w")
# Commands of other programs up to the end of the text, and their flags without a command.
OTHER_COMMAND = re.compile(r"\b(?:docker|helm|kubectl|nvidia-smi|pip|python|wsl) [^`]*")
CONTAINERS = "--cap-add --cgroup-parent --cgroupns --cgroups --device --network --pid --privileged --volume"
PROMETHEUS = "--agent --config.file --enable-feature --storage.agent.path --web.enable-remote-write-receiver"
LIMITS = "--query.max-samples --query.timeout --store.limits.request-samples --store.limits.request-series"
OTHERS = (
    # Inference servers.
    "--enable-metrics --metrics "
    "--gpu-idle-power --help-query-gpu --no-hooks --only-binary --proxy-user --query-compute-apps"
    " --replicas --require-hashes"
    # Of sacct, and of the API server.
    " --delimiter --event-ttl"
    " --reuse-values --sb-state --version"
)
CSS = "--bar --box --edge --hole --ink --line --note --note-text --paper --soft --strong"
PLACEHOLDERS = "--a.b-c --flag --name --web.limits"
NO_FAMILY = {
    # Volumes of the compose stack.
    "gpuledger_ledger",
    "gpuledger_prometheus",
    "gpuledger_grafana",
    # Families of other exporters only.
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
def test_flags_of_commands_are_in_their_help(page: Path) -> None:
    for command, words in chain.from_iterable(map(commands, code(page))):
        unknown = [flag for flag in flags(words) if flag not in flags_of(command)]
        assert not unknown, f"gpuledger {command}: {unknown} is not in its --help"


@each_page
def test_flags_in_text_are_flags_of_a_command(page: Path) -> None:
    assert unknown_flags(markdown(page).spans) == set()


def test_flags_in_messages_are_flags_of_a_command() -> None:
    unknown = unknown_flags(chain.from_iterable(map(messages, (ROOT / "src").rglob("*.py"))))
    assert unknown - FOREIGN_FLAGS.keys() == set()


def unknown_flags(texts: Iterable[str]) -> set[str]:
    named = {flag for text in texts for flag in FLAG.findall(OTHER_COMMAND.sub("", text))}
    allowed = f"{CONTAINERS} {PROMETHEUS} {LIMITS} {OTHERS} {CSS} {PLACEHOLDERS}"
    return named - set(allowed.split()) - frozenset().union(*map(flags_of, COMMANDS))


def messages(file: Path) -> Iterator[str]:
    """The strings of a Python file that names flags, except docstrings."""
    text = file.read_text(encoding="utf-8")
    if not FLAG.search(text):
        return
    tree = ast.parse(text)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def test_the_parser_finds_commands_in_all_usual_forms() -> None:
    text = """
        $ gpuledger report --by pod | head      # --no-flag
        docker compose exec nvidiaexport gpuledger pause --for 10m && gpuledger resume
        .venv/bin/gpuledger serve --source simulator \\
            --speed=10
        gpuledger --version-of-none
        gpuledger serve --nvidia-smi-command "ssh a@b --x nvidia-smi"
        image: gpuledger:0.2.0
        helm upgrade --install gpuledger deploy/helm/gpuledger --namespace gpu-monitoring
        docker run --tmpfs /run/gpuledger --read-only gpuledger:0.2.0
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
def test_named_families_are_in_the_catalogue(page: Path) -> None:
    known = catalogue()
    for name in chain.from_iterable(map(families, code(page))):
        if name.endswith("_"):
            assert any(family.startswith(name) for family in known), f"no family starts with {name}"
        else:
            assert name in known, f"{name}: not in `gpuledger metrics`"


@each_page
def test_named_labels_belong_to_their_family(page: Path) -> None:
    for name, matchers in SELECTOR.findall("\n".join(code(page))):
        if name in labels():
            unknown = label_names(matchers) - labels()[name] - OF_A_SCRAPE
            assert not unknown, f"{name} has no label {unknown}"


def test_the_parser_finds_labels_in_all_usual_forms() -> None:
    matchers = 'pid="1",gpu=~"0|1", pod!="a=b{}",command!~"x",...'
    assert label_names(matchers) == {"pid", "gpu", "pod", "command"}
    assert labels()["gpu_process_count"] == {"gpu"}


@each_page
def test_scenarios_can_be_simulated(page: Path) -> None:
    for block in markdown(page).blocks:
        if re.search(r"^gpus:$", block, re.MULTILINE):
            assert parse_scenario(block, "of the page").gpus


def code(page: Path) -> Iterator[str]:
    """Code blocks and code spans of a page."""
    parsed = markdown(page)
    return chain(parsed.blocks, parsed.spans)


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each call of the program in a text: the command, and the words after it."""
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
    for page in ("--help", "--help-all", "--help-compat"):
        # Not every command has all pages.
        with redirect_stdout(shown), suppress(SystemExit, UsageError):
            import_module(f"gpuledger.cli.{command}").run([page])
    return frozenset(re.findall(r"(?<![\w-])--?[A-Za-z][\w.-]*", shown.getvalue()))


def label_names(matchers: str) -> set[str]:
    return set(re.findall(r"(\w+)(?=!?[=~])", re.sub(r'"[^"]*"', "", matchers)))


def families(text: str) -> Iterator[str]:
    for name in FAMILY.findall(text):
        if name not in NO_FAMILY:
            yield name


@cache
def catalogue() -> frozenset[str]:
    of_dialects = [dialect.specs for dialect in create_dialects(DialectSettings(), "0").values()]
    specs = chain.from_iterable([*of_dialects, AGENT, OPERATOR])
    return frozenset(f"{spec.name}{ending}" for spec in specs for ending in ENDINGS)


@cache
def labels() -> dict[str, set[str]]:
    """The labels of each family, over all dialects."""
    found: dict[str, set[str]] = {}
    for dialect in create_dialects(DialectSettings(), "0").values():
        for spec in dialect.specs:
            found.setdefault(spec.name, set()).update(spec.labels)
    found.update((spec.name, set(spec.labels)) for spec in (*AGENT, *OPERATOR))
    return found


# What follows a group_left is unique: the result of an aggregation, or a recorded series.
UNIQUE = re.compile(r"(?:\w+\()*\(*\s*(?:max by|sum by|topk by|gpuledger:)")


@each_page
def test_a_join_does_not_fail_while_two_targets_export_one_gpu(page: Path) -> None:
    """Such as the old and the new pod of a node in a rollout."""
    text = "\n".join(markdown(page).blocks)
    joined = [text[found.end() :] for found in re.finditer(r"\bgroup_left \([^)]*\)\s+", text)]
    assert [query[:60] for query in joined if not UNIQUE.match(query)] == []
