"""Secrets in any setting appear in no log line, page, error or command line."""

from __future__ import annotations

import sys
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import psutil
import pytest
import yaml

from running import Program, get, gpuledger, serving, wait_until

SECRET = "hunter2-x7Qp"
# The secret as it is sent in an Authorization header.
BASIC = b64encode(f"user:{SECRET}".encode()).decode()

BROKEN = {
    "an unterminated quote": f'url: "http://u:{SECRET}@h\nx: [}}',
    "two colons in a line": f"password: {SECRET}: x",
    "an alias": f"password: *{SECRET}",
    "a tag": f"password: !{SECRET} x",
    "a tab": f"a:\n\tpassword: {SECRET}",
    "a duplicate anchor": f"a: &{SECRET} 1\nb: &{SECRET} [",
    "invalid UTF-8": f"password: {SECRET}\xff",
    "a control character": f"password: {SECRET}\x01",
}
READERS = {
    "settings": ("serve", "--config", "FILE"),
    "the web config": ("serve", "--web.config.file", "FILE"),
    "the agent's": ("agent", "--config", "FILE", "--queue-directory", "none"),
    "a kubeconfig": ("doctor", "--kubernetes-enabled", "true", "--kubeconfig", "FILE"),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("command", READERS.values(), ids=READERS)
def test_the_error_of_an_unreadable_file_does_not_quote_it(
    command: tuple[str, ...], content: str, tmp_path: Path
) -> None:
    file = tmp_path / "file.yaml"
    file.write_bytes(content.encode("latin-1"))
    done = gpuledger(*(str(file) if word == "FILE" else word for word in command))
    assert done.returncode != 0
    assert str(file) in done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr


WRONG = {
    "credentials that are a string": f"remote_write: [{{url: http://h, basic_auth: {SECRET}}}]",
    "a token that is a mapping": f"remote_write: [{{url: http://h, bearer_token: {{a: {SECRET}}}}}]",
    "an unknown key": f"remote_write: [{{url: http://h, bearer_token: {SECRET}, tokn: {SECRET}}}]",
    "credentials in a URL with another scheme": f"remote_write: [{{url: 'ftp://u:{SECRET}@h'}}]",
    "two tokens": f"remote_write: [{{url: http://h, bearer_token: {SECRET}, bearer_token_file: {SECRET}}}]",
    "a scheme with a token": f"remote_write: [{{url: http://h, authorization: {{type: a {SECRET}}}}}]",
    "a header that is a list": f"remote_write: [{{url: http://h, headers: {{X: [{SECRET}]}}}}]",
}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_errors_in_the_agent_file_contain_no_secrets(content: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(content)
    done = gpuledger("agent", "--config", str(file), "--queue-directory", str(tmp_path / "queue"))
    assert done.returncode == 2
    assert "remote_write[0]" in done.stderr
    assert SECRET not in done.stderr


@pytest.mark.parametrize(
    "url", ["ftp://u:{}@h", "http://u:{}@h:99999", "http://u:{}@[h", "http://u:{}@127.0.0.1:1"]
)
@pytest.mark.parametrize(
    "command", [("top", "--once", "--url"), ("report", "--prometheus"), ("serve", "--dcgm-exporter-url")]
)
def test_errors_about_a_url_do_not_contain_its_password(command: tuple[str, ...], url: str) -> None:
    done = gpuledger(*command, url.format(SECRET))
    assert done.returncode in (1, 2)
    assert done.stderr
    assert SECRET not in done.stdout + done.stderr


@contextmanager
def echoing() -> Iterator[str]:
    """A server that sends the request's headers back, in a metrics page or an error response."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            echoed = " ".join(f"{name}: {value}" for name, value in self.headers.items())
            scheme, _, credentials = self.headers.get("Authorization", "").partition(" ")
            if scheme == "Basic":
                echoed += f" which is {b64decode(credentials).decode()}"
            body = f"refused: {echoed}".encode()
            if self.path.endswith("/whole"):
                body = f"{credentials} 1\n".encode()
            elif self.path.endswith("/cut"):
                body = f"{'x' * (70 - len(credentials) // 2)} {credentials} 1\n".encode()
            status = 400 if self.command == "POST" else 200 if self.path.endswith(("/whole", "/cut")) else 401
            self.send_response(status, f"Not with {echoed}")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def arguments_of(program: Program) -> str:
    """Return the command lines of the program and its child processes."""
    own = psutil.Process(program.process.pid)
    return " ".join(" ".join(one.cmdline()) for one in (own, *own.children(recursive=True)))


def test_an_agent_that_is_refused_everywhere_exposes_no_credentials(tmp_path: Path) -> None:
    file, token = tmp_path / "agent.yaml", tmp_path / "token"
    token.write_text(SECRET)
    with echoing() as server:
        credentials: list[dict[str, object]] = [
            {"basicAuth": {"username": "user", "password": SECRET}},
            {"basicAuth": {"username": "user", "passwordEnv": "PLANTED"}},
            {"authorization": {"credentials": SECRET}},
            {"authorization": {"credentialsFile": "token"}},
        ]
        endpoints = [
            {"address": server, "path": f"/{path}", "credentialsOverHttp": True, **each}
            for number, each in enumerate(credentials)
            for path in (number, f"{number}/whole", f"{number}/cut")
        ]
        write = f"http://{server}/write"
        receivers = [
            {"name": "url", "url": f"http://user:{SECRET}@{server}/write"},
            {"name": "basic", "url": write, "basic_auth": {"username": "user", "password": SECRET}},
            {"name": "bearer", "url": write, "bearer_token": SECRET},
            {"name": "file", "url": write, "authorization": {"credentials_file": "token"}},
            {"name": "header", "url": write, "headers": {"X-Scope": SECRET}},
            {"name": "key", "url": write, "tls_config": {"cert": SECRET, "key": SECRET}},
        ]
        targets = [{"targetName": "t", "type": "StaticEndpoints", "endpoints": endpoints}]
        agent = {"globalInterval": "300ms", "targets": targets}
        file.write_text(yaml.safe_dump({"features": {"openAgent": agent}, "remote_write": receivers}))
        command = [*(sys.executable, "-m", "gpuledger", "agent", "--config", str(file), "--drain", "0s")]
        command += ["--queue-directory", str(tmp_path / "queue"), "--listen-address", "127.0.0.1:0"]
        program = Program([*command, "--log-level", "debug"], env={"PLANTED": SECRET})
        port = program.wait_line(r"listening on .* port (\d+)")[1]
        url = f"http://127.0.0.1:{port}"
        try:
            wait_until(lambda: 'state="down"} 12' in get(f"{url}/metrics").text, "scrapes")
            for name in ("url", "basic", "bearer", "file", "header"):
                program.wait_line(rf"receiver {name}\b.*400|{name}\b.*400")
            pages = [get(url + path).text for path in ("/", "/metrics", "/none")]
            arguments = arguments_of(program)
        finally:
            program.stop()
    output = "\n".join((*program.lines, *pages, arguments))
    assert SECRET not in output
    assert BASIC not in output
    assert SECRET[:12] not in output
    assert BASIC[:12] not in output


def test_a_node_with_passwords_exposes_none_of_them(tmp_path: Path) -> None:
    web = tmp_path / "web.yml"
    hashed = "$2b$04$" + "." * 21 + "e" + SECRET.replace("-", ".").rjust(31, "x")
    web.write_text(f"basic_auth_users: {{user: '{hashed}'}}")
    arguments = ("--source", "simulator", "--web.config.file", str(web), "--log-level", "debug")
    with serving(*arguments) as server:
        paths = ("/", "/metrics", "/api/v1/health", "/health", "/none")
        sent = [{}, {"authorization": f"Basic {BASIC}"}, {"authorization": f"Bearer {SECRET}"}]
        pages = [server.get(f"{path}?token={SECRET}", **headers) for path in paths for headers in sent]
        command_lines = arguments_of(server)
    output = "\n".join((*server.lines, *(f"{page.headers} {page.text}" for page in pages), command_lines))
    done = gpuledger("doctor", "--listen-address", "127.0.0.1:0", *arguments[2:4], "--format", "json")
    output += done.stdout + done.stderr
    assert SECRET not in output
    assert BASIC not in output
    assert hashed[-31:] not in output
