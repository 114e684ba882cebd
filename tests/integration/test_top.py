"""`gpuledger top` in a real terminal, for a simulated node and for a remote one."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import bcrypt
import pytest

from certificates import Certificates
from running import PATIENCE, Server, free_port, gpuledger, serving_prepared, wait_until
from terminal import terminal

SIMULATED = ("top", "--source", "simulator")
SGR = re.compile(r"\x1b\[[0-9;:]*m")


def watts(screen):
    """The values in the WATTS column of the table of processes."""
    lines = screen.splitlines()
    start = next(number for number, line in enumerate(lines) if "OWNER" in line and "COMMAND" in line)
    end = lines[start].index("WATTS") + len("WATTS▾")
    found = [line[end - 6 : end].strip() for line in lines[start + 1 :] if re.match(r"\d", line)]
    return [float(text) for text in found if text != "-"]


@pytest.fixture(scope="module")
def node():
    with serving_prepared("--source", "simulator") as server:
        server.wait_ticks(4)
        yield server


def test_the_live_view_sorts_filters_shows_details_and_quits():
    with terminal(*SIMULATED) as screen:
        first = screen.wait("OWNER")
        assert "SIMULATED DATA" in first
        assert "HELD" in first
        screen.press("w")
        screen.wait("by watts ▾")
        wait_until(lambda: len(watts(screen.screen())) > 3, "watts of processes")
        shown = watts(screen.screen())
        assert shown == sorted(shown, reverse=True)
        screen.press("w")
        screen.wait("by watts ▴")
        screen.press("/", "m", "i", "r", "a", "Enter")
        assert re.search(r"1 of \d+ processes", screen.wait("filter: mira"))
        screen.press("Down", "Enter")
        assert "2.0G" in screen.wait("memory bandwidth")
        screen.press("Escape")
        screen.wait_without("memory bandwidth")
        screen.press("?")
        screen.wait("keys and terms")
        screen.press("q")
        screen.wait_without("keys and terms")
        screen.press("q")
        assert "ENDED 0" in screen.wait("ENDED")
        assert "Traceback" not in screen.screen()


def test_ctrl_c_quits_and_restores_the_terminal():
    with terminal(*SIMULATED) as screen:
        screen.wait("OWNER")
        screen.press("C-c")
        assert screen.wait("ENDED").strip().startswith("ENDED 0")


def test_a_resized_terminal_is_redrawn_within_its_size():
    with terminal(*SIMULATED) as screen:
        assert "CONTAINER" not in screen.wait("OWNER")
        screen.resize(200, 50)
        wide = screen.wait("CONTAINER")
        assert "MEASURED" in wide
        assert "ml-research/llama-pretrain-worker-0" in wide
        screen.resize(80, 24)
        screen.wait_without("CONTAINER")
        lines = screen.lines()
        assert len(lines) == 24
        assert lines[-1].startswith("q quit")


def test_a_stopped_node_leaves_a_stale_view_until_it_is_back():
    port = free_port()
    address = f"127.0.0.1:{port}"
    arguments = ("--listen-address", address, "--source", "simulator")
    server = Server(*arguments, prepared=True)
    try:
        server.wait_ticks(2)
        with terminal("top", "--url", f"http://{address}", size=(120, 40)) as screen:
            screen.wait("OWNER")
            assert f"http://{address}" in screen.screen()
            assert "when this top started" not in screen.screen()
            server.stop()
            stale = screen.wait("STALE")
            assert "cannot be reached" in stale
            assert "tritonserver" in stale
            server = Server(*arguments, prepared=True)
            screen.wait_without("STALE")
            assert "tritonserver" in screen.wait("OWNER")
    finally:
        server.stop()


def test_no_color_disables_colors_and_keeps_the_states_readable():
    with terminal(*SIMULATED, env={"NO_COLOR": "1"}) as screen:
        screen.wait("HELD")
        styled = screen.screen(styled=True)
        codes = {code for found in SGR.findall(styled) for code in found[2:-1].split(";")}
        assert not {code for code in codes if re.fullmatch(r"[349][0-7]|10[0-7]|38|48", code)}
        assert "HELD" in styled


def test_a_dumb_terminal_gets_one_snapshot():
    with terminal(*SIMULATED, env={"TERM": "dumb"}) as screen:
        assert "ENDED 0" in screen.wait("ENDED")
        assert "\x1b" not in screen.screen()


def test_a_pipe_gets_one_snapshot_with_full_names():
    done = gpuledger(*SIMULATED)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "ml-research/llama-pretrain-worker-0" in done.stdout
    held = [line for line in done.stdout.splitlines() if "HELD" in line and line[:1] in "0123456789 "]
    assert any("jupyter-pavel" in line for line in held)
    assert "when this top started" in done.stdout


def test_one_snapshot_fits_the_given_columns(node):
    done = gpuledger("top", "--url", node.url, "--once", env={"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "13 processes" in done.stdout or "14 processes" in done.stdout


def test_json_is_the_filtered_and_sorted_snapshot(node):
    done = gpuledger(
        "top", "--url", node.url, "--json", "--gpu", "2,3", "--sort", "memory", "--filter", "!root"
    )
    body = json.loads(done.stdout)
    assert {row["gpu"] for row in body["devices"]} == {"2", "3"}
    sizes = [row["memory_bytes"] for row in body["processes"]]
    assert sizes == sorted(sizes, reverse=True)
    assert {row["user"] for row in body["processes"]} <= {"", "mira"}


def test_with_an_interval_snapshots_are_printed_until_a_signal(node):
    words = [sys.executable, "-m", "gpuledger", "top", "--url", node.url, "--json", "--interval", "50ms"]
    program = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert program.stdout is not None
    ticks = [json.loads(program.stdout.readline())["tick"] for _ in range(3)]
    program.terminate()
    program.stdout.close()
    assert program.wait(PATIENCE) in (0, 1)
    assert ticks == sorted(ticks)


def test_a_node_without_an_api_and_a_wrong_url_have_different_errors():
    with serving_prepared("--source", "simulator", "--web.page", "landing") as quiet:
        hidden = gpuledger("top", "--once", "--url", quiet.url)
        wrong = gpuledger("top", "--once", "--url", f"{quiet.url}/metrics")
    gone = gpuledger("top", "--once", "--url", quiet.url)
    assert (hidden.returncode, wrong.returncode, gone.returncode) == (1, 1, 1)
    assert "set web.page to full there" in hidden.stderr
    assert "give --url without a path" in wrong.stderr
    assert "cannot be reached" in gone.stderr
    assert all(done.stderr.count("\n") == 1 for done in (hidden, wrong, gone))


USERS = """\
tls_server_config: {cert_file: server.crt, key_file: server.key}
basic_auth_users:
  ann: "%s"
"""


def test_a_node_with_tls_and_a_password_requires_both(tmp_path):
    certificates = Certificates(tmp_path)
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    (tmp_path / "web.yml").write_text(USERS % hashed)
    (tmp_path / "password").write_text("secret\n")
    user = ("--user", "ann", "--password-file", str(tmp_path / "password"))
    trust = ("--ca-file", str(certificates.crt("ca")))
    with serving_prepared("--source", "simulator", "--web.config.file", str(tmp_path / "web.yml")) as server:
        url = f"https://127.0.0.1:{server.port}"
        known = gpuledger("top", "--once", "--url", url, *user, *trust)
        no_credentials = gpuledger("top", "--once", "--url", url, *trust)
        untrusted = gpuledger("top", "--once", "--url", url, *user)
        plain = gpuledger("top", "--once", "--url", server.url, *user)
    assert "tritonserver" in known.stdout, known.stderr
    assert "--password-file" in no_credentials.stderr
    assert "give the certificate of its CA with --ca-file" in untrusted.stderr
    assert "https://" in plain.stderr
    assert "Traceback" not in plain.stderr


def test_without_a_driver_the_error_names_the_remedy():
    done = gpuledger("top", "--source", "nvml", "--once")
    assert done.returncode == 1
    assert "install the NVIDIA driver" in done.stderr


def test_serve_does_not_load_textual_or_rich():
    loaded = subprocess.run(
        [sys.executable, "-c", _LOADED],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert "gpuledger.cli.serve" in loaded
    assert not {name.partition(".")[0] for name in loaded} & {"textual", "rich"}


# Prints the modules that are loaded after `serve` is assembled.
_LOADED = """
import sys
from pathlib import Path
from gpuledger.cli.main import load_asyncio_without_tls
load_asyncio_without_tls()
import gpuledger.cli.serve
from gpuledger.app.node_assembly import assemble_node
made = assemble_node({"source": "simulator", "state_dir": "none"})
made.parts.node.tick()
print(*sys.modules)
"""


def test_an_unreachable_owner_source_is_reported_with_the_remedy(tmp_path):
    here = Path(__file__).parent.parent
    stand_in, answers = here / "smi" / "nvidia_smi.py", here / "fixtures" / "smi" / "mig"
    command = shlex.join([sys.executable, str(stand_in), "--answers", str(answers), "--"])
    socket_path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as unheard:
        unheard.bind(str(socket_path))
        done = gpuledger(
            "top", "--source", "smi", "--nvidia-smi-command", command, "--docker-socket", str(socket_path)
        )
    assert done.returncode == 0, done.stderr
    assert str(socket_path) in done.stdout
    assert " 7001 " in done.stdout
