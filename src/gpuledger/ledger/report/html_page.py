"""What the pages of receipts and statements share: a document that loads nothing, and safe texts."""

from __future__ import annotations

from html import escape

from gpuledger.model.text import escape_to_one_line


def html_document(title: str, style: str, main: str, foot: str) -> str:
    """The document; `title` is text, all other parts are HTML or CSS. Right in any encoding of the output."""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html_text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<main>\n{main}\n</main>\n{foot}\n</body>\n</html>\n"
    )
    return page.encode("ascii", "xmlcharrefreplace").decode()


def html_text(text: object) -> str:
    """Text that is safe in HTML. Names are untrusted."""
    return escape(escape_to_one_line(str(text)))


def html_name(text: str) -> str:
    """As `html_text`; its direction does not affect the text around it."""
    return f"<bdi>{html_text(text)}</bdi>"
