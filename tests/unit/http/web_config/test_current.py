"""A web config file that changes while the server runs."""

from __future__ import annotations

import logging
import os
import shutil

import pytest

from builders import FakeClock
from gpuledger.http.web_config.current import CurrentWebConfig
from unit.http.web_config.support import TLS, certificates, file, issued

__all__ = ["certificates", "file", "issued"]


class Running:
    """A web config in force, and a clock that goes on before each look."""

    def __init__(self, file):
        self.clock = FakeClock()
        self.current = CurrentWebConfig(file, self.clock)

    def look(self):
        self.clock.advance(1.0)
        self.current.look()
        return self.current


def errors(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.ERROR]


def test_nothing_changed_reads_nothing(file):
    running = Running(file)
    before = running.current.contexts
    assert running.look().contexts is before


def test_files_are_looked_at_once_a_second_however_often_it_is_asked(file, monkeypatch):
    looked = []
    running = Running(file)
    monkeypatch.setattr("gpuledger.http.web_config.current.signature", lambda path: looked.append(path))
    for _ in range(5):
        running.current.look()
    assert not looked


@pytest.mark.parametrize("rotated", ["server.crt", "server.key"])
def test_half_a_rotation_keeps_the_old_pair_says_so_once_and_the_other_half_ends_it(
    file, certificates, rotated, caplog
):
    running = Running(file)
    before = running.current.contexts
    kept = {name: (certificates.folder / name).read_bytes() for name in ("server.crt", "server.key")}
    certificates.issue("server", "subjectAltName=DNS:localhost", signer="ca")
    (other,) = set(kept) - {rotated}
    new = (certificates.folder / other).read_bytes()
    (certificates.folder / other).write_bytes(kept[other])
    for _ in range(3):
        assert running.look().contexts is before
    assert len(errors(caplog)) == 1
    assert "the private key is not that of the certificate; what was read before stays" in errors(caplog)[0]
    (certificates.folder / other).write_bytes(new)
    assert running.look().contexts is not before
    assert len(errors(caplog)) == 1


def test_a_link_that_is_swapped_is_a_change(certificates, file):
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
    assert running.look().contexts is not before


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
    ids=["gone", "not-yaml", "unknown-key", "tls-gone", "certificate-gone", "key-junk", "pipe", "no-end"],
)
def test_a_bad_new_file_keeps_the_last_good_one_and_says_so_once(file, damage, caplog):
    running = Running(file)
    before = (running.current.config, running.current.contexts)
    damage(file)
    for _ in range(3):
        current = running.look()
    assert (current.config, current.contexts) == before
    assert len(errors(caplog)) == 1
    assert str(file.parent) in errors(caplog)[0]


def test_a_file_that_is_good_again_is_read_even_when_only_what_it_names_was_repaired(file, caplog):
    running = Running(file)
    caplog.set_level(logging.INFO)
    key = file.with_name("server.key")
    good = key.read_bytes()
    key.write_bytes(b"junk")
    running.look()
    key.write_bytes(good)
    running.look()
    assert caplog.messages[-1] == f"web config {file} was read anew"


def test_a_new_file_that_names_other_files_is_watched_in_those(file, certificates):
    running = Running(file)
    certificates.issue("second", "subjectAltName=DNS:localhost", signer="ca")
    file.write_text("tls_server_config: {cert_file: second.crt, key_file: second.key}")
    second = running.look().contexts
    os.utime(certificates.crt("second"), ns=(1, 1))
    assert running.look().contexts is not second


def test_http2_that_is_asked_for_is_said_not_to_be_served(file, caplog):
    file.write_text(TLS.format(more="") + "http_server_config: {http2: true}")
    Running(file).look()
    assert caplog.messages == [f"{file}: http_server_config.http2: HTTP/2 is not served, HTTP/1.1 is"]
