"""Command lines as one safe line without secrets."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.terminal.command_line import format_command_line

SECRETS = [
    "python t.py --hf-token SECRET",
    "python t.py --hf_token=SECRET --lr 1",
    "python t.py -password SECRET",
    "python t.py --apiKey SECRET",
    "python t.py --optimizer.wandb-api-key SECRET",
    "env HF_TOKEN=SECRET WANDB_API_KEY=SECRET python t.py",
    "env 'DB_PASSWORD=SECRET SECRET' python",
    "bash -c 'export AWS_SECRET_ACCESS_KEY=SECRET; run'",
    "bash -c 'run --token SECRET --lr 1'",
    "bash -c 'mysql -u root -pSECRET db'",
    "sh -c 'curl -s --user ada:SECRET https://h/ | tar x'",
    "bash -lc 'cd /x && sshpass -p SECRET ssh h'",
    "curl -H 'Authorization: Basic SECRET' http://h",
    "curl -H 'X-Api-Key: SECRET' http://h",
    "curl -u ann:SECRET http://h",
    "curl --user ann:SECRET http://h",
    "env PGPASSWORD=SECRET psql",
    "python t.py --dbpassword SECRET --authtoken SECRET",
    "git clone https://ann:SECRET@host/x",
    "git clone https://SECRET@host/x",
    "curl 'https://h/x?access_token=SECRET&y=1'",
    "java -Djavax.net.ssl.keyStorePassword=SECRET Main",
    'x --config \'{"password": "SECRET"}\'',
    "mysql -uroot -pSECRET db",
    "sshpass -p SECRET ssh host",
    "jupyter lab --ServerApp.token=SECRET",
    "redis-cli -a SECRET",
    "python t.py hf_SECRETSECRET sk-SECRETSECRET ghp_SECRETSECRET AKIASECRETSECRET",
]


@pytest.mark.parametrize("typed", SECRETS)
def test_secrets_are_hidden(typed):
    shown = format_command_line(shlex.split(typed))
    assert "SECRET" not in shown.replace("SECRET_ACCESS_KEY", "")
    assert "***" in shown


@pytest.mark.parametrize(
    "typed",
    [
        "python -m torch.distributed.run train.py --lr 3e-4 --tokenizer gpt2 --passes 3",
        "vllm serve m --max-num-batched-tokens 8192 --max-tokens 5 --pad-token-id 0",
        "python t.py --password-file /run/pw --token_path=/run/t --num-key-value-heads 8",
        "python t.py --author bob --compass n --hotkeys=1 --mode secretary",
        "python t.py --password --verbose",
        "sshd: ann@pts/0",
    ],
)
def test_other_arguments_are_shown(typed):
    assert format_command_line(typed.split()) == typed


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], ""),
        (["/opt/conda/bin/python3", "/home/ann/t.py"], "python3 /home/ann/t.py"),
        (["ray::Worker.run() of /x/y"], "ray::Worker.run() of /x/y"),
        (["python", "-c", "a b", "it's"], "python -c 'a b' \"it's\""),
        (["python", "a\nb\x1b[31m"], r"python 'a\nb\x1b[31m'"),
        (["python", ""], "python ''"),
    ],
)
def test_a_command_line_is_one_printable_line(arguments, shown):
    assert format_command_line(arguments) == shown


@given(st.lists(st.text(max_size=40), max_size=8))
def test_any_arguments_become_a_printable_line(arguments):
    assert format_command_line(arguments).isprintable()


@pytest.mark.parametrize("part", ["a", "-", "x-", "eyJ-", "token", "https://a", "--api-key=", " --token "])
def test_long_arguments_are_searched_in_linear_time(part):
    shown = format_command_line(["p", part * 3000, part * 3000])
    assert len(shown) <= 4096
