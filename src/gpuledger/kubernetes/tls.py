"""TLS contexts for connections to the API server.

Imported lazily: `ssl` takes 4 MiB, which nodes without Kubernetes do not need.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.model.errors import GpuledgerError


def tls_context(access: ApiServerAccess) -> ssl.SSLContext:
    """A context with the CAs and the client certificate of `access`, read now. Raises GpuledgerError."""
    # Not create_default_context: from Python 3.13 on it rejects CA certificates of real clusters.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not access.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif access.ca_data:
        _load_ca(context, "certificate-authority-data", data=access.ca_data)
    elif access.ca_file:
        _load_ca(context, str(access.ca_file), file=access.ca_file)
    else:
        context.load_default_certs()
    _load_certificate(context, access)
    return context


def _load_ca(context: ssl.SSLContext, name: str, file: Path | None = None, data: str | None = None) -> None:
    try:
        context.load_verify_locations(cafile=file, cadata=data)
    except (OSError, ValueError) as error:
        raise GpuledgerError(
            f"the CA {name} cannot be read ({_why(error)}); set the file with --kubernetes-ca-file"
        ) from None


def _load_certificate(context: ssl.SSLContext, access: ApiServerAccess) -> None:
    try:
        if access.certificate_data:
            with _in_memory(access.certificate_data + "\n" + access.key_data) as path:
                context.load_cert_chain(path)
        elif access.certificate_file:
            context.load_cert_chain(access.certificate_file, access.key_file)
    except OSError as error:
        raise GpuledgerError(
            f"the client certificate for {access.url} cannot be used ({_why(error)}); check the kubeconfig"
        ) from None


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "it is not PEM"
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not PEM"


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    """A path from which OpenSSL can read `text`, which is never written to a disk."""
    handle = os.memfd_create("certificate")
    try:
        os.write(handle, text.encode("ascii"))
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)
