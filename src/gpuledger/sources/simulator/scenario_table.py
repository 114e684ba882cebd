"""A checked mapping of a scenario file; errors name the key's full path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from gpuledger.model.errors import UsageError, suggest_name
from gpuledger.sources.simulator.scenario import REQUIRED

T = TypeVar("T")


def keys_of(spec: type) -> tuple[str, ...]:
    """Return the keys of the fields of a dataclass that `key` created."""
    return tuple(item.metadata["key"] or item.name for item in fields(spec) if item.metadata)


class ScenarioTable:
    """One mapping of the file, at `path`. Keys that are not in `valid` raise UsageError."""

    def __init__(self, value: object, path: str, valid: Iterable[str]) -> None:
        if not isinstance(value, Mapping):
            raise UsageError(f"{path or 'scenario'}: expected a mapping, not {_describe_type(value)}")
        self._path = path
        self._values: Mapping[object, object] = value
        known = tuple(valid)
        for key in value:
            if key not in known:
                raise self.error(str(key), f"unknown key; {suggest_name(str(key), known)}")

    def has(self, key: str) -> bool:
        """Whether the key is set to a value."""
        return self._values.get(key) is not None

    def raw(self, key: str) -> object:
        """Return the value as YAML has it; None if the key is missing."""
        return self._values.get(key)

    def error(self, key: str, problem: str) -> UsageError:
        """Return the error to raise for the value of `key`."""
        return UsageError(f"{self._path_of(key)}: {problem}")

    def parse(self, key: str, parser: Callable[[object], T], default: T = REQUIRED) -> T:
        """Return the parsed value, or the default if the key is missing; without default it is required."""
        if not self.has(key):
            if default is not REQUIRED and key not in self._values:
                return default
            raise self.error(key, "expected a value")
        try:
            return parser(self._values[key])
        except ValueError as error:
            raise self.error(key, str(error)) from None

    def parse_list(self, key: str, parser: Callable[[object], T]) -> list[T]:
        """Return the parsed elements of a list; nothing if the key is missing."""
        found = []
        for path, value in self.items(key):
            try:
                found.append(parser(value))
            except ValueError as error:
                raise UsageError(f"{path}: {error}") from None
        return found

    def build(self, spec: type[T], **given: Any) -> T:
        """Build a dataclass from the keys of its fields, and the fields that are `given`."""
        for item in fields(spec):  # type: ignore[arg-type]  # T is a dataclass
            if item.metadata and item.name not in given:
                key = item.metadata["key"] or item.name
                given[item.name] = self.parse(key, item.metadata["parse"], item.default)
        return spec(**given)

    def build_section(self, key: str, spec: type[T]) -> T:
        """Build a dataclass from the mapping of a key."""
        return ScenarioTable(self.raw(key), self._path_of(key), keys_of(spec)).build(spec)

    def items(self, key: str) -> Iterator[tuple[str, object]]:
        """Yield path and value of each entry of a list; nothing if the key is missing."""
        value = self._values.get(key)
        if value is None and key not in self._values:
            return
        if not isinstance(value, list):
            raise self.error(key, f"expected a list, not {_describe_type(value)}")
        for index, item in enumerate(value):
            yield f"{self._path_of(key)}[{index}]", item

    def _path_of(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def _describe_type(value: object) -> str:
    names = {type(None): "nothing", bool: "true or false", list: "a list", dict: "a mapping"}
    return names.get(type(value), repr(value))
