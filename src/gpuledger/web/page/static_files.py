"""Serves the document, scripts and styles of the web page. Files are read with each request, not cached.

A checksum of all files is part of every URL, so browsers cache them forever and fetch all of them again from
another version of the program.
"""

from __future__ import annotations

import re
import zlib
from functools import cache
from html import escape
from pkgutil import get_data

from gpuledger import __version__
from gpuledger.http.routes import Request, Response, text_response
from gpuledger.outputs.responses import content_response
from gpuledger.web.settings import Links

FOLDER = "/page/"
PLAIN_TABLE = "/plain"

# Allows scripts, styles, images and requests of this origin only; nothing inline, no framing.
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
_INDEX = "index.html"

# References to these files: imports in scripts, links in the document.
_IMPORT = re.compile(rb'(from "\./([a-z_]+\.js))"')
_REFERENCE = re.compile(rb'((?:href|src)="page/([a-z_.]+))"')
# Comments on separate lines, which browsers do not need.
_COMMENTS = re.compile(rb"(?ms)^ *(?://[^\n]*|/\*.*?\*/)\n")
_CACHE_FOREVER = "public, max-age=31536000, immutable"
_REVALIDATE = "no-cache"
# gzip level. Each browser fetches a file once, so size matters more than CPU time.
_GZIP_LEVEL = 6


def _read(name: str) -> bytes:
    # pkgutil also reads from zip archives, and needs less memory than importlib.resources.
    return get_data(__name__, f"static/{name}") or b""


def _find_files() -> tuple[str, ...]:
    """The names of all files that the document needs: those that it links, and what scripts import."""
    found: set[str] = set()
    pending = ["app.js", *_references(_REFERENCE, _INDEX)]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += _references(_IMPORT, name)
    return tuple(sorted(found))


def _references(pattern: re.Pattern[bytes], name: str) -> list[str]:
    return [target.decode() for _, target in pattern.findall(_read(name))]


FILE_NAMES = _find_files()


def index_response(request: Request, links: Links) -> Response:
    """The document. Its URLs are relative, so that it also works below a proxy's path prefix."""
    parts = {
        b"<!-- modules -->": _modules(),
        b"<!-- links -->": _links(links),
        b"<!-- version -->": escape(__version__),
    }
    content = _read(_INDEX)
    for mark, text in parts.items():
        content = content.replace(mark, text.encode())
    return _answer(request, _REFERENCE.sub(_versioned, content), _TYPES["html"], _REVALIDATE)


def file_response(request: Request) -> Response:
    """One of FILE_NAMES, or 404."""
    name = request.path.removeprefix(FOLDER)
    if name not in FILE_NAMES:
        return text_response("the page has no such file", 404)
    cache_control = _CACHE_FOREVER if request.query == f"v={page_version()}" else _REVALIDATE
    content = _COMMENTS.sub(b"", _read(name))
    if name.endswith(".js"):
        content = _IMPORT.sub(_versioned, content)
    return _answer(request, content, _TYPES[name.rpartition(".")[2]], cache_control)


@cache
def page_version() -> str:
    """A checksum of all files."""
    # CRC-32: collisions are no security risk here, and OpenSSL's hashes would cost 4 MiB of memory.
    checksum = 0
    for name in (_INDEX, *FILE_NAMES):
        checksum = zlib.crc32(_read(name), checksum)
    return f"{checksum:08x}"


def _versioned(found: re.Match[bytes]) -> bytes:
    return found[1] + f'?v={page_version()}"'.encode()


def _modules() -> str:
    # Preload all modules: otherwise a browser discovers each only after loading its importer.
    ahead = (
        f'<link rel="modulepreload" href="page/{name}">'
        for name in FILE_NAMES
        if name.endswith(".js") and name != "app.js"
    )
    return "\n".join((*ahead, '<script type="module" src="page/app.js"></script>'))


def _links(links: Links) -> str:
    described = {
        **links.described,
        PLAIN_TABLE: "GPUs as a plain table, without names and scripts",
        "/api/v1/snapshot": "the data of this page as JSON",
        "/api/v1/openapi.json": "description of the JSON API (OpenAPI 3.1)",
    }
    return "\n".join(
        f'<li><a href="{escape(path.lstrip("/"))}">{escape(path)}</a>: {escape(about)}</li>'
        for path, about in described.items()
    )


def _answer(request: Request, body: bytes, content_type: str, cache_control: str) -> Response:
    tag = (
        f'"{page_version()}"' if cache_control == _CACHE_FOREVER else f'"{zlib.crc32(body):08x}-{len(body)}"'
    )
    headers = (
        ("Content-Security-Policy", POLICY),
        ("Referrer-Policy", "no-referrer"),
        ("Cache-Control", cache_control),
    )
    return content_response(request, body, content_type, headers, tag, _GZIP_LEVEL)
