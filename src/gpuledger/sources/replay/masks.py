"""Masks: pseudonyms for identifiers, the same for equal identifiers, of the same form, and irreversible."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b
from itertools import count
from secrets import token_bytes
from typing import Final

_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# A Slurm job number has at most 20 digits in a cgroup.
_NUMBER: Final = re.compile(r"[0-9]{1,20}")
_HEX: Final = re.compile(r"[0-9a-f]{12,128}")
_MAX_ATTEMPTS: Final = 16
# Above the uids that machines and directories assign, and below (uid_t)-2.
_FIRST_UID: Final = 3_000_000_000
_UIDS: Final = 1_000_000_000
_BASE32: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_SLUID: Final = re.compile(r"s[0-9A-HJKMNP-TV-Z]{13}")
# Flux: a number in base 58, which has no 0, I, O and l, behind an f.
_FLUX_JOB: Final = re.compile(r"f[1-9A-HJ-NP-Za-km-z]{1,12}")
# PBS and TORQUE: 1234.server; in a job array, 1234[7].server.
_BATCH_JOB: Final = re.compile(r"(\d+)(\[\d*\])?(?:\.(.+))?", re.ASCII | re.DOTALL)
_SLOT: Final = re.compile(r"(slot\d+(?:_\d+)?)(?:@(.+))?", re.ASCII | re.DOTALL)

# Well-known programs, which do not identify a user or project.
_PROGRAMS: Final = re.compile(
    r"python[0-9.]*|java|node|ruby|perl|julia|R|bash|sh|Xorg|Xwayland|gnome-shell|kwin_x11|kwin_wayland|plasmashell"
    r"|firefox|chrome|ffmpeg|tritonserver|ollama|vllm|llama-server|nvidia-cuda-mps-(?:server|control)"
    r"|nvidia-persistenced|nvidia-smi|nv-hostengine|dcgmi|dcgm-exporter|\[[A-Za-z /]+\]|-"
)
_DIRECTORIES: Final = frozenset(
    {"", "/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/lib/xorg", "/usr/libexec"}
)
_UNITS: Final = re.compile(
    r"(?:containerd|crio|docker|podman|kubelet|slurmd|slurmstepd|pbs|pbs_jobs|condor|sshd?|gdm|sddm|lightdm|display-manager|cron|dbus"
    r"|nvidia-(?:persistenced|dcgm|mps)|init|session-c?\d+)\.(?:service|scope)"
)
_STEP_DAEMON: Final = "_slurmstepd.scope"
_UNIT_SUFFIX: Final = re.compile(r"\.(?:service|scope|slice|socket|mount)$")


class Masks:
    """Creates masks with a secret key, which is random per recording and stored nowhere, and caches them."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = token_bytes(32) if key is None else key
        self._masks: dict[tuple[str, str], str] = {}
        self._used: set[tuple[str, str]] = set()

    def name(self, kind: str, original: str) -> str:
        """Mask as `KIND-7f3a`, with more digits if that is in use. Every method keeps empty text empty."""
        return self._mask(kind, original, lambda digest, attempt: f"{kind}-{digest[: 4 + attempt]}")

    def uuid(self, original: str) -> str:
        """Mask each UUID in the text, so that `GPU-...` and `MIG-GPU-.../1/0` keep their form.

        Other text is replaced by a UUID, after its prefix `GPU-` or `MIG-` if it has one.
        """
        if _UUID.search(original):
            return _UUID.sub(lambda found: self._uuid(found[0]), original)
        prefix = original[:4] if original[:4] in ("GPU-", "MIG-") else ""
        return prefix + self._uuid(original) if original else ""

    def _uuid(self, original: str) -> str:
        return self._mask("uuid", original, lambda digest, _: _as_uuid(digest))

    def hexadecimal(self, kind: str, original: str) -> str:
        """Mask a container id or similar as a UUID or as many hexadecimal digits; other text as a name."""
        if _UUID.fullmatch(original):
            return self._uuid(original)
        head, dash, tail = original.partition("-")
        if dash and tail.isdigit() and _HEX.fullmatch(head):
            return f"{self.hexadecimal(kind, head)}-{self.digits(kind, tail)}"
        if not _HEX.fullmatch(original):
            return self.name(kind, original)
        return self._mask(kind, original, lambda digest, _: digest[: len(original)])

    def digits(self, kind: str, original: str) -> str:
        """Mask a number as a number with as many digits (at least four); other text as a name.

        A number that is longer than that of any job is other text.
        """
        if not _NUMBER.fullmatch(original):
            return self.name(kind, original)
        size = max(len(original), 4)
        return self._mask(kind, original, lambda digest, _: _as_number(digest, size))

    def container(self, original: str) -> str:
        """Mask the name of a container, or its number, as of a virtual machine of Proxmox."""
        return self.digits("container", original)

    def uid(self, original: int) -> int:
        """Mask a uid as another uid; keep root."""
        if original == 0:
            return 0
        return int(self._mask("uid", str(original), lambda digest, _: _as_uid(digest)))

    def user(self, original: str) -> str:
        """Mask as `user-7f3a`; keep root. A number is a uid, used when the name is unknown."""
        if original == "root":
            return original
        if original.isascii() and original.isdigit() and len(original) <= 10:
            return str(self.uid(int(original)))
        return self.name("user", original)

    def job(self, original: str) -> str:
        """Mask a job number, a SLUID, a UUID, a Flux job, a number with a server name, or a name."""
        if _UUID.fullmatch(original):
            return self._uuid(original)
        if _FLUX_JOB.fullmatch(original):
            return self._mask("job", original, lambda digest, _: f"f{digest[:11].replace('0', 'z')}")
        if _SLUID.fullmatch(original):
            return self._mask("job", original, lambda digest, _: _as_sluid(digest))
        if (found := _BATCH_JOB.fullmatch(original)) and (found[2] or found[3]):
            # The index in a job array and a small number after it do not identify anyone: keep them.
            server = found[3] or ""
            tail = server if re.fullmatch(r"[0-9]{1,6}", server) else self.name("server", server)
            return self.digits("job", found[1]) + (found[2] or "") + (f".{tail}" if tail else "")
        return self.digits("job", original)

    def step(self, original: str) -> str:
        """Mask the name of a step; keep Slurm's predefined names and numbers."""
        predefined = original in ("", "batch", "extern", "interactive") or original.isdigit()
        return original if predefined else self.name("step", original)

    def unit(self, original: str) -> str:
        """Mask a systemd unit as one of the same type; keep units of well-known daemons and slot numbers."""
        if _UNITS.fullmatch(original):
            return original
        if original.endswith(_STEP_DAEMON):
            return self.name("node", original.removesuffix(_STEP_DAEMON)) + _STEP_DAEMON
        if slot := _SLOT.fullmatch(original):
            return slot[1] + (f"@{self.name('node', slot[2])}" if slot[2] else "")
        suffix = _UNIT_SUFFIX.search(original)
        return self.name("unit", original) + (suffix[0] if suffix else "")

    def program(self, original: str) -> str:
        """Mask a program's path; keep the base name of a well-known program, and system directories."""
        directory, slash, base = without_arguments(original).rpartition("/")
        if directory not in _DIRECTORIES:
            directory = ("/" if directory.startswith("/") else "") + self.name("dir", directory)
        known = not base or _PROGRAMS.fullmatch(base)
        return directory + slash + (base if known else self.name("process", base))

    def _mask(self, kind: str, original: str, shape: Callable[[str, int], str]) -> str:
        if not original:
            return ""
        known = self._masks.get((kind, original))
        if known is None:
            known = self._masks[kind, original] = self._create_mask(kind, original, shape)
            self._used.add((kind, known))
        return known

    def _create_mask(self, kind: str, original: str, shape: Callable[[str, int], str]) -> str:
        for attempt in count():
            text = f"{kind}\0{attempt}\0{original}".encode("utf-8", "surrogatepass")
            digest = blake2b(text, key=self._key).hexdigest()
            # A form with too few values, such as a short number, is replaced by a name.
            found = shape(digest, attempt) if attempt < _MAX_ATTEMPTS else f"{kind}-{digest[:attempt]}"
            if found != original and (kind, found) not in self._used:
                return found
        raise AssertionError("unreachable")


def without_arguments(name: str) -> str:
    """Return a process name without arguments, which some programs add to it."""
    return name.split(" -", 1)[0].rstrip()


def _as_uuid(digest: str) -> str:
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:32]))


def _as_number(digest: str, size: int) -> str:
    first = 10 ** (size - 1)
    return str(first + int(digest, 16) % (9 * first))


def _as_uid(digest: str) -> str:
    return str(_FIRST_UID + int(digest, 16) % _UIDS)


def _as_sluid(digest: str) -> str:
    return "s" + "".join(_BASE32[int(digest[2 * at : 2 * at + 2], 16) % 32] for at in range(13))
