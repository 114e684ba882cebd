"""YAML that somebody wrote, taken as it is or refused in one line: never another exception, never a hang."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from gpuledger.host.files import read_at_most
from gpuledger.model.errors import UsageError

if TYPE_CHECKING:
    import yaml


T = TypeVar("T")

# Some thousand pods with all that can be said of them; what is longer is no document for people.
_LONGEST: Final = 8 * 1024 * 1024
# Values that a document may have once every alias is followed: nine lines can say a billion.
_MOST_VALUES: Final = 200_000
# No YAML may hold these; an escape in quotes makes them all the same, and no path or label can have one.
_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
_TOO_DEEP: Final = "it is nested too deeply"


class NotYaml(ValueError):
    """The text is no YAML, or none that can be taken; the one line says why."""


def text_of(file: Path) -> str:
    """What a file says. Raises OSError, as `read_at_most` does, and NotYaml for one that is not UTF-8."""
    try:
        return read_at_most(file, _LONGEST).decode("utf-8")
    except UnicodeDecodeError:
        raise NotYaml("it is not UTF-8") from None


def read_document(file: Path, what: str = "configuration") -> Any:
    """The value of the one document in a file, None of an empty one.

    Raises UsageError for a file that cannot be read or is no YAML; `what` it is called then.
    """
    return _read(file, what, parsed)


def read_node(file: Path, what: str) -> yaml.Node | None:
    """The document's node, in which no text is taken for a number, a date or a boolean.

    Raises as `read_document` does.
    """
    import yaml

    return _read(file, what, lambda text: _composed(text, yaml.BaseLoader))


def parsed(text: str, *, quickly: bool = False) -> Any:
    """The value of the one document in a YAML text, None of an empty one; raises NotYaml.

    Aliases are followed; what would be beyond all bounds with them is refused before it is built. `quickly`
    parses by libyaml where it is installed, which takes more memory.
    """
    import yaml

    node = _composed(text, (quickly and getattr(yaml, "CSafeLoader", None)) or yaml.SafeLoader)
    _check_size(node)
    try:
        return None if node is None else yaml.constructor.SafeConstructor().construct_document(node)
    except yaml.YAMLError as error:
        raise NotYaml(_trouble_of(error)) from None
    except RecursionError:
        raise NotYaml(_TOO_DEEP) from None
    except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError) as error:
        # What PyYAML's constructors raise for the 13th month, for `!!int abc`, for a number of 5000 digits;
        # their words repeat the value.
        raise NotYaml(f"it has a value that does not fit its form ({type(error).__name__})") from None


def _read(file: Path, what: str, take: Callable[[str], T]) -> T:
    try:
        return take(text_of(file))
    except OSError as error:
        raise UsageError(f"cannot read the {what} {file}: {error.strerror}") from None
    except NotYaml as error:
        raise UsageError(f"{file} is not YAML: {error}") from None


def _composed(text: str, loader: Any) -> yaml.Node | None:
    import yaml

    try:
        node: yaml.Node | None = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        raise NotYaml(_trouble_of(error)) from None
    except RecursionError:
        raise NotYaml(_TOO_DEEP) from None
    except (ValueError, OverflowError):
        # PyYAML turns \U0FFFFFFF into a character, or tries to.
        raise NotYaml("it has an escape of no character") from None
    _check_texts(node)
    return node


def _check_texts(node: yaml.Node | None) -> None:
    """Raise NotYaml for a text that no path and no name can be."""
    seen: set[int] = set()
    waiting = [] if node is None else [node]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one.value, str) and _NO_TEXT.search(one.value):
            raise NotYaml("it has an escape of what no text may hold (a zero byte, half a character)")
        waiting += _below(one)


def _check_size(node: yaml.Node | None) -> None:
    """Raise NotYaml for what is too much, or endless, once every alias is followed."""
    sizes: dict[int, int] = {}
    around: set[int] = set()
    waiting = [] if node is None else [(node, False)]
    while waiting:
        one, done = waiting.pop()
        below = list(_below(one))
        if done:
            around.remove(id(one))
            sizes[id(one)] = 1 + sum(sizes[id(inner)] for inner in below)
            if sizes[id(one)] > _MOST_VALUES:
                raise NotYaml(f"it has more than {_MOST_VALUES} values, its aliases followed")
        elif id(one) in around:
            raise NotYaml("it has an alias of what the alias stands in")
        elif id(one) not in sizes:
            around.add(id(one))
            waiting += [(one, True), *((inner, False) for inner in below)]


def _below(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node.value, list):
        for inner in node.value:
            yield from inner if isinstance(inner, tuple) else (inner,)


def _trouble_of(error: yaml.YAMLError) -> str:
    """What the matter is with a text, and where, without a word of it: the error's own text quotes the line,
    and what was taken for an alias or a tag, which may be a password.
    """
    mark = getattr(error, "problem_mark", None)
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    context = getattr(error, "context", None)
    said = getattr(error, "problem", None) or context or "it has unusual characters"
    if context and said.startswith("but "):
        # The second half of a sentence.
        said = f"{context}, {said}"
    # Single signs and the names of tokens, as '<scalar>', are no secrets.
    return re.sub(r"'(?!<[a-z ]+>')[^']{2,}'", "'...'", said) + where
