"""What servers and clients ask of OpenSSL alike. Loads `ssl`: 4 MiB."""

from __future__ import annotations

import os
import ssl
from typing import Final

VERSIONS: Final = {12: ssl.TLSVersion.TLSv1_2, 13: ssl.TLSVersion.TLSv1_3}


def load_chain(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Load a certificate and its key, both PEM texts. Raises OSError, of which ssl.SSLError is a kind.

    OpenSSL reads files only. This one is in memory alone: an inline key stays off the disk, and certificate
    and key are those that were read before.
    """
    handle = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with open(handle, "w", encoding="ascii", errors="replace", closefd=False) as file:
            file.write(f"{certificate}\n{key}\n")
        # A password, or OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(f"/proc/self/fd/{handle}", password="")
    finally:
        os.close(handle)


def reason_of(error: OSError, otherwise: str = "not understood") -> str:
    """OpenSSL's name of what went wrong, as words; `otherwise` where it has none."""
    return (getattr(error, "reason", None) or otherwise).lower().replace("_", " ")
