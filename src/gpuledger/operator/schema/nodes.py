"""What a field of a resource may be: one tree, from which both the CRD's schema and our own check are made.

The API server has checked what we get, but perhaps against a CRD of another version of the chart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from re import fullmatch
from typing import Any, Final

from gpuledger.operator.spec import Problem

Schema = dict[str, Any]

# Beyond it Kubernetes knows no numbers: a bound at it is none.
INT64: Final = 2**63 - 1
# Of a wrong value, so much is repeated in a status.
_LONGEST: Final = 60


class Node:
    """One field's kind. `about` is what `kubectl explain` shows."""

    about: str = ""

    def openapi(self) -> Schema:
        """The structural OpenAPI v3 schema, without the description."""
        raise NotImplementedError

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """What is wrong with a value: nothing for everything that the schema admits."""
        raise NotImplementedError

    def described(self) -> Schema:
        """The schema with its description."""
        return {"description": self.about, **self.openapi()} if self.about else self.openapi()


@dataclass(frozen=True)
class Text(Node):
    """A text; `pattern` begins with ^, ends with $, and is read alike by RE2 and Python."""

    about: str = ""
    pattern: str = ""
    words: tuple[str, ...] = ()
    wanted: str = ""
    longest: int = 0

    def openapi(self) -> Schema:
        """As OpenAPI has it."""
        made: Schema = {"type": "string"}
        if self.words:
            made["enum"] = list(self.words)
        if self.pattern:
            made["pattern"] = self.pattern
        if self.longest:
            made["maxLength"] = self.longest
        return made

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """What is wrong with a value."""
        if not isinstance(value, str):
            yield Problem(path, f"a text is wanted, not {_shown(value)}")
        elif self.words and value not in self.words:
            yield Problem(path, f"one of {', '.join(self.words)} is wanted, not {_shown(value)}")
        elif self.pattern and not fullmatch(self.pattern, value):
            yield Problem(path, f"{self.wanted or self.pattern} is wanted, not {_shown(value)}")
        elif self.longest and len(value) > self.longest:
            yield Problem(path, f"at most {self.longest} characters are wanted")


@dataclass(frozen=True)
class Switch(Node):
    """true or false."""

    about: str = ""

    def openapi(self) -> Schema:
        """As OpenAPI has it."""
        return {"type": "boolean"}

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """What is wrong with a value."""
        if not isinstance(value, bool):
            yield Problem(path, f"true or false is wanted, not {_shown(value)}")


@dataclass(frozen=True)
class Count(Node):
    """A whole number within bounds, both included."""

    about: str = ""
    lowest: int = 0
    highest: int = 2**31 - 1

    def openapi(self) -> Schema:
        """As OpenAPI has it."""
        made: Schema = {"type": "integer", "format": "int64" if self.highest >= 2**31 else "int32"}
        if self.lowest > -INT64:
            made["minimum"] = self.lowest
        if self.highest < INT64:
            made["maximum"] = self.highest
        return made

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """What is wrong with a value."""
        if not _whole(value) or not self.lowest <= int(str(value)) <= self.highest:
            yield Problem(
                path, f"a whole number from {self.lowest} to {self.highest} is wanted, not {_shown(value)}"
            )


@dataclass(frozen=True)
class NumberOrText(Node):
    """What people write with and without quotes: ports, sizes, percentages."""

    about: str = ""
    pattern: str = ""
    wanted: str = ""
    lowest: int = 0
    highest: int = 2**31 - 1

    def openapi(self) -> Schema:
        """As OpenAPI has it."""
        made: Schema = {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "minimum": self.lowest,
            "maximum": self.highest,
        }
        return {**made, "pattern": self.pattern} if self.pattern else made

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """What is wrong with a value."""
        said = isinstance(value, str) and (not self.pattern or fullmatch(self.pattern, value) is not None)
        counted = _whole(value) and self.lowest <= int(str(value)) <= self.highest
        if not said and not counted:
            yield Problem(path, f"{self.wanted or 'a number or a text'} is wanted, not {_shown(value)}")


@dataclass(frozen=True)
class Each(Node):
    """A list of one kind."""

    item: Node
    about: str = ""
    fewest: int = 0

    def openapi(self) -> Schema:
        """As OpenAPI has it."""
        made: Schema = {"type": "array", "items": self.item.described()}
        return {**made, "minItems": self.fewest} if self.fewest else made

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """What is wrong with a value."""
        if not isinstance(value, list | tuple):
            yield Problem(path, f"a list is wanted, not {_shown(value)}")
            return
        if len(value) < self.fewest:
            yield Problem(path, f"at least {self.fewest} is wanted")
        for at, one in enumerate(value):
            yield from self.item.check(one, f"{path}[{at}]")


@dataclass(frozen=True)
class Named(Node):
    """A mapping from names that are not known beforehand to values of one kind.

    What a name must be like no schema can say: `name` is for our own check alone.
    """

    value: Node
    about: str = ""
    name: Node | None = None

    def openapi(self) -> Schema:
        """As OpenAPI has it."""
        return {"type": "object", "additionalProperties": self.value.described()}

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """What is wrong with a value."""
        if not isinstance(value, Mapping):
            yield Problem(path, f"a mapping is wanted, not {_shown(value)}")
            return
        for name, one in value.items():
            if self.name is not None:
                yield from self.name.check(name, f"{path}.{name}")
            yield from self.value.check(one, f"{path}.{name}")


@dataclass(frozen=True)
class Fields(Node):
    """A mapping with known keys. `open`: others are kept as they are, and are nothing to us."""

    keys: Mapping[str, Node] = field(default_factory=dict)
    about: str = ""
    required: tuple[str, ...] = ()
    open: bool = False

    def openapi(self) -> Schema:
        """As OpenAPI has it."""
        made: Schema = {"type": "object"}
        if self.keys:
            made["properties"] = {name: node.described() for name, node in self.keys.items()}
        if self.required:
            made["required"] = list(self.required)
        if self.open:
            made["x-kubernetes-preserve-unknown-fields"] = True
        return made

    def check(self, value: object, path: str) -> Iterator[Problem]:
        """What is wrong with a value."""
        if not isinstance(value, Mapping):
            yield Problem(path, f"a mapping is wanted, not {_shown(value)}")
            return
        for name in self.required:
            if value.get(name) is None:
                yield Problem(f"{path}.{name}", "is missing")
        for name, one in value.items():
            node = self.keys.get(name)
            # null is what a key says that says nothing: the API server takes it out, too.
            if node is not None and one is not None:
                yield from node.check(one, f"{path}.{name}")
            elif node is None and not self.open:
                yield Problem(f"{path}.{name}", f"is not known here; known are {', '.join(self.keys)}")


@dataclass(frozen=True)
class Unheeded(Node):
    """What may stand there, whatever it is, and is not heeded; `why` says so to who wrote it."""

    why: str = ""

    def openapi(self) -> Schema:
        """As OpenAPI has it."""
        return {"x-kubernetes-preserve-unknown-fields": True}

    def described(self) -> Schema:
        """With the reason."""
        return {"description": f"Not heeded: {self.why}", **self.openapi()}

    def check(self, _value: object, _path: str) -> Iterator[Problem]:
        """Nothing."""
        return iter(())


def unheeded(node: Node, value: object, path: str) -> Iterator[Problem]:
    """What a checked value says that nobody heeds: unheeded keys that ask for something, and unknown ones."""
    if isinstance(node, Unheeded):
        if value and value != {"enabled": False}:
            yield Problem(path, node.why)
    elif isinstance(node, Each) and isinstance(value, list | tuple):
        for at, one in enumerate(value):
            yield from unheeded(node.item, one, f"{path}[{at}]")
    elif isinstance(node, Fields) and node.keys and isinstance(value, Mapping):
        for name, one in value.items():
            below = node.keys.get(name, Unheeded("is not known here"))
            yield from unheeded(below, one, f"{path}.{name}")


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    written = repr(value)
    return written if len(written) <= _LONGEST else f"{written[: _LONGEST - 4]} ..."
