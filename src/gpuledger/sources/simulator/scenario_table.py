"""A checked mapping of a scenario file, and parsers for its values; errors name the key's full path."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar, overload

from gpuledger.model import settings
from gpuledger.model.errors import UsageError, suggest_name
from gpuledger.sources.simulator.scenario import SECOND, WATT, WHOLE

T = TypeVar("T")
D = TypeVar("D")

_REQUIRED = object()


class ScenarioTable:
    """One mapping of the file, at `path`. Keys that are not in `valid` raise UsageError."""

    def __init__(self, value: object, path: str, valid: tuple[str, ...]) -> None:
        if not isinstance(value, Mapping):
            raise UsageError(f"{path or 'scenario'}: expected a mapping, not {_describe_type(value)}")
        self.path = path
        self._values: Mapping[object, object] = value
        for key in value:
            if key not in valid:
                raise UsageError(f"{self.path_of(str(key))}: unknown key; {suggest_name(str(key), valid)}")

    def path_of(self, key: str) -> str:
        """Return the full path of a key: `gpus[1].processes[0].load`."""
        return f"{self.path}.{key}" if self.path else key

    def has(self, key: str) -> bool:
        """Whether the key is set to a value."""
        return self._values.get(key) is not None

    def error(self, key: str, problem: str) -> UsageError:
        """Return the error to raise for the value of `key`."""
        return UsageError(f"{self.path_of(key)}: {problem}")

    @overload
    def parse(self, key: str, parser: Callable[[object], T]) -> T: ...
    @overload
    def parse(self, key: str, parser: Callable[[object], T], default: D) -> T | D: ...
    def parse(self, key: str, parser: Callable[[object], T], default: object = _REQUIRED) -> object:
        """Return the parsed value, or the default if the key is missing; without default it is required."""
        if not self.has(key):
            if default is not _REQUIRED and key not in self._values:
                return default
            raise self.error(key, "expected a value")
        try:
            return parser(self._values[key])
        except ValueError as error:
            raise self.error(key, str(error)) from None

    def raw(self, key: str) -> object:
        """Return the value as YAML has it; None if the key is missing."""
        return self._values.get(key)

    def items(self, key: str) -> Iterator[tuple[str, object]]:
        """Yield path and value of each entry of a list; nothing if the key is missing."""
        value = self._values.get(key)
        if value is None and key not in self._values:
            return
        if not isinstance(value, list):
            raise self.error(key, f"expected a list, not {_describe_type(value)}")
        for index, item in enumerate(value):
            yield f"{self.path_of(key)}[{index}]", item


def _describe_type(value: object) -> str:
    names = {type(None): "nothing", bool: "true or false", list: "a list", dict: "a mapping"}
    return names.get(type(value), repr(value))


def parse_name(value: object) -> str:
    """Parse text that is not empty."""
    found = settings.text(value).strip()
    if not found:
        raise ValueError("expected a name")
    return found


def parse_duration(value: object) -> int:
    """Parse a duration (`90s`, `1m30s`, or a number of seconds) as microseconds."""
    return round(settings.duration("s")(value) * SECOND)


def parse_positive_duration(value: object) -> int:
    """Parse a duration above zero as microseconds."""
    found = parse_duration(value)
    if found <= 0:
        raise ValueError("expected a duration above 0")
    return found


def parse_ratio(value: object) -> int:
    """Parse a number from 0 to 1 as parts per million."""
    return round(settings.number(0, 1)(value) * WHOLE)


def parse_percent_points(value: object) -> int:
    """Parse a number from 0 to 1 as integer percentage points."""
    return round(settings.number(0, 1)(value) * 100)


def parse_watts(value: object) -> int:
    """Parse watts as microwatts."""
    return round(settings.number(0, 100_000)(value) * WATT)


def parse_joules(value: object) -> int:
    """Parse joules as millijoules."""
    return round(settings.number(0, 1e15)(value) * 1000)


def parse_megahertz(value: object) -> int:
    """Parse megahertz as hertz."""
    return round(settings.number(0, 100_000)(value) * 1_000_000)
