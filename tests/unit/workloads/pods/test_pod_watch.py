"""PodWatch against a scripted HTTP server."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from builders import FakeClock
from gpuledger.kubernetes.access import ApiServerAccess
from gpuledger.kubernetes.api_client import ApiClient
from gpuledger.workloads.pods import pod_watch
from gpuledger.workloads.pods.pod_watch import PodWatch
from pods_server import (
    CUT,
    END,
    ApiServer,
    NoWait,
    a_pod,
    all_pods,
    body,
    bookmark,
    chunks,
    error_event,
    event,
    hang,
    line,
    pod_list,
    serving,
    silence,
    status,
)
from running import PATIENCE, wait_until


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with serving() as running:
        yield running


@contextmanager
def running_watch(
    server: ApiServer, access: ApiServerAccess | None = None, **given: Any
) -> Iterator[PodWatch]:
    given = {"clock": FakeClock(), "random": NoWait(), **given}
    timeout = given.pop("timeout", 30.0)
    watch = PodWatch(ApiClient(access or server.access, timeout=timeout), "node-1", **given)
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()
        assert not watch._thread.is_alive()


def knows(watch: PodWatch, *uids: str) -> None:
    wait_until(lambda: {pod.uid for pod in watch.value} == set(uids), f"the pods {uids}")


def fails(watch: PodWatch, words: str) -> str:
    wait_until(lambda: words in watch.health.error, f"an error about {words!r}")
    return watch.health.error


def test_the_list_comes_from_the_cache_and_the_watch_continues_there(server: ApiServer) -> None:
    server.pods, server.version = [a_pod("u1")], "417"
    with running_watch(server) as watch:
        knows(watch, "u1")
        wait_until(server.watched, "a watch")
    listed, watched = server.listed()[0].query, server.watched()[0].query
    assert listed == {"fieldSelector": "spec.nodeName=node-1", "limit": "500", "resourceVersion": "0"}
    assert watched.pop("timeoutSeconds").isdigit()
    assert watched == {
        "fieldSelector": "spec.nodeName=node-1",
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": "417",
    }


def test_gzip_is_not_requested(server: ApiServer) -> None:
    with running_watch(server):
        wait_until(server.watched, "a watch")
    assert all("accept-encoding" not in request.headers for request in server.requests)


def test_events_add_change_and_delete(server: ApiServer) -> None:
    server.pods = [a_pod("u1")]
    with running_watch(server) as watch:
        knows(watch, "u1")
        server.events.put(event("ADDED", a_pod("u2", "other")))
        knows(watch, "u1", "u2")
        server.events.put(event("MODIFIED", a_pod("u2", "other", containers={"main": "containerd://abc"})))
        wait_until(lambda: watch.value.by_container("abc"), "the container's id")
        server.events.put(event("DELETED", a_pod("u1")))
        knows(watch, "u2")
        assert watch.health.entries == 1


def test_a_recreated_pod_is_another_pod_until_the_first_is_deleted(server: ApiServer) -> None:
    server.pods = [a_pod("old", created="2026-11-28T03:00:00Z")]
    with running_watch(server) as watch:
        knows(watch, "old")
        server.events.put(event("ADDED", a_pod("new", created="2026-11-28T03:00:09Z")))
        knows(watch, "old", "new")
        named = watch.value.by_name("ml", "train")
        assert named is not None
        assert named.uid == "new"
        server.events.put(event("DELETED", a_pod("old")))
        knows(watch, "new")


def test_an_event_without_changes_keeps_the_value_object(server: ApiServer) -> None:
    server.pods = [a_pod("u1")]
    clock = FakeClock()
    with running_watch(server, clock=clock) as watch:
        knows(watch, "u1")
        before = watch.value
        clock.advance(1000.0)
        server.events.put(event("MODIFIED", a_pod("u1", version="500")))
        wait_until(lambda: watch.health.last_success == clock.unix(), "the event to be received")
        assert watch.value is before


@pytest.mark.parametrize("sign_of_life", [bookmark("900"), END, event("ADDED", a_pod("u2"))])
def test_every_response_updates_the_last_success(server: ApiServer, sign_of_life: Any) -> None:
    clock = FakeClock()
    with running_watch(server, clock=clock) as watch:
        wait_until(server.watched, "a watch")
        wait_until(lambda: watch.health.success, "a success")
        clock.advance(1000.0)
        server.events.put(sign_of_life)
        wait_until(lambda: watch.health.last_success == clock.unix(), "the age to be 0")


@pytest.mark.parametrize("ending", [END, CUT])
def test_the_next_watch_continues_at_the_last_bookmark(server: ApiServer, ending: object) -> None:
    with running_watch(server) as watch:
        server.events.put(bookmark("777"))
        server.events.put(ending)
        wait_until(lambda: len(server.watched()) >= 2, "a second watch")
        assert watch.health.error == ""
    assert server.watched()[1].query["resourceVersion"] == "777"
    assert len(server.listed()) == 1


def test_all_pages_are_read_without_a_resource_version(server: ApiServer) -> None:
    server.lists += [body(pod_list([a_pod("u1")], "5", token="more")), body(pod_list([a_pod("u2")], "5"))]
    with running_watch(server) as watch:
        knows(watch, "u1", "u2")
    second = server.listed()[1].query
    assert second["continue"] == "more"
    assert "resourceVersion" not in second


@pytest.mark.parametrize(
    "expired",
    [
        status(410, "too old resource version: 5 (9)"),
        chunks(line(error_event(410, "Expired", "too old"))),
        chunks(line(error_event(410))),
        chunks(line(error_event(500, "Gone"))),
    ],
    ids=["status", "event", "event-code", "event-reason"],
)
def test_an_expired_watch_is_followed_by_a_new_list(server: ApiServer, expired: Any) -> None:
    server.watches.append(expired)
    server.pods = [a_pod("u1")]
    with running_watch(server) as watch:
        wait_until(lambda: len(server.watched()) >= 2, "a second watch")
        assert watch.health.error == ""
    # The cache had nothing newer: the second list bypasses it.
    assert "resourceVersion" not in server.listed()[1].query


def test_an_expired_page_restarts_the_list(server: ApiServer) -> None:
    server.lists += [body(pod_list([a_pod("u1")], "5", token="more")), status(410, "continue expired")]
    server.pods = [a_pod("u3")]
    with running_watch(server) as watch:
        knows(watch, "u3")


def test_a_watch_that_expires_after_events_is_listed_from_the_cache(server: ApiServer) -> None:
    server.watches.append(chunks(line(bookmark("9")), line(error_event(410))))
    with running_watch(server):
        wait_until(lambda: len(server.listed()) >= 2, "a second list")
    assert server.listed()[1].query["resourceVersion"] == "0"


def test_an_error_event_is_reported_and_followed_by_a_new_list(server: ApiServer) -> None:
    server.lists += [all_pods, silence]
    server.watches += [chunks(line(error_event(500, "InternalError", "etcd is ill")))]
    with running_watch(server) as watch:
        assert "etcd is ill" in fails(watch, "ended the watch")
        wait_until(lambda: len(server.listed()) >= 2, "a second list")


def test_the_last_known_pods_are_kept_while_the_server_fails(server: ApiServer) -> None:
    server.pods = [a_pod("u1")]
    clock = FakeClock()
    with running_watch(server, clock=clock) as watch:
        # An event shows that the watch has begun: its beginning counts as a success.
        server.events.put(event("ADDED", a_pod("u2", "other")))
        wait_until(lambda: watch.health.entries == 2, "the event")
        server.watches += [status(503, "starting up"), silence]
        last = clock.unix()
        clock.advance(5.0)
        server.events.put(CUT)
        fails(watch, "503")
        assert (watch.health.success, watch.health.last_success, watch.health.entries) == (False, last, 2)
        assert watch.value.by_uid("u1")


def test_a_token_is_read_again_for_every_connection(server: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with running_watch(server, ApiServerAccess(server.access.url, token_file=token)):
        wait_until(server.watched, "a watch")
        token.write_text("second\n")
        server.events.put(END)
        wait_until(lambda: len(server.watched()) >= 2, "a second watch")
    assert [request.token for request in server.requests[:3]] == [
        "Bearer first",
        "Bearer first",
        "Bearer second",
    ]


def test_a_401_is_retried_once_immediately(server: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("stale")
    server.lists.append(status(401, "Unauthorized"))
    with running_watch(server, ApiServerAccess(server.access.url, token_file=token)) as watch:
        wait_until(lambda: watch.health.success, "a success")
    assert len(server.listed()) == 2


def test_a_second_401_is_an_error_that_names_the_token(server: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("stale")
    server.lists += [status(401), status(401), silence]
    with running_watch(server, ApiServerAccess(server.access.url, token_file=token)) as watch:
        assert str(token) in fails(watch, "401 from")


@pytest.mark.parametrize("where", ["list", "watch"])
def test_a_403_is_an_error_that_names_the_missing_rule(server: ApiServer, where: str) -> None:
    message = 'pods is forbidden: User "system:serviceaccount:a:b" cannot list resource "pods"'
    server.watches.append(status(403, message))
    server.lists += [all_pods if where == "watch" else status(403, message), silence]
    with running_watch(server) as watch:
        error = fails(watch, "403 from")
    assert "system:serviceaccount:a:b may not list and watch pods" in error
    assert 'apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]' in error


def test_without_permission_to_watch_pods_are_listed_again(server: ApiServer) -> None:
    server.watches += [status(403, "no")]
    server.lists += [body(pod_list([a_pod("u1")])), body(pod_list([a_pod("u1"), a_pod("u2", "other")]))]
    with running_watch(server) as watch:
        knows(watch, "u1", "u2")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (status(500, "etcd leader changed"), "500 from"),
        (status(302), "redirects are not followed"),
        (status(404), "check that the URL is an API server"),
        (body(b"<html>proxy</html>"), "not JSON"),
        (body(b'{"kind":"PodList","items":[]}'), "a list without a resourceVersion"),
        (body(b'{"metadata":{"resourceVersion":"1"},"items":[{"a":'), "not JSON"),
        (body(b"\x1f\x8b", Content_Encoding="gzip"), "gzip"),
        (lambda exchange: exchange.send_raw(b"SSH-2.0-OpenSSH\r\n\r\n"), "check that it is an API server"),
        (lambda exchange: None, "no response"),
    ],
)
def test_an_invalid_response_is_reported_and_retried(server: ApiServer, answer: Any, words: str) -> None:
    server.lists += [answer, silence]
    server.pods = [a_pod("u1")]
    with running_watch(server, timeout=30.0) as watch:
        fails(watch, words)
        assert not watch.health.success
        wait_until(lambda: len(server.listed()) >= 2, "another try")


@pytest.mark.parametrize(
    "bad", [b"not json\n", b'{"type":"ADDED"}\n', b'{"type":"X","object":{}}\n', b"[" * 100_000 + b"\n"]
)
def test_an_invalid_watch_line_is_followed_by_a_new_list(server: ApiServer, bad: bytes) -> None:
    server.watches.append(chunks(bad))
    server.pods = [a_pod("u1")]
    with running_watch(server):
        wait_until(lambda: len(server.listed()) >= 2, "a second list")


def test_a_cut_watch_line_is_received_again_by_the_next_watch(server: ApiServer) -> None:
    whole = line(event("ADDED", a_pod("u2", version="300")))
    server.watches += [chunks(line(bookmark("200")), whole[:40], ends=False), chunks(whole), hang]
    with running_watch(server) as watch:
        knows(watch, "u2")
        # It is known before the next watch starts.
        wait_until(lambda: len(server.watched()) >= 3, "a third watch")
    assert [request.query["resourceVersion"] for request in server.watched()[:3]] == ["100", "200", "300"]
    assert len(server.listed()) == 1


def test_a_long_line_in_small_chunks_is_one_event(server: ApiServer) -> None:
    big = line(event("ADDED", a_pod("big", annotations={"x": "y" * 3_000_000})))
    pieces = [big[at : at + 50_000] for at in range(0, len(big), 50_000)]
    server.watches += [chunks(*pieces), hang]
    with running_watch(server) as watch:
        knows(watch, "big")


def test_several_events_in_one_chunk_and_split_characters_are_read(server: ApiServer) -> None:
    both = line(event("ADDED", a_pod("u1"))) + line(event("ADDED", a_pod("u2", "größe")))
    both = both.replace(b"\\u00f6", "ö".encode())
    at = both.index("ö".encode()) + 1
    server.watches += [chunks(both[:at], both[at:]), hang]
    with running_watch(server) as watch:
        knows(watch, "u1", "u2")
        assert watch.value.by_name("ml", "größe")


@pytest.mark.parametrize("hanging", [hang, silence])
def test_a_server_that_stops_responding_is_an_error(
    server: ApiServer, hanging: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server.watches += [hanging]
    # The next watch works and clears the error within a millisecond, so that only the log always shows it.
    with running_watch(server, grace=-0.9):
        wait_until(lambda: "no response within" in caplog.text, "the error")


def test_a_watch_that_repeatedly_breaks_off_is_logged_once(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.watches += [chunks(ends=False)] * 3 + [silence]
    with running_watch(server) as watch:
        fails(watch, "broke off")
        wait_until(lambda: len(server.watched()) == 4, "the fourth watch")
    assert [record.levelname for record in caplog.records if "broke off" in record.message] == ["WARNING"]


def test_an_error_and_its_recovery_are_each_logged_once(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server.lists += [status(500, "ill")] * 3
    with running_watch(server) as watch:
        wait_until(lambda: watch.health.success, "a success")
        server.events.put(bookmark("5"))
        wait_until(
            lambda: any("can be read again" in record.message for record in caplog.records),
            "the recovery to be logged",
        )
    messages = [record.message for record in caplog.records]
    assert [("ill" in text, "can be read again" in text) for text in messages] == [
        (True, False),
        (False, True),
    ]


def test_the_pause_doubles_with_jitter(server: ApiServer) -> None:
    watch = PodWatch(ApiClient(server.access), "n", clock=FakeClock(), random=Random(1))
    pauses = [watch._fail("x") for _ in range(12)]
    for number, pause in enumerate(pauses):
        longest = min(2.0**number, 60.0)
        assert longest / 2 <= pause <= longest
    assert len(set(pauses)) == len(pauses)


def test_retry_after_is_honored(server: ApiServer) -> None:
    server.lists.append(status(429, "slow down", Retry_After="30"))
    watch = PodWatch(ApiClient(server.access), "n", clock=FakeClock(), random=NoWait())
    assert watch._list_and_watch() == 30.0


def test_pods_beyond_the_limit_are_ignored_with_a_warning(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pod_watch, "MAX_PODS", 3)
    server.pods = [a_pod(f"u{number}", f"p{number}") for number in range(6)]
    with running_watch(server) as watch:
        knows(watch, "u0", "u1", "u2")
    assert [record.message for record in caplog.records if "more than 3 pods" in record.message] != []


def test_only_the_pod_without_a_uid_is_skipped(server: ApiServer) -> None:
    # Invalid objects, which no server should send.
    server.pods = [{"metadata": {"name": "x"}}, {}, None, a_pod("u1")]  # type: ignore[list-item]
    with running_watch(server) as watch:
        knows(watch, "u1")


@pytest.mark.parametrize("where", ["lists", "watches"])
@pytest.mark.parametrize("hanging", [hang, silence])
def test_stop_ends_a_hanging_connection(server: ApiServer, where: str, hanging: Any) -> None:
    getattr(server, where).append(hanging)
    watch = PodWatch(ApiClient(server.access), "n", clock=FakeClock(), random=NoWait())
    watch.start()
    wait_until(server.watched if where == "watches" else server.listed, "the request")
    watch.stop(patience=PATIENCE)
    assert not watch._thread.is_alive()


def test_stop_ends_the_wait_for_the_first_list(server: ApiServer) -> None:
    watch = PodWatch(ApiClient(server.access), "n", clock=FakeClock(), random=Random(1), jitter=3600.0)
    watch.start()
    watch.stop(patience=PATIENCE)
    assert not watch._thread.is_alive()
    assert server.requests == []


def test_a_new_watch_has_no_success_yet(server: ApiServer) -> None:
    watch = PodWatch(ApiClient(server.access), "n", clock=FakeClock())
    watch.nudge()
    assert (len(watch.value), watch.health.success, watch.health.last_success) == (0, False, None)


def test_an_unreachable_server_is_an_error_with_a_remedy() -> None:
    with serving() as stopped:
        access = stopped.access
    watch = PodWatch(ApiClient(access), "n", clock=FakeClock(), random=NoWait())
    watch._list_and_watch()
    assert "cannot be reached (Connection refused)" in watch.health.error
    assert "--kubernetes-api" in watch.health.error
