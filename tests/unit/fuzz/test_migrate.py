"""The readers of `migrate check`: dashboards, rules, queries and pages raise nothing but their errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from fuzzing import bounded, check_line, corpus_files, file_name, fuzzed, mutated_files
from gpuledger.migrate.check import check_migration
from gpuledger.migrate.formats import FORMATS
from gpuledger.migrate.page import parse_page
from gpuledger.migrate.promql import Rewriting, UnreadableQuery, parse_query, write_query
from gpuledger.migrate.user_queries import UserQueries, UserQuery, read_user_queries
from gpuledger.model.errors import GpuledgerError

PAGE = parse_page(b'a{gpu="0",b="1",s="x"} 1\nb{gpu="0",name="n"} 2\n', "page")


def read_queries(content: bytes, folder: Path, ending: str) -> UserQueries:
    file = folder / f"f{ending}"
    file.write_bytes(content)
    try:
        return read_user_queries([file], []) if ending == ".yml" else read_user_queries([], [file])
    except GpuledgerError as error:
        check_line(error)
        return UserQueries()


def check(user: UserQueries) -> None:
    report = check_migration(PAGE, PAGE, user)
    assert [one.kind for one in report.queries if one.kind not in ("unread", "type")] == []
    for write in FORMATS.values():
        write(report)


READERS = [("grafana", ".json"), ("prometheus-rules", ".yml")]


@pytest.mark.parametrize(
    ("path", "ending"),
    [(path, ending) for reader, ending in READERS for path in corpus_files(reader)],
    ids=lambda value: value.name if isinstance(value, Path) else value,
)
def test_a_file_of_the_corpus_is_read(path: Path, ending: str, tmp_path: Path) -> None:
    found = read_queries(path.read_bytes(), tmp_path, ending)
    assert found.queries
    check(found)


@pytest.mark.parametrize(("reader", "ending"), READERS)
def test_a_mutated_file_is_read_or_refused(reader: str, ending: str, tmp_path: Path) -> None:
    @fuzzed
    @given(mutated_files(reader, b'"expr"', b"$gpu", b"[5m]", b"rules:", b"- "))
    def law(content: bytes) -> None:
        with bounded():
            check(read_queries(content, tmp_path, ending))

    law()


@pytest.mark.parametrize("path", corpus_files("promql"), ids=file_name)
def test_a_query_of_the_corpus_is_written_as_it_was(path: Path) -> None:
    text = path.read_text()
    again = parse_query(write_query(parse_query(text), Rewriting()))
    assert again.node.prettify() == parse_query(text).node.prettify()


@fuzzed
@given(mutated_files("promql", b"sum by (", b"[5m]", b" offset ", b"$gpu", b"{", b"}", b"(", b")", b" or "))
def test_a_mutated_query_is_evaluated_and_written_or_refused(content: bytes) -> None:
    text = content.decode("utf-8", "replace")
    with bounded():
        try:
            parsed = parse_query(text)
        except UnreadableQuery as error:
            assert "\n" not in str(error)
            return
        parse_query(write_query(parsed, Rewriting()))
        check(UserQueries([UserQuery("r.yml: g: alert A", text)]))


LONG = {
    "parentheses": "(" * 50_000 + "a" + ")" * 50_000,
    "matchers": "a{" + ",".join(f'l{number}="x"' for number in range(4000)) + "}",
    # The parser's time is quadratic in it.
    "sum of many": " + ".join(["a"] * 1000),
    "alternatives": 'a{gpu=~"' + "|".join(map(str, range(9000))) + '"}',
    "variables": " or ".join(f'a{{gpu="$v{number}"}}' for number in range(1500)),
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_query_takes_no_time(name: str) -> None:
    with bounded():
        check(UserQueries([UserQuery("r.yml: g: alert A", LONG[name])]))
