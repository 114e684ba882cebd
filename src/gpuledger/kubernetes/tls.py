"""TLS contexts for connections to the API server.

Imported lazily: `ssl` takes 4 MiB, which nodes without Kubernetes do not need.
"""

from __future__ import annotations

import ssl

from gpuledger.http.openssl import client_context, load_cert_chain
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.model.errors import GpuledgerError


def tls_context(access: ApiServerAccess) -> ssl.SSLContext:
    """A context with the CAs and the client certificate of `access`, read now. Raises GpuledgerError."""
    context = client_context(verify=access.verify)
    if access.verify:
        _load_ca(context, access)
    try:
        if access.certificate_data:
            load_cert_chain(context, access.certificate_data, access.key_data)
        elif access.certificate_file:
            context.load_cert_chain(access.certificate_file, access.key_file)
    except OSError as error:
        raise GpuledgerError(
            f"the client certificate for {access.url} cannot be used ({_why(error)}); check the kubeconfig"
        ) from None
    return context


def _load_ca(context: ssl.SSLContext, access: ApiServerAccess) -> None:
    name = "certificate-authority-data" if access.ca_data else str(access.ca_file)
    try:
        if access.ca_data:
            context.load_verify_locations(cadata=access.ca_data)
        elif access.ca_file:
            context.load_verify_locations(access.ca_file)
        else:
            context.load_default_certs()
    except (OSError, ValueError) as error:
        raise GpuledgerError(
            f"the CA {name} cannot be read ({_why(error)}); set the file with --kubernetes-ca-file"
        ) from None


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    return "it is not PEM"
