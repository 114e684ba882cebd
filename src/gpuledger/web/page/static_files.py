"""Serves the document, scripts and styles of the web page. Files are read with each request, not cached.

A checksum of all files is part of every URL, so browsers cache them forever and fetch all of them again from
another version of the program.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
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

# References to these files: imports in scripts, links in the document.
_IMPORT = re.compile(rb'(from "\./([a-z_]+\.js))"')
_REFERENCE = re.compile(rb'((?:href|src)="page/([a-z_.]+))"')
# Comments on separate lines, which browsers do not need.
_COMMENTS = re.compile(rb"(?ms)^ *(?://[^\n]*|/\*.*?\*/)\n")
_CACHE_FOREVER = "public, max-age=31536000, immutable"
_REVALIDATE = "no-cache"
# gzip level. Each browser fetches a file once, so size matters more than CPU time.
_GZIP_LEVEL = 6


# The package with the files of the page of a node.
NODE_PACKAGE = __name__


class PageFiles:
    """The files of one document, which are in the folders `static` of these packages, the first one first.

    `index` is the document, `entry` the script that it starts.
    """

    def __init__(self, packages: Sequence[str], index: str, entry: str) -> None:
        self._packages, self._index, self._entry = packages, index, entry

    def read_file(self, name: str) -> bytes:
        """The bytes of a file. Raises FileNotFoundError."""
        for package in self._packages:
            # pkgutil also reads from zip archives, and needs less memory than importlib.resources.
            try:
                return get_data(package, f"static/{name}") or b""
            except OSError:
                continue
        raise FileNotFoundError(name)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all files that the document needs: those that it links, and what scripts import."""
        found: set[str] = set()
        pending = [self._entry, *self._references(_REFERENCE, self._index)]
        while pending:
            name = pending.pop()
            if name not in found:
                found.add(name)
                pending += self._references(_IMPORT, name)
        return tuple(sorted(found))

    def _references(self, pattern: re.Pattern[bytes], name: str) -> list[str]:
        return [target.decode() for _, target in pattern.findall(self.read_file(name))]

    def index_response(self, request: Request, parts: Mapping[bytes, str]) -> Response:
        """The document, with these texts (HTML) in place of the marks.

        Its URLs are relative, so that it also works below a proxy's path prefix.
        """
        content = self.read_file(self._index)
        for mark, text in {b"<!-- modules -->": self._modules(), **parts}.items():
            content = content.replace(mark, text.encode())
        return self._answer(request, _REFERENCE.sub(self._versioned, content), _TYPES["html"], _REVALIDATE)

    def file_response(self, request: Request) -> Response:
        """One of the named files, or 404."""
        name = request.path.removeprefix(FOLDER)
        if name not in self.names:
            return text_response("the page has no such file", 404)
        cache_control = _CACHE_FOREVER if request.query == f"v={self.version}" else _REVALIDATE
        content = _COMMENTS.sub(b"", self.read_file(name))
        if name.endswith(".js"):
            content = _IMPORT.sub(self._versioned, content)
        return self._answer(request, content, _TYPES[name.rpartition(".")[2]], cache_control)

    @cached_property
    def version(self) -> str:
        """A checksum of all files."""
        # CRC-32: collisions are no security risk here, and OpenSSL's hashes would cost 4 MiB of memory.
        checksum = 0
        for name in (self._index, *self.names):
            checksum = zlib.crc32(self.read_file(name), checksum)
        return f"{checksum:08x}"

    def _versioned(self, found: re.Match[bytes]) -> bytes:
        return found[1] + f'?v={self.version}"'.encode()

    def _modules(self) -> str:
        # Preload all modules: otherwise a browser discovers each only after loading its importer.
        ahead = (
            f'<link rel="modulepreload" href="page/{name}">'
            for name in self.names
            if name.endswith(".js") and name != self._entry
        )
        return "\n".join((*ahead, f'<script type="module" src="page/{self._entry}"></script>'))

    def _answer(self, request: Request, body: bytes, content_type: str, cache_control: str) -> Response:
        is_versioned = cache_control == _CACHE_FOREVER
        tag = f'"{self.version}"' if is_versioned else f'"{zlib.crc32(body):08x}-{len(body)}"'
        headers = (
            ("Content-Security-Policy", POLICY),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", cache_control),
        )
        return content_response(request, body, content_type, headers, tag, _GZIP_LEVEL)


_NODE_PAGE = PageFiles((NODE_PACKAGE,), "index.html", "app.js")
FILE_NAMES = _NODE_PAGE.names


def index_response(request: Request, links: Links) -> Response:
    """The document of the page of a node."""
    parts = {b"<!-- links -->": _links(links), b"<!-- version -->": escape(__version__)}
    return _NODE_PAGE.index_response(request, parts)


def file_response(request: Request) -> Response:
    """One of FILE_NAMES, or 404."""
    return _NODE_PAGE.file_response(request)


def page_version() -> str:
    """A checksum of all files."""
    return _NODE_PAGE.version


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
