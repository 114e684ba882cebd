"""How a target is believed and what it is shown: tlsConfig, basicAuth and authorization of an endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuledger.model.errors import UsageError
from gpuledger.model.settings import boolean
from gpuledger.outputs.nodes import Node
from gpuledger.outputs.remote_write.settings import ClientTls, Login, Secret

_TLS_FILES: Final = ("caFile", "certFile", "keyFile")
_TLS_SECRETS: Final = ("caSecret", "certSecret", "keySecret")


class AccessReader:
    """Paths are relative to `folder`, the configuration's; variables are those of `environment`."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment

    def tls(self, node: Node) -> ClientTls:
        """Raises UsageError naming the key."""
        keys = node.section(("insecureSkipVerify", "serverName", *_TLS_FILES, *_TLS_SECRETS))
        for name in _TLS_SECRETS:
            _refuse_secret(keys[name], name.replace("Secret", "File"))
        ca, certificate, key = (self._file(keys[name]) for name in _TLS_FILES)
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
        _refuse_secret(keys["credentialsSecret"], "credentialsFile")
        scheme = keys["type"].text() or "Bearer"
        if scheme.lower() == "basic":
            raise keys["type"].wrong("is Basic: basicAuth is wanted for that")
        if not scheme.isalnum() or not scheme.isascii():
            raise keys["type"].wrong("one word such as Bearer is wanted")
        credentials = self._secret(keys, "credentials")
        if credentials.absent:
            raise node.wrong("has no credentials, credentialsEnv or credentialsFile")
        return Login(scheme, credentials)

    def _secret(self, keys: Mapping[str, Node], name: str) -> Secret:
        """The first that is given of: the text itself, a variable, a file."""
        inline, variable, file = (keys[name + form] for form in _FORMS)
        if inline.mapping:
            _refuse_secret(inline, f"{name}File")
        if not inline.absent:
            return Secret(inline.text())
        if variable.absent:
            return self._file(file)
        value = self._environment.get(variable.text(), "")
        if not value:
            raise variable.wrong(f"the variable {variable.text()} is not set")
        return Secret(value)

    def _file(self, node: Node) -> Secret:
        return Secret() if node.absent else Secret(file=self._folder / node.text())


_FORMS: Final = ("", "Env", "File")


def _refuse_secret(node: Node, instead: str) -> None:
    if not node.absent:
        raise UsageError(
            f"{node.place}: names a Secret of a cluster, and this agent does not talk to one yet; mount the "
            f"Secret and give {instead}"
        )
