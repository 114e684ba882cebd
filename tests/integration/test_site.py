"""The site that `make site` builds: complete, linked, without requests to other servers."""

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

# One worker builds the site for all of these tests.
pytestmark = pytest.mark.group("site")

FRONT = "index.html"
# Without garbage collection, which takes a fourth of the CPU time of a short build.
SPHINX = "import gc, sys; gc.disable(); from sphinx.cmd.build import main; sys.exit(main(sys.argv[1:]))"
# What a browser fetches automatically when it shows a page, by element and attribute.
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
    """Anchors, links and fetched files of one built page, and its images without alternative text."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    without_alt: int = 0

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
            self.without_alt += 1


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    quiet = ("-q", "-W", "--keep-going", "-b", "html", "-d", str(folder / "doctrees"))
    built = subprocess.run(
        [sys.executable, "-c", SPHINX, *quiet, str(DOCS), str(folder / "html")],
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


def test_each_page_of_docs_is_in_the_site(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS).with_suffix(".html")).is_file(), page


def test_internal_links_and_anchors_are_valid(site: Path, pages: dict[Path, Html]) -> None:
    broken = [
        f"{file.relative_to(site)}: {link}"
        for file, html in pages.items()
        for link, target, anchor in _inside(file, html)
        if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors)
    ]
    assert broken == []


def test_each_page_is_reachable_from_the_front_page(site: Path, pages: dict[Path, Html]) -> None:
    reached = set()
    ahead = {site / FRONT}
    while ahead:
        file = ahead.pop()
        reached.add(file)
        ahead |= {target for _, target, _ in _inside(file, pages[file]) if target in pages} - reached
    assert set(pages) - reached == set()


def test_pages_load_nothing_from_other_servers(site: Path, pages: dict[Path, Html]) -> None:
    requested = {
        f"{file.name}: {source}"
        for file, html in pages.items()
        for source in html.fetched
        if urlsplit(source).netloc or urlsplit(source).scheme not in ("", "data")
    }
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        requested |= {
            f"{sheet.name}: {url}"
            for url in re.findall(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^)\"']+)", text)
        }
    assert requested == set()


def test_external_links_use_https(pages: dict[Path, Html]) -> None:
    for html in pages.values():
        for link in html.links:
            assert urlsplit(link).scheme in ("", "https"), link


def test_pictures_have_alternative_text_and_are_copied(site: Path, pages: dict[Path, Html]) -> None:
    for file, html in pages.items():
        assert not html.without_alt, file
    for picture in (DOCS / "pictures").iterdir():
        assert (site / "_images" / picture.name).is_file(), picture


def test_links_to_repository_files_are_downloads(site: Path) -> None:
    downloads = {file.name for file in (site / "_downloads").rglob("*") if file.is_file()}
    assert {"rbac.yaml", "CHANGELOG.md"} <= downloads
    rules = next((site / "_downloads").rglob("rbac.yaml"))
    assert rules.read_bytes() == (ROOT / "deploy" / "rbac.yaml").read_bytes()


def _inside(file: Path, html: Html) -> Iterator[tuple[str, Path, str]]:
    """Each internal link: as written, its target file, and the anchor."""
    for link in html.links:
        parts = urlsplit(link)
        if not parts.scheme and not parts.netloc:
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            yield link, target, unquote(parts.fragment)
