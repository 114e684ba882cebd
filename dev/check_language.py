"""Checks that the tree keeps to plain technical English and to names that a search finds.

    python dev/check_language.py [--count] [PATH...]

Reads every tracked text file, or those below PATH. Reports words that the glossary of docs/development.md
replaced (in prose as phrases, in Python names part by part: `told_as` holds `told`), class names that are
defined twice, and public functions with a generic name. Exits with 1 if it finds anything.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

# Phrase -> what to write instead. A phrase matches as whole words in any case.
PHRASES = {
    r"told|tells?|telling|untold": "exports, exposes, reports, logs, omitted",
    r"whoever|whose|himself|he|him|his": "the owner, the client, its",
    r"handed|hands? over|handing over|grants?|granted": "allocates, allocation, passes",
    r"asked|asks|asking": "queries, calls, requests",
    r"mend|mended|mends|mending": "fixes, repairs",
    r"sayings|doorway|lane": "messages, control socket, shard queue",
    r"lets? go|letting go": "releases",
    r"nobody's": "unattributed, idle, unobserved",
    r"reckon|reckoned|reckons|reckoning": "computes",
    r"heed|heeds|heeded|unheeded": "honors, ignores",
    r"by hand": "manually",
    r"(?:of|on) (?:its|their|our|his) own": "separate, own",
    r"a right": "a permission",
    r"anew": "again",
    r"so it is|to be had|none such|is not to be|are not to be": "an ordinary verb",
    r"by itself|by themselves": "automatically, alone",
    r"stays|lasts|outlasts?": "is kept, persists",
    r"vitals": "health",
    r"maps? of (?:owners|pods|jobs|containers)": "owner index",
    r"(?:is|are) wanted": "expected",
}
# Parts of Python names.
NAME_PARTS = frozenset(
    {
        *("told", "untold", "tell", "tells", "telling", "whoever", "whose", "handed"),
        *("grant", "grants", "granted", "asked", "asks", "mended", "sayings", "doorway", "lane", "reckoned"),
        *("heeded", "unheeded", "anew", "vitals"),
    }
)
# A public function says what it works on: `post_snapshot`, not `post`.
GENERIC_FUNCTION = re.compile(
    r"^(?:async )?def (ask|do|get|give|look|make|post|read|take|tell)\(", re.MULTILINE
)

# Text of other programs, and this list.
SKIPPED = re.compile(
    r"dev/check_language\.py|LICENSE|.*\.lock|tests/(?:corpus|fixtures|schemas)/.*|src/.*_pb2\.pyi?"
    r"|.*\.(?:png|bin|gz)"
)
# Files with phrases that other programs wrote or parse, and the glossary itself.
ALLOWED: dict[str, re.Pattern[str]] = {
    "docs/development.md": re.compile(".*"),
    # A message of the API server: "attempting to grant RBAC permissions".
    "src/gpuledger/kubernetes/object_client.py": re.compile("grant"),
    # Tables and columns of the ledger file.
    **{
        f"{folder}/{name}.py": re.compile("stays|told")
        for folder, names in {
            "src/gpuledger/ledger/store": (
                *("folding", "presence", "retention", "schema", "store", "tables", "watched_range"),
            ),
            "src/gpuledger/ledger/books": ("range_copy",),
            "tests/unit/ledger/store": ("test_own_rows", "test_restart"),
        }.items()
        for name in names
    },
}

# One pattern for lower case: many patterns, or ignoring case, take ten times as long.
_PHRASE = re.compile(rf"\b(?<!-)(?:{'|'.join(PHRASES)})\b(?!-)")
_SPLIT = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_CLASS = re.compile(r"^class ([A-Za-z]\w*)", re.MULTILINE)


def text_files(below: list[str]) -> Iterator[tuple[str, str]]:
    """Name and text of each tracked or new file, other programs' files left out."""
    listing = ["git", "ls-files", "-co", "--exclude-standard", "--", *below]
    names = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.splitlines()
    for name in sorted(set(names)):
        path = Path(name)
        if SKIPPED.fullmatch(name) or path.is_symlink() or not path.is_file():
            continue
        try:
            yield name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def replaced_phrases(name: str, text: str) -> Iterator[str]:
    """A line for each phrase that the glossary replaced."""
    allowed = ALLOWED.get(name)
    for match in _PHRASE.finditer(text.lower()):
        phrase = match.group()
        if allowed is None or not allowed.fullmatch(phrase):
            better = next(better for known, better in PHRASES.items() if re.fullmatch(known, phrase))
            yield f"{name}:{line_of(text, match.start())}: '{phrase}': write {better}"


def line_of(text: str, offset: int) -> int:
    """The number of the line at this offset."""
    return text.count("\n", 0, offset) + 1


def defined_names(tree: ast.Module) -> set[tuple[int, str]]:
    """Line and name of everything that a module defines: classes, functions, parameters, variables."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add((node.lineno, node.name))
        elif isinstance(node, ast.arg):
            found.add((node.lineno, node.arg))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add((node.lineno, node.id))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add((node.lineno, node.attr))
    return found


def bad_names(name: str, text: str) -> Iterator[str]:
    """A line for each name that holds a replaced word, and for each generic function of the program."""
    # Parsing all files takes long, and few hold such a word.
    if any(part.lower() in NAME_PARTS for part in _SPLIT.findall(text)):
        for number, defined in sorted(defined_names(ast.parse(text))):
            for part in _SPLIT.findall(defined):
                if part.lower() in NAME_PARTS:
                    yield f"{name}:{number}: the name '{defined}' holds '{part}'"
    if name.startswith("src/"):
        for match in GENERIC_FUNCTION.finditer(text):
            number = line_of(text, match.start())
            yield f"{name}:{number}: the function '{match[1]}' needs its object in its name"


def findings(below: list[str]) -> Iterator[str]:
    """Every finding as one line."""
    classes: dict[str, list[str]] = defaultdict(list)
    for name, text in text_files(below):
        yield from replaced_phrases(name, text)
        if name.endswith(".py"):
            yield from bad_names(name, text)
            if name.startswith("src/"):
                for match in _CLASS.finditer(text):
                    classes[match[1]].append(f"{name}:{line_of(text, match.start())}")
    for defined, places in sorted(classes.items()):
        if len(places) > 1:
            yield f"{places[0]}: the class '{defined}' is also defined in {', '.join(places[1:])}"


def main(arguments: list[str]) -> int:
    """Print the findings, or with --count how many there are by folder."""
    found = list(findings([word for word in arguments if word != "--count"]))
    if "--count" in arguments:
        folders = Counter("/".join(line.split(":")[0].split("/")[:3]) for line in found)
        found = [f"{count:6} {folder}" for folder, count in folders.most_common()]
    for line in found:
        print(line)
    if found:
        print("The glossary is in docs/development.md.", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
