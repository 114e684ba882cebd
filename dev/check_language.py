"""Checks that the tree speaks plain technical English: words that the glossary replaced do not come back.

    python dev/check_language.py [--count] [PATH...]

Reads every tracked text file (or those below PATH): prose by phrase, Python names part by part
(`told_as` and `ToldRow` both hold `told`). Prints `file:line: word -> what to write` and exits 1 when it finds
one. Two classes of one name and public functions with a generic name are reported too.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

# Phrase -> what to write. Matched as whole words, whatever the case.
PHRASES = {
    r"told|tells?|telling|untold": "exported, exposes, reported, known, logged, omitted",
    r"whoever|whose|himself|he|him|his": "name the thing: the owner, its, the client, the pod that",
    r"handed|hands over|handing over|hand(?:ed)? over|grants?|granted": "allocated, passes, allocation, permission",
    r"asked|asks|asking": "queried, calls, requested",
    r"mend|mended|mends|mending": "fixed, repairs",
    r"sayings|doorway|lane": "messages, control socket, queue of a shard",
    r"lets? go|letting go": "releases",
    r"nobody's": "unattributed, idle, unobserved",
    r"reckon|reckoned|reckons|reckoning": "computed",
    r"heed|heeds|heeded|unheeded": "honored, ignored",
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
# Parts of names: `told_as`, `ToldRow`, `_asked`.
NAME_PARTS = {
    part
    for phrase in [
        "told",
        "tell",
        "tells",
        "telling",
        "untold",
        "whoever",
        "whose",
        "handed",
        "grant",
        "grants",
        "granted",
        "asked",
        "asks",
        "mended",
    ]
    for part in (phrase,)
} | set(["sayings", "doorway", "lane", "reckoned", "heeded", "unheeded", "anew", "vitals"])
# Public functions need their object: `post_snapshot`, not `post`.
GENERIC_FUNCTIONS = {"post", "read", "take", "tell", "give", "make", "get", "do", "ask", "look"}

# Files that hold other programs' text, or the list itself.
SKIPPED = re.compile(
    r"^(dev/check_language\.py|LICENSE|.*\.lock|tests/(corpus|fixtures|schemas)/.*|src/.*_pb2\.py|.*\.(png|bin|gz|svg))$"
)
# `file: phrase`: what other programs parse or wrote, and accounting's own word.
ALLOWED: dict[str, tuple[str, ...]] = {}

_WORDS = [
    (re.compile(rf"(?<![\w-])(?:{phrase})(?![\w-])", re.IGNORECASE), better)
    for phrase, better in PHRASES.items()
]
_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def files(below: list[str]) -> Iterator[Path]:
    """Tracked and new files that are text of ours."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *below],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in sorted(set(listed.splitlines())):
        path = Path(name)
        if not SKIPPED.match(name) and path.is_file() and not path.is_symlink():
            yield path


def phrases_in(path: Path, text: str) -> Iterator[tuple[int, str, str]]:
    """Line, phrase and replacement for each phrase that the glossary replaced."""
    allowed = ALLOWED.get(str(path), ())
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, better in _WORDS:
            for match in pattern.finditer(line):
                if match.group(0).lower() not in allowed:
                    yield number, match.group(0), better


def names_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that a Python file defines: classes, functions, parameters, variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def check(below: list[str]) -> Iterator[tuple[str, str]]:
    """Finding by finding: the file, and a line for people."""
    classes: dict[str, list[str]] = defaultdict(list)
    for path in files(below):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, phrase, better in phrases_in(path, text):
            yield str(path), f"{path}:{number}: '{phrase}' -> {better}"
        if path.suffix != ".py":
            continue
        tree = ast.parse(text)
        for number, name in sorted(set(names_in(tree))):
            for part in _PARTS.findall(name):
                if part.lower() in NAME_PARTS and name.lower() != part.lower():
                    yield str(path), f"{path}:{number}: name '{name}' holds '{part.lower()}'"
        if path.parts[0] == "src":
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    classes[node.name].append(f"{path}:{node.lineno}")
                if (
                    isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                    and node.name in GENERIC_FUNCTIONS
                ):
                    yield str(path), f"{path}:{node.lineno}: function '{node.name}' needs its object"
    for name, places in sorted(classes.items()):
        if len(places) > 1:
            yield (
                places[0].split(":")[0],
                f"class '{name}' is defined {len(places)} times: {', '.join(places)}",
            )


def main(arguments: list[str]) -> int:
    """Print what is found; 1 when there is anything."""
    below = [word for word in arguments if word != "--count"]
    found = list(check(below))
    if "--count" in arguments:
        folders = Counter("/".join(name.split("/")[:3]) for name, _ in found)
        for folder, count in folders.most_common():
            print(f"{count:6} {folder}")
    else:
        for _, line in found:
            print(line)
    if found:
        print(f"{len(found)} findings; the glossary is in docs/development.md", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
