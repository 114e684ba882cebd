"""Converts references to Secrets into files in the agent's pod, so that only the kubelet reads Secrets.

A volume can mount only Secrets of the pod's own namespace. A missing Secret does not prevent the start of the
agent; a changed one arrives within a minute or two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from gpuledger.operator.render.naming import Manifest
from gpuledger.operator.render.pods import Mounts, mount, snake_case, to_plain
from gpuledger.operator.schema.nodes import Problem
from gpuledger.operator.spec_sections import Plain

FOLDER: Final = "/etc/gpuledger-secrets"


class SecretFiles:
    """The Secrets that an agent needs, collected while its configuration is rendered."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._keys: dict[str, dict[str, None]] = {}
        # Path -> placeholder of the content, for the check of the configuration.
        self.files: dict[str, str] = {}
        self.problems: list[Problem] = []

    def file_path(self, reference: Plain, path: str) -> str:
        """The path of the referenced key in the pod. `path` is that of the reference in the resource."""
        name, key = str(reference["name"]), str(reference["key"])
        namespace = reference.get("namespace")
        if namespace and namespace != self._namespace:
            self.problems.append(
                Problem(
                    f"{path}.namespace",
                    f"expected {self._namespace}, the agent's namespace: Secrets of other namespaces cannot "
                    "be mounted",
                )
            )
        self._keys.setdefault(name, {})[key] = None
        file = f"{FOLDER}/{name}/{key}"
        self.files[file] = "secret"
        return file

    def endpoint_config(self, section: Plain, path: str) -> Manifest:
        """tlsConfig, basicAuth and authorization of an endpoint, with the agent's keys and with files."""
        config: Manifest = {}
        for name in ("tlsConfig", "authorization"):
            if section.get(name) is not None:
                config[name] = dict(self._with_files(section[name], f"{path}.{name}"))
        if section.get("basicAuth") is not None:
            config["basicAuth"] = {
                f"{key}File": self.file_path(reference, f"{path}.basicAuth.{key}")
                for key, reference in section["basicAuth"].items()
                if reference is not None
            }
        return config

    def receiver_config(self, receiver: Plain, path: str) -> Manifest:
        """The same sections of a receiver, with the keys of Prometheus."""
        return {
            snake_case(name): {snake_case(key): value for key, value in section.items()}
            for name, section in self.endpoint_config(receiver, path).items()
        }

    def check_url(self, url: str, path: str) -> None:
        """Report credentials in a receiver's URL: all readers of the resource could read them."""
        try:
            has_credentials = "@" in urlsplit(url).netloc
        except ValueError:
            # The agent's own check reports it.
            return
        if has_credentials:
            self.problems.append(
                Problem(
                    path,
                    "contains credentials, which all readers of the resource can see; remove them, and set "
                    "basicAuth: {username: {name, key}, password: {name, key}}, which names a Secret",
                )
            )

    def volumes(self) -> Mounts:
        """The mount and its volume; empty without Secrets."""
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
        return [mount("secrets", FOLDER, {"projected": {"sources": sources}})]

    def _with_files(self, section: Plain, path: str) -> Iterator[tuple[str, object]]:
        for key, value in to_plain(section).items():
            if key.endswith("Secret"):
                file = key.removesuffix("Secret") + "File"
                if section.get(file):
                    conflict = f"conflicts with {file}; set only one of them"
                    self.problems.append(Problem(f"{path}.{key}", conflict))
                yield file, self.file_path(value, f"{path}.{key}")
            elif not key.endswith("File") or f"{key.removesuffix('File')}Secret" not in section:
                yield key, value
