"""The bytes of an answer as text, whichever machine wrote it."""

from __future__ import annotations

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from typing import Final

from gpuledger.model.text import from_bytes
from gpuledger.sources.smi.run import Outcome, Ran

_MARKED: Final = ((BOM_UTF16_LE, "utf-16-le"), (BOM_UTF16_BE, "utf-16-be"))
# How much of an answer is looked at for zeros, which UTF-16 has in every second byte of plain text.
_HEAD: Final = 64


def told(outcome: Outcome) -> str:
    """What the command wrote to its standard output; nothing where it did not start."""
    return decoded(outcome.stdout) if isinstance(outcome, Ran) else ""


def decoded(raw: bytes) -> str:
    """UTF-8, or UTF-16 as PowerShell writes it, with lines that end in a line feed alone."""
    for mark, encoding in _MARKED:
        if raw.startswith(mark):
            return _lines(raw[len(mark) :].decode(encoding, "replace"))
    head = raw[:_HEAD]
    if len(head) > 3 and head[1::2].count(0) == len(head) // 2 and 0 not in head[::2]:
        return _lines(raw.decode("utf-16-le", "replace"))
    return _lines(from_bytes(raw.removeprefix(BOM_UTF8)))


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n") if "\r" in text else text
