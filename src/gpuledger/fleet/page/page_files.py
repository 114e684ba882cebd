"""The files of the fleet's page: its own, and those that it shares with the page of a node."""

from __future__ import annotations

from html import escape
from typing import Final

from gpuledger import __version__
from gpuledger.http.routes import Request, Response
from gpuledger.web.page.static_files import NODE_PACKAGE, PageFiles

FLEET_PAGE: Final = PageFiles((__name__, NODE_PACKAGE), "fleet.html", "fleet.js")


def fleet_index(request: Request) -> Response:
    """The document."""
    parts = {b"<!-- symbols -->": _symbols(), b"<!-- version -->": escape(__version__)}
    return FLEET_PAGE.index_response(request, parts)


def fleet_file(request: Request) -> Response:
    """One of the files that the document needs, or 404."""
    return FLEET_PAGE.file_response(request)


def _symbols() -> str:
    """The symbols next to texts, as the page of a node defines them."""
    document = FLEET_PAGE.read_file("index.html").decode()
    begin = document.index("<svg hidden>")
    return document[begin : document.index("</svg>\n<a ", begin)] + "</svg>"
