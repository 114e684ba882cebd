"""Model values to JSON values and back, as the types of their dataclasses declare.

No field is named here: one that the model gains travels by itself, and a type that is not known here is
a TypeError when a recording is opened, never a value that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from json import dumps
from types import UnionType
from typing import Any, Final, Protocol, Union, get_args, get_origin, get_type_hints

from gpuledger.model.devices import Gpu, Instance
from gpuledger.model.process import HostFacts
from gpuledger.model.quantities import QUANTITIES, Quantity
from gpuledger.model.snapshot import SourceInfo
from gpuledger.model.workload import Workload

Json = Any

# What stays the same over many ticks: written once, then by its number. So are all texts but those of a
# mapping, whose values (raw columns of nvidia-smi) change with every tick and would fill the table.
_SHARED: Final = {kind.__name__: kind for kind in (Gpu, Instance, HostFacts, Workload, SourceInfo)}
_KEYS: Final = "keys"


class WriteTable:
    """Numbers what was written; `new` holds the entries that no line has carried yet."""

    def __init__(self) -> None:
        self.new: list[Json] = []
        self._numbers: dict[str, int] = {}

    def number(self, entry: Json) -> int:
        """The number of an entry: of an equal one written before, else the next."""
        # By the written form: two Gpus are equal when their uuids are, whatever became of the index.
        key = dumps(entry)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            self.new.append(entry)
        return number


class ReadTable:
    """What was read, by number. `layout` names the fields of each class in the order of the file."""

    def __init__(self, layout: Mapping[str, list[str]]) -> None:
        self._layout = layout
        self._values: list[object] = []
        self._plans: dict[type, list[tuple[str, Form | None]]] = {}

    def add(self, entry: Json) -> None:
        """Take in the next entry of the file."""
        if isinstance(entry, str):
            self._values.append(entry)
            return
        tag, content = entry
        if tag == _KEYS:
            self._values.append(tuple(_TEXT.decode(key, self) for key in content))
        else:
            self._values.append(record_of(_SHARED[tag]).decode(content, self))

    def value(self, number: Json, *kinds: type) -> Any:
        """What has this number; raises ValueError when it is not there or of no such kind."""
        if type(number) is not int or not 0 <= number < len(self._values):
            raise ValueError(f"no entry {number!r}")
        found = self._values[number]
        if not isinstance(found, kinds):
            raise ValueError(f"entry {number} is a {type(found).__name__}")
        return found

    def plan(self, kind: type, forms: Mapping[str, Form]) -> list[tuple[str, Form | None]]:
        """The fields of a class as the file has them; None for one that this version does not know."""
        if kind not in self._plans:
            self._plans[kind] = [(name, forms.get(name)) for name in self._layout[kind.__name__]]
        return self._plans[kind]


class Form(Protocol):
    """How values of one type are written. `decode` raises ValueError for what cannot be one."""

    def encode(self, value: Any, table: WriteTable, /) -> Json:
        """The JSON value."""

    def decode(self, raw: Json, table: ReadTable, /) -> Any:
        """The value."""


class _Scalar:
    """A JSON value that stands for itself; an int may stand for a float, and stays one."""

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds

    def encode(self, value: Any, _table: WriteTable) -> Json:
        return value

    def decode(self, raw: Json, _table: ReadTable) -> Any:
        if type(raw) not in self._kinds:
            raise ValueError(f"a {type(raw).__name__} is no {self._kinds[0].__name__}")
        return raw


_TEXT: Final = _Scalar(str)


class _SharedText:
    def encode(self, value: str, table: WriteTable) -> Json:
        return table.number(value)

    def decode(self, raw: Json, table: ReadTable) -> Any:
        return table.value(raw, str)


class _Shared:
    """Objects written once; which of the classes it is, the entry in the table says."""

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds

    def encode(self, value: Any, table: WriteTable) -> Json:
        kind = type(value)
        return table.number([kind.__name__, record_of(kind).encode(value, table)])

    def decode(self, raw: Json, table: ReadTable) -> Any:
        return table.value(raw, *self._kinds)


class _Optional:
    def __init__(self, inner: Form) -> None:
        self._inner = inner

    def encode(self, value: Any, table: WriteTable) -> Json:
        return None if value is None else self._inner.encode(value, table)

    def decode(self, raw: Json, table: ReadTable) -> Any:
        return None if raw is None else self._inner.decode(raw, table)


class _Many:
    def __init__(self, inner: Form) -> None:
        self._inner = inner

    def encode(self, value: Any, table: WriteTable) -> Json:
        return [self._inner.encode(item, table) for item in value]

    def decode(self, raw: Json, table: ReadTable) -> Any:
        return tuple([self._inner.decode(item, table) for item in _list(raw)])


class _Fixed:
    """A tuple of so many values, each with its own type."""

    def __init__(self, inner: tuple[Form, ...]) -> None:
        self._inner = inner

    def encode(self, value: Any, table: WriteTable) -> Json:
        return [form.encode(item, table) for form, item in zip(self._inner, value, strict=True)]

    def decode(self, raw: Json, table: ReadTable) -> Any:
        pairs = zip(self._inner, _list(raw), strict=True)
        return tuple([form.decode(item, table) for form, item in pairs])


class _EnumSet:
    def __init__(self, kind: type[Enum]) -> None:
        self._kind = kind

    def encode(self, value: Any, _table: WriteTable) -> Json:
        return sorted(item.value for item in value)

    def decode(self, raw: Json, _table: ReadTable) -> Any:
        return frozenset([self._kind(item) for item in _list(raw)])


class _Map:
    """A mapping as the number of its keys, which seldom change, and its values."""

    def __init__(self, by_quantity: bool, inner: Form) -> None:
        self._by_quantity = by_quantity
        self._inner = inner

    def encode(self, value: Any, table: WriteTable) -> Json:
        keys = [key.key if self._by_quantity else key for key in value]
        return [table.number([_KEYS, keys]), [self._inner.encode(item, table) for item in value.values()]]

    def decode(self, raw: Json, table: ReadTable) -> Any:
        number, content = _list(raw)
        pairs = zip(table.value(number, tuple), _list(content), strict=True)
        values = {key: self._inner.decode(item, table) for key, item in pairs}
        if not self._by_quantity:
            return values
        return {QUANTITIES[key]: item for key, item in values.items() if key in QUANTITIES}


class _Record:
    """A dataclass as the list of its fields; those at the end that have their default are left out."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._fields: tuple[Field[Any], ...] = tuple(item for item in fields(kind) if item.init)
        hints = get_type_hints(kind)
        self.forms: dict[str, Form] = {item.name: form_of(hints[item.name]) for item in self._fields}

    def encode(self, value: Any, table: WriteTable) -> Json:
        told = len(self._fields)
        while told and _is_default(self._fields[told - 1], value):
            told -= 1
        return [
            self.forms[item.name].encode(getattr(value, item.name), table) for item in self._fields[:told]
        ]

    def decode(self, raw: Json, table: ReadTable) -> Any:
        plan = table.plan(self._kind, self.forms)
        if len(_list(raw)) > len(plan):
            raise ValueError(f"too many fields of {self._kind.__name__}")
        return self._kind(
            **{
                name: form.decode(item, table)
                for (name, form), item in zip(plan, raw, strict=False)
                if form is not None
            }
        )


def _is_default(item: Field[Any], value: object) -> bool:
    given = getattr(value, item.name)
    if item.default_factory is not MISSING:
        return bool(given == item.default_factory())
    return item.default is not MISSING and type(given) is type(item.default) and given == item.default


def _list(raw: Json) -> list[Json]:
    if not isinstance(raw, list):
        raise ValueError(f"{raw!r} is no list")
    return raw


_SCALARS: Final[dict[object, Callable[[], Form]]] = {
    str: _SharedText,
    bool: lambda: _Scalar(bool),
    int: lambda: _Scalar(int),
    float: lambda: _Scalar(float, int),
}


_RECORDS: Final[dict[type, _Record]] = {}


def record_of(kind: type) -> _Record:
    """The form of a dataclass, written in place."""
    if kind not in _RECORDS:
        _RECORDS[kind] = _Record(kind)
    return _RECORDS[kind]


def form_of(hint: Any) -> Form:
    """The form of a declared type; raises TypeError for one that is not known."""
    if hint in _SCALARS:
        return _SCALARS[hint]()
    if isinstance(hint, type) and get_origin(hint) is None and is_dataclass(hint):
        return _Shared(hint) if hint.__name__ in _SHARED else record_of(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        return _union(tuple(kind for kind in inner if kind is not type(None)), len(inner))
    if origin is tuple and inner[1:] == (...,):
        return _Many(form_of(inner[0]))
    if origin is tuple and inner:
        return _Fixed(tuple(form_of(one) for one in inner))
    if origin is frozenset and isinstance(inner[0], type) and issubclass(inner[0], Enum):
        return _EnumSet(inner[0])
    if origin is not None and issubclass(origin, Mapping) and inner[0] in (str, Quantity):
        return _Map(inner[0] is Quantity, _TEXT if inner[1] is str else form_of(inner[1]))
    raise TypeError(f"a recording cannot carry {hint}")


def _union(kinds: tuple[Any, ...], members: int) -> Form:
    if len(kinds) == 1:
        form = form_of(kinds[0])
    elif all(kind in _SHARED.values() for kind in kinds):
        form = _Shared(*kinds)
    else:
        raise TypeError(f"a recording cannot carry one of {kinds}")
    return _Optional(form) if members > len(kinds) else form


def layout_of(kind: type) -> dict[str, list[str]]:
    """The names of the fields of a dataclass and of all that it is made of, in the order written."""
    found: dict[str, list[str]] = {}
    waiting: list[Any] = [kind]
    while waiting:
        hint = waiting.pop()
        waiting += get_args(hint)
        known = hint is Quantity or getattr(hint, "__name__", "") in found
        if isinstance(hint, type) and is_dataclass(hint) and not known:
            found[hint.__name__] = [item.name for item in fields(hint) if item.init]
            waiting += get_type_hints(hint).values()
    return dict(sorted(found.items()))
