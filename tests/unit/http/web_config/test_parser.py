"""Web config files: each `*.good.yml` is accepted, each `*.bad.yml` rejected with its first line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from builders import FakeClock
from gpuledger.http.web_config.current_config import CurrentWebConfig
from gpuledger.http.web_config.model import ClientAuth, RateLimit
from gpuledger.http.web_config.parser import read_web_config
from gpuledger.model.errors import UsageError
from unit.http.web_config.support import TLS, certificates, issued

__all__ = ["certificates", "issued"]

FOLDER = Path(__file__).parents[3] / "fixtures" / "web-config"
GOOD = sorted(FOLDER.glob("*.good.yml"))
BAD = sorted(FOLDER.glob("*.bad.yml"))


def named(path):
    return path.name.split(".")[0]


@pytest.mark.parametrize("example", GOOD, ids=named)
def test_a_valid_file_is_accepted(example, certificates):
    file = Path(shutil.copy(example, certificates.folder))
    current = CurrentWebConfig(file, FakeClock())
    assert current.tls == ("cert_file" in file.read_text())


@pytest.mark.parametrize("example", BAD, ids=named)
def test_an_invalid_file_is_rejected_with_file_key_and_expected_value(example, certificates):
    file = Path(shutil.copy(example, certificates.folder))
    expected = file.read_text().splitlines()[0].removeprefix("# ")
    with pytest.raises(UsageError) as caught:
        CurrentWebConfig(file, FakeClock())
    assert str(caught.value) == expected.replace("FILE", str(file)).replace("FOLDER", str(file.parent))


@pytest.mark.parametrize(
    "content", ["basic_auth_users: {alice: hunter2, bob: }", "basic_auth_users: [hunter2"]
)
def test_error_messages_repeat_no_secret(content, tmp_path):
    file = tmp_path / "web.yml"
    file.write_text(content)
    with pytest.raises(UsageError) as caught:
        read_web_config(file)
    assert "hunter2" not in str(caught.value)


WORDS = st.sampled_from(
    [
        *("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit", "headers", "http2"),
        *(
            "cert_file",
            "key_file",
            "cert",
            "client_auth_type",
            "min_version",
            "cipher_suites",
            "interval",
            "burst",
        ),
        *("", "true", "~", "1", "-1s", "TLS12", "nan", "\0", "a\nb", "é" * 200, "X-Frame-Options"),
    ]
)
ANYTHING = st.recursive(
    WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(content=ANYTHING | st.text(max_size=60))
def test_any_file_is_accepted_or_rejected_with_one_line(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "anything.yml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    try:
        read_web_config(file)
    except UsageError as error:
        assert str(error).isprintable()
        assert str(file) in str(error)


def test_a_missing_file_is_a_one_line_error(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read the web config .*web\.yml: No such file"):
        read_web_config(tmp_path / "web.yml")


def test_paths_are_relative_to_the_file_not_to_the_working_directory(tmp_path):
    file = tmp_path / "web.yml"
    file.write_text("tls_server_config: {cert_file: a/b.crt, key_file: /c.key}")
    config = read_web_config(file)
    assert config.tls.files == (tmp_path / "a/b.crt", Path("/c.key"))


def test_defaults_are_those_of_exporter_toolkit(tmp_path):
    file = tmp_path / "web.yml"
    file.write_text(TLS.format(more=""))
    tls = read_web_config(file).tls
    assert (tls.client_auth, tls.min_version, tls.max_version) == (ClientAuth.NONE, 12, 13)
    assert (tls.ciphers, tls.prefer_server_ciphers, tls.curve) == (None, True, "")


def test_a_user_may_have_the_name_yes(tmp_path):
    file = tmp_path / "web.yml"
    file.write_text((FOLDER / "users.good.yml").read_text())
    assert list(read_web_config(file).users) == ["alice", "bob the builder", "yes"]


def test_an_interval_is_a_go_duration(tmp_path):
    file = tmp_path / "web.yml"
    file.write_text("rate_limit: {interval: 1m500ms, burst: 3}")
    assert read_web_config(file).rate_limit == RateLimit(60.5, 3)
    file.write_text("rate_limit: {interval: 1000000000, burst: 3}")
    assert read_web_config(file).rate_limit == RateLimit(1.0, 3)


def test_certificate_and_key_can_be_inline(certificates):
    file = certificates.folder / "web.yml"
    lines = ["tls_server_config:"]
    for key, path in (("cert", certificates.crt("server")), ("key", certificates.key("server"))):
        lines += [f"  {key}: |", *(f"    {line}" for line in path.read_text().splitlines())]
    file.write_text("\n".join(lines))
    for path in (certificates.crt("server"), certificates.key("server")):
        path.unlink()
    assert CurrentWebConfig(file, FakeClock()).tls
