"""Checks of `gpuledger doctor` for the outputs: ports, web config and textfile directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from gpuledger.host.clock import SystemClock
from gpuledger.host.files import folder_names, read_text
from gpuledger.http.addresses import Address, open_listening_sockets
from gpuledger.http.settings import HttpSettings
from gpuledger.model.checks import Check, Finding, fails, skipped, warning, works
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.text import clean_name
from gpuledger.outputs.textfile import access_remedy
from gpuledger.outputs.textfile_neighbours import NeighbourFiles

PORT: Final = "output.port"
TEXTFILE: Final = "output.textfile"
WEB_CONFIG: Final = "output.web_config"
# The directory of documents 000 and 001, and that of Debian's package.
DEFAULT_DIRECTORIES: Final = (
    Path("/var/lib/node_exporter/textfile_collector"),
    Path("/var/lib/prometheus/node-exporter"),
)

# State TCP_LISTEN in /proc/net/tcp.
_LISTEN: Final = "0A"


def output_checks(
    settings: HttpSettings,
    textfile: str = "",
    neighbours: Callable[[], NeighbourFiles] | None = None,
    *,
    procfs: Path = Path("/proc"),
    usual: Iterable[Path] = DEFAULT_DIRECTORIES,
) -> tuple[Check, ...]:
    """Returns the checks of every listen address, of the web config, if any, and of the textfile directory.

    The directory is `textfile` or, if empty, each of the `usual` directories that exists. `neighbours` checks
    the other files in the directory of `collect`.
    """
    addresses = [listen.address for listen in settings.listen_address]
    return (
        *(Check(PORT, f"port {address}", partial(_port, address, procfs)) for address in addresses),
        *web_config_checks(settings),
        Check(TEXTFILE, "textfile directory", lambda: _textfile(textfile, tuple(usual), neighbours)),
    )


def web_config_checks(settings: HttpSettings) -> tuple[Check, ...]:
    """Returns the check of the web config, if there is one."""
    web = settings.web_config
    return (Check(WEB_CONFIG, f"web config {web}", lambda: _web_config(Path(web))),) if web else ()


def _port(address: Address, procfs: Path) -> Iterator[Finding]:
    what = f"port {address}"
    try:
        for listening in open_listening_sockets(address):
            listening.close()
    except GpuledgerError as error:
        yield _port_error(what, str(error), find_listener(procfs, address.port))
    else:
        yield works(PORT, what, "free")


def _web_config(file: Path) -> Iterator[Finding]:
    # Imported lazily: it loads OpenSSL, which only a web config needs.
    from gpuledger.http.web_config.current_config import CurrentWebConfig

    what = f"web config {file}"
    try:
        current = CurrentWebConfig(file, SystemClock())
    except GpuledgerError as error:
        yield fails(WEB_CONFIG, what, str(error), "correct the file; docs/web-config.md describes the format")
        return
    tls, users = current.config.tls, len(current.config.users)
    clients = f", client certificates: {tls.client_auth.value}" if tls else ""
    passwords = f"{users} user{'' if users == 1 else 's'}" if users else "no passwords"
    yield works(WEB_CONFIG, what, f"{'TLS' if tls else 'no TLS'}{clients}, {passwords}")


def _port_error(what: str, error: str, listener: tuple[int, str] | None) -> Finding:
    why, _, remedy = error.rpartition("; ")
    if "port in use" not in error:
        return fails(PORT, what, why, remedy)
    if listener is None:
        return fails(
            PORT,
            what,
            "in use by a process that is not visible to this user or in this container",
            "find the process with `ss -ltnp` as root on the machine and stop it, or choose another address "
            "with --listen-address",
        )
    pid, name = listener
    if any(word.rsplit("/", 1)[-1] == "gpuledger" for word in name.split()):
        return works(PORT, what, f"gpuledger is already listening here (pid {pid})")
    return fails(
        PORT,
        what,
        f"in use by pid {pid} ({name})",
        f"stop the process (`kill {pid}`), or choose another address with --listen-address",
    )


def find_listener(procfs: Path, port: int) -> tuple[int, str] | None:
    """Returns pid and command line of the listener on a TCP port, if procfs shows it. Never raises."""
    inodes = {
        inode for name in ("tcp", "tcp6") for inode in _listening_inodes(procfs / "self/net" / name, port)
    }
    sockets = {f"socket:[{inode}]" for inode in inodes}
    if not sockets:
        return None
    for pid in sorted(name for name in folder_names(str(procfs)) if name.isdigit()):
        folder = procfs / pid
        try:
            if any(_link(descriptor) in sockets for descriptor in (folder / "fd").iterdir()):
                words = read_text(str(folder / "cmdline")).split("\0")
                command = clean_name(" ".join(word for word in words if word))
                return int(pid), command or "command not readable"
        except OSError:
            continue
    return None


def _listening_inodes(table: Path, port: int) -> Iterator[str]:
    """Yields inodes of listening sockets; address, state and inode are columns 2, 4 and 10 (proc(5))."""
    for line in read_text(str(table)).splitlines()[1:]:
        words = line.split()
        if len(words) > 9 and words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
            yield words[9]


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def _textfile(
    given: str, usual: Sequence[Path], neighbours: Callable[[], NeighbourFiles] | None
) -> Iterator[Finding]:
    what = "textfile directory"
    found = [Path(given)] if given else [path for path in usual if path.is_dir()]
    if not found:
        yield skipped(TEXTFILE, what, "no --textfile-dir, and node_exporter's usual directories do not exist")
    for path in found:
        yield _directory(what, path, is_configured=bool(given))
    if not found or neighbours is None:
        return
    others = neighbours()
    # Without a configured directory, `collect` writes to the first usual one, if it runs here.
    if given or others.has_own_file:
        for problem in others.find_problems():
            yield warning(TEXTFILE, what, *problem)


def _directory(what: str, path: Path, *, is_configured: bool) -> Finding:
    # A problem of a directory that was not configured is only a warning.
    complain = fails if is_configured else warning
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return complain(
            TEXTFILE,
            what,
            f"{path}: {error.strerror}",
            f"`mkdir -p {path}`, and start node_exporter with `--collector.textfile.directory={path}`",
        )
    if not stat.S_ISDIR(mode):
        return complain(TEXTFILE, what, f"{path} is not a directory", "set --textfile-dir to a directory")
    if not os.access(path, os.W_OK | os.X_OK):
        return complain(TEXTFILE, what, f"{path} is not writable by uid {os.geteuid()}", access_remedy(path))
    if mode & 0o005 != 0o005:
        return warning(
            TEXTFILE,
            what,
            f"{path} is writable, but other users cannot read it (mode {stat.S_IMODE(mode):04o}): "
            "node_exporter may not have access",
            f"`chmod o+rx {path}`",
        )
    return works(TEXTFILE, what, f"{path} is writable")
