"""The protocol of a list of nodes, and lists that flags and files give."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpuledger.fleet.node_address import NODE_PORT, NodeAddress, parse_node_address
from gpuledger.host.files import read_at_most
from gpuledger.host.yaml_documents import InvalidYaml, parse_yaml
from gpuledger.model.errors import GpuledgerError, UsageError, collect_errors, raise_errors
from gpuledger.model.text import list_some

# Bytes of a list: some ten thousand nodes.
LONGEST_LIST = 4 << 20
# More nodes than one process can read.
MOST_NODES = 10_000


@dataclass(frozen=True, slots=True)
class AddressDefaults:
    """What an address has that is listed without a scheme."""

    scheme: str = "http"
    port: int = NODE_PORT

    def parse_address(self, written: str, place: str, name: str = "", page: str = "") -> NodeAddress:
        """Parse an address or URL. Raises UsageError."""
        return parse_node_address(written, place, scheme=self.scheme, port=self.port, name=name, page=page)


# Wrong entries that a message quotes.
_QUOTED_ENTRIES = 3


class InvalidEntries(UsageError):
    """Some entries of a list are no nodes; `nodes` are those of the others."""

    def __init__(self, nodes: Sequence[NodeAddress], errors: Sequence[UsageError]) -> None:
        super().__init__(list_some(map(str, errors), _QUOTED_ENTRIES, "; "))
        self.nodes = nodes


class NodeList(Protocol):
    """A list of nodes that can be read again and again. `name` is for messages."""

    @property
    def name(self) -> str:
        """Where the list comes from."""

    async def read_nodes(self) -> Sequence[NodeAddress]:
        """The current nodes. Raises GpuledgerError with one line: InvalidEntries for some that are none."""


class GivenNodes:
    """Nodes of flags or of the configuration file. Raises UsageError for a malformed one."""

    name = "--node"

    def __init__(self, written: Sequence[str], defaults: AddressDefaults) -> None:
        self._nodes: list[NodeAddress] = []
        errors: list[UsageError] = []
        for one in written:
            with collect_errors(errors):
                self._nodes.append(defaults.parse_address(one, "--node"))
        raise_errors(errors)

    async def read_nodes(self) -> Sequence[NodeAddress]:
        """See NodeList."""
        return self._nodes


class FileNodes:
    """A file with one address a line, or in the format of file_sd."""

    def __init__(self, file: Path, defaults: AddressDefaults) -> None:
        self._file, self._defaults = file, defaults
        self.name = str(file)

    async def read_nodes(self) -> Sequence[NodeAddress]:
        """See NodeList. The file can be on a network mount that hangs: it is read in a thread."""
        return await asyncio.to_thread(self.read_file)

    def read_file(self) -> Sequence[NodeAddress]:
        """The nodes of the file. Raises UsageError."""
        try:
            text = read_at_most(self._file, LONGEST_LIST).decode("utf-8")
        except OSError as error:
            raise UsageError(f"cannot read the list of nodes {self._file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UsageError(f"the list of nodes {self._file} is not UTF-8") from None
        if self._file.suffix in (".json", ".yml", ".yaml"):
            return parse_target_groups(text, self.name, self._defaults)
        return parse_node_lines(text, self.name, self._defaults)


def parse_node_lines(text: str, place: str, defaults: AddressDefaults) -> list[NodeAddress]:
    """Parse lines of `ADDRESS [NAME]`; `#` begins a comment. Raises InvalidEntries with line numbers."""
    found: list[NodeAddress] = []
    errors: list[UsageError] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split(None, 1)
        with collect_errors(errors):
            if words:
                found.append(defaults.parse_address(words[0], f"{place}, line {number}", *words[1:]))
    return require_valid_nodes(found, errors, place)


def parse_target_groups(text: str, place: str, defaults: AddressDefaults) -> list[NodeAddress]:
    """Parse the format of file_sd and http_sd: a list of `{targets: [...], labels: {...}}`.

    The label `node` is the name, `page` the link to the node's page, `__scheme__` the scheme. Raises
    UsageError, and InvalidEntries if some groups or targets are wrong.
    """
    found: list[NodeAddress] = []
    errors: list[UsageError] = []
    for group in _groups(_parse_document(text, place), place):
        with collect_errors(errors):
            _parse_group(group, place, defaults, found, errors)
    return require_valid_nodes(found, errors, place)


def _parse_group(
    group: Any, place: str, defaults: AddressDefaults, found: list[NodeAddress], errors: list[UsageError]
) -> None:
    """Add the nodes of a group to `found`, and wrong targets to `errors`. Raises UsageError for the group."""
    if not isinstance(group, dict):
        raise UsageError(f"{place}: expected a list of groups, as Prometheus's file_sd has it")
    labels = {} if group.get("labels") is None else group["labels"]
    targets = group.get("targets")
    if not isinstance(labels, dict) or not isinstance(targets, list):
        raise UsageError(f"{place}: expected groups with a list of targets, and labels")
    scheme = str(labels.get("__scheme__") or defaults.scheme)
    if scheme not in ("http", "https"):
        raise UsageError(f"{place}: the label __scheme__ must be http or https")
    own = AddressDefaults(scheme, defaults.port)
    # A name is of one node.
    name = str(labels.get("node") or "") if len(targets) == 1 else ""
    page = str(labels.get("page") or "") if len(targets) == 1 else ""
    for target in targets:
        with collect_errors(errors):
            if not isinstance(target, str):
                raise UsageError(f"{place}: expected targets that are texts, such as gpu-1:9400")
            found.append(own.parse_address(target, place, name, page))


def _parse_document(text: str, place: str) -> Any:
    try:
        # JSON is faster to parse; every other document is YAML.
        return json.loads(text) if text.lstrip().startswith("[") else parse_yaml(text)
    except InvalidYaml as error:
        raise UsageError(f"{place} is not YAML: {error}") from None
    except (ValueError, RecursionError):
        try:
            return parse_yaml(text)
        except InvalidYaml as error:
            raise UsageError(f"{place} is neither JSON nor YAML: {error}") from None


def _groups(content: Any, place: str) -> list[Any]:
    if content is None:
        return []
    if not isinstance(content, list):
        raise UsageError(f"{place}: expected a list of groups, as Prometheus's file_sd has it")
    return content


def require_valid_nodes(
    found: Sequence[NodeAddress], errors: Sequence[UsageError], place: str
) -> list[NodeAddress]:
    """The nodes of a list. Raises InvalidEntries if there are errors.

    Raises UsageError for more nodes than one process can read.
    """
    if len(found) > MOST_NODES:
        raise UsageError(f"{place} has {len(found):,} nodes; one fleet reads at most {MOST_NODES:,}")
    if errors:
        raise InvalidEntries(found, errors)
    return list(found)


class UnreadableList(GpuledgerError):
    """A list of nodes cannot be read now; the previous one is kept."""
