"""Draws docs/pictures/architecture.svg from the code: packages by layer, their imports, the way of the data.

    python dev/draw_architecture.py [--check]

Layers come from the import contract in pyproject.toml, captions from the packages' docstrings, imports from
the code. With --check nothing is written; exit code 1 says that the committed picture is out of date.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from html import escape
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gpuledger"
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"

# The way of the data: from package to package, and what passes between them.
DATA = (
    ("sources", "workloads", "Snapshot"),
    ("workloads", "ledger", "Snapshot with owners"),
    ("ledger", "dialects", "NodeState"),
    ("dialects", "exposition", "metric families"),
)
WIDTH, MARGIN, GAP, ARROWS = 1180, 20, 12, 26
# Height of a box in a row without others, and of one beside others.
ALONE, BESIDE = 62, 122
STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #1b1f24 } .name { font-weight: 600; font-size: 15px }
.caption { font-size: 12px } .uses { font-size: 11px; fill: #57606a } .data { fill: #0550ae; font-size: 12px }
rect { fill: #f6f8fa; stroke: #8c959f; rx: 6px } path { stroke: #0550ae; stroke-width: 2; fill: none }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .uses { fill: #9198a1 } .data { fill: #79c0ff }
rect { fill: #161b22; stroke: #6e7681 } path { stroke: #79c0ff } }"""


def layers() -> list[list[str]]:
    """Packages from the top layer to the bottom one."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return [re.findall(r"\w+", row) for row in rows if row != "__main__"]


def caption(package: str) -> str:
    """The first sentence of the package's docstring."""
    tree = ast.parse((SOURCE / package / "__init__.py").read_text(encoding="utf-8"))
    first = (ast.get_docstring(tree) or "").split("\n")[0]
    return first.split(". ")[0].rstrip(".").replace("`", "")


def imports(package: str) -> set[str]:
    """The other packages that any module of this one imports."""
    found: set[str] = set()
    for path in (SOURCE / package).rglob("*.py"):
        found.update(re.findall(r"^ *from gpuledger\.(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    return found - {package}


def text(x: float, y: float, kind: str, words: str, anchor: str = "start") -> str:
    """One line of text."""
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def box(package: str, x: float, y: float, width: float, height: float, order: list[str]) -> list[str]:
    """One package: name, caption and imports, in a frame."""
    imported = imports(package)
    uses = [name for name in order if name in imported]
    characters = int(width / 7)
    lines = wrap(caption(package), characters)[:4]
    used = wrap("imports " + ", ".join(uses) if uses else "imports nothing of ours", int(width / 6))[:2]
    parts = [f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height}"/>']
    parts.append(text(x + 10, y + 20, "name", package))
    parts += [text(x + 10, y + 38 + 15 * number, "caption", line) for number, line in enumerate(lines)]
    parts += [
        text(x + 10, y + height - 9 - 13 * (len(used) - 1 - number), "uses", line)
        for number, line in enumerate(used)
    ]
    return parts


def draw() -> str:
    """The whole picture."""
    rows = layers()
    order = [package for row in rows for package in row]
    parts, centers, y = [], {}, MARGIN
    for row in rows:
        y += ARROWS if DATA[0][0] in row else 0
        height = ALONE if len(row) == 1 else BESIDE
        width = (WIDTH - 2 * MARGIN - GAP * (len(row) - 1)) / len(row)
        for number, package in enumerate(row):
            x = MARGIN + number * (width + GAP)
            centers[package] = (x + width / 2, y)
            parts += box(package, x, y, width, height, order)
        y += height + GAP
    for first, second, what in DATA:
        (left, top), (right, _) = centers[first], centers[second]
        left, right = left + 12, right - 12
        parts.append(
            f'<path d="M{left:.0f},{top} C{left:.0f},{top - 14} {right:.0f},{top - 14} {right:.0f},{top - 2}"'
            ' marker-end="url(#arrow)"/>'
        )
        parts.append(text((left + right) / 2, top - 14, "data", what, "middle"))
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img">',
            "<title>The packages of gpuledger by layer: each imports only what stands below it</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"',
            ' orient="auto"><path d="M0,0 L8,4 L0,8" /></marker></defs>',
            *parts,
            "</svg>\n",
        )
    )


def main(arguments: list[str]) -> int:
    """Write the picture, or check that it is up to date."""
    drawn = draw()
    if "--check" in arguments:
        if PICTURE.read_text(encoding="utf-8") != drawn:
            print("docs/pictures/architecture.svg is out of date: run `make docs`", file=sys.stderr)
            return 1
        return 0
    PICTURE.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
