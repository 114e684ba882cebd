"""References to Secrets become files: their volume is the pod's own, and nobody else has to read them.

Every Secret is in the agent's namespace, because volumes know no other. One that is not there yet does not
keep the agent from starting, and one that changes reaches it within a minute or two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from gpuledger.operator.render.names import Manifest
from gpuledger.operator.render.pods import plain
from gpuledger.operator.spec import Plain, Problem

FOLDER: Final = "/etc/gpuledger-secrets"
VOLUME: Final = "secrets"


class Secrets:
    """The Secrets that an agent needs, gathered while its configuration is made."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._keys: dict[str, dict[str, None]] = {}
        # Every file, with a word in the place of what it says.
        self.files: dict[str, str] = {}
        self.problems: list[Problem] = []

    def file(self, reference: Plain, path: str) -> str:
        """The file in which the pod finds it."""
        name, key = str(reference["name"]), str(reference["key"])
        elsewhere = reference.get("namespace")
        if elsewhere and elsewhere != self._namespace:
            self.problems.append(
                Problem(
                    f"{path}.namespace",
                    f"is not {self._namespace}, the agent's own, and Secrets of others are not read",
                )
            )
        self._keys.setdefault(name, {})[key] = None
        file = f"{FOLDER}/{name}/{key}"
        self.files[file] = "secret"
        return file

    def endpoint(self, said: Plain, path: str) -> Manifest:
        """tlsConfig, basicAuth and authorization in the agent's words, by files."""
        found: Manifest = {}
        if said.get("tlsConfig") is not None:
            found["tlsConfig"] = dict(self._tls(said["tlsConfig"], f"{path}.tlsConfig"))
        if said.get("basicAuth") is not None:
            found["basicAuth"] = {
                f"{key}File": self.file(reference, f"{path}.basicAuth.{key}")
                for key, reference in said["basicAuth"].items()
                if reference is not None
            }
        if said.get("authorization") is not None:
            found["authorization"] = dict(self._login(said["authorization"], f"{path}.authorization"))
        return found

    def receiver(self, said: Plain, path: str) -> Manifest:
        """The same in Prometheus's words."""
        words = {
            "caFile": "ca_file",
            "certFile": "cert_file",
            "keyFile": "key_file",
            "serverName": "server_name",
            "insecureSkipVerify": "insecure_skip_verify",
            "usernameFile": "username_file",
            "passwordFile": "password_file",
            "credentialsFile": "credentials_file",
        }
        sections = {"tlsConfig": "tls_config", "basicAuth": "basic_auth", "authorization": "authorization"}
        return {
            sections[section]: {words.get(key, key): value for key, value in keys.items()}
            for section, keys in self.endpoint(said, path).items()
        }

    def look_at_url(self, url: str, path: str) -> None:
        """A login within a receiver's URL is a problem: whoever may read the resource could read it."""
        try:
            login = "@" in urlsplit(url).netloc
        except ValueError:
            # The agent says what is wrong with it.
            return
        if login:
            self.problems.append(
                Problem(
                    path,
                    "has a login in it, which lies open to everybody who may read this; take it out, and "
                    "give basicAuth: {username: {name, key}, password: {name, key}}, which names a Secret",
                )
            )

    def volumes(self) -> list[tuple[Manifest, Manifest]]:
        """Mount and volume; none where no Secret is named."""
        if not self._keys:
            return []
        sources = [
            {
                "secret": {
                    "name": name,
                    "items": [{"key": key, "path": f"{name}/{key}"} for key in sorted(keys)],
                    "optional": True,
                }
            }
            for name, keys in sorted(self._keys.items())
        ]
        return [
            (
                {"name": VOLUME, "mountPath": FOLDER, "readOnly": True},
                {"name": VOLUME, "projected": {"sources": sources}},
            )
        ]

    def _tls(self, said: Plain, path: str) -> Iterator[tuple[str, object]]:
        for key, value in plain(said).items():
            if key.endswith("Secret"):
                file = key.removesuffix("Secret") + "File"
                if said.get(file):
                    self.problems.append(
                        Problem(f"{path}.{key}", f"is given together with {file}; one of them is wanted")
                    )
                yield file, self.file(value, f"{path}.{key}")
            elif f"{key.removesuffix('File')}Secret" not in said:
                yield key, value

    def _login(self, said: Plain, path: str) -> Iterator[tuple[str, object]]:
        for key, value in plain(said).items():
            if key == "credentialsSecret":
                if said.get("credentialsFile"):
                    self.problems.append(
                        Problem(f"{path}.{key}", "is given together with credentialsFile; one is wanted")
                    )
                yield "credentialsFile", self.file(value, f"{path}.{key}")
            elif key != "credentialsFile" or "credentialsSecret" not in said:
                yield key, value
