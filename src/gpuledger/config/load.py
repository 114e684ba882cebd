"""Merge settings from a YAML file, the environment and flags; later sources override earlier ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from gpuledger.model.errors import UsageError, unknown_name_error
from gpuledger.model.settings import InvalidElement, Setting, declared_settings

# Unknown GPULEDGER_* variables are ignored: for a Service named gpuledger the kubelet injects GPULEDGER_PORT,
# GPULEDGER_SERVICE_HOST and others.
CONFIG_VARIABLE = "GPULEDGER_CONFIG"
# Characters of an invalid value that an error message repeats.
_LONGEST = 120


def settings_of(groups: Iterable[type]) -> dict[str, Setting]:
    """Every Setting of the groups by key."""
    return {item.key: item for group in groups for _, item, _ in declared_settings(group)}


def load_values(
    groups: Iterable[type],
    flags: Mapping[str, Sequence[str]],
    environment: Mapping[str, str],
    file: Path | None,
    others: Iterable[type] = (),
    rare: Iterable[type] = (),
) -> dict[str, Any]:
    """Parsed values by key; keys that are not set anywhere are missing.

    `flags` maps keys to the given texts. The file may also contain keys of `others`, the groups of other
    commands, because one file serves all commands. Raises UsageError with one line that names the place
    (flag, variable, or file and key), the invalid value and the expected one. `rare` belong to the groups;
    they and `others` are read only if the file has keys that no group has.
    """
    settings = settings_of(groups)
    values: dict[str, Any] = {}
    if file is not None:
        read = _read_file(file, settings, others, rare)
        found = [(settings[key], value, f"{file}: {key}") for key, value in read.items() if key in settings]
        _apply(values, settings, found)
    _apply(values, settings, _in_environment(settings, environment))
    given: list[_Given] = []
    for key, texts in flags.items():
        item = settings[key]
        given.append((item, list(texts) if item.repeatable else texts[-1], item.flags[0]))
    _apply(values, settings, given)
    _imply(values, settings)
    return values


_Given = tuple[Setting, object, str]


def _in_environment(settings: Mapping[str, Setting], environment: Mapping[str, str]) -> Iterable[_Given]:
    for item in settings.values():
        for name in (item.environment, *item.variables):
            # Empty means unset: Helm and compose write an empty text for a value that is not set.
            if environment.get(name, "").strip():
                yield item, environment[name], name
                break


def _apply(values: dict[str, Any], settings: Mapping[str, Setting], given: Iterable[_Given]) -> None:
    """Apply the settings of one place: aliases (`means`) first, so that settings by their own name win."""
    for item, value, place in sorted(given, key=lambda entry: entry[0].means is None):
        values[item.key] = parsed = _parse(item, value, place)
        if item.means is not None:
            for key, text in item.means(parsed).items():
                if key in settings:
                    values[key] = _parse(settings[key], text, place)


def _imply(values: dict[str, Any], settings: Mapping[str, Setting]) -> None:
    for item in settings.values():
        if item.key in values and item.implies is not None:
            for key, text in item.implies(values[item.key]).items():
                if key in settings and key not in values:
                    values[key] = settings[key].parse(text)


def _parse(item: Setting, value: object, place: str) -> object:
    try:
        return item.parse(value)
    except InvalidElement as error:
        raise UsageError(f"{place}: {error}") from None
    except ValueError as error:
        given = " ".join(map(str, value)) if item.repeatable and isinstance(value, list) else value
        # The part of a URL before the @ may be a password.
        shown = re.sub(r"//\S*@", "//...@", repr(given) if isinstance(given, str) else str(given))
        raise UsageError(f"{place}: {error}, not {shorten(shown, _LONGEST, placeholder=' ...')}") from None


def _read_file(
    file: Path, settings: dict[str, Setting], others: Iterable[type], rare: Iterable[type]
) -> dict[str, object]:
    """The values in the file by key. Adds the settings of `rare` if it may have one."""
    # Imported lazily: without a file, nothing needs YAML.
    from gpuledger.host.yaml_documents import read_yaml_with_node
    from gpuledger.host.yaml_nodes import YamlNode

    content, node = read_yaml_with_node(file)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{file}: expected a mapping of settings at the top level")
    try:
        found = _by_key(content, file, settings)
    except UsageError:
        # A rare key, one of another command, or an unknown one.
        settings |= settings_of(rare)
        found = _by_key(content, file, {**settings_of(others), **settings})
    root = YamlNode(node, file)
    as_written = {key: root.find(key) for key, item in settings.items() if item.as_written}
    return found | {key: value.plain() for key, value in as_written.items() if key in found}


def _by_key(
    content: Mapping[object, object], file: Path, settings: Mapping[str, Setting]
) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in _flat(content, "", file, settings):
        # YAML sees two keys in `price: {kwh: 1}` and `price.kwh: 2`.
        if key in found:
            raise UsageError(f"{file}: {key} is given twice, in its section and with a dot: remove one")
        found[key] = value
    return found


def _flat(
    content: Mapping[object, object], prefix: str, file: Path, settings: Mapping[str, Setting]
) -> Iterable[tuple[str, object]]:
    sections = {key.rsplit(".", 1)[0] for key in settings if "." in key}
    for name, value in content.items():
        key = f"{prefix}{name}"
        if key in settings:
            yield key, value
        elif key in sections:
            # An empty section (all its lines commented out) sets nothing.
            if not isinstance(value, dict | None):
                raise UsageError(f"{file}: {key}: expected a mapping of settings")
            yield from _flat(value or {}, key + ".", file, settings)
        else:
            # The section that the key is in is no help.
            near = [each for each in (*settings, *sections) if not key.startswith(f"{each}.")]
            section = key.rpartition(".")[0]
            own = {each for each in settings if each.startswith(f"{section}.")}
            # Without a section, all keys would be a hundred lines.
            valid = own or {each.partition(".")[0] for each in settings}
            error = unknown_name_error("key", key, near, otherwise=f"valid: {', '.join(sorted(valid))}")
            raise UsageError(f"{file}: {error}")
