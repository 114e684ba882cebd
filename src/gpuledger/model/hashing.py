"""The hash blake2b without the memory that hashlib takes."""

from __future__ import annotations

try:
    # The implementation behind hashlib: importing hashlib loads 3.6 MiB of OpenSSL, too.
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

__all__ = ["blake2b"]
