"""Certificates made by openssl for the length of a test run."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


class Certificates:
    """`NAME.crt` and `NAME.key` in a folder.

    `ca` signs `server` (localhost, 127.0.0.1) and `client` (scraper, 127.0.0.9, ::1); `stranger` signs
    itself. `encrypted.key` has a passphrase, `broken.crt` only the looks of a certificate.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.issue("ca", "basicConstraints=critical,CA:TRUE")
        self.issue("server", "subjectAltName=DNS:localhost,IP:127.0.0.1", signer="ca")
        self.issue("client", "subjectAltName=DNS:scraper,IP:127.0.0.9,IP:::1", signer="ca")
        self.issue("stranger", "subjectAltName=DNS:stranger")
        _openssl(
            f"ec -aes128 -passout pass:secret -in {self.key('server')} -out {folder / 'encrypted.key'}"
        )
        broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
        (folder / "broken.crt").write_text(broken)

    def crt(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def issue(self, name: str, extension: str, *, signer: str = "", days: int = 2) -> None:
        """Make a new key and a certificate for it, signed by itself or by another one."""
        by = f"-CA {self.crt(signer)} -CAkey {self.key(signer)}" if signer else ""
        new = f"-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {self.key(name)} -subj /CN={name}"
        _openssl(f"req -x509 {new} -days {days} -addext {extension} {by} -out {self.crt(name)}")

    def client_context(self, name: str = "") -> ssl.SSLContext:
        """A client that trusts `ca` and shows the certificate of that name."""
        context = ssl.create_default_context(cafile=str(self.crt("ca")))
        if name:
            context.load_cert_chain(self.crt(name), self.key(name))
        return context


def _openssl(arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
