"""A fake nvidia-smi that prints recorded outputs.

    nvidia_smi.py --answers DIR [options] -- ARGUMENTS OF NVIDIA-SMI
    nvidia_smi.py --capture FILE [--phase load] [options] -- ARGUMENTS OF NVIDIA-SMI

DIR holds one file per query: `xml`, `report`, `list`, `pmon`, `help-query-gpu`, `query-gpu.csv`,
`query-compute-apps.csv`. FILE is one text with sections headed `# PHASE :: ...` and
`# $ nvidia-smi ARGUMENTS`; it may have CRLF line ends and be UTF-16. A query selects recorded columns; a
column that was not recorded is rejected with nvidia-smi's message.

Options simulate faults: `--exit N` (after the output), `--fail QUERY=N` (no output for that query),
`--delay SECONDS`, `--cut BYTES` (truncates the output), `--hang` (never ends). `--log FILE` appends the
arguments of each call as one line.
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
    query = parse_query(arguments)
    if query in options.fail:
        sys.stderr.write(f"stand-in: {query} fails\n")
        return options.fail[query]
    answer, code = answer_query(query, arguments, options)
    time.sleep(options.delay)
    raw = answer.encode(encoding_of(options.capture), "surrogateescape")
    sys.stdout.buffer.write(raw if options.cut is None else raw[: options.cut])
    sys.stdout.flush()
    while options.hang:
        time.sleep(3600)
    return code or options.exit


def split(words: list[str]) -> tuple[list[str], list[str]]:
    position = words.index("--")
    return words[:position], words[position + 1 :]


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


def parse_query(arguments: list[str]) -> str:
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


def answer_query(query: str, arguments: list[str], options: argparse.Namespace) -> tuple[str, int]:
    recorded = from_capture(query, options) if options.capture else from_directory(query, options)
    if recorded is None:
        return f"Invalid combination of input arguments ({query} is not recorded).\n", 2
    if query.startswith("query-"):
        requested = next(argument for argument in arguments if argument.startswith("--query-")).partition(
            "="
        )[2]
        return select_columns(recorded, requested.split(","))
    return recorded, 0


def from_directory(query: str, options: argparse.Namespace) -> str | None:
    path = options.answers / (query + (".csv" if query.startswith("query-") else ""))
    return path.read_bytes().decode("utf-8", "surrogateescape") if path.exists() else None


def from_capture(query: str, options: argparse.Namespace) -> str | None:
    return sections(options.capture, options.phase).get(query)


def encoding_of(capture: Path | None) -> str:
    marked = capture is not None and capture.read_bytes()[:2] in (b"\xff\xfe", b"\xfe\xff")
    return "utf-16" if marked else "utf-8"


def sections(capture: Path, phase: str) -> dict[str, str]:
    """Return outputs by query: those of the phase, and those that do not depend on it."""
    found: dict[str, str] = {}
    lines = capture.read_bytes().decode(encoding_of(capture), "surrogateescape").split("\n")
    position = 0
    while position < len(lines):
        heads: list[str] = []
        if RULE.fullmatch(lines[position]):
            position += 1
            while position < len(lines) and not RULE.fullmatch(lines[position]):
                heads.append(lines[position].rstrip("\r"))
                position += 1
            position += 1
            body: list[str] = []
            while position < len(lines) and not RULE.fullmatch(lines[position]):
                body.append(lines[position])
                position += 1
            add_section(found, heads, body, phase)
        else:
            position += 1
    return found


def add_section(found: dict[str, str], heads: list[str], body: list[str], phase: str) -> None:
    requested = next((match for head in heads if (match := COMMAND.fullmatch(head))), None)
    own_phase = heads[0].lstrip("# ").split(" ::")[0] if heads else ""
    if requested is not None and own_phase in (phase, "capabilities"):
        end = "\r\n" if any(line.endswith("\r") for line in body) else "\n"
        text = "\n".join(body).strip("\r\n") + end
        found.setdefault(parse_query((requested[1] or "").split()), text)


ALIASES = {
    "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.video": "clocks.current.video",
    "clocks_throttle_reasons.active": "clocks_event_reasons.active",
    "used_memory": "used_gpu_memory",
}


def select_columns(recorded: str, requested: list[str]) -> tuple[str, int]:
    lines = [line for line in recorded.splitlines() if line]
    titles = lines[0].split(", ")
    bare = [title.split(" [")[0] for title in titles]
    free_text = next((bare.index(name) for name in ("process_name", "name") if name in bare), 0)
    positions: list[int] = []
    for name in requested:
        known = next((bare.index(one) for one in (name, ALIASES.get(name, "")) if one in bare), None)
        if known is None:
            return f'Field "{name}" is not a valid field to query.\n\n', 2
        positions.append(known)
    rows = [", ".join(titles[position] for position in positions)]
    for line in lines[1:]:
        cells = line.split(", ")
        extra = len(cells) - len(titles)
        if extra > 0:
            cells = [
                *cells[:free_text],
                ", ".join(cells[free_text : free_text + extra + 1]),
                *cells[free_text + extra + 1 :],
            ]
        rows.append(", ".join(cells[position] for position in positions) if extra >= 0 else line)
    end = "\r\n" if "\r\n" in recorded else "\n"
    return end.join(rows) + end, 0


if __name__ == "__main__":
    sys.exit(main())
