"""A YAML file as nodes that know their file and key path, so that error messages name both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Final, TypeVar

from gpuledger.host.yaml_documents import is_merge_key, read_yaml_node, show_key
from gpuledger.model.errors import UsageError, unknown_name_error
from gpuledger.model.settings import SecondsWithoutUnit, choice
from gpuledger.model.text import warn_of_unit

if TYPE_CHECKING:
    import yaml


T = TypeVar("T")

log = logging.getLogger("gpuledger.settings")

# Characters of an invalid value that an error message repeats.
_LONGEST = 80
_NULLS = ("~", "null")


class YamlNode:
    """One value of the file. Scalars are texts as written: the key decides what `yes` means."""

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
        """Whether the key is missing or has no value."""
        import yaml

        node = self._node
        if not isinstance(node, yaml.ScalarNode):
            return node is None
        # A quoted "null" is a text.
        return not node.value or (not node.style and node.value in _NULLS)

    @property
    def mapping(self) -> bool:
        """Whether the value is a mapping, not a text or a list."""
        import yaml

        return isinstance(self._node, yaml.MappingNode)

    def section(self, keys: Iterable[str]) -> dict[str, YamlNode]:
        """A mapping's values by key, absent nodes for missing keys.

        Raises UsageError for a key that is not in `keys`.
        """
        known = tuple(keys)
        found = dict(self.items())
        for key in found:
            if key not in known:
                place = f"{self._path}." if self._path else ""
                raise UsageError(f"{self._file}: {unknown_name_error('key', show_key(key), known, place)}")
        return {key: found.get(key, YamlNode(None, self._file, self._below(key))) for key in known}

    def items(self) -> Iterator[tuple[str, YamlNode]]:
        """A mapping's keys and values, including those of the mappings that `<<` merges into it.

        Raises UsageError for a value that is not a mapping.
        """
        import yaml

        if self.absent:
            return
        if not isinstance(self._node, yaml.MappingNode):
            raise self.error("expected a mapping")
        for key, value in self._merged(self._node):
            if not isinstance(key, yaml.ScalarNode):
                raise self.error("expected plain keys")
            yield key.value, YamlNode(value, self._file, self._below(key.value))

    def _merged(self, node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """A mapping's own keys and values, and those of merged mappings with keys that it does not have."""
        import yaml

        own = [pair for pair in node.value if not is_merge_key(pair[0])]
        yield from own
        known = {key.value for key, _ in own if isinstance(key, yaml.ScalarNode)}
        # Each mapping once: repeating it adds nothing, and nine lines could name a billion.
        visited = {node}
        waiting = _merges(node)
        while waiting:
            below = waiting.pop(0)
            if not isinstance(below, yaml.MappingNode):
                raise self.error("expected a mapping or a list of mappings after <<")
            if below in visited:
                continue
            visited.add(below)
            for key, value in below.value:
                if not is_merge_key(key) and not (isinstance(key, yaml.ScalarNode) and key.value in known):
                    yield key, value
                    known.add(key.value)
            waiting = [*_merges(below), *waiting]

    def find(self, key: str) -> YamlNode:
        """The value of a key, nested (`price: {kwh: 1}`) or dotted (`price.kwh: 1`); absent without one.

        Raises UsageError for a key that is given in both forms.
        """
        import yaml

        pairs = self._merged(self._node) if isinstance(self._node, yaml.MappingNode) else ()
        found: dict[str, YamlNode] = {}
        for name_node, value in pairs:
            name = name_node.value if isinstance(name_node, yaml.ScalarNode) else ""
            if name != key and not key.startswith(f"{name}."):
                continue
            below = YamlNode(value, self._file, self._below(name))
            found[name] = below if name == key else below.find(key.removeprefix(f"{name}."))
        given = [node for node in found.values() if node._node is not None]
        if len(given) > 1:
            raise UsageError(f"{given[0].place} is given twice")
        return given[0] if given else YamlNode(None, self._file, self._below(key))

    def plain(self) -> object:
        """The value as a dict, a list or a text as written; None if absent. Raises as `items` does."""
        import yaml

        if self.absent:
            return None
        if isinstance(self._node, yaml.MappingNode):
            return {key: node.plain() for key, node in self.items()}
        if isinstance(self._node, yaml.SequenceNode):
            return [node.plain() for node in self._children()]
        return self.literal("")

    def elements(self) -> list[YamlNode]:
        """A list's values, empty if absent. Raises UsageError for another type and for empty elements."""
        import yaml

        if self.absent:
            return []
        if not isinstance(self._node, yaml.SequenceNode):
            raise self.error("expected a list")
        found = self._children()
        for element in found:
            if element.absent:
                raise element.error("is empty")
        return found

    def _children(self) -> list[YamlNode]:
        values: list[yaml.Node] = self._node.value if self._node is not None else []
        return [YamlNode(value, self._file, f"{self._path}[{at}]") for at, value in enumerate(values)]

    def text(self) -> str:
        """A scalar as written, empty if absent."""
        import yaml

        if self._node is None:
            return ""
        if not isinstance(self._node, yaml.ScalarNode):
            raise self.error("expected a text")
        return "" if self.absent else str(self._node.value)

    def literal(self, default: str) -> str:
        """A scalar as written, `default` if absent; quoted, an empty text, `~` and `null` are texts."""
        import yaml

        if isinstance(self._node, yaml.ScalarNode) and self._node.style is not None:
            return str(self._node.value)
        return default if self.absent else self.text()

    def parse(self, parse: Callable[[object], T], default: T) -> T:
        """The text parsed by `parse`, `default` if absent. Its ValueErrors name the expected form.

        Logs a long duration without a unit.
        """
        if self.absent:
            return default
        written = self.text()
        try:
            found = parse(written)
        except ValueError as error:
            raise self.error(f"{error}, not {shorten(repr(written), _LONGEST, placeholder=' ...')}") from None
        if isinstance(found, SecondsWithoutUnit):
            log.warning("%s", warn_of_unit(self.place, found))
        return found

    def error(self, wanted: str) -> UsageError:
        """An error about this value; it does not repeat the value, which may be a secret."""
        return UsageError(f"{self.place}: {wanted}")

    def _below(self, key: str) -> str:
        return f"{self._path}.{show_key(key)}" if self._path else show_key(key)


def _merges(node: yaml.MappingNode) -> list[yaml.Node]:
    import yaml

    found: list[yaml.Node] = []
    for key, value in node.value:
        if is_merge_key(key):
            found += value.value if isinstance(value, yaml.SequenceNode) else [value]
    return found


def read_yaml_root(file: Path, what: str = "web config") -> YamlNode:
    """The root node of a file. Raises UsageError for a file that cannot be read or is not YAML.

    `what` names the file in messages.
    """
    return YamlNode(read_yaml_node(file, what), file)


TLS_VERSIONS: Final = {"TLS12": 12, "TLS13": 13}


def exclusive_key(keys: Mapping[str, YamlNode], *names: str) -> str | None:
    """The only one of these keys that is set, None without one. Raises UsageError for several."""
    given = [name for name in names if not keys[name].absent]
    if len(given) > 1:
        raise keys[given[1]].error(f"is given together with {given[0]}; give only one of them")
    return given[0] if given else None


def resolve_path(node: YamlNode, folder: Path) -> Path:
    """A path, relative to `folder` if not absolute. Raises UsageError for unprintable characters."""
    if not node.text().isprintable():
        raise node.error("expected a path")
    return folder / node.text()


def parse_tls_versions(keys: Mapping[str, YamlNode]) -> tuple[int, int]:
    """Parse `min_version` and `max_version` to 12 or 13. Raises UsageError."""
    low = TLS_VERSIONS[keys["min_version"].parse(choice(*TLS_VERSIONS), "TLS12")]
    high = TLS_VERSIONS[keys["max_version"].parse(choice(*TLS_VERSIONS), "TLS13")]
    if low > high:
        raise keys["max_version"].error("is below min_version")
    return low, high
