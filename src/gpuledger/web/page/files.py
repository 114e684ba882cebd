"""The page's own files, and the handlers that serve them: `/`, `/page/...` and, without scripts, `/plain`.

The files lie beside this module and are read when they are asked for: nothing of them stays in memory but one
hash of them all. It stands in every address of theirs, so that a browser keeps them for good, and fetches all
anew from another version of the program.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from html import escape
from pkgutil import get_data

from gpuledger import __version__
from gpuledger.exposition.negotiation import accepts_gzip
from gpuledger.model.page import Page
from gpuledger.model.source import Clock
from gpuledger.outputs.routes import Handler, Request, Response, plain
from gpuledger.web.landing import Links, landing

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
_GZIP_FRAME = 31


def page_routes(
    current: Callable[[], Page], links: Links, clock: Clock
) -> tuple[dict[str, Handler], dict[str, Handler]]:
    """What is answered at exact paths, and below which prefixes: for the routes of a listener."""
    document = _index(links)

    def index(request: Request) -> Response:
        return _answer(request, document(), _TYPES["html"], _ASK_AGAIN)

    def file(request: Request) -> Response:
        name = request.path.removeprefix(FOLDER)
        if name not in NAMES:
            return plain("the page has no such file", 404)
        kept = _FOR_GOOD if request.query == f"v={page_version()}" else _ASK_AGAIN
        return _answer(request, _content(name), _TYPES[name.rpartition(".")[2]], kept)

    table = landing(current, links, clock, PLAIN_TABLE)
    return {"/": index, PLAIN_TABLE: table}, {FOLDER: file}


@cache
def page_version() -> str:
    """A hash of all files: another one when any of them is another."""
    digest = sha256()
    for name in (_INDEX, *NAMES):
        digest.update(_read(name))
    return digest.hexdigest()[:12]


def _read(name: str) -> bytes:
    # Also out of an archive, and without what importlib.resources would keep in memory.
    content = get_data("gpuledger.web.page", f"static/{name}")
    if content is None:
        raise FileNotFoundError(name)
    return content


def _content(name: str) -> bytes:
    content = _read(name)
    return _IMPORT.sub(_versioned, content) if name.endswith(".js") else content


def _versioned(found: re.Match[bytes]) -> bytes:
    return found[1] + f'?v={page_version()}"'.encode()


def _index(links: Links) -> Callable[[], bytes]:
    """Makes the document. Its addresses are relative, so that it works below a proxy's path, too."""

    def document() -> bytes:
        parts = {
            b"<!-- modules -->": _modules(),
            b"<!-- links -->": _links(links),
            b"<!-- version -->": escape(__version__),
        }
        content = _read(_INDEX)
        for mark, text in parts.items():
            content = content.replace(mark, text.encode())
        return _REFERENCE.sub(_versioned, content)

    return document


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
    tag = f'"{page_version()}"' if kept == _FOR_GOOD else f'"{sha256(body).hexdigest()[:16]}"'
    headers = [
        ("Content-Security-Policy", POLICY),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", kept),
        ("ETag", tag),
        ("Vary", "Accept-Encoding"),
    ]
    if tag in request.headers.get("if-none-match", ""):
        return Response(304, b"", content_type, tuple(headers))
    if accepts_gzip(request.headers.get("accept-encoding", "")):
        body = zlib.compress(body, wbits=_GZIP_FRAME)
        headers.append(("Content-Encoding", "gzip"))
    return Response(200, body, content_type, tuple(headers))
