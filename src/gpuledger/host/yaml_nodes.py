"""A YAML file as nodes that know their file and key path, so that every complaint names both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Final, TypeVar

from gpuledger.host.yaml_documents import read_node
from gpuledger.model.errors import UsageError, unknown
from gpuledger.model.settings import choice

if TYPE_CHECKING:
    import yaml


T = TypeVar("T")

# Of a wrong value, so much is repeated to the user.
_LONGEST = 80
_NULLS = ("~", "null")


class Node:
    """One value of the file. Scalars are the text as written: what `yes` means is the key's affair."""

    def __init__(self, node: yaml.Node | None, file: Path, path: str = "") -> None:
        self._node = node
        self._file = file
        self._path = path

    @property
    def place(self) -> str:
        """File and key path."""
        return f"{self._file}: {self._path}" if self._path else str(self._file)

    @property
    def absent(self) -> bool:
        """The key is not there, or has nothing after it."""
        import yaml

        node = self._node
        if not isinstance(node, yaml.ScalarNode):
            return node is None
        # In quotes it is somebody's name.
        return not node.value or (not node.style and node.value in _NULLS)

    @property
    def mapping(self) -> bool:
        """The value is a mapping, not a text or a list."""
        import yaml

        return isinstance(self._node, yaml.MappingNode)

    def section(self, keys: Iterable[str]) -> dict[str, Node]:
        """A mapping's values by key, absent ones for the keys that are not there.

        Raises UsageError for a key that is none of `keys`.
        """
        known = tuple(keys)
        found = dict(self.items())
        for key in found:
            if key not in known:
                place = f"{self._path}." if self._path else ""
                raise UsageError(f"{self._file}: {unknown('key', _shown(key), known, place)}")
        return {key: found.get(key, Node(None, self._file, self._below(key))) for key in known}

    def items(self) -> Iterator[tuple[str, Node]]:
        """A mapping's keys and values, with those of the mappings that `<<` merges into it.

        Raises UsageError for what is no mapping and for a key given twice.
        """
        import yaml

        if self.absent:
            return
        if not isinstance(self._node, yaml.MappingNode):
            raise self.wrong("a mapping is wanted")
        seen: set[str] = set()
        for key, value in self._merged(self._node):
            if not isinstance(key, yaml.ScalarNode):
                raise self.wrong("plain keys are wanted")
            if key.value in seen:
                raise UsageError(f"{self._file}: {self._below(key.value)} is given twice")
            seen.add(key.value)
            yield key.value, Node(value, self._file, self._below(key.value))

    def _merged(self, node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """A mapping's own keys and values, and of those that it merges the ones that it has not itself."""
        import yaml

        own = [pair for pair in node.value if not _is_merge(pair[0])]
        yield from own
        known = {key.value for key, _ in own if isinstance(key, yaml.ScalarNode)}
        # Each mapping once: it has nothing more to give, and nine lines could name a billion.
        met = {node}
        waiting = _merges(node)
        while waiting:
            below = waiting.pop(0)
            if not isinstance(below, yaml.MappingNode):
                raise self.wrong("what << merges is a mapping, or a list of them")
            if below in met:
                continue
            met.add(below)
            for key, value in below.value:
                if not _is_merge(key) and not (isinstance(key, yaml.ScalarNode) and key.value in known):
                    yield key, value
                    known.add(key.value)
            waiting = [*_merges(below), *waiting]

    def elements(self) -> list[Node]:
        """A list's values, none of an absent one. Raises UsageError for what is no list, or has gaps."""
        import yaml

        if self.absent:
            return []
        if not isinstance(self._node, yaml.SequenceNode):
            raise self.wrong("a list is wanted")
        found = [Node(value, self._file, f"{self._path}[{at}]") for at, value in enumerate(self._node.value)]
        for element in found:
            if element.absent:
                raise element.wrong("is empty")
        return found

    def text(self) -> str:
        """A scalar as written, empty when absent."""
        import yaml

        if self._node is None:
            return ""
        if not isinstance(self._node, yaml.ScalarNode):
            raise self.wrong("a text is wanted")
        return "" if self.absent else str(self._node.value)

    def literal(self, default: str) -> str:
        """A scalar as written, `default` when absent; in quotes an empty text, `~` and `null` are texts."""
        import yaml

        if isinstance(self._node, yaml.ScalarNode) and self._node.style is not None:
            return str(self._node.value)
        return default if self.absent else self.text()

    def parsed(self, parse: Callable[[object], T], default: T) -> T:
        """What `parse` makes of the text, whose ValueErrors say what is wanted; `default` when absent."""
        if self.absent:
            return default
        written = self.text()
        try:
            return parse(written)
        except ValueError as error:
            raise self.wrong(f"{error}, not {shorten(repr(written), _LONGEST, placeholder=' ...')}") from None

    def wrong(self, wanted: str) -> UsageError:
        """An error about this value; it does not repeat the value, which may be a secret."""
        return UsageError(f"{self.place}: {wanted}")

    def _below(self, key: str) -> str:
        return f"{self._path}.{_shown(key)}" if self._path else _shown(key)


def _merges(node: yaml.MappingNode) -> list[yaml.Node]:
    import yaml

    found: list[yaml.Node] = []
    for key, value in node.value:
        if _is_merge(key):
            found += value.value if isinstance(value, yaml.SequenceNode) else [value]
    return found


def _is_merge(key: yaml.Node) -> bool:
    return key.value == "<<" and getattr(key, "style", None) is None


def _shown(key: str) -> str:
    # A line break in it must not make two lines of a complaint.
    return shorten(key if key.isprintable() else ascii(key), _LONGEST, placeholder=" ...")


def read_nodes(file: Path, what: str = "web config") -> Node:
    """The file's one document. Raises UsageError for a file that cannot be read or is no YAML.

    `what` the file is called in these errors.
    """
    return Node(read_node(file, what), file)


TLS_VERSIONS: Final = {"TLS12": 12, "TLS13": 13}


def one_of(keys: Mapping[str, Node], *names: str) -> str | None:
    """The one of these keys that is given, None for none. Raises UsageError for two."""
    given = [name for name in names if not keys[name].absent]
    if len(given) > 1:
        raise keys[given[1]].wrong(f"is given together with {given[0]}; one of them is wanted")
    return given[0] if given else None


def path_of(node: Node, folder: Path) -> Path:
    """A path, relative to `folder` where it is not absolute. Raises UsageError for what is none."""
    if not node.text().isprintable():
        raise node.wrong("a path is wanted")
    return folder / node.text()


def tls_versions(keys: Mapping[str, Node]) -> tuple[int, int]:
    """`min_version` and `max_version` as 12 or 13. Raises UsageError."""
    low = TLS_VERSIONS[keys["min_version"].parsed(choice(*TLS_VERSIONS), "TLS12")]
    high = TLS_VERSIONS[keys["max_version"].parsed(choice(*TLS_VERSIONS), "TLS13")]
    if low > high:
        raise keys["max_version"].wrong("is below min_version")
    return low, high
