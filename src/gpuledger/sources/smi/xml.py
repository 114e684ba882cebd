"""Parser for `nvidia-smi -q -x`, XML of schemas v10 to v13.

Each `<gpu>` element is parsed separately and without the document's DTD. So a malformed element affects no
other GPU, the complete elements of a truncated document are kept, and entities are never expanded.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from re import MULTILINE, Match
from re import compile as pattern
from xml.etree.ElementTree import Element, ParseError, fromstring

from gpuledger.sources.smi.cell_names import PROCESS_NAME
from gpuledger.sources.smi.parsed_output import (
    LONGEST_NAME,
    MERGED_GPUS_LIMIT,
    MOST_GPUS,
    GpuBlock,
    SmiOutput,
    SmiProblem,
    normalize_bus_id,
    parse_problem,
    too_many_gpus,
    without_note,
)

_GPU, _END = r"<gpu id=\"([^\"<>]*)\"\s*>", "</gpu>"
# At the start of a line, and anywhere: the name of a process may contain a tag.
_GPUS = (pattern(rf"^[^\S\n]*({_GPU})", MULTILINE), pattern(f"({_GPU})"))
_ENDS_OF_GPU = (pattern(rf"^[^\S\n]*({_END})", MULTILINE), pattern(f"({_END})"))
_HEAD = pattern(r"<(\w+)>([^<]*)</\1>")
# Dropped before parsing: half of the output's bytes, and no value that is used.
_CLOCKS, _CLOCKS_END = "<supported_clocks>", "</supported_clocks>"
_FORBIDDEN = pattern("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LEAF = pattern(r"<([A-Za-z_][\w.-]*)>(.*)</\1>")
_TAG = pattern(r"</?[A-Za-z_][\w.-]*(?: id=\"[^\"<>]*\")?\s*/?>")
# Characters that XML cannot have, in one GPU: with more, its text is not of nvidia-smi.
_MOST_FORBIDDEN = 1000
# nvidia-smi nests elements five deep; the limit bounds the memory for paths of malformed documents.
_MAX_DEPTH = 32
# Characters between two GPUs that are searched for messages, at both ends.
_ENDS = 64 * 1024
_PARSED_SEPARATELY = ("mig_devices", "processes", "accounted_processes")


def parse_xml(text: str) -> SmiOutput:
    """Parse the output of `-q -x`. Accepts any text and never raises."""
    starts = _find_starts(text)
    head = text[: starts[0][0]] if starts else text
    output = SmiOutput(problems=_find_problems(head))
    if "<!ENTITY" in head:
        detail = "rejected: the XML declares entities, which nvidia-smi never does"
        output.problems.append(SmiProblem("ENTITIES", detail))
        return output
    output.read_machine_cells({found[1]: without_note(found[2].strip()) for found in _HEAD.finditer(head)})
    ends = [start for start, _ in starts[1:]] + [len(text)]
    if len(starts) > MOST_GPUS:
        output.problems.append(too_many_gpus())
    for (start, printed), end in zip(starts[:MOST_GPUS], ends, strict=False):
        chunk = text[start:end]
        close = next((found.end() for tag in _ENDS_OF_GPU if (found := tag.search(chunk))), None)
        bus = normalize_bus_id(printed)
        if close is None:
            output.problems.append(SmiProblem("TRUNCATED", f"the XML of GPU {bus or '?'} is truncated", bus))
            continue
        output.problems.extend(_find_problems(chunk[close:]))
        block = _parse_gpu(bus, chunk[:close])
        if block is None:
            output.problems.append(
                SmiProblem("MANGLED", f"the XML of GPU {bus or '?'} cannot be parsed", bus)
            )
        else:
            output.blocks.append(block)
    return output


def _find_starts(text: str) -> list[tuple[int, str]]:
    """Where the elements of GPUs begin, with their bus ids: one more than MOST_GPUS, at most."""
    for tag in _GPUS:
        if found := list(islice(tag.finditer(text), MOST_GPUS + 1)):
            return [(match.start(1), match[2]) for match in found]
    return []


def _find_problems(text: str) -> list[SmiProblem]:
    if len(text) > 2 * _ENDS:
        # Not a document of nvidia-smi; its messages are at the ends.
        text = f"{text[:_ENDS]}\n{text[-_ENDS:]}"
    return [found for line in text.splitlines() if (found := parse_problem(line))]


def _parse_gpu(bus: str, body: str) -> GpuBlock | None:
    before, opened, clocks = body.partition(_CLOCKS)
    _, closed, after = clocks.partition(_CLOCKS_END)
    if opened and closed:
        body = before + after
    dropped = 0
    try:
        root = fromstring(body)
    except (ParseError, ValueError):
        if next(islice(_FORBIDDEN.finditer(body), _MOST_FORBIDDEN, None), None):
            return None
        repaired, dropped = _repair(body)
        try:
            root = fromstring(repaired)
        except (ParseError, ValueError):
            return None
    cells, invalid = _flatten(root, _PARSED_SEPARATELY)
    if invalid >= MERGED_GPUS_LIMIT:
        return None
    block = GpuBlock(bus, cells, invalid_cells=invalid + dropped)
    _read_mig_devices(root, block)
    _read_processes(root, block)
    return block


def _read_mig_devices(root: Element, block: GpuBlock) -> None:
    for mig_device in root.iterfind("mig_devices/mig_device"):
        cells, invalid = _flatten(mig_device)
        block.mig_devices.append(cells)
        block.invalid_cells += invalid


def _read_processes(root: Element, block: GpuBlock) -> None:
    lists = root.findall("processes")
    if len(lists) != 1:
        return
    infos = lists[0].findall("process_info")
    message = (lists[0].text or "").strip()
    if not infos and message and message.lower() != "none":
        block.process_list_message = message
        return
    block.processes = []
    for info in infos:
        cells, invalid = _flatten(info)
        block.invalid_cells += invalid
        block.processes.append(cells)


def _flatten(root: Element, excluded: tuple[str, ...] = ()) -> tuple[dict[str, str], int]:
    """Return leaf texts by path, and how many duplicate paths were dropped.

    A duplicate path is dropped because either value may belong to another GPU.
    """
    cells: dict[str, str] = {}
    duplicates: set[str] = set()
    for path, text in _iter_leaves(root, excluded):
        if path in cells:
            duplicates.add(path)
        cells[path] = text if path in PROCESS_NAME else without_note(text)
    for path in duplicates:
        del cells[path]
    return cells, len(duplicates)


def _iter_leaves(root: Element, excluded: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    # A stack instead of recursion, because the document determines the depth.
    waiting = [(child.tag, child, 1) for child in _named(root) if child.tag not in excluded]
    while waiting:
        path, element, depth = waiting.pop()
        if len(element):
            if depth < _MAX_DEPTH:
                waiting.extend((f"{path}/{child.tag}", child, depth + 1) for child in _named(element))
        else:
            yield path, (element.text or "").strip()


def _named(element: Element) -> Iterator[Element]:
    """The children in reverse, without those of which the paths would need much memory."""
    return (child for child in reversed(element) if len(child.tag) <= LONGEST_NAME)


def _repair(body: str) -> tuple[str, int]:
    """Repair malformed XML line by line; return the text and the number of lines dropped.

    nvidia-smi prints one element per line and does not escape all text: the name of a process named `a&b<c`
    must not be lost.
    """
    kept: list[str] = []
    dropped = 0
    for line in _FORBIDDEN.sub(_spell_out, body).split("\n"):
        element = line.strip()
        leaf = _LEAF.fullmatch(element)
        if leaf:
            kept.append(f"<{leaf[1]}>{_escape(leaf[2])}</{leaf[1]}>")
        elif _TAG.fullmatch(element):
            kept.append(element)
        elif "<" in element:
            dropped += 1
        else:
            kept.append(_escape(element))
    return "\n".join(kept), dropped


def _escape(text: str) -> str:
    # Unescape first, so that text that is escaped already is not escaped twice.
    plain = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _spell_out(found: Match[str]) -> str:
    char = found[0]
    return f"\\u{ord(char):04x}" if ord(char) > 0xFF else f"\\x{ord(char):02x}"
