"""A stand-in nvidia-smi that answers from recorded outputs.

    nvidia_smi.py --answers DIR [options] -- ARGUMENTS OF NVIDIA-SMI
    nvidia_smi.py --capture FILE [--phase load] [options] -- ARGUMENTS OF NVIDIA-SMI

DIR holds one file per question: `xml`, `report`, `list`, `pmon`, `help-query-gpu`, `query-gpu.csv`,
`query-compute-apps.csv`. FILE is one text with sections headed `# PHASE :: ...` and
`# $ nvidia-smi ARGUMENTS`; it may have the line ends of Windows, and be UTF-16. Columns of a query are picked
from what was recorded; a column that was not is refused as nvidia-smi refuses it.

Options make it ill: `--exit N` (after its output), `--fail QUESTION=N` (no output for that question),
`--delay SECONDS`, `--cut BYTES` (end of the output lost), `--hang` (never ends), `--log FILE` (one line per
call, its arguments).
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

RULE = re.compile(r"#{20,}\r?")
COMMAND = re.compile(r"# \$ (?:\S*[/\\])?nvidia-smi(?:\.exe)?(?: (.*))?")


def main() -> int:
    own, arguments = split(sys.argv[1:])
    options = parse(own)
    if options.log:
        with Path(options.log).open("a") as log:
            log.write(" ".join(arguments) + "\n")
    question = question_of(arguments)
    if question in options.fail:
        sys.stderr.write(f"stand-in: {question} fails\n")
        return options.fail[question]
    answer, code = answer_to(question, arguments, options)
    time.sleep(options.delay)
    raw = answer.encode(encoding_of(options.capture), "surrogateescape")
    sys.stdout.buffer.write(raw if options.cut is None else raw[: options.cut])
    sys.stdout.flush()
    while options.hang:
        time.sleep(3600)
    return code or options.exit


def split(words: list[str]) -> tuple[list[str], list[str]]:
    place = words.index("--")
    return words[:place], words[place + 1 :]


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--capture", type=Path)
    parser.add_argument("--phase", default="load")
    parser.add_argument("--exit", type=int, default=0)
    parser.add_argument("--fail", action="append", default=[])
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--cut", type=int)
    parser.add_argument("--hang", action="store_true")
    parser.add_argument("--log")
    options = parser.parse_args(words)
    options.fail = {name: int(code) for name, code in (item.split("=") for item in options.fail)}
    return options


def question_of(arguments: list[str]) -> str:
    if arguments[:1] in (["pmon"], ["dmon"]):
        return arguments[0]
    if arguments[:1] == ["--help-query-gpu"]:
        return "help-query-gpu"
    for argument in arguments:
        if argument.startswith("--query-"):
            return argument[2:].partition("=")[0]
    if "-L" in arguments:
        return "list"
    if "-q" in arguments:
        return "xml" if "-x" in arguments else "report"
    return "table"


def answer_to(question: str, arguments: list[str], options: argparse.Namespace) -> tuple[str, int]:
    recorded = from_capture(question, options) if options.capture else from_directory(question, options)
    if recorded is None:
        return f"Invalid combination of input arguments ({question} is not recorded).\n", 2
    if question.startswith("query-"):
        asked = next(argument for argument in arguments if argument.startswith("--query-")).partition("=")[2]
        return pick(recorded, asked.split(","))
    return recorded, 0


def from_directory(question: str, options: argparse.Namespace) -> str | None:
    path = options.answers / (question + (".csv" if question.startswith("query-") else ""))
    return path.read_bytes().decode("utf-8", "surrogateescape") if path.exists() else None


def from_capture(question: str, options: argparse.Namespace) -> str | None:
    return sections(options.capture, options.phase).get(question)


def encoding_of(capture: Path | None) -> str:
    marked = capture is not None and capture.read_bytes()[:2] in (b"\xff\xfe", b"\xfe\xff")
    return "utf-16" if marked else "utf-8"


def sections(capture: Path, phase: str) -> dict[str, str]:
    """Answers by question: those of the phase, and what does not depend on it."""
    found: dict[str, str] = {}
    lines = capture.read_bytes().decode(encoding_of(capture), "surrogateescape").split("\n")
    place = 0
    while place < len(lines):
        heads: list[str] = []
        if RULE.fullmatch(lines[place]):
            place += 1
            while place < len(lines) and not RULE.fullmatch(lines[place]):
                heads.append(lines[place].rstrip("\r"))
                place += 1
            place += 1
            body: list[str] = []
            while place < len(lines) and not RULE.fullmatch(lines[place]):
                body.append(lines[place])
                place += 1
            remember(found, heads, body, phase)
        else:
            place += 1
    return found


def remember(found: dict[str, str], heads: list[str], body: list[str], phase: str) -> None:
    asked = next((match for head in heads if (match := COMMAND.fullmatch(head))), None)
    own_phase = heads[0].lstrip("# ").split(" ::")[0] if heads else ""
    if asked is not None and own_phase in (phase, "capabilities"):
        end = "\r\n" if any(line.endswith("\r") for line in body) else "\n"
        text = "\n".join(body).strip("\r\n") + end
        found.setdefault(question_of((asked[1] or "").split()), text)


ALIASES = {
    "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.video": "clocks.current.video",
    "clocks_throttle_reasons.active": "clocks_event_reasons.active",
    "used_memory": "used_gpu_memory",
}


def pick(recorded: str, asked: list[str]) -> tuple[str, int]:
    lines = [line for line in recorded.splitlines() if line]
    titles = lines[0].split(", ")
    bare = [title.split(" [")[0] for title in titles]
    free = next((bare.index(name) for name in ("process_name", "name") if name in bare), 0)
    places: list[int] = []
    for name in asked:
        known = next((bare.index(one) for one in (name, ALIASES.get(name, "")) if one in bare), None)
        if known is None:
            return f'Field "{name}" is not a valid field to query.\n\n', 2
        places.append(known)
    rows = [", ".join(titles[place] for place in places)]
    for line in lines[1:]:
        cells = line.split(", ")
        more = len(cells) - len(titles)
        if more > 0:
            cells = [*cells[:free], ", ".join(cells[free : free + more + 1]), *cells[free + more + 1 :]]
        rows.append(", ".join(cells[place] for place in places) if more >= 0 else line)
    end = "\r\n" if "\r\n" in recorded else "\n"
    return end.join(rows) + end, 0


if __name__ == "__main__":
    sys.exit(main())
