"""Links, pictures and form of the documentation in the repository."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest

from documentation import DOCS, NAMES, PAGES, ROOT, markdown

each_page = pytest.mark.parametrize("page", PAGES, ids=NAMES)
PICTURES = sorted((DOCS / "pictures").glob("*.svg"))


@each_page
def test_links_to_files_and_anchors_are_valid(page: Path) -> None:
    for link in _inside(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        assert target.exists(), f"{link}: no such file"
        assert target.is_relative_to(ROOT), f"{link}: outside of the repository"
        if anchor:
            assert anchor in markdown(target).anchors, f"{link}: no such heading"


@each_page
def test_external_links_use_https(page: Path) -> None:
    for link in markdown(page).links:
        parts = urlsplit(link)
        if parts.scheme:
            assert parts.scheme == "https", link
            assert "." in parts.netloc, link


@each_page
def test_pictures_exist_and_have_alternative_text(page: Path) -> None:
    for source, alternative in markdown(page).pictures:
        assert (page.parent / source).is_file(), source
        assert len(alternative) > 20, f"{source}: alternative text is too short"


@each_page
def test_pages_are_plain_markdown_that_a_forge_renders(page: Path) -> None:
    assert not [language for language in markdown(page).languages if "{" in language]


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_drawings_are_valid_self_contained_and_used(picture: Path) -> None:
    root = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text
    assert "prefers-color-scheme: dark" in "".join(root.itertext())
    references = [
        value for node in root.iter() for name, value in node.attrib.items() if name.endswith("href")
    ]
    assert all(reference.startswith("#") for reference in references)
    assert used_by_a_page(picture)


def used_by_a_page(picture: Path) -> bool:
    return any(
        (page.parent / source).resolve() == picture for page in PAGES for source, _ in markdown(page).pictures
    )


def _inside(page: Path) -> list[str]:
    return [link for link in markdown(page).links if not urlsplit(link).scheme]
