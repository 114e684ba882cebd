"""Conversion of model values to JSON values and back, according to the types that their dataclasses declare.

No field is named here: a field added to the model is recorded automatically. An unsupported type raises
TypeError when a recording is opened, so that no value is omitted silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from fractions import Fraction
from json import dumps
from types import UnionType
from typing import Any, Final, Protocol, Union, get_args, get_origin, get_type_hints

from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.process import HostFacts, ProcessStart
from gpuledger.model.quantities import QUANTITIES, Quantity
from gpuledger.model.snapshot import CollectorRun, SourceInfo
from gpuledger.model.workload import Workload

Json = Any

# Objects that rarely change between ticks are written once and then referred to by number, and so is text.
# Text values of mappings are not: the raw columns of nvidia-smi change every tick and would fill the table.
_SHARED: Final = {kind.__name__: kind for kind in (Gpu, Instance, HostFacts, Workload, SourceInfo)}
_KEYS: Final = "keys"
# Names in the file of model classes that were renamed since; the file format does not change.
_FILE_NAMES: Final[dict[type, str]] = {CollectorRun: "Collected", ProcessStart: "Start"}


def file_name(kind: type) -> str:
    """Return the name of a dataclass in the file."""
    return _FILE_NAMES.get(kind, kind.__name__)


class WriteTable:
    """Assigns numbers to entries; `new` holds the entries that are not written yet."""

    def __init__(self) -> None:
        self.new: list[Json] = []
        self._numbers: dict[str, int] = {}

    def number(self, entry: Json) -> int:
        """Return the number of an equal entry, else assign the next number."""
        # Compare the JSON form, because Gpus with the same uuid but another index compare equal.
        key = dumps(entry)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            self.new.append(entry)
        return number


class ReadTable:
    """The entries read, by number. `layout` names the fields of each class in the order of the file."""

    def __init__(self, layout: Mapping[str, list[str]]) -> None:
        self._layout = layout
        self._values: list[object] = []
        self._plans: dict[type, list[tuple[str, ValueCodec | None]]] = {}

    def add(self, entry: Json) -> None:
        """Decode and append the next entry of the file."""
        if isinstance(entry, str):
            self._values.append(entry)
            return
        tag, content = entry
        if tag == _KEYS:
            self._values.append(tuple(_TEXT.decode(key, self) for key in content))
        else:
            self._values.append(get_record_codec(_SHARED[tag]).decode(content, self))

    def value(self, number: Json, *kinds: type) -> Any:
        """Return the entry with this number. Raises ValueError if there is none or it is of another type."""
        if type(number) is not int or not 0 <= number < len(self._values):
            raise ValueError(f"no entry {number!r}")
        found = self._values[number]
        if not isinstance(found, kinds):
            raise ValueError(f"entry {number} is a {type(found).__name__}")
        return found

    def plan(self, kind: type, codecs: Mapping[str, ValueCodec]) -> list[tuple[str, ValueCodec | None]]:
        """Return the fields of a class in the order of the file; the codec of an unknown field is None."""
        if kind not in self._plans:
            self._plans[kind] = [(name, codecs.get(name)) for name in self._layout[file_name(kind)]]
        return self._plans[kind]


class ValueCodec(Protocol):
    """Converts values of one type. `decode` raises ValueError for an invalid JSON value."""

    def encode(self, value: Any, table: WriteTable, /) -> Json:
        """Return the JSON value."""

    def decode(self, raw: Json, table: ReadTable, /) -> Any:
        """Return the model value."""


class _ScalarCodec:
    """A JSON scalar, unchanged; an int in place of a float is kept as int."""

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds

    def encode(self, value: Any, _table: WriteTable) -> Json:
        return value

    def decode(self, raw: Json, _table: ReadTable) -> Any:
        if type(raw) not in self._kinds:
            raise ValueError(f"expected {self._kinds[0].__name__}, not {type(raw).__name__}")
        return raw


_TEXT: Final = _ScalarCodec(str)


class _SharedTextCodec:
    def encode(self, value: str, table: WriteTable) -> Json:
        return table.number(value)

    def decode(self, raw: Json, table: ReadTable) -> Any:
        return table.value(raw, str)


class _SharedObjectCodec:
    """Objects written once, as an entry of the table that states the class."""

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds

    def encode(self, value: Any, table: WriteTable) -> Json:
        kind = type(value)
        return table.number([kind.__name__, get_record_codec(kind).encode(value, table)])

    def decode(self, raw: Json, table: ReadTable) -> Any:
        return table.value(raw, *self._kinds)


class _FractionCodec:
    """A Fraction as its numerator and denominator."""

    def encode(self, value: Fraction, _table: WriteTable) -> Json:
        return [value.numerator, value.denominator]

    def decode(self, raw: Json, _table: ReadTable) -> Any:
        numerator, denominator = _check_list(raw)
        if type(numerator) is not int or type(denominator) is not int or numerator < 0 or denominator < 1:
            raise ValueError(f"expected a fraction, not {raw!r}")
        return Fraction(numerator, denominator)


class _OptionalCodec:
    def __init__(self, inner: ValueCodec) -> None:
        self._inner = inner

    def encode(self, value: Any, table: WriteTable) -> Json:
        return None if value is None else self._inner.encode(value, table)

    def decode(self, raw: Json, table: ReadTable) -> Any:
        return None if raw is None else self._inner.decode(raw, table)


class _ListCodec:
    def __init__(self, inner: ValueCodec) -> None:
        self._inner = inner

    def encode(self, value: Any, table: WriteTable) -> Json:
        return [self._inner.encode(item, table) for item in value]

    def decode(self, raw: Json, table: ReadTable) -> Any:
        return tuple([self._inner.decode(item, table) for item in _check_list(raw)])


class _TupleCodec:
    """A tuple of fixed length, with a type for each position."""

    def __init__(self, inner: tuple[ValueCodec, ...]) -> None:
        self._inner = inner

    def encode(self, value: Any, table: WriteTable) -> Json:
        return [codec.encode(item, table) for codec, item in zip(self._inner, value, strict=True)]

    def decode(self, raw: Json, table: ReadTable) -> Any:
        pairs = zip(self._inner, _check_list(raw), strict=True)
        return tuple([codec.decode(item, table) for codec, item in pairs])


class _EnumSetCodec:
    def __init__(self, kind: type[Enum]) -> None:
        self._kind = kind

    def encode(self, value: Any, _table: WriteTable) -> Json:
        return sorted(item.value for item in value)

    def decode(self, raw: Json, _table: ReadTable) -> Any:
        return frozenset([self._kind(item) for item in _check_list(raw)])


class _MappingCodec:
    """A mapping as its values and the number of the table entry with its keys, which rarely change."""

    def __init__(self, by_quantity: bool, inner: ValueCodec) -> None:
        self._by_quantity = by_quantity
        self._inner = inner

    def encode(self, value: Any, table: WriteTable) -> Json:
        keys = [key.key if self._by_quantity else key for key in value]
        return [table.number([_KEYS, keys]), [self._inner.encode(item, table) for item in value.values()]]

    def decode(self, raw: Json, table: ReadTable) -> Any:
        number, content = _check_list(raw)
        pairs = zip(table.value(number, tuple), _check_list(content), strict=True)
        values = {key: self._inner.decode(item, table) for key, item in pairs}
        if not self._by_quantity:
            return values
        return {QUANTITIES[key]: item for key, item in values.items() if key in QUANTITIES}


class _RecordCodec:
    """A dataclass as the list of its fields; trailing fields with default values are omitted."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._fields: tuple[Field[Any], ...] = tuple(item for item in fields(kind) if item.init)
        hints = get_type_hints(kind)
        self.codecs: dict[str, ValueCodec] = {
            item.name: build_codec(hints[item.name]) for item in self._fields
        }

    def encode(self, value: Any, table: WriteTable) -> Json:
        count = len(self._fields)
        while count and _is_default(self._fields[count - 1], value):
            count -= 1
        return [
            self.codecs[item.name].encode(getattr(value, item.name), table) for item in self._fields[:count]
        ]

    def decode(self, raw: Json, table: ReadTable) -> Any:
        plan = table.plan(self._kind, self.codecs)
        if len(_check_list(raw)) > len(plan):
            raise ValueError(f"too many fields of {self._kind.__name__}")
        return self._kind(
            **{
                name: codec.decode(item, table)
                for (name, codec), item in zip(plan, raw, strict=False)
                if codec is not None
            }
        )


def _is_default(item: Field[Any], value: object) -> bool:
    given = getattr(value, item.name)
    if item.default_factory is not MISSING:
        return bool(given == item.default_factory())
    return item.default is not MISSING and type(given) is type(item.default) and given == item.default


def _check_list(raw: Json) -> list[Json]:
    if not isinstance(raw, list):
        raise ValueError(f"expected a list, not {raw!r}")
    return raw


_SCALARS: Final[dict[object, Callable[[], ValueCodec]]] = {
    str: _SharedTextCodec,
    bool: lambda: _ScalarCodec(bool),
    int: lambda: _ScalarCodec(int),
    float: lambda: _ScalarCodec(float, int),
    Fraction: _FractionCodec,
}


_RECORDS: Final[dict[type, _RecordCodec]] = {}


def get_record_codec(kind: type) -> _RecordCodec:
    """Return the codec of a dataclass that is written in place."""
    if kind not in _RECORDS:
        _RECORDS[kind] = _RecordCodec(kind)
    return _RECORDS[kind]


def build_codec(hint: Any) -> ValueCodec:
    """Build the codec of a declared type. Raises TypeError for an unsupported type."""
    if hint in _SCALARS:
        return _SCALARS[hint]()
    if isinstance(hint, type) and get_origin(hint) is None and is_dataclass(hint):
        return _SharedObjectCodec(hint) if hint.__name__ in _SHARED else get_record_codec(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        return _union(tuple(kind for kind in inner if kind is not type(None)), len(inner))
    if origin is tuple and inner[1:] == (...,):
        return _ListCodec(build_codec(inner[0]))
    if origin is tuple and inner:
        return _TupleCodec(tuple(build_codec(one) for one in inner))
    if origin is frozenset and isinstance(inner[0], type) and issubclass(inner[0], Enum):
        return _EnumSetCodec(inner[0])
    if origin is not None and issubclass(origin, Mapping) and inner[0] in (str, Quantity):
        return _MappingCodec(inner[0] is Quantity, _TEXT if inner[1] is str else build_codec(inner[1]))
    raise TypeError(f"a recording cannot carry {hint}")


def _union(kinds: tuple[Any, ...], members: int) -> ValueCodec:
    if len(kinds) == 1:
        codec = build_codec(kinds[0])
    elif all(kind in _SHARED.values() for kind in kinds):
        codec = _SharedObjectCodec(*kinds)
    else:
        raise TypeError(f"a recording cannot carry one of {kinds}")
    return _OptionalCodec(codec) if members > len(kinds) else codec


def list_field_names(kind: type) -> dict[str, list[str]]:
    """Return the field names of a dataclass, and of all dataclasses in it, in the order written."""
    found: dict[str, list[str]] = {}
    waiting: list[Any] = [kind]
    while waiting:
        hint = waiting.pop()
        waiting += get_args(hint)
        if not isinstance(hint, type) or not is_dataclass(hint) or hint is Quantity:
            continue
        name = file_name(hint)
        if name not in found:
            found[name] = [item.name for item in fields(hint) if item.init]
            waiting += get_type_hints(hint).values()
    return dict(sorted(found.items()))
