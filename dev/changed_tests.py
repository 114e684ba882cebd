"""Prints the test files that a change needs, found by imports: what `make quick` runs.

    python dev/changed_tests.py [BASE]

A file of tests/unit is printed if it changed since BASE (default: HEAD; untracked files count), if it imports
a changed module directly or through a test helper, or if it mirrors the module: `ledger/spans.py` belongs to
`tests/unit/ledger/test_spans*.py`. A module without such tests is tested by those of the modules that import
it. Of a module that more than MOST_TESTS files import, only the tests in its folder are printed. Other
modules that import the changed one are left to `make test`, and so are LONG_TESTS, which take minutes.
OTHER_TESTS are for files that no test imports.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

MOST_TESTS = 25
LONG_TESTS = frozenset({"tests/unit/node/test_faults_driver.py", "tests/unit/node/test_faults_machine.py"})
# By the name of the changed file.
OTHER_TESTS = {
    r"(docs/.*|[A-Z]+)\.md": ("tests/unit/docs",),
    r"deploy/helm/.*": ("tests/unit/deploy",),
    r"src/gpuledger/dialects/.*": (
        "tests/unit/dialects/test_catalogue.py",
        "tests/unit/dialects/test_golden.py",
    ),
    r"src/.*/settings\.py": ("tests/unit/docs/test_settings.py", "tests/unit/deploy/test_chart_program.py"),
}

# Import statements as text: parsing all tests takes seconds. One in a string, as of a program that a test
# starts, counts too.
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n(]+)|import[ \t]+([^\n]+))", re.MULTILINE
)
_NAME = re.compile(r"[\w.]+")

# The modules that each file imports, by path.
Imports = dict[str, set[str]]


def changed_files(base: str) -> set[str]:
    """Files that differ from BASE, untracked ones included."""
    found: set[str] = set()
    for command in (["diff", "--name-only", base, "--"], ["ls-files", "-o", "--exclude-standard"]):
        done = subprocess.run(["git", *command], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.exit(f"cannot compare with {base}; set BASE to a commit")
        found.update(done.stdout.splitlines())
    return found


def module_name(path: str) -> str:
    """The name under which others import the file: `gpuledger.x.y`, or `x` for tests/x.py."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")[1:]
    return ".".join(parts)


def imported(path: Path) -> set[str]:
    """Every module that the file may import, those in functions and under TYPE_CHECKING included."""
    found = set()
    for module, names, modules in _IMPORT.findall(path.read_text(encoding="utf-8")):
        if module:
            found |= {module, *(f"{module}.{name}" for name in _NAME.findall(names))}
        else:
            found |= set(_NAME.findall(modules))
    return found


def read_imports(folder: str) -> Imports:
    """The imports of all files below the folder."""
    return {str(path): imported(path) for path in Path(folder).rglob("*.py")}


def importers(imports: Imports, modules: set[str]) -> set[str]:
    """The files that import one of the modules."""
    return {name for name, uses in imports.items() if uses & modules}


def is_unit_test(name: str) -> bool:
    """Whether the file is one that `make quick` may run."""
    return name.startswith("tests/unit/") and Path(name).name.startswith("test_")


def folder_of_tests(name: str) -> str:
    """The folder with the tests of this file of the program."""
    return str(Path(name).parent).replace("src/gpuledger", "tests/unit")


def nearest_tests(changed: str, source: Imports, tests: Imports) -> set[str]:
    """The tests of one changed file."""
    if is_unit_test(changed):
        return {changed}
    helpers = {name: uses for name, uses in tests.items() if not is_unit_test(name)}
    files, found, seen = {changed}, set[str](), set[str]()
    while files and not found:
        seen |= files
        modules = {module_name(name) for name in files}
        # Helpers may import helpers.
        while more := {module_name(name) for name in importers(helpers, modules)} - modules:
            modules |= more
        mirrors = tuple(f"{folder_of_tests(name)}/test_{Path(name).stem}" for name in files)
        found = {name for name in tests if name.startswith(mirrors)} | importers(tests, modules)
        found = {name for name in found if is_unit_test(name)} - LONG_TESTS
        files = importers(source, {module_name(name) for name in files}) - seen
    folder = folder_of_tests(changed)
    near = {name for name in found if str(Path(name).parent) == folder}
    if len(found) > MOST_TESTS and near:
        print(f"{changed}: {len(found)} test files import it; only those in {folder} run", file=sys.stderr)
        return near
    return found


def affected_tests(changed: set[str]) -> list[str]:
    """Test files and folders to run, sorted."""
    source, tests = read_imports("src"), read_imports("tests")
    files = changed & {*source, *tests}
    found = {test for name in files for test in nearest_tests(name, source, tests)}
    for pattern, more in OTHER_TESTS.items():
        found.update(more if any(re.fullmatch(pattern, name) for name in changed) else ())
    return sorted(found)


if __name__ == "__main__":
    print("\n".join(affected_tests(changed_files(*(sys.argv[1:] or ["HEAD"])))))
