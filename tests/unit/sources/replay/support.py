"""Random model values, comparison by every field, and metrics pages as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from fractions import Fraction
from functools import cache
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from gpuledger.dialects.catalogue import create_dialects
from gpuledger.dialects.settings import DialectSettings
from gpuledger.exposition import text
from gpuledger.exposition.merging import merge_families
from gpuledger.ledger.ledger import Ledger
from gpuledger.ledger.settings import LedgerSettings
from gpuledger.model.node_state import Health, NodeState
from gpuledger.model.quantities import QUANTITIES, Quantity
from gpuledger.model.snapshot import Snapshot
from gpuledger.sources.replay.recording import RecordingEntry, RecordingReader, RecordingWriter
from gpuledger.workloads.owner_lookup import OwnerLookup

DIALECTS = create_dialects(DialectSettings(), "0.0.0")


def deep(value: Any) -> Any:
    """Convert a value for comparison by every field, also those without `compare`, and by number type."""
    if isinstance(value, Quantity | Enum) or value is None or isinstance(value, str | bool):
        return value
    if is_dataclass(value):
        return (type(value).__name__, {item.name: deep(getattr(value, item.name)) for item in fields(value)})
    if isinstance(value, Mapping):
        return [(deep(key), deep(item)) for key, item in value.items()]
    if isinstance(value, frozenset):
        return value
    if isinstance(value, tuple):
        return [deep(item) for item in value]
    return (type(value).__name__, value)


@cache
def values(hint: Any) -> st.SearchStrategy[Any]:
    """Generate any value of a declared type; a type that is not supported here is an error."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Quantity:
        return st.sampled_from(list(QUANTITIES.values()))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if hint is float:
        return st.floats(allow_nan=False) | st.integers()
    if hint is Fraction:
        return st.fractions(min_value=0)
    if hint in (str, bool, int, type(None)):
        known = {
            str: st.text(st.characters()),
            bool: st.booleans(),
            int: st.integers(),
            type(None): st.none(),
        }
        return known[hint]
    if origin in (UnionType, Union):
        return st.one_of([values(kind) for kind in inner])
    if origin is tuple and inner[-1] is not ...:
        return st.tuples(*[values(kind) for kind in inner])
    if origin is tuple:
        return st.lists(values(inner[0]), max_size=3).map(tuple)
    if origin is frozenset:
        return st.frozensets(values(inner[0]), max_size=3)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(values(inner[0]), values(inner[1]), max_size=3)
    assert is_dataclass(hint), hint
    hints = get_type_hints(hint)
    return st.deferred(
        lambda: st.builds(hint, **{item.name: values(hints[item.name]) for item in fields(hint) if item.init})
    )


def write(
    path: Path, entries: Iterable[RecordingEntry], *, compressed: bool = False, masked: bool = False
) -> Path:
    """Write a recording of the entries."""
    with path.open("wb") as stream:
        writer = RecordingWriter(stream, compressed=compressed, masked=masked, program="test")
        for entry in entries:
            writer.write(entry)
        writer.write_trailer()
    return path


def read(path: Path) -> list[RecordingEntry]:
    """Read all entries of a recording."""
    reader = RecordingReader(path)
    try:
        return list(reader)
    finally:
        reader.close()


class Pages:
    """Converts Snapshots to the metrics page of a node, as bytes of these dialects."""

    def __init__(self, names: Iterable[str] = tuple(DIALECTS)) -> None:
        self._dialects = [DIALECTS[name] for name in names]
        self._workloads = OwnerLookup(lambda uid: f"nobody-may-ask-for-{uid}")
        self._ledger = Ledger(LedgerSettings())

    def of(self, snapshot: Snapshot) -> bytes:
        named = self._workloads.assign_owners(snapshot)
        state = NodeState(named.unix, named.source, named, self._ledger.post(named), Health())
        families = merge_families(chain.from_iterable(dialect.families(state) for dialect in self._dialects))
        return text.encode_text(families)


def without_source(body: bytes) -> bytes:
    """Remove the line of `gpuledger_source_info` from a page."""
    kept = [line for line in body.splitlines(True) if not line.startswith(b"gpuledger_source_info{")]
    assert len(kept) == len(body.splitlines()) - 1
    return b"".join(kept)


def named(snapshot: Snapshot) -> Snapshot:
    """Assign owners, as `gpuledger record` does."""
    return OwnerLookup().assign_owners(snapshot)


def at(snapshot: Snapshot, elapsed: float) -> Snapshot:
    return replace(snapshot, elapsed=elapsed, unix=1_700_000_000.0 + elapsed)
