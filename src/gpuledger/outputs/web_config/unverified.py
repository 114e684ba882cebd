"""Client certificates that are asked for and not verified: RequestClientCert and RequireAnyClientCert."""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final

from gpuledger.model.errors import UsageError

_CERTIFICATE: Final = 11
_TLS_1_3: Final = 0x0304
# X509_V_FLAG_NO_CHECK_TIME of OpenSSL's x509_vfy.h, which Python does not name.
_NO_CHECK_TIME: Final = 0x200000


def trust_whoever_comes(context: ssl.SSLContext) -> None:
    """Make the context take any certificate whose key the client has. It must serve one connection only.

    Python has no way to ask for a certificate without verifying it. It does show handshake messages
    before OpenSSL acts on them, so the certificate that comes is made a trusted one of this very context.
    One made for servers alone (its extended key usage says so) is refused all the same. Raises UsageError
    where this Python does not show the messages.
    """
    if not hasattr(context, "_msg_callback"):
        raise UsageError("client_auth_type: this Python verifies all client certificates or asks for none")
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(_NO_CHECK_TIME)
    context._msg_callback = _look


# Not a closure over the context, which would then be a garbage cycle per connection.
def _look(
    connection: ssl.SSLObject, direction: str, version: int, _content: object, message: int, data: bytes
) -> None:
    shown = first_certificate(data, version) if direction == "read" and message == _CERTIFICATE else b""
    if shown:
        # What is no certificate at all OpenSSL is about to refuse.
        with suppress(ssl.SSLError):
            connection.context.load_verify_locations(cadata=shown)


def first_certificate(message: bytes, version: int) -> bytes:
    """The client's own certificate (DER) in a Certificate message (RFC 5246 7.4.2, RFC 8446 4.4.2)."""
    at = 4
    if version == _TLS_1_3:
        at += 1 + message[at] if len(message) > at else 1
    at += 3
    length = int.from_bytes(message[at : at + 3], "big")
    return message[at + 3 : at + 3 + length]
