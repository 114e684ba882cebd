"""The look of the page, and the policy that lets a browser apply this style and load nothing else."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256

from gpuledger.outputs.routes import Response

STYLE = """\
:root { color-scheme: light dark; --line: #c9ced6; --soft: #5b6472; --note: #fff3cd; --note-text: #5c4400; }
@media (prefers-color-scheme: dark) {
  :root { --line: #444c58; --soft: #a3adba; --note: #4a3b0b; --note-text: #ffe9a8; }
}
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 70rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; }
h1 small { font-size: 1rem; font-weight: normal; color: var(--soft); }
h2 { font-size: 1.15rem; margin: 1.5rem 0 .25rem; }
p { margin: .5rem 0; }
.banner { background: var(--note); color: var(--note-text); padding: .5rem .75rem; border-radius: .25rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .25rem; position: sticky; left: 0; }
tr.part th { padding-left: 1.6rem; font-weight: normal; }
th, td { padding: .35rem .6rem; text-align: right; white-space: nowrap; }
th, td { border-bottom: 1px solid var(--line); }
th:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
tbody th { font-weight: 600; }
td.name { white-space: normal; overflow-wrap: anywhere; min-width: 8rem; }
th.words, td.words { white-space: normal; overflow-wrap: anywhere; text-align: left; min-width: 8.5rem; }
td.down { text-align: left; color: var(--soft); }
code, pre { font-family: ui-monospace, monospace; overflow-wrap: anywhere; white-space: pre-wrap; }
footer { color: var(--soft); margin-top: 1.5rem; }
@media (max-width: 40rem) {
  body { padding: .6rem; }
  th, td { padding: .35rem .3rem; font-size: .85rem; }
  th:nth-child(2), td.name { display: none; }
  caption { white-space: normal; max-width: calc(100vw - 1.2rem); display: block; }
  table { display: block; }
}
"""


def styled(document: str) -> Response:
    """A document with this style in it, as an answer: told anew each time, and nothing else is loaded."""
    return Response(
        body=document.encode("utf-8", "replace"),
        content_type="text/html; charset=utf-8",
        headers=(
            ("Content-Security-Policy", content_security_policy()),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ),
    )


@cache
def content_security_policy() -> str:
    """Nothing but this style, known by its hash; not to be framed."""
    digest = b64encode(sha256(STYLE.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
