"""Sphinx configuration: `make site` builds the pages of this folder into build/site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx import addnodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent

# The side bar in reading order. A page that is not listed here is appended to the last section, so that it is
# never lost; a listed page that does not exist is skipped.
NAVIGATION = {
    "Start": ["start/server", "start/lab", "start/kubernetes", "start/finance"],
    "Install": [
        "install/index",
        "install/kubernetes",
        "install/openshift",
        "install/gpu-operator",
        "install/k3s",
        "operator",
        "install/single-node",
        "compose",
        "textfile",
        "install/upgrade",
        "install/uninstall",
        "install/troubleshooting",
        "migrate/check",
        "migrate/dcgm-exporter",
        "migrate/nvidia_gpu_exporter",
        "migrate/nvitop-exporter",
        "migrate/process-exporter-and-session-monitor",
        "migrate/per-process-energy-exporter",
        "migrate/agent-and-operator",
        "openshift-deployment",
    ],
    "Use": [
        "page",
        "top",
        "free-and-idle",
        "dashboards",
        "alerts",
        "queries",
        "reports",
        "cost-per-token",
        "receipts",
        "slurm",
        "pod-events",
        "finance",
        "statements",
        "books",
        "fleet",
        "agent",
        "agent-discovery",
        "remote-write",
        "web-config",
        "access",
        "pause",
        "recording",
        "simulator",
        "gpu-health",
        "troubleshooting",
        "selftest",
        "faq",
    ],
    "Understand": [
        "concepts/ledgers",
        "concepts/absence",
        "concepts/held",
        "concepts/sessions",
        "concepts/energy",
        "amd-intel",
        "owners",
        "limits",
        "security",
        "reliability",
        "performance",
    ],
    "Reference": [
        "configuration",
        "metrics",
        "dcgm",
        "smi",
        "api",
        "concepts/glossary",
        "architecture",
        "development",
        "releasing",
    ],
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

# Headings get the same anchors as on a git forge, so that one link works on both.
myst_heading_anchors = 3
# Blocks may be shortened with `...` and are then not valid YAML or JSON.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_use_index = False
html_show_sourcelink = False
html_theme_options = {"top_of_page_buttons": []}


def navigation_toctrees(found: set[str]) -> str:
    """Toctrees of NAVIGATION for the found pages."""
    left = found - {root_doc}
    last = list(NAVIGATION)[-1]
    blocks = []
    for caption, names in NAVIGATION.items():
        pages = [name for name in names if name in left]
        left -= set(pages)
        if caption == last:
            pages += sorted(left)
        blocks.append("\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"]))
    return "\n\n".join(blocks)


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the side bar to the front page. In the file itself, a git forge would show it as code."""
    if docname == root_doc:
        source[0] += "\n\n" + navigation_toctrees(set(app.project.docnames)) + "\n"


def outdated_pages(*_: object) -> list[str]:
    """Always read the front page again: its side bar changes when a page is added or removed."""
    return [root_doc]


def resolve_repository_links(app: Sphinx, doctree: nodes.document) -> None:
    """Replace links to folders and files outside of docs, which the site does not have.

    The name of a folder remains without a link; a file becomes a download.
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
    """Connect the handlers; Sphinx calls this."""
    app.connect("env-get-outdated", outdated_pages)
    app.connect("source-read", add_navigation)
    # Before Sphinx collects the downloads.
    app.connect("doctree-read", resolve_repository_links, priority=400)
