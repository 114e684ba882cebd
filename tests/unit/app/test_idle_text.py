"""What people read about idle GPUs: the table, and digests as text, mail and Slack messages."""

from __future__ import annotations

import json
import mailbox
from contextlib import closing
from datetime import UTC
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest

from gpuledger.app.idle_text import digest_mail, digest_slack, digest_text, idle_table

NOW = 1_764_490_500.0
HOLD: dict[str, Any] = {
    "kind": "pod",
    "namespace": "notebooks",
    "owner": "jupyter-pavel",
    "user": "",
    "job_name": "",
    "team": "",
    "explain": "owner:pod/notebooks/jupyter-pavel",
    "uuid": "GPU-3",
    "gpu": "3",
    "instance": "",
    "device_uuid": "GPU-3",
    "name": "NVIDIA H100 80GB HBM3",
    "profile": "",
    "idle_since": 1_764_403_200,
    "idle_earlier": False,
    "idle_seconds": 87_300,
    "pids": [],
    "commands": [],
    "priced_from": 1_764_403_200,
    "gpu_microseconds": 87_300_000_000,
    "millijoules": 5_000_000,
    "time_cost": "58.2000000000",
    "energy_cost": None,
    "cost": "58.2000000000",
    "unpriced_microseconds": 0,
    "unpriced_millijoules": None,
    "release": "kubectl -n notebooks delete pod jupyter-pavel",
    "release_note": "",
}
JOB = HOLD | {
    "kind": "slurm",
    "namespace": "",
    "owner": "4711",
    "user": "mira",
    "gpu": "1",
    "instance": "2_0",
    "profile": "2g.20gb",
    "idle_seconds": 18_725,
    "cost": "3.5500000000",
    "unpriced_microseconds": 5,
    "release": "scancel 4711",
    "release_note": "its script may start it again",
}
BODY: dict[str, Any] = {
    "version": 1,
    "node": "lab-1",
    "reader": "",
    "until": NOW,
    "least_seconds": 1800.0,
    "basis": "allocation",
    "currency": "EUR",
    "has_price": True,
    "unjudged": 2,
    "holds": [HOLD, JOB],
    "total_cost": "61.7500000000",
    "total_gpu_microseconds": 95_580_000_000,
    "notes": [],
}
ENTRY: dict[str, Any] = {
    "key": ["mira"],
    "name": "mira",
    "user": "mira",
    "gpu_microseconds": 144_000_000_000,
    "held_seconds": 112_320.0,
    "active_seconds": 14_400.0,
    "unknown_seconds": 0.0,
    "cost": "96.0000000000",
    "unpriced_microseconds": 0,
    "unpriced_millijoules": None,
    "holds": [JOB],
}
DIGEST: dict[str, Any] = {
    "version": 1,
    "node": "lab-1",
    "reader": "",
    "since": 1_763_942_400,
    "until": 1_764_547_200.0,
    "now": NOW,
    "by": "user",
    "basis": "allocation",
    "currency": "EUR",
    "has_price": True,
    "entries": [ENTRY],
    "notes": [],
}


def test_the_table() -> None:
    assert idle_table(BODY, UTC) == (
        "owner                    GPU    idle for  since                  cost  to release it\n"
        "notebooks/jupyter-pavel  3      1d15m     2025-11-29 08:00  58.20 EUR  kubectl -n notebooks delete"
        " pod jupyter-pavel\n"
        "job 4711 (mira)          1/2_0  5h12m     2025-11-29 08:00  3.55 EUR+  scancel 4711\n"
        "\n"
        "2 held without use, 26.55 GPU-hours for 61.75 EUR+ so far.\n"
        "Costs are those of `gpuledger report`, from the first quarter of an hour after the last use; basis:"
        " allocation.\n"
        "+ without what no entry of the price list matches.\n"
        "scancel 4711: its script may start it again.\n"
        "2 owners of GPUs not judged: the driver does not say whether they use them.\n"
        "As of 2025-11-30 08:15 +0000. gpuledger takes no action: it only reports.\n"
    )


def test_a_hold_that_is_older_than_the_ledger_says_so() -> None:
    table = idle_table(BODY | {"holds": [HOLD | {"idle_earlier": True}]}, UTC)
    assert "2025-11-29 08:00 or earlier  58.20 EUR" in table


def test_the_table_without_a_hold() -> None:
    body = BODY | {"holds": [], "total_cost": None, "unjudged": 0}
    assert idle_table(body, UTC).splitlines()[0] == "Nobody has held a GPU without use for 30m or longer."
    # Others may: this user sees only own rows.
    own = idle_table(body | {"reader": "ann"}, UTC)
    assert own.splitlines()[0] == "ann has not held a GPU without use for 30m or longer."


def test_without_prices_there_is_no_cost() -> None:
    unpriced = HOLD | {"cost": None, "time_cost": None}
    body = BODY | {"holds": [unpriced], "total_cost": None, "has_price": False}
    table = idle_table(body, UTC)
    assert "Without prices: set price.gpu_hour and price.kwh to see costs." in table
    assert "EUR" not in table
    assert "GPU-hours" not in table


def test_names_cannot_break_the_table() -> None:
    evil = HOLD | {"owner": "x\n\x1b[2Jy", "release": "kill 1\nreboot"}
    table = idle_table(BODY | {"holds": [evil]}, UTC)
    assert "\x1b" not in table
    assert "reboot" in table
    assert "\nreboot" not in table


def test_a_digest_as_text() -> None:
    assert digest_text(DIGEST, UTC) == (
        "mira on lab-1, 2025-11-24 00:00 to 2025-12-01 00:00:\n"
        "\n"
        "  held without use   31.2 h\n"
        "  in use             4.0 h\n"
        "  GPU-hours billed   40.00, by allocation\n"
        "  cost of all that   96.00 EUR\n"
        "\n"
        "Held without use now (2025-11-30 08:15 +0000):\n"
        "  GPU 1/2_0 (NVIDIA H100 80GB HBM3 2g.20gb) by job 4711 (mira) for 5h12m, 3.55 EUR+ so far\n"
        "    to release it: scancel 4711\n"
        "    its script may start it again\n"
        "\n"
        "gpuledger takes no action: it only reports.\n"
    )


def test_a_cost_of_a_digest_that_lacks_a_price_is_marked() -> None:
    text = digest_text(DIGEST | {"entries": [ENTRY | {"unpriced_millijoules": 5}]}, UTC)
    assert "  cost of all that   96.00 EUR+\n  + without what no entry of the price list matches\n" in text


def test_an_empty_digest_says_so() -> None:
    text = digest_text(DIGEST | {"entries": []}, UTC)
    assert text.startswith("Nobody held a GPU without use from 2025-11-24 00:00 to 2025-12-01 00:00.\n")


def sent(tmp_path: Path, text: str) -> list[Any]:
    file = tmp_path / "digest.mbox"
    file.write_text(text, encoding="utf-8")
    with closing(mailbox.mbox(file)) as box:
        return [message_from_bytes(box.get_bytes(key), policy=policy.default) for key in box.iterkeys()]


def test_mails_are_an_mbox_with_a_message_for_each_entry(tmp_path: Path) -> None:
    other = ENTRY | {"name": "От кого", "user": "", "key": ["От кого"]}
    text = digest_mail(DIGEST | {"entries": [ENTRY, other]}, UTC, "example.org", "gpus@example.org")
    first, second = sent(tmp_path, text)
    assert first["To"] == "mira@example.org"
    assert first["From"] == "gpus@example.org"
    assert first["Subject"] == "mira: GPUs held without use for 31.2 hours on lab-1"
    assert "scancel 4711" in first.get_content()
    # Nobody in particular: it is not addressed.
    assert second["To"] is None
    assert second["Subject"].startswith("От кого")


@pytest.mark.parametrize("user", ["a b", "a@b", "x\nBcc: all@example.org", "", "<a>", '"a"'])
def test_a_name_that_is_no_address_is_not_one(tmp_path: Path, user: str) -> None:
    entry = ENTRY | {"name": user or "-", "user": user}
    (message,) = sent(tmp_path, digest_mail(DIGEST | {"entries": [entry]}, UTC, "example.org", ""))
    assert message["To"] is None
    assert message["Bcc"] is None


def test_lines_of_a_mail_never_begin_the_next_one(tmp_path: Path) -> None:
    entry = ENTRY | {"name": "From me", "holds": []}
    messages = sent(tmp_path, digest_mail(DIGEST | {"entries": [entry, entry]}, UTC, "", ""))
    assert len(messages) == 2


def test_slack_messages_are_one_line_of_json_each() -> None:
    evil = ENTRY | {"name": "<!channel> & ```co"}
    lines = digest_slack(DIGEST | {"entries": [ENTRY, evil]}, UTC).splitlines()
    first, second = (json.loads(line) for line in lines)
    assert first["text"] == "mira: GPUs held without use for 31.2 hours on lab-1"
    block = second["blocks"][0]["text"]["text"]
    assert "<!channel>" not in block + second["text"]
    assert block.count("```") == 2
    assert block.startswith("```")
    assert block.endswith("```")


def test_a_long_slack_message_is_cut_and_says_so() -> None:
    named = JOB | {"owner": "&" * 40}
    (line,) = digest_slack(DIGEST | {"entries": [ENTRY | {"holds": [named] * 100}]}, UTC).splitlines()
    text = json.loads(line)["blocks"][0]["text"]["text"]
    assert len(text) <= 3000
    assert text.endswith("\n...```")
