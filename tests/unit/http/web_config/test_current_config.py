"""A web config file that changes while the server runs."""

from __future__ import annotations

import logging
import os
import shutil

import pytest

from builders import FakeClock
from gpuledger.http.web_config.current_config import CurrentWebConfig
from unit.http.web_config.support import TLS, certificates, file, issued

__all__ = ["certificates", "file", "issued"]


class Running:
    """A web config in force, and a clock that advances before each refresh."""

    def __init__(self, file):
        self.clock = FakeClock()
        self.current = CurrentWebConfig(file, self.clock)

    def refresh(self):
        self.clock.advance(1.0)
        self.current.refresh()
        return self.current


def errors(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.ERROR]


def test_unchanged_files_are_not_read(file):
    running = Running(file)
    before = running.current.contexts
    assert running.refresh().contexts is before


def test_files_are_checked_at_most_once_per_second(file, monkeypatch):
    checked = []
    running = Running(file)
    monkeypatch.setattr(
        "gpuledger.http.web_config.current_config.file_signature", lambda path: checked.append(path)
    )
    for _ in range(5):
        running.current.refresh()
    assert not checked


@pytest.mark.parametrize("rotated", ["server.crt", "server.key"])
def test_half_a_rotation_keeps_the_old_pair_until_both_files_match(file, certificates, rotated, caplog):
    running = Running(file)
    before = running.current.contexts
    kept = {name: (certificates.folder / name).read_bytes() for name in ("server.crt", "server.key")}
    certificates.issue("server", "subjectAltName=DNS:localhost", signer="ca")
    (other,) = set(kept) - {rotated}
    new = (certificates.folder / other).read_bytes()
    (certificates.folder / other).write_bytes(kept[other])
    for _ in range(3):
        assert running.refresh().contexts is before
    assert len(errors(caplog)) == 1
    assert (
        "the private key does not match the certificate; the previous web config remains" in errors(caplog)[0]
    )
    (certificates.folder / other).write_bytes(new)
    assert running.refresh().contexts is not before
    assert len(errors(caplog)) == 1


def test_a_swapped_link_is_a_change(certificates, file):
    """A Secret's files are links through a folder link `..data`, which the kubelet replaces."""
    for name in ("one", "two"):
        folder = certificates.folder / name
        folder.mkdir()
        for end in ("crt", "key"):
            shutil.copy2(certificates.folder / f"server.{end}", folder / f"tls.{end}")
    data = certificates.folder / "..data"
    data.symlink_to("one")
    file.write_text("tls_server_config: {cert_file: ..data/tls.crt, key_file: ..data/tls.key}")
    running = Running(file)
    before = running.current.contexts
    fresh = certificates.folder / "..data_tmp"
    fresh.symlink_to("two")
    fresh.replace(data)
    assert running.refresh().contexts is not before


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.unlink(),
        lambda file: file.write_text("tls_server_config: ["),
        lambda file: file.write_text("tls_server_config: {cert_fil: x}"),
        lambda file: file.write_text("rate_limit: {interval: 1s, burst: 1}"),
        lambda file: file.with_name("server.crt").unlink(),
        lambda file: file.with_name("server.key").write_text("junk"),
        lambda file: (file.unlink(), os.mkfifo(file)),
        lambda file: (
            file.with_name("server.crt").unlink(),
            file.with_name("server.crt").symlink_to("/dev/zero"),
        ),
    ],
    ids=["gone", "not-yaml", "unknown-key", "tls-gone", "certificate-gone", "key-junk", "pipe", "endless"],
)
def test_an_invalid_new_file_keeps_the_last_good_one_and_is_logged_once(file, damage, caplog):
    running = Running(file)
    before = (running.current.config, running.current.contexts)
    damage(file)
    for _ in range(3):
        current = running.refresh()
    assert (current.config, current.contexts) == before
    assert len(errors(caplog)) == 1
    assert str(file.parent) in errors(caplog)[0]


def test_a_repaired_key_file_is_read_again(file, caplog):
    running = Running(file)
    caplog.set_level(logging.INFO)
    key = file.with_name("server.key")
    good = key.read_bytes()
    key.write_bytes(b"junk")
    running.refresh()
    key.write_bytes(good)
    running.refresh()
    assert caplog.messages[-1] == f"web config {file} reloaded"


def test_files_named_by_a_new_web_config_are_watched(file, certificates):
    running = Running(file)
    certificates.issue("second", "subjectAltName=DNS:localhost", signer="ca")
    file.write_text("tls_server_config: {cert_file: second.crt, key_file: second.key}")
    second = running.refresh().contexts
    os.utime(certificates.crt("second"), ns=(1, 1))
    assert running.refresh().contexts is not second


def test_configured_http2_is_logged_as_not_supported(file, caplog):
    file.write_text(TLS.format(more="") + "http_server_config: {http2: true}")
    Running(file).refresh()
    assert caplog.messages == [f"{file}: http_server_config.http2: HTTP/2 is not served, HTTP/1.1 is"]
