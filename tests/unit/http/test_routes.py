from __future__ import annotations

import pytest

from gpuledger.http.routes import Request, Routes, plain


def routes():
    return Routes(
        {"/": lambda _: plain("root"), "/metrics": lambda request: plain(request.method)},
        {"/api/": lambda request: plain(request.path), "/api/v1/": lambda _: plain("v1")},
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/", b"root\n"),
        ("/metrics", b"GET\n"),
        ("/api/", b"/api/\n"),
        ("/api/x/y", b"/api/x/y\n"),
        ("/api/v1/gpus", b"v1\n"),
    ],
)
def test_a_path_goes_to_its_handler_and_else_to_the_longest_prefix(path, body):
    assert routes().respond(Request("GET", path)).body == body


@pytest.mark.parametrize("path", ["/metrics/", "/Metrics", "/metric", "/api", "//", ""])
def test_a_path_that_is_not_there_is_answered_with_those_that_are(path):
    answer = routes().respond(Request("GET", path))
    assert answer.status == 404
    assert answer.body.decode().splitlines() == [
        "no such page; there are:",
        "/",
        "/api/...",
        "/api/v1/...",
        "/metrics",
    ]


def test_head_goes_to_the_handler_of_get():
    assert routes().respond(Request("HEAD", "/metrics")).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
def test_other_methods_are_answered_with_those_that_are_possible(method):
    answer = routes().respond(Request(method, "/metrics"))
    assert (answer.status, answer.headers) == (405, (("Allow", "GET, HEAD"),))


def test_an_unknown_path_is_404_whatever_the_method():
    assert routes().respond(Request("POST", "/nothing")).status == 404


def test_a_handler_that_raises_is_logged_and_answered_with_one_plain_line(caplog):
    def broken(_):
        raise ValueError("secret")

    answer = Routes({"/": broken}).respond(Request("GET", "/"))
    assert (answer.status, answer.body) == (500, b"internal error; the log of gpuledger has the reason\n")
    assert "secret" in caplog.text
