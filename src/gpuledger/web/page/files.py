"""The page's own files as answers: read when asked for, known by one hash of them all.

The hash stands in every address of theirs, so that a browser keeps them for good, and fetches all anew from
another version of the program. Nothing else of them stays in memory.
"""

from __future__ import annotations

import re
import zlib
from functools import cache
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING, cast

from gpuledger import __version__
from gpuledger.http.routes import Request, Response, plain
from gpuledger.outputs.responses import gzipped, wants_gzip
from gpuledger.web.settings import Links

if TYPE_CHECKING:
    from importlib.abc import ResourceLoader

FOLDER = "/page/"
PLAIN_TABLE = "/plain"

# Scripts, styles, pictures and requests of this address alone; nothing inline, no frame around it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "font-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_SCRIPTS = (
    "app.js",
    "cards.js",
    "columns.js",
    "dom.js",
    "energy.js",
    "format.js",
    "gestures.js",
    "header.js",
    "health.js",
    "live.js",
    "names.js",
    "painter.js",
    "processes.js",
    "sessions.js",
    "spark.js",
    "summary.js",
    "timeline.js",
    "timeline_table.js",
    "view.js",
)
NAMES = (*_SCRIPTS, "icon.svg", "sections.css", "style.css")
_INDEX = "index.html"

# Addresses of our own files: of scripts in scripts, of everything in the document.
_IMPORT = re.compile(rb'(from "\./[a-z_]+\.js)"')
_REFERENCE = re.compile(rb'((?:href|src)="page/[a-z_.]+)"')
_FOR_GOOD = "public, max-age=31536000, immutable"
_ASK_AGAIN = "no-cache"
# Fetched once by a browser, and by few of them: what it saves on the way counts for more than its time.
_LEVEL = 6


def index(request: Request, links: Links) -> Response:
    """The document. Its addresses are relative, so that it works below a proxy's path, too."""
    parts = {
        b"<!-- modules -->": _modules(),
        b"<!-- links -->": _links(links),
        b"<!-- version -->": escape(__version__),
    }
    content = _read(_INDEX)
    for mark, text in parts.items():
        content = content.replace(mark, text.encode())
    return _answer(request, _REFERENCE.sub(_versioned, content), _TYPES["html"], _ASK_AGAIN)


def file(request: Request) -> Response:
    """One of NAMES, or 404."""
    name = request.path.removeprefix(FOLDER)
    if name not in NAMES:
        return plain("the page has no such file", 404)
    kept = _FOR_GOOD if request.query == f"v={page_version()}" else _ASK_AGAIN
    return _answer(request, _content(name), _TYPES[name.rpartition(".")[2]], kept)


@cache
def page_version() -> str:
    """A checksum of all files: another one when any of them is another."""
    # Nobody attacks it, and OpenSSL's hashes would cost four mebibytes.
    checksum = 0
    for name in (_INDEX, *NAMES):
        checksum = zlib.crc32(_read(name), checksum)
    return f"{checksum:08x}"


def _read(name: str) -> bytes:
    # By the loader: also out of an archive, and without what importlib.resources would keep in memory.
    loader = cast("ResourceLoader", __spec__.loader)
    return loader.get_data(str(PurePath(__file__).with_name("static") / name))


def _content(name: str) -> bytes:
    content = _read(name)
    return _IMPORT.sub(_versioned, content) if name.endswith(".js") else content


def _versioned(found: re.Match[bytes]) -> bytes:
    return found[1] + f'?v={page_version()}"'.encode()


def _modules() -> str:
    # Named at once, or a browser would learn of each only from the one before.
    ahead = (f'<link rel="modulepreload" href="page/{name}">' for name in _SCRIPTS if name != "app.js")
    return "\n".join((*ahead, '<script type="module" src="page/app.js"></script>'))


def _links(links: Links) -> str:
    described = {
        **links.described,
        PLAIN_TABLE: "the GPUs as a plain table, without names and scripts",
        "/api/v1/snapshot": "what this page shows, as JSON",
        "/api/v1/openapi.json": "description of the JSON API (OpenAPI 3.1)",
    }
    return "\n".join(
        f'<li><a href="{escape(path.lstrip("/"))}">{escape(path)}</a>: {escape(about)}</li>'
        for path, about in described.items()
    )


def _answer(request: Request, body: bytes, content_type: str, kept: str) -> Response:
    tag = f'"{page_version()}"' if kept == _FOR_GOOD else f'"{zlib.crc32(body):08x}-{len(body)}"'
    headers = [
        ("Content-Security-Policy", POLICY),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", kept),
        ("ETag", tag),
        ("Vary", "Accept-Encoding"),
    ]
    if request.has(tag):
        return Response(304, b"", content_type, tuple(headers))
    if wants_gzip(request):
        body = gzipped(body, _LEVEL)
        headers.append(("Content-Encoding", "gzip"))
    return Response(200, body, content_type, tuple(headers))
