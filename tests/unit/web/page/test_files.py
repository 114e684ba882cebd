from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import pytest

from builders import FakeClock
from gpuledger import __version__
from gpuledger.http.routes import Request, Response, Routes
from gpuledger.web.page import files
from gpuledger.web.page.files import FOLDER, NAMES, page_version
from gpuledger.web.routes import page_routes
from gpuledger.web.settings import Links
from unit.http.support import a_page

STATIC = Path(files.__file__).with_name("static")
LINKS = Links("/metrics", ("process", "native"))
# What the browser is told to refuse: everything but files and requests of this very address.
POLICY = {
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "font-src 'none'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
}


def ask(path: str = "/", links: Links = LINKS, **headers: str) -> Response:
    routes = Routes(*page_routes(a_page, links, FakeClock()))
    path, _, query = path.partition("?")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = routes.respond(Request("GET", path, query, named))
    assert isinstance(answer, Response)
    return answer


def text(path: str = "/", **options: Links) -> str:
    return ask(path, **options).body.decode()


def header(answer: Response, name: str) -> str:
    return dict(answer.headers)[name]


def addresses(document: str) -> set[str]:
    return set(re.findall(r'(?:href|src)="(page/[^"]+)"', document))


def test_every_file_of_the_folder_is_served_and_no_other() -> None:
    assert {"index.html", *NAMES} == {path.name for path in STATIC.iterdir()}
    for name in NAMES:
        assert ask(FOLDER + name).status == 200
    for name in ("index.html", "../files.py", "nothing.js", ""):
        assert ask(FOLDER + name).status == 404


@pytest.mark.parametrize("path", ["/", *(FOLDER + name for name in NAMES)])
def test_every_answer_has_the_policy_and_its_type(path: str) -> None:
    answer = ask(path)
    assert set(header(answer, "Content-Security-Policy").split("; ")) == POLICY
    kinds = {"": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert answer.content_type.split(";")[0] == kinds[path.rpartition(".")[2].strip("/")]


def test_whatever_the_document_names_is_there_with_its_version() -> None:
    named = addresses(text())
    assert {address.partition("?")[0] for address in named} == {f"page/{name}" for name in NAMES}
    assert {address.partition("?")[2] for address in named} == {f"v={page_version()}"}


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".js")])
def test_scripts_import_each_other_by_the_addresses_that_the_document_names(name: str) -> None:
    imports = re.findall(r'from "\./([^"]+)"', text(FOLDER + name))
    assert {f"page/{one}" for one in imports} <= addresses(text())


def test_a_file_under_its_version_is_kept_for_good_and_else_asked_for_again() -> None:
    assert "immutable" in header(ask(f"/page/app.js?v={page_version()}"), "Cache-Control")
    for path in ("/page/app.js", "/page/app.js?v=old", "/"):
        assert header(ask(path), "Cache-Control") == "no-cache"


@pytest.mark.parametrize("path", ["/", "/page/app.js", f"/page/app.js?v={page_version()}"])
def test_what_the_browser_has_already_is_not_sent_again(path: str) -> None:
    tag = header(ask(path), "ETag")
    again = ask(path, if_none_match=tag)
    assert (again.status, again.body) == (304, b"")
    assert ask(path, if_none_match='"another"').status == 200


def test_it_is_compressed_for_who_can_read_that() -> None:
    answer = ask("/page/app.js", accept_encoding="gzip, br")
    assert header(answer, "Content-Encoding") == "gzip"
    assert gzip.decompress(answer.body) == ask("/page/app.js").body


def test_links_are_relative_so_that_they_hold_below_a_proxys_path() -> None:
    found = re.findall(r'href="([^"#]+)"', text())
    assert {"metrics", "metrics/process", "metrics/native", "health", "api/v1/openapi.json", "plain"} <= {
        *found
    }
    assert not [link for link in found if link.startswith(("/", "http"))]


def test_links_are_text_whatever_they_are() -> None:
    odd = '/"><script>alert(1)</script>'
    assert "<script>alert" not in text(links=Links(odd, ("native",)))


def test_there_is_nothing_inline_that_the_policy_would_refuse() -> None:
    document = text()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=", document)
    assert re.findall(r"<script(?! type=\"module\" src=\"page/app\.js)", document) == []


def test_it_names_the_version_and_leads_who_has_no_scripts_to_the_plain_table() -> None:
    assert __version__ in text()
    assert '<noscript><p class="banner">This page needs JavaScript. <a href="plain">' in text()
    plain = text("/plain")
    assert "GPUs of this machine" in plain or "This machine has no GPU" in plain
    assert 'href="./plain?refresh=off"' in plain


def test_all_of_it_weighs_less_than_150_kilobytes() -> None:
    assert sum(len(ask(path).body) for path in ("/", *(FOLDER + name for name in NAMES))) < 150_000


def test_who_is_not_looked_at_has_nothing_of_it_in_memory_and_never_openssl() -> None:
    script = """
import sys
from gpuledger.http.routes import Request
from gpuledger.web.settings import Links
from gpuledger.web.routes import page_routes
exact, _ = page_routes(lambda: None, Links(), None)
assert "gpuledger.web.page.files" not in sys.modules
assert exact["/"](Request("GET", "/")).status == 200
assert "_hashlib" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
