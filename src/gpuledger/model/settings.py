"""How a package declares its Settings: a frozen dataclass whose fields carry key, parser, flags and help."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from re import ASCII, IGNORECASE, findall, fullmatch
from re import compile as pattern
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")
S = TypeVar("S")

Parser = Callable[[object], Any]
# From a parsed value to texts by the keys of other settings.
Meaning = Callable[[Any], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing a user can set: by config key, by environment (`GPULEDGER_` + key), by flags.

    `parse` takes text (flag, environment) or a YAML value and raises ValueError with what is wanted.
    `repeatable` settings take a list; a flag given twice appends. The flag of a `boolean` one may stand alone
    and then means true. `variables` are other programs' names of the environment variable. A setting of
    another program, kept for its users, has `means`: the settings of ours that are set by it; and `implies`:
    those that it sets only where nobody else does.
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

    @property
    def environment(self) -> str:
        """The environment variable, `process.max_per_device` -> `GPULEDGER_PROCESS_MAX_PER_DEVICE`."""
        return "GPULEDGER_" + self.key.upper().replace(".", "_").replace("-", "_")


@dataclass(frozen=True, slots=True)
class Reload:
    """How a running program takes changes to a Settings group, said in the group's class variable `reload`.

    Its keys take effect between two ticks, except those in `restart`, which need a restart. `files` are keys
    whose values are paths, of a file or several, that are read as part of the setting: when such a file
    changes, the setting has changed. A group that says nothing needs a restart for every key.
    """

    restart: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def setting(
    key: str,
    parse: Callable[[object], T],
    default: T,
    help: str,  # noqa: A002  (the field's own word, as in argparse)
    *,
    flags: tuple[str, ...] | None = None,
    metavar: str = "",
    repeatable: bool = False,
    bare: bool = False,
    variables: tuple[str, ...] = (),
    means: Meaning | None = None,
    implies: Meaning | None = None,
) -> T:
    """A dataclass field that is a Setting. Flags default to `--key-with-dashes`.

    `bare` lets a flag that knows more words than true and false stand alone all the same.
    """
    names = ("--" + key.replace("_", "-"),) if flags is None else flags
    alone = bare or parse is cast("object", boolean)
    declared = Setting(key, parse, help, names, metavar, repeatable, alone, variables, means, implies)
    return field(default=default, metadata={"setting": declared})


def declared(group: type) -> Iterator[tuple[str, Setting, Any]]:
    """Field name, Setting and default of each setting of a Settings dataclass."""
    for item in fields(group):
        if "setting" in item.metadata:
            default = item.default if item.default is not MISSING else None
            yield item.name, item.metadata["setting"], default


def reload_of(group: type) -> Reload:
    """How the group takes changes while the program runs."""
    said = getattr(group, "reload", None)
    return said if isinstance(said, Reload) else Reload(tuple(item.key for _, item, _ in declared(group)))


def build(group: type[S], values: Mapping[str, Any]) -> S:
    """A Settings object from values by key; a key that is not set keeps its default."""
    given = {name: values[item.key] for name, item, _ in declared(group) if item.key in values}
    return group(**given)


def text(value: object) -> str:
    """Any scalar as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None or isinstance(value, dict | list):
        raise ValueError("a text is wanted")
    return str(value)


def boolean(value: object) -> bool:
    """True or false, as YAML, Go and people write them."""
    if isinstance(value, bool):
        return value
    words = {"true": True, "t": True, "1": True, "yes": True, "on": True}
    words |= {"false": False, "f": False, "0": False, "no": False, "off": False}
    try:
        return words[str(value).strip().lower()]
    except KeyError:
        raise ValueError("true or false is wanted") from None


def automatic(value: object) -> str:
    """`auto`, `true` or `false`, the latter two as `boolean` takes them."""
    if str(value).strip().lower() == "auto":
        return "auto"
    try:
        return "true" if boolean(value) else "false"
    except ValueError:
        raise ValueError("auto, true or false is wanted") from None


def integer(lowest: int, highest: int) -> Callable[[object], int]:
    """A whole number within bounds, both included."""

    def parse(value: object) -> int:
        try:
            number = int(str(value).strip())
        except ValueError:
            raise ValueError("a whole number is wanted") from None
        if isinstance(value, bool) or not lowest <= number <= highest:
            raise ValueError(f"a whole number from {lowest} to {highest} is wanted")
        return number

    return parse


def number(lowest: float, highest: float) -> Callable[[object], float]:
    """A number within bounds, both included."""

    def parse(value: object) -> float:
        try:
            found = float(str(value).strip())
        except ValueError:
            raise ValueError("a number is wanted") from None
        if isinstance(value, bool) or not lowest <= found <= highest:
            raise ValueError(f"a number from {lowest:g} to {highest:g} is wanted")
        return found

    return parse


def choice(*valid: str) -> Callable[[object], str]:
    """One of a few words."""

    def parse(value: object) -> str:
        # YAML 1.1 reads a bare `off` as false and `on` as true.
        word = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value).strip()
        if word not in valid:
            raise ValueError(f"one of {', '.join(valid)} is wanted")
        return word

    return parse


def words(item: Callable[[object], T]) -> Callable[[object], tuple[T, ...]]:
    """A comma-separated text or a YAML list of items."""

    def parse(value: object) -> tuple[T, ...]:
        parts: Iterable[object]
        parts = value if isinstance(value, list | tuple) else [part.strip() for part in str(value).split(",")]
        found = tuple(item(part) for part in parts if part != "")
        if not found:
            raise ValueError("at least one is wanted")
        return found

    return parse


_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SECONDS |= {"d": 86400.0, "w": 7 * 86400.0, "y": 365 * 86400.0}


def duration(
    bare: str = "s", lowest: float = 0.0, highest: float = 366 * 86400.0
) -> Callable[[object], float]:
    """Seconds from a Go duration (`1m30s`, `500ms`), Prometheus's `d`, `w` and `y` (365 days) included, or a
    bare number in the unit `bare`.
    """

    def parse(value: object) -> float:
        written = str(value).strip()
        if isinstance(value, bool) or not written:
            raise ValueError("a duration such as 500ms, 10s or 1m30s is wanted")
        if fullmatch(r"\d+(\.\d+)?", written):
            seconds = float(written) * _SECONDS[bare]
        elif fullmatch(r"(\d+(\.\d+)?(ns|us|µs|ms|s|m|h|d|w|y))+", written):
            seconds = _sum_of_parts(written)
        else:
            raise ValueError("a duration such as 500ms, 10s or 1m30s is wanted")
        if seconds < lowest:
            raise ValueError(f"a duration of at least {lowest:g} s is wanted")
        if seconds > highest:
            raise ValueError(f"a duration of at most {_shown(highest)} is wanted")
        return seconds

    return parse


def _shown(seconds: float) -> str:
    """A bound as somebody would write it."""
    return f"{seconds / 86400.0:g}d" if seconds % 86400.0 == 0 else f"{seconds:g} s"


def _sum_of_parts(written: str) -> float:
    parts = findall(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d|w|y)", written)
    return sum(float(amount) * _SECONDS[unit] for amount, unit in parts)


_PREFIXES: Final = " kmgtpe"
_SIZE: Final = pattern(r"(\d{1,18})(?:\.(\d{1,18}))?\s*(?:([kmgtpe])(i?))?b?", ASCII | IGNORECASE)


def size(value: object) -> int:
    """Bytes; kB, MB, GB are 1000s, KiB, MiB, GiB are 1024s. Raises ValueError with what is wanted."""
    return _bytes(value, 1000)


def binary_size(value: object) -> int:
    """Bytes; KB, MB, GB are 1024s as KiB, MiB, GiB are. Raises ValueError with what is wanted."""
    return _bytes(value, 1024)


def _bytes(value: object, thousand: int) -> int:
    match = None if isinstance(value, bool) else _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("a size such as 512MB or 2GiB is wanted")
    whole, part, prefix, binary = match.groups("")
    unit: int = (1024 if binary else thousand) ** _PREFIXES.index(prefix.lower() or " ")
    # Exact: no float has all bytes of a large size.
    scale: int = 10 ** len(part)
    return (2 * int(whole + part) * unit + scale) // (2 * scale)
