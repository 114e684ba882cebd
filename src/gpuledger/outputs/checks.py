"""What `doctor` says of where gpuledger tells: its ports, their web config, and the textfile directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from gpuledger.host.clock import SystemClock
from gpuledger.http.addresses import Address, listening_sockets
from gpuledger.http.settings import HttpSettings
from gpuledger.model.checks import Check, Finding, fails, skipped, warning, works
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import clean_name, from_bytes

PORT: Final = "output.port"
TEXTFILE: Final = "output.textfile"
WEB_CONFIG: Final = "output.web_config"
# The documents' directory, and that of Debian's package.
USUAL: Final = (Path("/var/lib/node_exporter/textfile_collector"), Path("/var/lib/prometheus/node-exporter"))

_LISTEN: Final = "0A"


def output_checks(
    settings: HttpSettings, textfile: str = "", *, procfs: Path = Path("/proc"), usual: Iterable[Path] = USUAL
) -> tuple[Check, ...]:
    """Checks of every address of the settings and of their web config, if there is one; and of `textfile`,
    or else of the `usual` directories.
    """
    addresses = [listen.address for listen in settings.listen_address]
    return (
        *(Check(PORT, f"port {address}", partial(_port, address, procfs)) for address in addresses),
        *web_config_checks(settings),
        Check(TEXTFILE, "textfile directory", lambda: _textfile(textfile, tuple(usual))),
    )


def web_config_checks(settings: HttpSettings) -> tuple[Check, ...]:
    """The check of the web config, if there is one."""
    web = settings.web_config
    return (Check(WEB_CONFIG, f"web config {web}", lambda: _web_config(Path(web))),) if web else ()


def _port(address: Address, procfs: Path) -> Iterator[Finding]:
    what = f"port {address}"
    try:
        for listening in listening_sockets(address):
            listening.close()
    except GpuledgerError as error:
        yield _taken(what, str(error), holder(procfs, address.port))
    else:
        yield works(PORT, what, "free")


def _web_config(file: Path) -> Iterator[Finding]:
    # Loads OpenSSL, which only who has such a file pays for.
    from gpuledger.http.web_config.current import CurrentWebConfig

    what = f"web config {file}"
    try:
        current = CurrentWebConfig(file, SystemClock())
    except GpuledgerError as error:
        yield fails(WEB_CONFIG, what, str(error), "correct it there; docs/web-config.md has the format")
        return
    tls, users = current.config.tls, len(current.config.users)
    clients = f", client certificates: {tls.client_auth.value}" if tls else ""
    passwords = f"{users} user{'' if users == 1 else 's'}" if users else "no passwords"
    yield works(WEB_CONFIG, what, f"{'TLS' if tls else 'no TLS'}{clients}, {passwords}")


def _taken(what: str, error: str, held_by: tuple[int, str] | None) -> Finding:
    why, _, remedy = error.rpartition("; ")
    if "port in use" not in error:
        return fails(PORT, what, why, remedy)
    if held_by is None:
        return fails(
            PORT,
            what,
            "in use by a process that is not to be seen from here",
            "find it with `ss -ltnp` as root on the machine and stop it, or choose another with "
            "--listen-address",
        )
    pid, name = held_by
    if any(word.rsplit("/", 1)[-1] == "gpuledger" for word in name.split()):
        return works(PORT, what, f"gpuledger listens here already (pid {pid})")
    return fails(
        PORT,
        what,
        f"in use by pid {pid} ({name})",
        f"stop it (`kill {pid}`), or choose another with --listen-address",
    )


def holder(procfs: Path, port: int) -> tuple[int, str] | None:
    """Who listens on the TCP port: pid and command line, if procfs tells. Never raises."""
    inodes = {inode for name in ("tcp", "tcp6") for inode in _listening(procfs / "self/net" / name, port)}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    if not wanted:
        return None
    for folder in _processes(procfs):
        try:
            if any(_link(descriptor) in wanted for descriptor in (folder / "fd").iterdir()):
                return int(folder.name), _command(folder)
        except OSError:
            continue
    return None


def _listening(table: Path, port: int) -> Iterator[str]:
    """Inodes of listening sockets: local address, state and inode are columns 2, 4 and 10 (proc(5))."""
    try:
        lines = table.read_text("ascii", "replace").splitlines()[1:]
    except OSError:
        return
    for line in lines:
        words = line.split()
        if len(words) > 9 and words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
            yield words[9]


def _processes(procfs: Path) -> Sequence[Path]:
    try:
        return sorted(entry for entry in procfs.iterdir() if entry.name.isdigit())
    except OSError:
        return ()


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _command(folder: Path) -> str:
    try:
        words = from_bytes((folder / "cmdline").read_bytes()).split("\0")
    except OSError:
        words = []
    return clean_name(" ".join(word for word in words if word)) or "command not readable"


def _textfile(given: str, usual: Sequence[Path]) -> Iterator[Finding]:
    what = "textfile directory"
    found = [Path(given)] if given else [path for path in usual if path.is_dir()]
    if not found:
        yield skipped(TEXTFILE, what, "no --textfile-dir, and none where node_exporter usually has it")
    for path in found:
        yield _directory(what, path, asked=bool(given))


def _directory(what: str, path: Path, *, asked: bool) -> Finding:
    # A directory that nobody asked for is told, but is no failure.
    complain = fails if asked else warning
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return complain(
            TEXTFILE,
            what,
            f"{path}: {error.strerror}",
            f"`mkdir -p {path}`, and give it to node_exporter: `--collector.textfile.directory={path}`",
        )
    if not stat.S_ISDIR(mode):
        return complain(TEXTFILE, what, f"{path} is not a directory", "name a directory with --textfile-dir")
    if not os.access(path, os.W_OK | os.X_OK):
        return complain(
            TEXTFILE, what, f"{path} is not writable by uid {os.geteuid()}", f"`chown {os.geteuid()} {path}`"
        )
    if mode & 0o005 != 0o005:
        return warning(
            TEXTFILE,
            what,
            f"{path} is writable, but closed to other users (mode {stat.S_IMODE(mode):04o}): node_exporter "
            "may not see into it",
            f"`chmod o+rx {path}`",
        )
    return works(TEXTFILE, what, f"{path} is writable")
