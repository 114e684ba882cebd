"""The settings of `gpuledger idle` that become headers of mails."""

from __future__ import annotations

from email.message import EmailMessage
from email.policy import SMTP

import pytest

from gpuledger.config.idle import IdleSettings
from gpuledger.config.load import load_values
from gpuledger.model.errors import UsageError
from gpuledger.model.settings import build_settings


def settings(key: str, value: str) -> IdleSettings:
    return build_settings(IdleSettings, load_values((IdleSettings,), {key: [value]}, {}, None))


@pytest.mark.parametrize(
    "sender", ["gpus@example.org", "GPU lab <gpus@example.org>", "O'Neil <a.b+c@x-y.example>", "é <a@b>"]
)
def test_senders_are_headers(sender: str) -> None:
    message = EmailMessage(SMTP)
    message["From"] = settings("idle.mail_from", f" {sender} ").mail_from
    (address,) = message["From"].addresses
    assert (address.addr_spec in sender, message["From"].defects) == (True, ())


@pytest.mark.parametrize(
    "sender",
    [
        "gpus",
        "a@b\nBcc: c@d",
        "a@b, c@d",
        "<",
        "a@",
        "a@[1",
        "=?utf-8?q?=0a?= <a@b>",
        "a@b\x00",
    ],
)
def test_what_is_no_sender_is_refused(sender: str) -> None:
    with pytest.raises(UsageError, match=r"--mail-from.*expected an address"):
        settings("idle.mail_from", sender)


@pytest.mark.parametrize(
    "domain", ["example.org\nBcc: a@b", "a b", "@example.org", "example.org.", "a,b", "é"]
)
def test_what_is_no_domain_is_refused(domain: str) -> None:
    with pytest.raises(UsageError, match=r"--mail-domain.*expected a domain"):
        settings("idle.mail_domain", domain)


def test_by_default_there_is_neither() -> None:
    found = settings("idle.mail_from", "")
    assert (found.mail_from, found.mail_domain) == ("", "")
