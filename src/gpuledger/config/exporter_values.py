"""Values as the flags of dcgm-exporter and nvidia_gpu_exporter have them, parsed into what our own settings
take.
"""

from __future__ import annotations

from collections.abc import Callable
from re import fullmatch

from gpuledger.model.settings import boolean, text

_HIGHEST_GPU = 1023
# Hosts up to the first dot. The last is the GPU Operator's Service, which leads to the caller's own node.
_THIS_MACHINE = frozenset({"", "localhost", "127", "::1", "nvidia-dcgm"})


def only_false(remedy: str) -> Callable[[object], bool]:
    """A switch that may only be off; ValueError says why, with the remedy."""

    def parse(value: object) -> bool:
        if boolean(value):
            raise ValueError(f"only false can be honoured ({remedy})")
        return False

    return parse


def only(unset: tuple[str, ...], remedy: str) -> Callable[[object], str]:
    """A text that may only be one of those that ask for nothing; ValueError says why, with the remedy."""

    def parse(value: object) -> str:
        word = text(value).strip()
        if word not in unset:
            raise ValueError(f"it cannot be honoured ({remedy}); leave it out")
        return word

    return parse


def devices(value: object) -> str:
    """Indices, comma-separated, from `g`, `g:0,2-3` or `f`; empty for all."""
    written = text(value).strip()
    if written in ("f", "g"):
        return ""
    if written.split(":", 1)[0] == "i":
        raise ValueError(
            "f, g or g:0,2-3 is wanted: instances are told beside their GPU, and cannot be chosen"
        )
    if not fullmatch(r"g:\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*", written):
        raise ValueError("f, g or g:0,2-3 is wanted")
    chosen: dict[int, None] = {}
    for part in written[2:].split(","):
        first, _, last = part.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[-1] > _HIGHEST_GPU:
            raise ValueError(f"indices from 0 to {_HIGHEST_GPU}, the lower first, are wanted")
        chosen.update(dict.fromkeys(numbers))
    return ",".join(map(str, chosen))


def host_engine(value: object) -> str:
    """The address of a DCGM host engine, `HOST[:PORT]`: of this machine's, for no other can stand for it."""
    written = text(value).strip()
    host = fullmatch(r"\[?(.*?)\]?(:\d+)?", written)
    if host is None or host[1].split(".", 1)[0] not in _THIS_MACHINE:
        raise ValueError(
            "an address of this machine, such as localhost:5555, is wanted: no other's host engine is asked; "
            "run gpuledger there"
        )
    return written


def label_patterns(value: object) -> str:
    """Names, some with a * at the end, from regular expressions that are names or beginnings of names."""
    names = []
    for pattern in filter(None, (part.strip() for part in text(value).split(","))):
        plain = pattern.removeprefix("^").removesuffix("$").replace("\\.", ".")
        found = fullmatch(r"([\w./-]*?)(\.\*)?", plain)
        if found is None:
            raise ValueError(
                "names and beginnings such as ^app$ and ^team/.* are wanted; say the rest by "
                "--pod-label-allowlist"
            )
        # Without an end a regular expression takes what goes on, too.
        open_end = found[2] is not None or not pattern.endswith("$")
        names.append(found[1] + ("*" if open_end else ""))
    return ",".join(names)
