"""The addresses that mails of a digest can have, as regular expressions: Python's parser fails on others."""

from __future__ import annotations

from typing import Final

MAIL_DOMAIN: Final = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?"
_ADDRESS: Final = rf"[A-Za-z0-9_.+-]+@{MAIL_DOMAIN}"
# With or without a name, which has no characters of the syntax of headers.
MAIL_SENDER: Final = rf'{_ADDRESS}|[^\x00-\x1f\x7f<>"\\,;:@()\[\]=?]*<{_ADDRESS}>'
