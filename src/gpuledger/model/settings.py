"""Declarations of settings (dataclass fields with key, parser, flags, help) and parsers of values.

A group of settings is a frozen dataclass without slots: there is one object of it, and with `slots=True` a
frozen dataclass keeps two classes in memory, of 4 KiB each (CPython 3.11).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from re import ASCII, IGNORECASE, findall, fullmatch
from re import compile as pattern
from typing import Any, Final, Generic, TypeVar, cast

T = TypeVar("T")
S = TypeVar("S")
N = TypeVar("N", int, float)

Parser = Callable[[object], Any]
# Maps a parsed value to texts by the keys of other settings.
Meaning = Callable[[Any], Mapping[str, str]]


class InvalidElement(ValueError):
    """An invalid element of a list. The message names it, so that the list need not be repeated."""


@dataclass(frozen=True, slots=True)
class NamedParser(Generic[T]):
    """A parser with the default metavar of its settings, and the words that it accepts if it is a choice."""

    _parse: Callable[[object], T]
    metavar: str
    words: tuple[str, ...] = ()

    def __call__(self, value: object) -> T:
        """Parses a text or a YAML value. Raises ValueError."""
        return self._parse(value)


@dataclass(frozen=True, slots=True)
class Setting:
    """One user setting: available as config key, environment variable (`GPULEDGER_` + key) and flags.

    `parse` takes text (flag, environment) or a YAML value and raises ValueError with the expected form.
    `repeatable` settings take a list; repeating the flag appends. The flag of a `boolean` setting needs no
    value, and then means true. `variables` are additional environment variables, named as in other programs.
    For a setting that exists for compatibility with another program, `means` maps its value to the gpuledger
    settings that it sets, and `implies` to those that it sets only if nothing else does. An `as_written`
    setting takes numbers, dates and booleans of a file as texts, as they are written.
    """

    key: str
    parse: Parser
    help: str
    flags: tuple[str, ...] = ()
    metavar: str = ""
    repeatable: bool = False
    boolean: bool = False
    variables: tuple[str, ...] = ()
    means: Meaning | None = None
    implies: Meaning | None = None
    as_written: bool = False

    @property
    def environment(self) -> str:
        """The environment variable, `process.max_per_device` -> `GPULEDGER_PROCESS_MAX_PER_DEVICE`."""
        return "GPULEDGER_" + self.key.upper().replace(".", "_").replace("-", "_")


@dataclass(frozen=True, slots=True)
class ReloadPolicy:
    """How a running program applies changes to a Settings group; the group's class variable `reload`.

    Changed keys take effect between two ticks, except those in `restart`, which need a restart. `files` are
    keys that hold paths of files that are part of the setting: a change of such a file is a change of the
    setting. A group without `reload` needs a restart for every key.
    """

    restart: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def setting(
    key: str,
    parse: Callable[[object], T],
    default: T,
    help: str,  # noqa: A002  (named as in argparse)
    *,
    flags: tuple[str, ...] | None = None,
    metavar: str = "",
    repeatable: bool = False,
    bare: bool = False,
    variables: tuple[str, ...] = (),
    means: Meaning | None = None,
    implies: Meaning | None = None,
    as_written: bool = False,
) -> T:
    """Returns a dataclass field that declares a Setting. Flags default to `--key-with-dashes`, the metavar to
    that of a NamedParser.

    `bare` allows the flag without a value even if the setting is not boolean.
    """
    names = ("--" + key.replace("_", "-"),) if flags is None else flags
    alone = bare or parse is cast("object", boolean)
    shown = metavar or getattr(parse, "metavar", "")
    declared = Setting(
        key, parse, help, names, shown, repeatable, alone, variables, means, implies, as_written
    )
    return field(default=default, metadata={"setting": declared})


def option(
    key: str,
    parse: Callable[[object], T],
    default: T,
    help: str,  # noqa: A002  (named as in argparse)
    **more: Any,
) -> T:
    """As `setting`, with a flag that omits the section of the key: `--name` for `section.name`."""
    flag = "--" + key.partition(".")[2].replace("_", "-")
    return setting(key, parse, default, help, flags=(flag,), **more)


def declared_settings(group: type) -> Iterator[tuple[str, Setting, Any]]:
    """Yields field name, Setting and default of each setting of a Settings dataclass."""
    for item in fields(group):
        if "setting" in item.metadata:
            default = item.default if item.default is not MISSING else None
            yield item.name, item.metadata["setting"], default


def reload_policy(group: type) -> ReloadPolicy:
    """Returns how the running program applies changes to the group."""
    policy: ReloadPolicy | None = getattr(group, "reload", None)
    return policy or ReloadPolicy(tuple(item.key for _, item, _ in declared_settings(group)))


def build_settings(group: type[S], values: Mapping[str, Any]) -> S:
    """Creates a Settings object from values by key; a missing key gets its default."""
    given = {name: values[item.key] for name, item, _ in declared_settings(group) if item.key in values}
    return group(**given)


def text(value: object) -> str:
    """Parses any scalar as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None or isinstance(value, dict | list):
        raise ValueError("expected text")
    return str(value)


def boolean(value: object) -> bool:
    """Parses a boolean as written in YAML or Go."""
    if isinstance(value, bool):
        return value
    words = {"true": True, "t": True, "1": True, "yes": True, "on": True}
    words |= {"false": False, "f": False, "0": False, "no": False, "off": False}
    try:
        return words[str(value).strip().lower()]
    except KeyError:
        raise ValueError("expected true or false") from None


def auto_or_boolean(value: object) -> str:
    """Parses `auto`, or a boolean as `boolean` does."""
    if str(value).strip().lower() == "auto":
        return "auto"
    try:
        return "true" if boolean(value) else "false"
    except ValueError:
        raise ValueError("expected auto, true or false") from None


def integer(lowest: int, highest: int) -> Callable[[object], int]:
    """Returns a parser of integers from `lowest` to `highest`, both included."""
    return _bounded(int, "an integer", lowest, highest, f"{lowest} to {highest}")


def number(lowest: float, highest: float) -> Callable[[object], float]:
    """Returns a parser of numbers from `lowest` to `highest`, both included."""
    return _bounded(float, "a number", lowest, highest, f"{lowest:g} to {highest:g}")


def _bounded(
    kind: Callable[[str], N], expected: str, lowest: N, highest: N, bounds: str
) -> Callable[[object], N]:
    def parse(value: object) -> N:
        try:
            found = kind(str(value).strip())
        except ValueError:
            raise ValueError(f"expected {expected}") from None
        if isinstance(value, bool) or not lowest <= found <= highest:
            raise ValueError(f"expected {expected} from {bounds}")
        return found

    return NamedParser(parse, "N")


def choice(*valid: str) -> Callable[[object], str]:
    """Returns a parser that accepts one of the `valid` words."""

    def parse(value: object) -> str:
        # YAML 1.1 reads a bare `off` as false and `on` as true.
        word = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value).strip()
        if word not in valid:
            raise ValueError(f"expected one of {', '.join(valid)}")
        return word

    return NamedParser(parse, "|".join(valid), valid)


def comma_separated(item: Callable[[object], T]) -> Callable[[object], tuple[T, ...]]:
    """Returns a parser of a comma-separated text or a YAML list, which parses each element with `item`."""

    def parse(value: object) -> tuple[T, ...]:
        parts: Iterable[object]
        if value is None or isinstance(value, dict | bool):
            # An empty key of YAML, for example: its text would be an element.
            raise ValueError("expected a list, or text with commas")
        parts = value if isinstance(value, list | tuple) else [part.strip() for part in str(value).split(",")]
        found = tuple(item(part) for part in parts if part != "")
        if not found:
            raise ValueError("expected at least one")
        return found

    return NamedParser(parse, "LIST")


def repeated_texts(value: object) -> tuple[str, ...]:
    """Parses the texts of a repeatable flag: words separated by spaces, or a YAML list."""
    given = value if isinstance(value, list | tuple) else text(value).split()
    return tuple(text(item) for item in given)


def read_json_list(text: str, expected: str, twice: str) -> object:
    """A list of entries that a flag or variable gives as JSON. Numbers are texts, as they were written.

    Raises ValueError that begins with `expected`; InvalidElement for a key that an entry has twice, with the
    remedy `twice`.
    """
    # Imported lazily: a list is rarely a text.
    from json import loads

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise InvalidElement(f"an entry has a key twice; {twice}")
        return found

    try:
        found: object = loads(
            text, parse_float=str, parse_int=str, parse_constant=str, object_pairs_hook=unique
        )
    except InvalidElement:
        raise
    except (ValueError, RecursionError):
        raise ValueError(f"{expected} as JSON") from None
    return found


_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SECONDS |= {"d": 86400.0, "w": 7 * 86400.0, "y": 365 * 86400.0}
_LONGEST_WITHOUT_UNIT = 60.0
_PART = rf"(\d+(?:\.\d+)?)({'|'.join(_SECONDS)})"


class SecondsWithoutUnit(float):
    """More than a minute, from a number without a unit. Other tools read milliseconds there."""


def duration(
    bare: str = "s", lowest: float = 0.0, highest: float = 366 * 86400.0
) -> Callable[[object], float]:
    """Returns a parser of durations that yields seconds.

    It accepts Go durations (`1m30s`, `500ms`), also with Prometheus's `d`, `w` and `y` (365 days), and a
    plain number in the unit `bare`. A long one in seconds is a SecondsWithoutUnit.
    """

    def parse(value: object) -> float:
        written = str(value).strip()
        if isinstance(value, bool) or not written:
            raise ValueError("expected a duration such as 500ms, 10s or 1m30s")
        if fullmatch(r"\d+(\.\d+)?", written):
            seconds = float(written) * _SECONDS[bare]
        elif fullmatch(rf"({_PART})+", written):
            seconds = sum(float(amount) * _SECONDS[unit] for amount, unit in findall(_PART, written))
        else:
            raise ValueError("expected a duration such as 500ms, 10s or 1m30s")
        if seconds < lowest:
            raise ValueError(f"expected a duration of at least {lowest:g} s")
        is_plain = bare == "s" and written[-1].isdigit()
        if seconds > highest:
            limit = f"{highest:g} s" if highest % 86400.0 else f"{highest / 86400.0:g}d"
            hint = " (without a unit, it is in seconds)" if is_plain else ""
            raise ValueError(f"expected a duration of at most {limit}{hint}")
        return SecondsWithoutUnit(seconds) if is_plain and seconds > _LONGEST_WITHOUT_UNIT else seconds

    return NamedParser(parse, "DURATION")


_PREFIXES: Final = " kmgtpe"
_SIZE: Final = pattern(r"(\d{1,18})(?:\.(\d{1,18}))?\s*(?:([kmgtpe])(i?))?b?", ASCII | IGNORECASE)


def size(value: object) -> int:
    """Parses a size in bytes: kB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024. Raises ValueError."""
    return _bytes(value, 1000)


def binary_size(value: object) -> int:
    """Parses a size in bytes: both KB, MB, GB and KiB, MiB, GiB are powers of 1024. Raises ValueError."""
    return _bytes(value, 1024)


def _bytes(value: object, thousand: int) -> int:
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("expected a size such as 512MB or 2GiB")
    whole, part, prefix, binary = match.groups("")
    unit: int = (1024 if binary else thousand) ** _PREFIXES.index(prefix.lower() or " ")
    # Integer arithmetic: a float cannot hold large sizes exactly.
    scale: int = 10 ** len(part)
    return (2 * int(whole + part) * unit + scale) // (2 * scale)
