"""OpenSSL's side of a ClientTls."""

from __future__ import annotations

import os
import ssl
from typing import Final

from gpuledger.model.errors import GpuledgerError
from gpuledger.outputs.remote_write.secrets import name_of, text_of
from gpuledger.outputs.remote_write.settings import ClientTls

# What OpenSSL says of bytes that are no TLS at all.
_NOT_TLS: Final = frozenset({"wrong version number", "record layer failure", "packet length too long"})
_VERSIONS: Final = {12: ssl.TLSVersion.TLSv1_2, 13: ssl.TLSVersion.TLSv1_3}


def tls_context(tls: ClientTls) -> ssl.SSLContext:
    """A context that believes and shows what is set, its files read now. Raises GpuledgerError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.maximum_version = _VERSIONS[tls.max_version]
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
    """Load certificate and key; OpenSSL takes them from a file only, so this one is in memory."""
    content = f"{text_of(tls.certificate, 'cert')}\n{text_of(tls.key, 'key')}\n"
    handle = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with open(handle, "w", encoding="ascii", errors="replace", closefd=False) as file:
            file.write(content)
        # A password, or OpenSSL would ask the terminal for that of an encrypted key.
        context.load_cert_chain(f"/proc/self/fd/{handle}", password="")
    except OSError as error:
        why = (getattr(error, "reason", "") or "not understood").lower().replace("_", " ")
        names = f"{name_of(tls.certificate, 'cert')} and {name_of(tls.key, 'key')}"
        raise GpuledgerError(f"{names} cannot be used as client certificate and key: {why}") from None
    finally:
        os.close(handle)


def why_no_tls(error: ssl.SSLError) -> str:
    """OpenSSL's reason in words that name what is most often behind it."""
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if reason in _NOT_TLS:
        return f"it does not speak TLS there ({reason}); is it http?"
    return reason
