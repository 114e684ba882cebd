from __future__ import annotations

import pytest

from gpuledger.http.routes import Request, Routes, text_response


def routes():
    return Routes(
        {"/": lambda _: text_response("root"), "/metrics": lambda request: text_response(request.method)},
        {"/api/": lambda request: text_response(request.path), "/api/v1/": lambda _: text_response("v1")},
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
def test_a_path_matches_its_handler_or_the_longest_prefix(path, body):
    assert routes().respond(Request("GET", path)).body == body


@pytest.mark.parametrize("path", ["/metrics/", "/Metrics", "/metric", "/api", "//", ""])
def test_an_unknown_path_gets_the_list_of_paths(path):
    answer = routes().respond(Request("GET", path))
    assert answer.status == 404
    assert answer.body.decode().splitlines() == [
        "not found; available paths:",
        "/",
        "/api/...",
        "/api/v1/...",
        "/metrics",
    ]


def test_head_uses_the_handler_of_get():
    assert routes().respond(Request("HEAD", "/metrics")).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
def test_other_methods_get_405_with_the_allowed_ones(method):
    answer = routes().respond(Request(method, "/metrics"))
    assert (answer.status, answer.headers) == (405, (("Allow", "GET, HEAD"),))


def test_an_unknown_path_is_404_for_any_method():
    assert routes().respond(Request("POST", "/nothing")).status == 404


def test_a_handler_that_raises_is_logged_and_gets_one_line_of_text(caplog):
    def broken(_):
        raise ValueError("secret")

    answer = Routes({"/": broken}).respond(Request("GET", "/"))
    assert (answer.status, answer.body) == (500, b"internal error; the log of gpuledger has the reason\n")
    assert "secret" in caplog.text
