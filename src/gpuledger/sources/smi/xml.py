"""`nvidia-smi -q -x`: the XML of schemas v10 to v13, GPU by GPU.

Each `<gpu>` element is parsed by itself, without the document's DTD: a mangled one loses only itself, the
whole ones of a document that was cut off are kept, and no entity is ever expanded.
"""

from __future__ import annotations

from collections.abc import Iterator
from re import Match, Pattern
from re import compile as pattern
from xml.etree.ElementTree import Element, ParseError, fromstring

from gpuledger.sources.smi.answer import RUN_TOGETHER, Answer, Block, Cells, Row, Trouble, bus_id, trouble_of
from gpuledger.sources.smi.values import ordinal

_GPU, _END = pattern(r"<gpu id=\"([^\"<>]*)\"\s*>"), pattern("</gpu>")
_HEAD = pattern(r"<(driver_version|cuda_version|attached_gpus)>([^<]*)</\1>")
# Half of an answer's bytes, and nothing that is told.
_CLOCKS, _CLOCKS_END = "<supported_clocks>", "</supported_clocks>"
_FORBIDDEN = pattern("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LEAF = pattern(r"<([A-Za-z_][\w.-]*)>(.*)</\1>")
_TAG = pattern(r"</?[A-Za-z_][\w.-]*(?: id=\"[^\"<>]*\")?\s*/?>")
# nvidia-smi's own elements are five deep; a path that only grows is not worth its memory.
_DEEPEST = 32
_APART = ("mig_devices", "processes", "accounted_processes")


def parse_xml(text: str) -> Answer:
    """What an answer to `-q -x` holds; anything at all is taken, nothing is raised."""
    starts = _tags(_GPU, text)
    head = text[: starts[0].start()] if starts else text
    answer = Answer(troubles=_troubles(head))
    if "<!ENTITY" in head:
        answer.troubles.append(Trouble("ENTITIES", "the XML declares entities: not nvidia-smi's, refused"))
        return answer
    _read_head(head, answer)
    ends = [start.start() for start in starts[1:]] + [len(text)] if starts else []
    for start, end in zip(starts, ends, strict=True):
        chunk = text[start.start() : end]
        close = next(iter(_tags(_END, chunk)), None)
        bus = bus_id(start[1])
        if close is None:
            answer.troubles.append(Trouble("TRUNCATED", f"the XML of GPU {bus or '?'} has no end", bus))
            continue
        answer.troubles.extend(_troubles(chunk[close.end() :]))
        block = _block(bus, chunk[: close.end()])
        if block is None:
            answer.troubles.append(Trouble("MANGLED", f"the XML of GPU {bus or '?'} cannot be parsed", bus))
        else:
            answer.blocks.append(block)
    return answer


def _tags(tag: Pattern[str], text: str) -> list[Match[str]]:
    # Those that start a line come first: what a process calls itself may be no less than a tag.
    found = list(tag.finditer(text))
    first = [one for one in found if not text[text.rfind("\n", 0, one.start()) + 1 : one.start()].strip()]
    return first or found


def _read_head(head: str, answer: Answer) -> None:
    told = {found[1]: found[2].strip() for found in _HEAD.finditer(head)}
    answer.driver = told.get("driver_version", "")
    answer.cuda = told.get("cuda_version", "")
    answer.expected = ordinal(told.get("attached_gpus", ""))


def _troubles(text: str) -> list[Trouble]:
    return [found for line in text.splitlines() if (found := trouble_of(line))]


def _block(bus: str, body: str) -> Block | None:
    before, opened, clocks = body.partition(_CLOCKS)
    _, closed, after = clocks.partition(_CLOCKS_END)
    if opened and closed:
        body = before + after
    dropped = 0
    try:
        root = fromstring(body)
    except (ParseError, ValueError):
        mended, dropped = _mend(body)
        try:
            root = fromstring(mended)
        except (ParseError, ValueError):
            return None
    cells, spoiled = _flatten(root, _APART)
    if spoiled >= RUN_TOGETHER:
        return None
    block = Block(bus, cells, spoiled=spoiled + dropped)
    _read_parts(root, block)
    _read_rows(root, block)
    return block


def _read_parts(root: Element, block: Block) -> None:
    for part in root.iterfind("mig_devices/mig_device"):
        cells, spoiled = _flatten(part)
        block.parts.append(cells)
        block.spoiled += spoiled


def _read_rows(root: Element, block: Block) -> None:
    lists = root.findall("processes")
    if len(lists) != 1:
        return
    infos = lists[0].findall("process_info")
    said = (lists[0].text or "").strip()
    if not infos and said and said.lower() != "none":
        block.rows_said = said
        return
    block.rows = []
    for info in infos:
        cells, spoiled = _flatten(info)
        block.spoiled += spoiled
        block.rows.append(_row(cells))


def _row(cells: Cells) -> Row:
    return Row(
        pid=cells.get("pid"),
        name=cells.get("process_name"),
        type=cells.get("type"),
        memory=cells.get("used_memory"),
        gi=cells.get("gpu_instance_id"),
        ci=cells.get("compute_instance_id"),
    )


def _flatten(root: Element, apart: tuple[str, ...] = ()) -> tuple[dict[str, str], int]:
    """Leaves by path. One that is there twice is none: which of them is the GPU's cannot be known."""
    cells: dict[str, str] = {}
    twice: set[str] = set()
    for path, text in _leaves(root, apart):
        if path in cells:
            twice.add(path)
        cells[path] = text
    for path in twice:
        del cells[path]
    return cells, len(twice)


def _leaves(root: Element, apart: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    # A stack and not recursion: the depth is the document's choice.
    waiting = [(child.tag, child, 1) for child in reversed(root) if child.tag not in apart]
    while waiting:
        path, element, depth = waiting.pop()
        if len(element):
            if depth < _DEEPEST:
                waiting.extend((f"{path}/{child.tag}", child, depth + 1) for child in reversed(element))
        else:
            yield path, (element.text or "").strip()


def _mend(body: str) -> tuple[str, int]:
    """Make well-formed what can be, line by line, and say how many lines had to be dropped.

    nvidia-smi puts one element on a line and does not escape everything: a process named `a&b<c` must lose
    no more than a process named so would in well-formed XML, which is nothing.
    """
    kept: list[str] = []
    dropped = 0
    for line in _FORBIDDEN.sub(_spelled, body).split("\n"):
        bare = line.strip()
        leaf = _LEAF.fullmatch(bare)
        if leaf:
            kept.append(f"<{leaf[1]}>{_escaped(leaf[2])}</{leaf[1]}>")
        elif _TAG.fullmatch(bare):
            kept.append(bare)
        elif "<" in bare:
            dropped += 1
        else:
            kept.append(_escaped(bare))
    return "\n".join(kept), dropped


def _escaped(text: str) -> str:
    # What is escaped already stays so.
    plain = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _spelled(found: Match[str]) -> str:
    char = found[0]
    return f"\\u{ord(char):04x}" if ord(char) > 0xFF else f"\\x{ord(char):02x}"
