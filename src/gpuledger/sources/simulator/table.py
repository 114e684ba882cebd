"""A checked mapping: values are taken with parsers, and errors name the key's full path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, overload

from gpuledger.model import settings
from gpuledger.model.errors import UsageError, hint
from gpuledger.sources.simulator.scenario import SECOND, WATT, WHOLE

T = TypeVar("T")
D = TypeVar("D")

_REQUIRED = object()


class Table:
    """One mapping of the file, at `path`, with the keys that may stand in it."""

    def __init__(self, value: object, path: str, valid: tuple[str, ...]) -> None:
        if not isinstance(value, Mapping):
            raise UsageError(f"{path or 'scenario'}: a mapping is wanted, not {_kind(value)}")
        self.path = path
        self._values: Mapping[object, object] = value
        for key in value:
            if key not in valid:
                raise UsageError(f"{self.at(str(key))}: unknown key; {hint(str(key), valid)}")

    def at(self, key: str) -> str:
        """The full path of a key: `gpus[1].processes[0].load`."""
        return f"{self.path}.{key}" if self.path else key

    def has(self, key: str) -> bool:
        """Whether the key stands there with a value."""
        return self._values.get(key) is not None

    def fail(self, key: str, problem: str) -> UsageError:
        """The error to raise for what stands at `key`."""
        return UsageError(f"{self.at(key)}: {problem}")

    @overload
    def take(self, key: str, parse: Callable[[object], T]) -> T: ...
    @overload
    def take(self, key: str, parse: Callable[[object], T], default: D) -> T | D: ...
    def take(self, key: str, parse: Callable[[object], T], default: object = _REQUIRED) -> object:
        """The parsed value, or the default when the key is not there; without a default it must be."""
        if not self.has(key):
            if default is not _REQUIRED and key not in self._values:
                return default
            raise self.fail(key, "a value is wanted")
        try:
            return parse(self._values[key])
        except ValueError as error:
            raise self.fail(key, str(error)) from None

    def raw(self, key: str) -> object:
        """The value as YAML gave it, None when it is not there."""
        return self._values.get(key)

    def items(self, key: str) -> Iterator[tuple[str, object]]:
        """Path and value of each entry of a list; nothing when the key is not there."""
        value = self._values.get(key)
        if value is None and key not in self._values:
            return
        if not isinstance(value, list):
            raise self.fail(key, f"a list is wanted, not {_kind(value)}")
        for index, item in enumerate(value):
            yield f"{self.at(key)}[{index}]", item


def _kind(value: object) -> str:
    names = {type(None): "nothing", bool: "true or false", list: "a list", dict: "a mapping"}
    return names.get(type(value), repr(value))


def name(value: object) -> str:
    """A text that is not empty."""
    found = settings.text(value).strip()
    if not found:
        raise ValueError("a name is wanted")
    return found


def span(value: object) -> int:
    """A duration (`90s`, `1m30s`, or a number of seconds) as microseconds."""
    return round(settings.duration("s")(value) * SECOND)


def positive_span(value: object) -> int:
    """A duration above zero."""
    found = span(value)
    if found <= 0:
        raise ValueError("a duration above 0 is wanted")
    return found


def ratio(value: object) -> int:
    """A number from 0 to 1 as parts per million."""
    return round(settings.number(0, 1)(value) * WHOLE)


def points(value: object) -> int:
    """A number from 0 to 1 as whole percent points."""
    return round(settings.number(0, 1)(value) * 100)


def watts(value: object) -> int:
    """Watts as microwatts."""
    return round(settings.number(0, 100_000)(value) * WATT)


def joules(value: object) -> int:
    """Joules as millijoules."""
    return round(settings.number(0, 1e15)(value) * 1000)


def megahertz(value: object) -> int:
    """Megahertz as hertz."""
    return round(settings.number(0, 100_000)(value) * 1_000_000)
