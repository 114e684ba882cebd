"""The program in a name that a driver reports: paths of Linux and Windows, titles, and arguments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger.model.process import program_name

NAMES = [
    (r"C:\Program Files\Render Co\Studio 4\studio.exe", "studio.exe"),
    ("/home/jo/my tools/venv/bin/python3", "python3"),
    ("C:\\Users\\jo\\" + "d" * 128 + "\\train.exe", "train.exe"),
    (r'"C:\Program Files\Render Co\My Studio.exe" --token=C:\secret\x', "My Studio.exe"),
    ("'/home/jo/my app/train' x", "train"),
    (r"\\server\share\My Tools\train.exe", "train.exe"),
    (r"\\?\C:\My Tools\train.exe -x", "train.exe"),
    (r"\\wsl$\Ubuntu\usr\bin\python3", "python3"),
    ("/c/Program Files/x/Stu dio.EXE", "Stu dio.EXE"),
    ("/mnt/c/Program Files/x/app", "app"),
    ("C:/Program Files/x/studio.exe C:/Users/train.exe", "studio.exe"),
    (r"C:\my tools\run /q C:\x\y", "run"),
    (r"..\x\y.exe", "y.exe"),
    ("my prog.exe", "my prog.exe"),
    ("/usr/bin/python3 /home/jo/train.py --password=a/b", "python3"),
    ("/usr/bin/env TOKEN=a/b/secret python", "env"),
    ("/usr/bin/curl https://user:pass@host/secret", "curl"),
    ("/opt/chrome/chrome --type=gpu --token=/etc/secret", "chrome"),
    ("/data/lr=0.1/bin/train", "train"),
    ("/opt/run a, b & c", "run"),
    ("./my tools/bin/x", "x"),
    ("run --x=a/b", "run"),
    ("run a=b/c", "run"),
    ("job=a/b", "job=a/b"),
    ("python3 /srv/x.py s3cr3t", "python3"),
    ("ray::Trainer.fit", "ray::Trainer.fit"),
    ("/usr/bin/mono /srv/run.exe", "mono"),
    ("/usr/bin/tool --password s3cret/x.exe", "tool"),
    ("python3 --password s3cret.exe", "python3"),
    (r"C:\tools\run --key=s3cret.exe", "run"),
    (r"C:\tools - old\My - Tool.exe", "My - Tool.exe"),
    ("...s/my env/bin/python3", "python3"),
    ("gunicorn: worker [a/b]", "gunicorn:"),
    ("/home/josé/日本 語/train", "train"),
    ("/trailing/", ""),
    (" ", ""),
]


@pytest.mark.parametrize(("name", "program"), NAMES)
def test_the_program_is_the_last_part_of_a_path_without_arguments(name: str, program: str) -> None:
    assert program_name(name) == program


@given(st.text(max_size=60))
def test_a_program_is_a_part_of_the_name_and_holds_no_option(name: str) -> None:
    program = program_name(f"/usr/bin/tool --password {name}")
    assert program == "tool"
    assert program_name(name) in name


@given(st.text(max_size=60), st.sampled_from(["/usr/bin/tool", "tool", r"C:\my tools\tool"]))
def test_no_value_of_an_option_is_a_program_of_windows(secret: str, path: str) -> None:
    # Without a blank, a slash and a backslash: these begin another word or folder.
    secret = "".join(char for char in secret if char not in "/\\" and not char.isspace())
    assert program_name(f"{path} --password={secret}.exe") == "tool"
