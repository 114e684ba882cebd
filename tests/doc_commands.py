"""The commands of README.md and docs, in order, with the outputs that the pages show below them.

In these pages, indented code is what a reader types, except for the blocks of NO_COMMANDS; a `console` block
has commands behind `$ ` or `# `; a fenced block without a language is what the last command above it prints.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

from gpuledger.cli.main import COMMANDS

# First words of programs that a test does not run, with the reason.
NOT_RUN = {
    "docker": "needs a container runtime; tests/containers run the images",
    "kubectl": "needs a cluster; tests/cluster run the manifests",
    "oc": "needs an OpenShift",
    "helm": "needs a cluster; tests/unit/docs/test_install.py renders the charts with these values",
    "make": "the targets exist; CI runs them",
    "sudo": "changes the machine; tests/packages install the packages",
    "systemctl": "changes the machine",
    "rmmod": "changes the machine",
    "modprobe": "changes the machine",
    "pip": "needs a package index",
    "python": "needs a GPU: tests/hardware",
    "PYTHONPATH=src": "needs a GPU: tests/hardware",
    "cd": "the folder exists; the rest of the line is checked as a command",
    "cp": "changes the machine",
    "sed": "changes the checkout",
    "getent": "reads the accounts of the machine",
    "source": "needs an interactive shell; tests/integration/test_completion.py completes in the real shells",
    "jq": "computes on a file of the reader; test_statements does the same",
    "while": "the rest of the pipe of the line before",
    "deploy/deploy.sh": "needs a cluster",
    "reportseff": "a program of others",
    "chown": "the rest of a command in a container",
    "export": "the rest of a line of which the first command runs",
}
RUN = {"gpuledger", "curl"}
# Blocks of indented code that are no commands, by how they begin.
NO_COMMANDS = (
    "cost = time x",
    "http://node:9400/",
    "sum by (",
    "avg_over_time(",
    "SELECT ",
    "NAME   GPU NODES",
    "# /etc/cron.d/",
    "# /etc/systemd/",
)
_CALL = re.compile(r"(?:^|[\s/(])gpuledger(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Command:
    """One line that a reader types: its first word, the words for gpuledger, and the pipe behind them."""

    line: str
    program: str
    words: tuple[str, ...] = ()
    pipe: str = ""
    # What the page shows below it.
    shown: list[str] = field(default_factory=list, compare=False)


def commands_of(page: Path) -> list[Command]:
    """The commands of a page, in order."""
    found: list[Command] = []
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type == "code_block" and not token.content.startswith(NO_COMMANDS):
            typed, _, shown = token.content.partition("\n\n")
            if found_here := [command for line in _lines(typed) for command in split(line)]:
                found += found_here
                found[-1].shown.extend(shown.splitlines())
        elif token.type == "fence" and token.info in ("console", "text"):
            for line in token.content.splitlines():
                if line.startswith(("$ ", "# ")):
                    found += split(line[2:])
                elif found and "$ " in token.content:
                    found[-1].shown.append(line)
        elif token.type == "fence" and token.info == "" and found:
            found[-1].shown.extend(token.content.splitlines())
    return found


def _lines(text: str) -> Iterator[str]:
    joined = re.sub(r"(\\|\|)\n\s*", lambda ends: ends[1].replace("\\", ""), text)
    return (line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def split(line: str) -> Iterator[Command]:
    """The commands of one line: those of gpuledger in it, else the line itself."""
    line = re.sub(r"\s+# .*", "", line).strip()
    for part in line.split(" && "):
        program = part.split()[0].removeprefix("./").removeprefix(".venv/bin/")
        calls = (_call(part, part[found.end() :].rstrip(")")) for found in _CALL.finditer(part))
        # Elsewhere the word is a release of Helm, a folder or an image.
        own = (
            call for call in calls if call.words[:1] and (call.words[0] in COMMANDS or program == "gpuledger")
        )
        yield next(own, Command(part, program))


def _call(line: str, rest: str) -> Command:
    reader = shlex.shlex(rest, posix=True, punctuation_chars="|><")
    reader.whitespace_split = True
    reader.commenters = ""
    words = list(reader)
    end = next((index for index, word in enumerate(words) if word in ("|", ">", ">>", "<")), len(words))
    pipe = rest.partition(" | ")[2] if "|" in words[end : end + 1] else ""
    return Command(line, "gpuledger", tuple(words[:end]), pipe)


# Rows that every report has.
_ROWS = re.compile(r"^(?:idle: no owner|total|unobserved energy: gpuledger not reading)(?=  )")
_FAMILY = re.compile(r"^([a-z_:]+)\{(.*)\} \S+$|^([a-z_:]+) \S+$")


def forms_of(shown: list[str]) -> Iterator[frozenset[str]]:
    """What the lines of an output have in every run: for each line, the words that a real line has, too.

    Of a table: the headings, and the labels of rows that every report has. Of metrics: family and labels. Of
    other lines: the words without a digit. Not the notes behind a sign, which depend on the values.
    """
    in_table = False
    for line in shown:
        if line.startswith(("~ ", "+ ")):
            continue
        if not line.strip() or not any(letter.isalnum() for letter in line) or line.strip() == "...":
            in_table = False
            continue
        if family := _FAMILY.match(line):
            labels = re.findall(r'(\w+)="', family[2] or "")
            yield frozenset({family[1] or family[3], *labels})
        elif in_table:
            if row := _ROWS.match(line):
                yield frozenset(words_of(row[0]))
        else:
            in_table = len(re.findall(r"\S {2,}\S", line)) >= 3
            yield frozenset(words_of(line))


def words_of(line: str) -> set[str]:
    """The words of a line that do not depend on values: those without a digit."""
    return {
        word
        for word in re.findall(r"[^\s,;:(){}\"'`]+", line)
        if not re.search(r"\d|[./…@]|^\W+$|^[A-Z]{3}$", word)
    }


def missing_forms(shown: list[str], printed: str) -> list[str]:
    """The forms of a shown output that no printed line has."""
    lines = [words_of(line) | set(re.findall(r"[a-z_:]+(?=[{= ])", line)) for line in printed.splitlines()]
    return [" ".join(sorted(form)) for form in forms_of(shown) if not any(form <= line for line in lines)]
