"""Certificates created by openssl for a test run."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

_EC = "ec -pkeyopt ec_paramgen_curve:P-256"
RSA = "rsa:2048"

# The configuration of `openssl ca`, the only command that can create expired certificates.
_CA = """\
[ca]
default_ca = past
[past]
database = {folder}/index
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
policy = any
[any]
commonName = supplied
"""


class Certificates:
    """`NAME.crt` and `NAME.key` in a folder.

    `ca` signs `server` (localhost, 127.0.0.1) and `client` (scraper, 127.0.0.9, ::1); `stranger` is
    self-signed. `encrypted.key` has a passphrase, `broken.crt` is malformed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.issue("ca", "basicConstraints=critical,CA:TRUE")
        self.issue("server", "subjectAltName=DNS:localhost,IP:127.0.0.1", signer="ca")
        self.issue("client", "subjectAltName=DNS:scraper,IP:127.0.0.9,IP:::1", signer="ca")
        self.issue("stranger", "subjectAltName=DNS:stranger")
        _openssl(f"ec -aes128 -passout pass:secret -in {self.key('server')} -out {folder / 'encrypted.key'}")
        broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
        (folder / "broken.crt").write_text(broken)

    def crt(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def issue(self, name: str, extension: str, *, signer: str = "", key: str = _EC) -> None:
        """Create a key and a certificate, self-signed or signed by another certificate."""
        by = f"-CA {self.crt(signer)} -CAkey {self.key(signer)}" if signer else ""
        new = f"-newkey {key} -nodes -keyout {self.key(name)} -subj /CN={name}"
        _openssl(f"req -x509 {new} -days 2 -addext {extension} {by} -out {self.crt(name)}")

    def expire(self, name: str) -> None:
        """Replace the certificate by a self-signed one that was valid for one day in 2020."""
        config = self.folder / "ca.cnf"
        config.write_text(_CA.format(folder=self.folder))
        (self.folder / "index").touch()
        request = self.folder / "request.csr"
        _openssl(f"req -new -key {self.key(name)} -subj /CN={name} -out {request}")
        when = "-startdate 20200101000000Z -enddate 20200102000000Z"
        by = f"-selfsign -keyfile {self.key(name)} -config {config} -batch -notext"
        _openssl(f"ca {by} {when} -in {request} -out {self.crt(name)}")

    def client_context(self, name: str = "") -> ssl.SSLContext:
        """A client context that trusts `ca` and presents the named certificate."""
        # Not create_default_context: from Python 3.13 on it rejects this CA, and those of some clusters.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.crt("ca"))
        if name:
            context.load_cert_chain(self.crt(name), self.key(name))
        return context


def _openssl(arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
