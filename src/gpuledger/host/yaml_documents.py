"""Read YAML written by users: reject invalid documents with one line, without other exceptions or hangs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpuledger.host.files import read_at_most
from gpuledger.model.errors import UsageError

if TYPE_CHECKING:
    import yaml


T = TypeVar("T")

# Bytes of a document: some thousand pods with all their fields.
_LONGEST: Final = 8 * 1024 * 1024
# Values of a document after alias expansion: nine lines can expand to a billion.
_MOST_VALUES: Final = 200_000
# Characters that no path or label may have. YAML forbids them, but escapes in quotes can produce them.
_FORBIDDEN_CHARACTERS: Final = re.compile("[\0\ud800-\udfff]")
# Characters of a key that a message repeats.
_LONGEST_KEY: Final = 80
_TOO_DEEP: Final = "it is nested too deeply"
# Base 60 and base 8 of YAML 1.1.
_OLD_NUMBER: Final = re.compile(r"[-+]?(?:.*:.*|0[0-7_]+)")


class InvalidYaml(ValueError):
    """The text is not valid YAML, or exceeds a limit; the message is one line."""


class DuplicateKey(InvalidYaml):
    """A mapping has a key twice: YAML forbids it, and PyYAML would silently take the last value."""


def read_utf8(file: Path) -> str:
    """The text of a file. Raises OSError like `read_at_most`, and InvalidYaml if it is not UTF-8."""
    try:
        return read_at_most(file, _LONGEST).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidYaml("it is not UTF-8") from None


def read_yaml(file: Path) -> Any:
    """The value of the single document in a file, None for an empty one.

    Raises UsageError for a file that cannot be read or is not YAML.
    """
    return _read(file, "configuration", parse_yaml)


def read_yaml_node(file: Path, what: str) -> yaml.Node | None:
    """The node of the single document in a file; scalars are texts, not numbers, dates or booleans.

    Raises like `read_yaml`; `what` names the file in messages.
    """
    import yaml

    return _read(file, what, lambda text: _compose(text, yaml.BaseLoader))


def read_yaml_with_node(file: Path) -> tuple[Any, yaml.Node | None]:
    """The value of a configuration file, and its node as `read_yaml_node` returns it.

    Raises like `read_yaml`.
    """
    import yaml

    def take(text: str) -> tuple[Any, yaml.Node | None]:
        # Two trees: building the value changes its tree.
        return parse_yaml(text), _compose(text, yaml.BaseLoader)

    return _read(file, "configuration", take)


def parse_yaml(text: str, *, quickly: bool = False) -> Any:
    """The value of the single document in a YAML text, None for an empty one. Raises InvalidYaml.

    Aliases are expanded; a document that would be too large is rejected before it is built. `quickly` parses
    with libyaml where it is installed, which takes more memory. Dates are texts: those that are not in the
    calendar are not refused here. So are numbers that only YAML 1.1 reads in another base than ten: 1:30 as
    90, and 0100 as 64.
    """
    import yaml

    node = _compose(text, (quickly and getattr(yaml, "CSafeLoader", None)) or yaml.SafeLoader)
    _check_size(node)
    _turn_old_forms_into_texts(node)
    try:
        return None if node is None else yaml.constructor.SafeConstructor().construct_document(node)
    except yaml.YAMLError as error:
        raise InvalidYaml(_describe(error)) from None
    except RecursionError:
        raise InvalidYaml(_TOO_DEEP) from None
    except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
        # PyYAML's constructors raise these for `!!int abc`, for a number of 5000 digits; their
        # messages repeat the value.
        raise InvalidYaml(f"it has an invalid value for its type ({type(error).__name__})") from None


def _read(file: Path, what: str, take: Callable[[str], T]) -> T:
    try:
        return take(read_utf8(file))
    except OSError as error:
        raise UsageError(f"cannot read the {what} {file}: {error.strerror}") from None
    except DuplicateKey as error:
        raise UsageError(f"{file}: {error}") from None
    except InvalidYaml as error:
        raise UsageError(f"{file} is not YAML: {error}") from None


def _compose(text: str, loader: Any) -> yaml.Node | None:
    import yaml

    try:
        node: yaml.Node | None = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        raise InvalidYaml(_describe(error)) from None
    except RecursionError:
        raise InvalidYaml(_TOO_DEEP) from None
    except (ValueError, OverflowError):
        # PyYAML fails to convert \U0FFFFFFF into a character.
        raise InvalidYaml("it has an escape of an invalid character") from None
    _check_texts(node)
    _check_keys(node)
    return node


def _turn_old_forms_into_texts(node: yaml.Node | None) -> None:
    for current in _all_below(node):
        kind = current.tag.removeprefix("tag:yaml.org,2002:")
        is_old_number = kind in ("int", "float") and _OLD_NUMBER.fullmatch(str(current.value))
        if kind == "timestamp" or is_old_number:
            current.tag = "tag:yaml.org,2002:str"


def _check_texts(node: yaml.Node | None) -> None:
    """Raise InvalidYaml for a text with characters that no path and no name may have."""
    for current in _all_below(node):
        if isinstance(current.value, str) and _FORBIDDEN_CHARACTERS.search(current.value):
            raise InvalidYaml("it has an escape of a forbidden character (a zero byte or a surrogate)")


def _check_keys(node: yaml.Node | None) -> None:
    """Raise DuplicateKey for a mapping that has a key twice. `<<` may be repeated."""
    import yaml

    seen: set[int] = set()
    waiting = [] if node is None else [(node, "")]
    while waiting:
        current, path = waiting.pop()
        if id(current) in seen or isinstance(current, yaml.ScalarNode):
            continue
        seen.add(id(current))
        if isinstance(current, yaml.SequenceNode):
            waiting += [(inner, f"{path}[{at}]") for at, inner in enumerate(current.value)]
            continue
        lines: dict[tuple[str, str], int] = {}
        for key, value in current.value:
            below = f"{path}.{show_key(key.value)}" if path else show_key(key.value)
            waiting.append((value, below))
            if isinstance(key, yaml.ScalarNode) and not is_merge_key(key):
                name, line = (key.tag, key.value), key.start_mark.line + 1
                if name in lines:
                    raise DuplicateKey(f"{below} is given twice, in lines {lines[name]} and {line}")
                lines[name] = line


def is_merge_key(key: yaml.Node) -> bool:
    """Whether a key is `<<`, which merges mappings into its own."""
    return key.value == "<<" and getattr(key, "style", None) is None


def show_key(key: object) -> str:
    """A key for messages, in one short line."""
    text = key if isinstance(key, str) else "(a key that is no text)"
    # A line break in a key must not split the message.
    return shorten(text if text.isprintable() else ascii(text), _LONGEST_KEY, placeholder=" ...")


def _all_below(node: yaml.Node | None) -> Iterator[yaml.Node]:
    """A node and all nodes in it, each once."""
    seen: set[int] = set()
    waiting = [] if node is None else [node]
    while waiting:
        current = waiting.pop()
        if id(current) not in seen:
            seen.add(id(current))
            yield current
            waiting += _below(current)


def _check_size(node: yaml.Node | None) -> None:
    """Raise InvalidYaml for a document that is too large, or infinite, after alias expansion."""
    sizes: dict[int, int] = {}
    around: set[int] = set()
    waiting = [] if node is None else [(node, False)]
    while waiting:
        current, done = waiting.pop()
        below = list(_below(current))
        if done:
            around.remove(id(current))
            sizes[id(current)] = 1 + sum(sizes[id(inner)] for inner in below)
            if sizes[id(current)] > _MOST_VALUES:
                raise InvalidYaml(f"it has more than {_MOST_VALUES} values after alias expansion")
        elif id(current) in around:
            raise InvalidYaml("it has an alias that contains itself")
        elif id(current) not in sizes:
            around.add(id(current))
            waiting += [(current, True), *((inner, False) for inner in below)]


def _below(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node.value, list):
        for inner in node.value:
            yield from inner if isinstance(inner, tuple) else (inner,)


def _describe(error: yaml.YAMLError) -> str:
    """The problem and its position, without quoting the text: PyYAML's message quotes the line, and what it
    took for an alias or a tag, any of which may be a password.
    """
    mark = getattr(error, "problem_mark", None)
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    context = getattr(error, "context", None)
    problem = getattr(error, "problem", None) or context or "it has unusual characters"
    if context and problem.startswith("but "):
        # The message continues the sentence of the context.
        problem = f"{context}, {problem}"
    # Single characters and names of tokens, such as '<scalar>', are not secret.
    return re.sub(r"'(?!<[a-z ]+>')[^']{2,}'", "'...'", problem) + where
