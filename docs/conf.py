"""How the pages beside this file become a site: `make site` builds it into build/site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx import addnodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent

# The side bar, in the order in which readers need it. A name may end in * for all pages of a folder; one that
# is not there is left out, and a page that no name stands for is put at the end, so that none gets lost.
NAVIGATION = {
    "Start": ["start/server", "start/lab", "start/kubernetes", "start/finance"],
    "Install": ["install/*", "compose", "textfile", "openshift-deployment"],
    "Look": ["page", "top", "dashboards", "queries", "reports", "fleet"],
    "Understand": [
        "concepts/absence",
        "concepts/held",
        "concepts/sessions",
        "concepts/energy",
        "energy",
        "owners",
        "limits",
    ],
    "Change over": [
        "migrate/dcgm-exporter",
        "migrate/nvidia_gpu_exporter",
        "migrate/nvitop-exporter",
        "migrate/process-exporter-and-session-monitor",
        "migrate/per-process-energy-exporter",
        "migrate/agent-and-operator",
        "dcgm",
        "smi",
    ],
    "Run": [
        "faq",
        "troubleshooting",
        "configuration",
        "web-config",
        "security",
        "pause",
        "agent",
        "agent-discovery",
        "remote-write",
        "operator",
        "performance",
        "reliability",
    ],
    "Reference": ["metrics", "api", "recording", "simulator", "development"],
}

project = "gpuledger"
html_title = "gpuledger"
html_show_copyright = False
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
nitpicky = True
smartquotes = False
highlight_language = "text"

# Headings get the anchors that a git forge gives them, so that one link serves both.
myst_heading_anchors = 3
# Blocks may be cut short (`...`) and are no valid YAML or JSON then: seen by the reader, and no error.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_use_index = False
html_show_sourcelink = False
html_theme_options = {"top_of_page_buttons": []}


def navigation(found: set[str]) -> str:
    """The toctrees of NAVIGATION over the pages that were found."""
    left = found - {root_doc}
    blocks = []
    for caption, names in NAVIGATION.items():
        pages = [page for name in names for page in _pages(name, found) if page in left]
        left -= set(pages)
        if caption == "Reference":
            pages += sorted(left)
        blocks.append("\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"]))
    return "\n\n".join(blocks)


def _pages(name: str, found: set[str]) -> list[str]:
    folder, star, _ = name.partition("*")
    return sorted(page for page in found if page.startswith(folder)) if star else [name]


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put the side bar below the front page: written into it, a git forge would show it as code."""
    if docname == root_doc:
        source[0] += "\n\n" + navigation(set(app.project.docnames)) + "\n"


def read_again(*_: object) -> list[str]:
    """The front page has the side bar, which changes with any page that comes or goes."""
    return [root_doc]


def leave_the_repository(app: Sphinx, doctree: nodes.document) -> None:
    """Links to folders of the repository, and to pages outside of docs: the site has neither.

    A folder stays as a name; a page can be downloaded, as every file can that is no page of the site.
    """
    for link in list(doctree.findall(addnodes.pending_xref)):
        target = str(link["reftarget"])
        if link.get("refdomain") != "doc":
            path = (HERE / app.env.docname).parent / target.partition("#")[0]
            if path.is_dir() and path.resolve().is_relative_to(REPOSITORY):
                _replace(link, nodes.inline())
        elif target not in app.project.docnames and (HERE / f"{target}.md").is_file():
            _replace(link, addnodes.download_reference(reftarget=f"/{target}.md", refdoc=link["refdoc"]))


def _replace(link: nodes.Element, other: nodes.Element) -> None:
    other.extend(link.children)
    link.replace_self(other)


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    app.connect("env-get-outdated", read_again)
    app.connect("source-read", add_navigation)
    # Before Sphinx gathers what is to be downloaded.
    app.connect("doctree-read", leave_the_repository, priority=400)
