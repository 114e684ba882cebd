"""The settings of `gpuledger books`."""

from __future__ import annotations

from dataclasses import dataclass

from gpuledger.model.settings import choice, option, text


@dataclass(frozen=True)
class BooksSettings:
    """Range and format of an export, the target of a merge, and the person to forget."""

    period: str = option(
        "books.in",
        text,
        "",
        "export: a whole period as in report, such as 2026-10 or 'last month' (the default)",
        metavar="PERIOD",
    )
    since: str = option("books.since", text, "", "export: start, as in report", metavar="WHEN")
    until: str = option("books.until", text, "now", "export: end, as in report", metavar="WHEN")
    format: str = option(
        "books.format",
        choice("parquet", "csv"),
        "parquet",
        "export: parquet, which needs pip install 'gpuledger[parquet]', or csv",
        metavar="FORM",
    )
    into: str = option("books.into", text, "", "merge: the directory that gets the exports", metavar="DIR")
    user: str = option("books.user", text, "", "forget: the name of the user", metavar="NAME")
    pseudonym: str = option(
        "books.as",
        text,
        "",
        "forget: the pseudonym, the same on all nodes of a user (default: forgotten-, and random digits)",
        metavar="NAME",
    )
