"""Parser of an endpoint's client authentication: tlsConfig, basicAuth and authorization."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuledger.agent.cluster_secrets import ClusterSecrets
from gpuledger.agent.deliver.credentials import check_header_value
from gpuledger.agent.deliver.settings import ClientTls, Login, Secret
from gpuledger.host.yaml_nodes import YamlNode, exclusive_key, resolve_path
from gpuledger.http.hosts import parse_server_name
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.settings import boolean

# Key suffixes of a secret: inline text, environment variable, file.
_FORMS: Final = ("", "Env", "File")
_TLS_FILES: Final = ("caFile", "certFile", "keyFile")
_TLS_SECRETS: Final = ("caSecret", "certSecret", "keySecret")


class ClientAuthReader:
    """Resolves files relative to `folder`, variables in `environment` and Kubernetes Secrets in `secrets`."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], secrets: ClusterSecrets | None = None
    ) -> None:
        self._folder = folder
        self._environment = environment
        self._secrets = secrets

    def tls(self, node: YamlNode) -> ClientTls:
        """Parse tlsConfig. Raises UsageError naming the key."""
        keys = node.section(("insecureSkipVerify", "serverName", *_TLS_FILES, *_TLS_SECRETS))
        ca, certificate, key = (
            self._secret_reference(keys[secret])
            if exclusive_key(keys, file, secret) == secret
            else self._file(keys[file])
            for file, secret in zip(_TLS_FILES, _TLS_SECRETS, strict=True)
        )
        if certificate.absent is not key.absent:
            missing = "keyFile" if key.absent else "certFile"
            raise keys[missing].error("is missing: certFile and keyFile must be set together")
        return ClientTls(
            ca=ca,
            certificate=certificate,
            key=key,
            server_name=keys["serverName"].parse(parse_server_name, ""),
            verify=not keys["insecureSkipVerify"].parse(boolean, False),
        )

    def login(self, basic: YamlNode, authorization: YamlNode) -> Login | None:
        """Parse basicAuth or authorization; None if both are absent. Raises UsageError naming the key."""
        if not basic.absent and not authorization.absent:
            raise authorization.error("is given together with basicAuth; give only one of them")
        if not basic.absent:
            return self._basic(basic)
        return None if authorization.absent else self._authorization(authorization)

    def _basic(self, node: YamlNode) -> Login:
        keys = node.section([name + form for name in ("username", "password") for form in _FORMS])
        user = self._secret(keys, "username")
        if user.absent:
            raise node.error("has no username, usernameFile or usernameEnv")
        return Login("Basic", self._secret(keys, "password"), user)

    def _authorization(self, node: YamlNode) -> Login:
        keys = node.section(("type", "credentialsSecret", *(f"credentials{form}" for form in _FORMS)))
        scheme = keys["type"].text() or "Bearer"
        if scheme.lower() == "basic":
            raise keys["type"].error("must not be Basic; use basicAuth instead")
        if not scheme.isalnum() or not scheme.isascii():
            raise keys["type"].error("expected one word such as Bearer")
        given = exclusive_key(keys, *(f"credentials{form}" for form in _FORMS), "credentialsSecret")
        if given is None:
            raise node.error("has no credentials, credentialsEnv, credentialsFile or credentialsSecret")
        secret = given == "credentialsSecret"
        credentials = self._secret_reference(keys[given]) if secret else self._secret(keys, "credentials")
        return Login(scheme, check_header_value(keys[given], credentials))

    def _secret(self, keys: Mapping[str, YamlNode], name: str) -> Secret:
        """Parse a secret given as text, variable, file or Secret reference."""
        inline, variable, file = (keys[name + form] for form in _FORMS)
        exclusive_key(keys, *(name + form for form in _FORMS))
        if inline.mapping:
            return self._secret_reference(inline)
        if not inline.absent:
            return Secret(inline.text())
        if variable.absent:
            return self._file(file)
        value = self._environment.get(variable.text(), "")
        if not value:
            raise variable.error(f"the environment variable {variable.text()} is not set")
        return Secret(value)

    def _secret_reference(self, node: YamlNode) -> Secret:
        """Parse a reference to a key of a Secret, which must be in the agent's namespace."""
        keys = node.section(("name", "key", "namespace"))
        for name in ("name", "key"):
            if keys[name].absent:
                raise keys[name].error("is missing: a Secret reference needs name and key")
        if self._secrets is None:
            raise node.error("refers to a Kubernetes Secret, but no cluster is configured")
        namespace = keys["namespace"].text()
        if namespace and namespace != self._secrets.namespace:
            raise keys["namespace"].error("is not the agent's namespace; other namespaces are not read")
        try:
            return self._secrets.get_secret(keys["name"].text(), keys["key"].text())
        except GpuledgerError as error:
            raise node.error(str(error)) from None

    def _file(self, node: YamlNode) -> Secret:
        return Secret() if node.absent else Secret(file=resolve_path(node, self._folder))
