"""OpenSSL's side of a ClientTls."""

from __future__ import annotations

import ssl
from typing import Final

from gpuledger.model.errors import GpuledgerError
from gpuledger.outputs.openssl import VERSIONS, load_chain, reason_of
from gpuledger.outputs.remote_write.secrets import name_of, text_of
from gpuledger.outputs.remote_write.settings import ClientTls

# What OpenSSL says of bytes that are no TLS at all.
_NOT_TLS: Final = frozenset({"wrong version number", "record layer failure", "packet length too long"})


def tls_context(tls: ClientTls) -> ssl.SSLContext:
    """A context that believes and shows what is set, its files read now. Raises GpuledgerError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = VERSIONS[tls.min_version]
    context.maximum_version = VERSIONS[tls.max_version]
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca.absent:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(cadata=text_of(tls.ca, "ca"))
        except (ssl.SSLError, ValueError):
            raise GpuledgerError(f"{name_of(tls.ca, 'ca')} holds no certificates in PEM form") from None
    if not tls.certificate.absent:
        _show(context, tls)
    return context


def _show(context: ssl.SSLContext, tls: ClientTls) -> None:
    try:
        load_chain(context, text_of(tls.certificate, "cert"), text_of(tls.key, "key"))
    except OSError as error:
        names = f"{name_of(tls.certificate, 'cert')} and {name_of(tls.key, 'key')}"
        raise GpuledgerError(
            f"{names} cannot be used as client certificate and key: {reason_of(error)}"
        ) from None


def why_no_tls(error: ssl.SSLError) -> str:
    """OpenSSL's reason in words that name what is most often behind it."""
    reason = reason_of(error, str(error))
    if reason in _NOT_TLS:
        return f"it does not speak TLS there ({reason}); is it http?"
    return reason
