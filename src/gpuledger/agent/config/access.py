"""How a target is believed and what it is shown: tlsConfig, basicAuth and authorization of an endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuledger.agent.deliver.credentials import fits_a_header
from gpuledger.agent.deliver.settings import ClientTls, Login, Secret
from gpuledger.agent.secrets import Vault
from gpuledger.host.yaml_nodes import Node, one_of, path_of
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.settings import boolean

# A secret is given as it is, in a variable of the environment, or in a file.
_FORMS: Final = ("", "Env", "File")
_TLS_FILES: Final = ("caFile", "certFile", "keyFile")
_TLS_SECRETS: Final = ("caSecret", "certSecret", "keySecret")


class AccessReader:
    """Paths are relative to `folder`, the configuration's; variables are those of `environment`, Secrets
    those of `vault`.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], vault: Vault | None = None) -> None:
        self._folder = folder
        self._environment = environment
        self._vault = vault

    def tls(self, node: Node) -> ClientTls:
        """Raises UsageError naming the key."""
        keys = node.section(("insecureSkipVerify", "serverName", *_TLS_FILES, *_TLS_SECRETS))
        ca, certificate, key = (
            self._of_cluster(keys[secret]) if one_of(keys, file, secret) == secret else self._file(keys[file])
            for file, secret in zip(_TLS_FILES, _TLS_SECRETS, strict=True)
        )
        if certificate.absent is not key.absent:
            missing = "keyFile" if key.absent else "certFile"
            raise keys[missing].wrong("is missing: certFile and keyFile belong together")
        return ClientTls(
            ca=ca,
            certificate=certificate,
            key=key,
            server_name=keys["serverName"].text(),
            verify=not keys["insecureSkipVerify"].parsed(boolean, False),
        )

    def login(self, basic: Node, authorization: Node) -> Login | None:
        """Raises UsageError naming the key; None where neither is there."""
        if not basic.absent and not authorization.absent:
            raise authorization.wrong("is given together with basicAuth; one of them is wanted")
        if not basic.absent:
            return self._basic(basic)
        return None if authorization.absent else self._authorization(authorization)

    def _basic(self, node: Node) -> Login:
        keys = node.section([name + form for name in ("username", "password") for form in _FORMS])
        user = self._secret(keys, "username")
        if user.absent:
            raise node.wrong("has no username, usernameFile or usernameEnv")
        return Login("Basic", self._secret(keys, "password"), user)

    def _authorization(self, node: Node) -> Login:
        keys = node.section(("type", "credentialsSecret", *(f"credentials{form}" for form in _FORMS)))
        scheme = keys["type"].text() or "Bearer"
        if scheme.lower() == "basic":
            raise keys["type"].wrong("is Basic: basicAuth is wanted for that")
        if not scheme.isalnum() or not scheme.isascii():
            raise keys["type"].wrong("one word such as Bearer is wanted")
        given = one_of(keys, *(f"credentials{form}" for form in _FORMS), "credentialsSecret")
        if given is None:
            raise node.wrong("has no credentials, credentialsEnv, credentialsFile or credentialsSecret")
        secret = given == "credentialsSecret"
        credentials = self._of_cluster(keys[given]) if secret else self._secret(keys, "credentials")
        if not fits_a_header(credentials):
            raise keys[given].wrong("one line of ASCII is wanted")
        return Login(scheme, credentials)

    def _secret(self, keys: Mapping[str, Node], name: str) -> Secret:
        """The one that is given of: the text itself, a variable, a file."""
        inline, variable, file = (keys[name + form] for form in _FORMS)
        one_of(keys, *(name + form for form in _FORMS))
        if inline.mapping:
            return self._of_cluster(inline)
        if not inline.absent:
            return Secret(inline.text())
        if variable.absent:
            return self._file(file)
        value = self._environment.get(variable.text(), "")
        if not value:
            raise variable.wrong(f"the variable {variable.text()} is not set")
        return Secret(value)

    def _of_cluster(self, node: Node) -> Secret:
        """A reference to a key of a Secret, in the agent's own namespace alone."""
        keys = node.section(("name", "key", "namespace"))
        for name in ("name", "key"):
            if keys[name].absent:
                raise keys[name].wrong("is missing: a Secret is referred to by name and key")
        if self._vault is None:
            raise node.wrong("names a Secret of a cluster, and there is none to look in")
        namespace = keys["namespace"].text()
        if namespace and namespace != self._vault.namespace:
            raise keys["namespace"].wrong("is not the agent's own, and Secrets of others are not read")
        try:
            return self._vault.secret(keys["name"].text(), keys["key"].text())
        except GpuledgerError as error:
            raise node.wrong(str(error)) from None

    def _file(self, node: Node) -> Secret:
        return Secret() if node.absent else Secret(file=path_of(node, self._folder))
