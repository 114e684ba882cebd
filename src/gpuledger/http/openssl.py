"""OpenSSL helpers shared by servers and clients. Imports `ssl`: 4 MiB."""

from __future__ import annotations

import os
import ssl
from typing import Final

VERSIONS: Final = {12: ssl.TLSVersion.TLSv1_2, 13: ssl.TLSVersion.TLSv1_3}


def load_cert_chain(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load a certificate and its key, both PEM texts. Raises OSError (ssl.SSLError is a subclass).

    OpenSSL reads files only. A memory file keeps an inline key off the disk, and ensures that certificate and
    key are the texts that were read before.
    """
    handle = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with open(handle, "w", encoding="ascii", errors="replace", closefd=False) as file:
            file.write(f"{certificate}\n{key}\n")
        # Without a password OpenSSL would prompt on the terminal for that of an encrypted key.
        context.load_cert_chain(f"/proc/self/fd/{handle}", password="")
    finally:
        os.close(handle)


def ssl_reason(error: OSError, otherwise: str = "not understood") -> str:
    """OpenSSL's reason of an error, as words; `otherwise` without one."""
    return (getattr(error, "reason", None) or otherwise).lower().replace("_", " ")
