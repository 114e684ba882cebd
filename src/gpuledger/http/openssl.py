"""OpenSSL helpers shared by servers and clients. Imports `ssl`: 4 MiB."""

from __future__ import annotations

import os
import ssl
from typing import Final

VERSIONS: Final = {12: ssl.TLSVersion.TLSv1_2, 13: ssl.TLSVersion.TLSv1_3}
# OpenSSL's reasons, by `ssl_reason`, for bytes of a server that are not TLS.
NOT_TLS: Final = frozenset({"wrong version number", "record layer failure", "packet length too long"})
# For `ssl_reason`: OpenSSL has none if it cannot read a certificate or its key.
NO_PAIR: Final = "expected a certificate and a private key without a passphrase, in PEM format"


def client_context(*, verify: bool) -> ssl.SSLContext:
    """A client context for TLS 1.2 and newer. With `verify`, the caller loads the CAs."""
    # Not create_default_context: from Python 3.13 on it rejects CA certificates of real clusters.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


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


# What to do about a certificate that no CA makes valid, by OpenSSL's code (x509_vfy.h).
_RENEW: Final = "renew it there, or correct the clock of this machine"
_USE_ITS_NAME: Final = "use a name or address of the certificate in the URL"
_INVALID: Final = {9: _RENEW, 10: _RENEW, 62: _USE_ITS_NAME, 64: _USE_ITS_NAME}


def certificate_remedy(error: Exception, otherwise: str) -> str:
    """What to do about a certificate that was refused; `otherwise` if its CA is not trusted.

    `error` is an ssl.SSLCertVerificationError.
    """
    return _INVALID.get(getattr(error, "verify_code", 0), otherwise)


def ssl_reason(error: OSError, otherwise: str = "not understood") -> str:
    """OpenSSL's reason of an error, as words; `otherwise` without one."""
    reason = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if reason else otherwise
