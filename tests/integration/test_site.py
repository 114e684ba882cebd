"""The site that `make site` builds: whole, reachable from its front page, asking nothing of anybody else."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from documentation import DOCS, ROOT

# One process starts what these are about.
pytestmark = pytest.mark.xdist_group("site")

FRONT = "index.html"
# What a browser fetches by itself when it shows a page, by element and attribute.
FETCHED = {
    ("img", "src"),
    ("script", "src"),
    ("iframe", "src"),
    ("source", "srcset"),
    ("object", "data"),
    ("use", "href"),
    ("link", "href"),
}


@dataclass(slots=True)
class Html(HTMLParser):
    """One built page: its anchors, where it links to, what it fetches."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    unsaid: int = 0

    def __post_init__(self) -> None:
        HTMLParser.__init__(self)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" and value:
                self.anchors.add(value)
            elif (tag, name) in (("a", "href"), ("form", "action")) and value:
                self.links.append(value)
            elif (tag, name) in FETCHED and value:
                self.fetched.append(value)
        if tag == "img" and not dict(attributes).get("alt"):
            self.unsaid += 1


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    quiet = ("-q", "-W", "--keep-going", "-b", "html", "-d", str(folder / "doctrees"))
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", *quiet, str(DOCS), str(folder / "html")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Html]:
    read = {}
    for file in site.rglob("*.html"):
        read[file] = Html()
        read[file].feed(file.read_text(encoding="utf-8"))
    return read


def test_every_page_of_docs_is_in_the_site(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS).with_suffix(".html")).is_file(), page


def test_links_and_anchors_within_the_site_are_found(site: Path, pages: dict[Path, Html]) -> None:
    broken = [
        f"{file.relative_to(site)}: {link}"
        for file, html in pages.items()
        for link, target, anchor in _inside(file, html)
        if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors)
    ]
    assert broken == []


def test_every_page_is_reached_from_the_front_page(site: Path, pages: dict[Path, Html]) -> None:
    reached = set()
    ahead = {site / FRONT}
    while ahead:
        file = ahead.pop()
        reached.add(file)
        ahead |= {target for _, target, _ in _inside(file, pages[file]) if target in pages} - reached
    assert set(pages) - reached == set()


def test_showing_a_page_asks_nothing_of_another_server(site: Path, pages: dict[Path, Html]) -> None:
    asked = {
        f"{file.name}: {source}"
        for file, html in pages.items()
        for source in html.fetched
        if urlsplit(source).netloc or urlsplit(source).scheme not in ("", "data")
    }
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        asked |= {
            f"{sheet.name}: {url}"
            for url in re.findall(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^)\"']+)", text)
        }
    assert asked == set()


def test_links_to_other_sites_are_https(pages: dict[Path, Html]) -> None:
    for html in pages.values():
        for link in html.links:
            assert urlsplit(link).scheme in ("", "https"), link


def test_pictures_are_said_in_words_and_come_along(site: Path, pages: dict[Path, Html]) -> None:
    for file, html in pages.items():
        assert not html.unsaid, file
    for picture in (DOCS / "pictures").iterdir():
        assert (site / "_images" / picture.name).is_file(), picture


def test_a_link_to_a_file_of_the_repository_downloads_it(site: Path) -> None:
    there = {file.name for file in (site / "_downloads").rglob("*") if file.is_file()}
    assert {"rbac.yaml", "CHANGELOG.md"} <= there
    rules = next((site / "_downloads").rglob("rbac.yaml"))
    assert rules.read_bytes() == (ROOT / "deploy" / "rbac.yaml").read_bytes()


def _inside(file: Path, html: Html) -> Iterator[tuple[str, Path, str]]:
    """Each link that stays in the site: as written, the file it means, and the anchor."""
    for link in html.links:
        parts = urlsplit(link)
        if not parts.scheme and not parts.netloc:
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            yield link, target, unquote(parts.fragment)
