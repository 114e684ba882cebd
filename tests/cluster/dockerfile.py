"""Builds an image from its Dockerfile without a container engine: runs the steps of a stage in a chroot.

Unknown instructions are errors, so that no step is skipped. debootstrap builds the base image. A cache keeps
slow results: the base image, and the root after each RUN of a stage until the stage copies a folder
(packages, but never the program).
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template

from dockerfile_parse import DockerfileParser

from cluster import base_image

# Runs in separate mount and PID namespaces, so that mounts and remaining processes end with the step.
_RUN = """\
mount -t proc proc "$1/proc"; mount --rbind /dev "$1/dev"; mount --bind /etc/resolv.conf "$1/etc/resolv.conf"
[ ! -e "$3" ] || { touch "$1/$4"; mount --bind "$3" "$1/$4"; }
exec chroot "$1" /bin/sh -ec "cd $5; $2"
"""
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
# Seconds after which an unused cached step is deleted.
_CACHE_LIFETIME = 3 * 86400
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Config:
    """Configuration of an image."""

    entrypoint: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=lambda: {"PATH": _PATH})
    labels: dict[str, str] = field(default_factory=dict)
    ports: tuple[str, ...] = ()
    folder: str = "/"


@dataclass(frozen=True)
class Stage:
    """Root file system after some steps; `key` is the digest of all inputs."""

    root: Path
    config: Config
    key: str


class Builder:
    """`context` contains the Dockerfile; roots are created below `work` and cached below `cache`."""

    def __init__(self, context: Path, work: Path, cache: Path, **arguments: str) -> None:
        self._context = context
        self._work = work
        self._cache = cache
        self._arguments = arguments
        self._stages: dict[str, Stage] = {}
        self._ignored = DockerIgnore((context / ".dockerignore").read_text())
        parser = DockerfileParser(fileobj=io.BytesIO((context / "Dockerfile").read_bytes()))
        self._steps = self._parse(parser.structure)

    def _parse(self, structure: list[dict[str, str]]) -> dict[str, list[tuple[str, str]]]:
        """Steps of each stage, FROM first."""
        stages: dict[str, list[tuple[str, str]]] = {}
        defaults: dict[str, str] = {}
        name = ""
        for step in structure:
            instruction, value = step["instruction"], step["value"]
            if instruction == "FROM":
                base, _, name = Template(value).substitute(defaults).partition(" AS ")
                stages[name] = [("FROM", base)]
            elif instruction == "ARG" and not stages:
                defaults |= self.argument(value)
            elif instruction != "COMMENT":
                stages[name].append((instruction, value))
        return stages

    def build(self, target: str) -> Stage:
        """Build the image of a target."""
        if target not in self._steps:
            assert target == base_image.NAME, f"no image {target}"
            return Stage(base_image.ensure_base_root(self._cache), Config(), target)
        if target not in self._stages:
            (_, base), *steps = self._steps[target]
            builder = StageBuilder(self, base)
            for instruction, value in steps:
                builder.run_step(instruction, value)
            self._stages[target] = builder.stage
        return self._stages[target]

    def argument(self, value: str) -> dict[str, str]:
        name, _, default = value.partition("=")
        return {name: self._arguments.get(name, default)}

    def source(self, path: str) -> Path:
        """File or folder of the context that COPY names."""
        source = self._context / path
        assert source.exists(), f"COPY {path}: no such file or folder"
        assert not self._ignored(path), f"COPY {path}: .dockerignore excludes it"
        return source

    def is_ignored(self, place: Path) -> bool:
        inside = place.is_relative_to(self._context)
        return inside and self._ignored(str(place.relative_to(self._context)))

    def new_root(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="root-", dir=self._work))

    def cached_step(self, key: str) -> Path:
        return self._cache / f"step-{key[:24]}"


class StageBuilder:
    """Runs the steps of one stage."""

    def __init__(self, builder: Builder, base: str) -> None:
        self._builder = builder
        # The root is copied before the first step that changes it.
        self.stage = builder.build(base)
        self._owns_root = False
        self._arguments: dict[str, str] = {}
        self._cacheable = True

    def run_step(self, instruction: str, value: str) -> None:
        step = getattr(self, f"_{instruction.lower()}", None)
        assert step is not None, f"unknown instruction {instruction}"
        step(value)

    def _arg(self, value: str) -> None:
        self._arguments |= self._builder.argument(value)

    def _env(self, value: str) -> None:
        self._config(env={**self.stage.config.env, **self._pairs(value)})

    def _label(self, value: str) -> None:
        self._config(labels={**self.stage.config.labels, **self._pairs(value)})

    def _expose(self, value: str) -> None:
        self._config(ports=(*self.stage.config.ports, value))

    def _entrypoint(self, value: str) -> None:
        self._config(entrypoint=tuple(json.loads(value)))

    def _workdir(self, value: str) -> None:
        self._ensure_own_root()
        (self.stage.root / value.lstrip("/")).mkdir(parents=True, exist_ok=True)
        self._config(folder=value)

    def _copy(self, value: str) -> None:
        *sources, target = shlex.split(value)
        key = hashlib.sha256(f"{self.stage.key} COPY {value}".encode())
        if sources[0].startswith("--from="):
            origin = self._builder.build(sources.pop(0).removeprefix("--from="))
            places = [origin.root / source.lstrip("/") for source in sources]
            key.update(origin.key.encode())
            self._cacheable = False
        else:
            places = [self._builder.source(source) for source in sources]
            for place in places:
                key.update(place.read_bytes() if place.is_file() else os.urandom(16))
        self._ensure_own_root()
        end = self.stage.root / self.stage.config.folder.lstrip("/") / target.removeprefix("/")
        end = self.stage.root / target.lstrip("/") if target.startswith("/") else end
        for place in places:
            self._copy_one(place, end, into=target.endswith("/") or len(places) > 1)
        self.stage = replace(self.stage, key=key.hexdigest())

    def _copy_one(self, place: Path, end: Path, *, into: bool) -> None:
        if place.is_dir():
            self._cacheable = False
            subprocess.run(["mkdir", "-p", str(end)], check=True)
            shutil.copytree(place, end, symlinks=True, ignore=self._ignore, dirs_exist_ok=True)
            subprocess.run(["chown", "-R", "0:0", str(end)], check=True)
        else:
            shutil.copy2(place, end / place.name if into else end)

    def _ignore(self, folder: str, names: list[str]) -> list[str]:
        return [name for name in names if self._builder.is_ignored(Path(folder) / name)]

    def _run(self, value: str) -> None:
        settings = {**self.stage.config.env, **self._arguments}
        key = hashlib.sha256(f"{self.stage.key} RUN {value} {sorted(settings.items())}".encode()).hexdigest()
        cached = self._builder.cached_step(key)
        if self._cacheable and cached.exists():
            os.utime(cached)
            self.stage, self._owns_root = Stage(cached, self.stage.config, key), False
            return
        self._ensure_own_root()
        _run_in(self.stage.root, value, settings, self.stage.config.folder)
        self.stage = replace(self.stage, key=key)
        if self._cacheable:
            shutil.rmtree(cached, ignore_errors=True)
            self.stage.root.rename(cached)
            os.utime(cached)
            self.stage, self._owns_root = replace(self.stage, root=cached), False

    def _ensure_own_root(self) -> None:
        """Copy a shared root before a step changes it."""
        if not self._owns_root:
            root = self._builder.new_root()
            subprocess.run(["cp", "-a", f"{self.stage.root}/.", str(root)], check=True)
            self.stage, self._owns_root = replace(self.stage, root=root), True

    def _config(self, **changes: object) -> None:
        inputs = f"{self.stage.key} {sorted(changes.items())}".encode()
        config = replace(self.stage.config, **changes)  # type: ignore[arg-type]  # by name
        self.stage = replace(self.stage, config=config, key=hashlib.sha256(inputs).hexdigest())

    def _pairs(self, value: str) -> dict[str, str]:
        words = shlex.split(Template(value).safe_substitute(self._arguments))
        return dict(word.split("=", 1) for word in words)


class DockerIgnore:
    """The rules of .dockerignore: True for an excluded path."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self._rules = [
            (line.startswith("!"), _pattern(line.lstrip("!")))
            for line in lines
            if line and not line.startswith("#")
        ]

    def __call__(self, path: str) -> bool:
        ignored = False
        for negated, pattern in self._rules:
            if pattern.fullmatch(path):
                ignored = not negated
        return ignored


def _pattern(line: str) -> re.Pattern[str]:
    regex = re.escape(line).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
    regex = regex.replace(r"\[", "[").replace(r"\]", "]")
    return re.compile(f"{regex}(?:/.*)?")


def _run_in(root: Path, command: str, settings: dict[str, str], folder: str) -> None:
    bundle = "run/host-certificates.crt"
    # Behind a proxy that intercepts TLS, pip must trust the CA certificates of this machine.
    trusted = {"PIP_CERT": f"/{bundle}"} if _CERTIFICATES.exists() else {}
    done = subprocess.run(
        [
            *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--"),
            *("/bin/sh", "-ec", _RUN, "sh", str(root), command, str(_CERTIFICATES), bundle, folder),
        ],
        env={**settings, **trusted, "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"RUN {command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    (root / bundle).unlink(missing_ok=True)


@contextmanager
def lock_cache(cache: Path) -> Iterator[None]:
    """Hold the lock of the cache, and delete unused steps."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for step in cache.glob("step-*"):
            if step.stat().st_mtime < time.time() - _CACHE_LIFETIME:
                shutil.rmtree(step)
        yield
