"""Prints the test files that a change needs, found by imports: what `make quick` runs.

    python dev/changed_tests.py [BASE]

A file of tests/unit is printed if it changed since BASE (default: HEAD; untracked files count), if it imports
a changed module directly or through a test helper, or if it mirrors the module: `ledger/spans.py` belongs to
`tests/unit/ledger/test_spans*.py`. Modules that import the changed one are left to `make test`.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path


def changed_files(base: str) -> set[str]:
    """Python files that differ from BASE, untracked ones included."""
    commands = (["git", "diff", "--name-only", base], ["git", "ls-files", "-o", "--exclude-standard"])
    names = (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in commands
    )
    return {name for listing in names for name in listing.splitlines() if name.endswith(".py")}


def module_name(path: str) -> str:
    """The name under which tests import the file: `gpuledger.x.y`, or `x` for tests/x.py."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")[1:]
    return ".".join(parts)


def imported(path: Path) -> set[str]:
    """Every module that the file may import, those in functions and under TYPE_CHECKING included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def affected_tests(changed: set[str]) -> list[str]:
    """Test files to run, sorted."""
    modules = {module_name(name) for name in changed if name.startswith(("src/", "tests/"))}
    mirrors = tuple(
        f"tests/unit/{path.parent.relative_to('src/gpuledger')}/test_{path.stem}"
        for path in map(Path, changed)
        if path.is_relative_to("src/gpuledger")
    )
    tests, helpers = {}, {}
    for path in Path("tests").rglob("*.py"):
        (tests if path.name.startswith("test_") else helpers)[str(path)] = imported(path)
    # Helpers may import helpers.
    while True:
        more = {module_name(name) for name, uses in helpers.items() if uses & modules} - modules
        if not more:
            break
        modules |= more
    return sorted(
        name
        for name, uses in tests.items()
        if name.startswith("tests/unit/") and (name in changed or uses & modules or name.startswith(mirrors))
    )


if __name__ == "__main__":
    print("\n".join(affected_tests(changed_files(*(sys.argv[1:] or ["HEAD"])))))
