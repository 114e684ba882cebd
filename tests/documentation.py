"""Parser for README.md and the pages of docs, as a git forge renders them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md")))
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@dataclass(frozen=True, slots=True)
class Markdown:
    """The links, anchors, pictures and code of one page."""

    links: tuple[str, ...]
    pictures: tuple[tuple[str, str], ...]
    anchors: frozenset[str]
    blocks: tuple[str, ...]
    spans: tuple[str, ...]
    languages: tuple[str, ...] = field(repr=False)


@cache
def markdown(page: Path) -> Markdown:
    tokens = list(_flat(MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))))
    blocks = [token for token in tokens if token.type in ("fence", "code_block")]
    return Markdown(
        links=tuple(str(token.attrs["href"]) for token in tokens if token.type == "link_open"),
        pictures=tuple((str(token.attrs["src"]), token.content) for token in tokens if token.type == "image"),
        anchors=frozenset(_anchors(tokens)),
        blocks=tuple(token.content for token in blocks),
        spans=tuple(token.content for token in tokens if token.type == "code_inline"),
        languages=tuple(token.info for token in blocks),
    )


def _flat(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _flat(token.children or ())


def _anchors(tokens: Sequence[Token]) -> Iterator[str]:
    """Heading anchors of a forge: lower case, dashes for spaces, no punctuation, repeats numbered."""
    seen: dict[str, int] = {}
    for heading, inline in pairwise(tokens):
        if heading.type == "heading_open":
            text = "".join(
                part.content for part in inline.children or () if part.type in ("text", "code_inline")
            )
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            seen[slug] = seen.get(slug, -1) + 1
            yield f"{slug}-{seen[slug]}" if seen[slug] else slug
