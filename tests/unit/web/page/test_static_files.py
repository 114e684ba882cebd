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
from gpuledger.web.page import static_files
from gpuledger.web.page.static_files import FILE_NAMES, FOLDER, page_version
from gpuledger.web.routes import page_handlers
from gpuledger.web.settings import Links
from unit.http.support import a_page

STATIC = Path(static_files.__file__).with_name("static")
LINKS = Links("/metrics", ("process", "native"))
# The policy that the browser enforces: only files and requests of this origin.
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


def request(path: str = "/", links: Links = LINKS, **headers: str) -> Response:
    routes = Routes(*page_handlers(a_page, links, FakeClock()))
    path, _, query = path.partition("?")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = routes.respond(Request("GET", path, query, named))
    assert isinstance(answer, Response)
    return answer


def text(path: str = "/", **options: Links) -> str:
    return request(path, **options).body.decode()


def header(answer: Response, name: str) -> str:
    return dict(answer.headers)[name]


def addresses(document: str) -> set[str]:
    return set(re.findall(r'(?:href|src)="(page/[^"]+)"', document))


def test_exactly_the_files_of_the_folder_are_served() -> None:
    assert {"index.html", *FILE_NAMES} == {path.name for path in STATIC.iterdir()}
    for name in FILE_NAMES:
        assert request(FOLDER + name).status == 200
    for name in ("index.html", "../static_files.py", "nothing.js", ""):
        assert request(FOLDER + name).status == 404


@pytest.mark.parametrize("path", ["/", *(FOLDER + name for name in FILE_NAMES)])
def test_every_response_has_the_policy_and_its_content_type(path: str) -> None:
    answer = request(path)
    assert set(header(answer, "Content-Security-Policy").split("; ")) == POLICY
    kinds = {"": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert answer.content_type.split(";")[0] == kinds[path.rpartition(".")[2].strip("/")]


def test_every_reference_of_the_document_exists_and_has_the_version() -> None:
    named = addresses(text())
    assert {address.partition("?")[0] for address in named} == {f"page/{name}" for name in FILE_NAMES}
    assert {address.partition("?")[2] for address in named} == {f"v={page_version()}"}


@pytest.mark.parametrize("name", [name for name in FILE_NAMES if name.endswith(".js")])
def test_scripts_import_each_other_by_the_urls_of_the_document(name: str) -> None:
    imports = re.findall(r'from "\./([^"]+)"', text(FOLDER + name))
    assert {f"page/{one}" for one in imports} <= addresses(text())


def test_a_versioned_url_is_cached_forever_and_any_other_is_revalidated() -> None:
    assert "immutable" in header(request(f"/page/app.js?v={page_version()}"), "Cache-Control")
    for path in ("/page/app.js", "/page/app.js?v=old", "/"):
        assert header(request(path), "Cache-Control") == "no-cache"


@pytest.mark.parametrize("path", ["/", "/page/app.js", f"/page/app.js?v={page_version()}"])
def test_a_file_with_a_matching_etag_gets_304(path: str) -> None:
    tag = header(request(path), "ETag")
    again = request(path, if_none_match=tag)
    assert (again.status, again.body) == (304, b"")
    assert request(path, if_none_match='"another"').status == 200


def test_a_file_is_compressed_when_gzip_is_accepted() -> None:
    answer = request("/page/app.js", accept_encoding="gzip, br")
    assert header(answer, "Content-Encoding") == "gzip"
    assert gzip.decompress(answer.body) == request("/page/app.js").body


@pytest.mark.parametrize("name", [name for name in FILE_NAMES if name.endswith((".js", ".css"))])
def test_only_comments_on_separate_lines_are_not_sent(name: str) -> None:
    stored = (STATIC / name).read_text(encoding="utf-8")
    sent = re.sub(r"\?v=[0-9a-f]{8}", "", text(FOLDER + name))
    inside, code = False, []
    for line in stored.splitlines():
        words = line.strip()
        inside = inside or words.startswith("/*")
        if not inside and not words.startswith("//"):
            code.append(line)
        inside = inside and not words.endswith("*/")
    assert sent.splitlines() == code
    assert len(sent) < len(stored)


def test_links_are_relative_to_work_below_a_proxy_prefix() -> None:
    found = re.findall(r'href="([^"#]+)"', text())
    assert {"metrics", "metrics/process", "metrics/native", "health", "api/v1/openapi.json", "plain"} <= {
        *found
    }
    assert not [link for link in found if link.startswith(("/", "http"))]


def test_links_are_escaped() -> None:
    odd = '/"><script>alert(1)</script>'
    assert "<script>alert" not in text(links=Links(odd, ("native",)))


def test_nothing_inline_violates_the_policy() -> None:
    document = text()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=", document)
    assert re.findall(r"<script(?! type=\"module\" src=\"page/app\.js)", document) == []


def test_the_document_has_the_version_and_a_link_to_the_plain_table_without_scripts() -> None:
    assert __version__ in text()
    assert '<noscript><p class="banner">This page needs JavaScript. <a href="plain">' in text()
    plain = text("/plain")
    assert "GPUs of this machine" in plain or "This machine has no GPU" in plain
    assert 'href="./plain?refresh=off"' in plain


def test_all_files_together_are_smaller_than_150_kilobytes() -> None:
    assert sum(len(request(path).body) for path in ("/", *(FOLDER + name for name in FILE_NAMES))) < 150_000


def test_the_page_modules_are_loaded_lazily_and_never_load_openssl() -> None:
    script = """
import sys
from gpuledger.http.routes import Request
from gpuledger.web.settings import Links
from gpuledger.web.routes import page_handlers
exact, _ = page_handlers(lambda: None, Links(), None)
assert "gpuledger.web.page.static_files" not in sys.modules
assert exact["/"](Request("GET", "/")).status == 200
assert "_hashlib" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
