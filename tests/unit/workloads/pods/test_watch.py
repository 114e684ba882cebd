"""The watch of this node's pods against a real HTTP server that answers by a script."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from builders import FakeClock
from gpuledger.kubernetes.access import Access
from gpuledger.kubernetes.client import ApiClient
from gpuledger.workloads.pods import watch as watching
from gpuledger.workloads.pods.labels import LabelAllowlist
from gpuledger.workloads.pods.watch import PodWatch
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
from running import wait_until


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with serving() as running:
        yield running


@contextmanager
def watch(server: ApiServer, access: Access | None = None, **given: Any) -> Iterator[PodWatch]:
    given = {"clock": FakeClock(), "random": NoWait(), "allowed": LabelAllowlist(), **given}
    timeout = given.pop("timeout", 30.0)
    one = PodWatch(ApiClient(access or server.access, timeout=timeout), "node-1", **given)
    one.start()
    try:
        yield one
    finally:
        one.stop()
        assert not one._thread.is_alive()


def knows(one: PodWatch, *uids: str) -> None:
    wait_until(lambda: {pod.uid for pod in one.value} == set(uids), f"the pods {uids}", 15)


def fails(one: PodWatch, words: str) -> str:
    wait_until(lambda: words in one.health.error, f"an error about {words!r}", 15)
    return one.health.error


def test_it_lists_from_the_cache_and_watches_from_there(server: ApiServer) -> None:
    server.pods, server.version = [a_pod("u1")], "417"
    with watch(server) as one:
        knows(one, "u1")
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


def test_nobody_asks_for_gzip(server: ApiServer) -> None:
    with watch(server):
        wait_until(server.watched, "a watch")
    assert all("accept-encoding" not in asked.headers for asked in server.asked)


def test_events_add_change_and_delete(server: ApiServer) -> None:
    server.pods = [a_pod("u1")]
    with watch(server) as one:
        knows(one, "u1")
        server.events.put(event("ADDED", a_pod("u2", "other")))
        knows(one, "u1", "u2")
        server.events.put(event("MODIFIED", a_pod("u2", "other", containers={"main": "containerd://abc"})))
        wait_until(lambda: one.value.container("abc"), "the container's id")
        server.events.put(event("DELETED", a_pod("u1")))
        knows(one, "u2")
        assert one.health.entries == 1


def test_a_pod_recreated_under_its_name_is_another_until_the_first_is_deleted(server: ApiServer) -> None:
    server.pods = [a_pod("old", created="2026-11-28T03:00:00Z")]
    with watch(server) as one:
        knows(one, "old")
        server.events.put(event("ADDED", a_pod("new", created="2026-11-28T03:00:09Z")))
        knows(one, "old", "new")
        named = one.value.named("ml", "train")
        assert named is not None
        assert named.uid == "new"
        server.events.put(event("DELETED", a_pod("old")))
        knows(one, "new")


def test_an_event_that_changes_nothing_swaps_nothing(server: ApiServer) -> None:
    server.pods = [a_pod("u1")]
    clock = FakeClock()
    with watch(server, clock=clock) as one:
        knows(one, "u1")
        before = one.value
        clock.advance(1000.0)
        server.events.put(event("MODIFIED", a_pod("u1", version="500")))
        wait_until(lambda: one.health.last_success == clock.unix(), "the event to be heard")
        assert one.value is before


@pytest.mark.parametrize("sign_of_life", [bookmark("900"), END, event("ADDED", a_pod("u2"))])
def test_every_sign_of_life_makes_the_map_younger(server: ApiServer, sign_of_life: Any) -> None:
    clock = FakeClock()
    with watch(server, clock=clock) as one:
        wait_until(server.watched, "a watch")
        wait_until(lambda: one.health.success, "a success")
        clock.advance(1000.0)
        server.events.put(sign_of_life)
        wait_until(lambda: one.health.last_success == clock.unix(), "the age to be 0")


@pytest.mark.parametrize("ending", [END, CUT])
def test_the_next_watch_goes_on_from_the_last_bookmark(server: ApiServer, ending: object) -> None:
    with watch(server) as one:
        server.events.put(bookmark("777"))
        server.events.put(ending)
        wait_until(lambda: len(server.watched()) >= 2, "a second watch")
        assert one.health.error == ""
    assert server.watched()[1].query["resourceVersion"] == "777"
    assert len(server.listed()) == 1


def test_pages_are_followed_to_the_end_without_a_version(server: ApiServer) -> None:
    server.lists += [body(pod_list([a_pod("u1")], "5", token="more")), body(pod_list([a_pod("u2")], "5"))]
    with watch(server) as one:
        knows(one, "u1", "u2")
    second = server.listed()[1].query
    assert second["continue"] == "more"
    assert "resourceVersion" not in second


@pytest.mark.parametrize(
    "gone",
    [
        status(410, "too old resource version: 5 (9)"),
        chunks(line(error_event(410, "Expired", "too old"))),
        chunks(line(error_event(410))),
        chunks(line(error_event(500, "Gone"))),
    ],
    ids=["status", "event", "event-code", "event-reason"],
)
def test_an_expired_watch_is_followed_by_a_new_list(server: ApiServer, gone: Any) -> None:
    server.watches.append(gone)
    server.pods = [a_pod("u1")]
    with watch(server) as one:
        wait_until(lambda: len(server.watched()) >= 2, "a second watch")
        assert one.health.error == ""
    # The cache had nothing newer: the second list is not answered from it.
    assert "resourceVersion" not in server.listed()[1].query


def test_a_list_after_an_expired_page_begins_anew(server: ApiServer) -> None:
    server.lists += [body(pod_list([a_pod("u1")], "5", token="more")), status(410, "continue expired")]
    server.pods = [a_pod("u3")]
    with watch(server) as one:
        knows(one, "u3")


def test_a_watch_that_expires_after_events_is_listed_from_the_cache(server: ApiServer) -> None:
    server.watches.append(chunks(line(bookmark("9")), line(error_event(410))))
    with watch(server):
        wait_until(lambda: len(server.listed()) >= 2, "a second list")
    assert server.listed()[1].query["resourceVersion"] == "0"


def test_an_error_in_the_watch_is_told_and_all_is_listed_anew(server: ApiServer) -> None:
    server.lists += [all_pods, silence]
    server.watches += [chunks(line(error_event(500, "InternalError", "etcd is ill")))]
    with watch(server) as one:
        assert "etcd is ill" in fails(one, "ended the watch")
        wait_until(lambda: len(server.listed()) >= 2, "a second list")


def test_the_last_known_pods_stay_while_the_server_fails(server: ApiServer) -> None:
    server.pods = [a_pod("u1")]
    clock = FakeClock()
    with watch(server, clock=clock) as one:
        knows(one, "u1")
        wait_until(server.watched, "a watch")
        server.watches += [status(503, "starting up"), silence]
        last = clock.unix()
        clock.advance(5.0)
        server.events.put(CUT)
        fails(one, "503")
        assert (one.health.success, one.health.last_success, one.health.entries) == (False, last, 1)
        assert one.value.uid("u1")


def test_a_token_is_read_again_for_every_connection(server: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with watch(server, Access(server.access.url, token_file=token)):
        wait_until(server.watched, "a watch")
        token.write_text("second\n")
        server.events.put(END)
        wait_until(lambda: len(server.watched()) >= 2, "a second watch")
    assert [asked.token for asked in server.asked[:3]] == ["Bearer first", "Bearer first", "Bearer second"]


def test_a_401_is_tried_again_once_at_once(server: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("stale")
    server.lists.append(status(401, "Unauthorized"))
    with watch(server, Access(server.access.url, token_file=token)) as one:
        wait_until(lambda: one.health.success, "a success")
    assert len(server.listed()) == 2


def test_two_401_name_the_token(server: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("stale")
    server.lists += [status(401), status(401), silence]
    with watch(server, Access(server.access.url, token_file=token)) as one:
        assert str(token) in fails(one, "401 from")


@pytest.mark.parametrize("where", ["list", "watch"])
def test_a_403_tells_the_rule_that_is_missing(server: ApiServer, where: str) -> None:
    message = 'pods is forbidden: User "system:serviceaccount:a:b" cannot list resource "pods"'
    server.watches.append(status(403, message))
    server.lists += [all_pods if where == "watch" else status(403, message), silence]
    with watch(server) as one:
        error = fails(one, "403 from")
    assert "system:serviceaccount:a:b may not list and watch pods" in error
    assert 'apiGroups: [""], resources: ["pods"], verbs: ["list", "watch"]' in error


def test_who_may_list_and_not_watch_is_told_by_lists(server: ApiServer) -> None:
    server.watches += [status(403, "no")]
    server.lists += [body(pod_list([a_pod("u1")])), body(pod_list([a_pod("u1"), a_pod("u2", "other")]))]
    with watch(server) as one:
        knows(one, "u1", "u2")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (status(500, "etcd leader changed"), "500 from"),
        (status(302), "redirections are not followed"),
        (status(404), "see that the URL is an API server's"),
        (body(b"<html>proxy</html>"), "not JSON"),
        (body(b'{"kind":"PodList","items":[]}'), "a list without a version"),
        (body(b'{"metadata":{"resourceVersion":"1"},"items":[{"a":'), "not JSON"),
        (body(b"\x1f\x8b", Content_Encoding="gzip"), "gzip"),
        (lambda talk: talk.raw(b"SSH-2.0-OpenSSH\r\n\r\n"), "see that it is an API server"),
        (lambda talk: None, "gave no answer"),
    ],
)
def test_an_answer_that_is_none_is_told_and_tried_again(server: ApiServer, answer: Any, words: str) -> None:
    server.lists += [answer, silence]
    server.pods = [a_pod("u1")]
    with watch(server, timeout=30.0) as one:
        fails(one, words)
        assert not one.health.success
        wait_until(lambda: len(server.listed()) >= 2, "another try")


@pytest.mark.parametrize(
    "bad", [b"not json\n", b'{"type":"ADDED"}\n', b'{"type":"X","object":{}}\n', b"[" * 100_000 + b"\n"]
)
def test_a_line_that_is_no_event_leads_to_a_new_list(server: ApiServer, bad: bytes) -> None:
    server.watches.append(chunks(bad))
    server.pods = [a_pod("u1")]
    with watch(server):
        wait_until(lambda: len(server.listed()) >= 2, "a second list")


def test_a_line_cut_in_the_middle_is_told_again_by_the_next_watch(server: ApiServer) -> None:
    whole = line(event("ADDED", a_pod("u2", version="300")))
    server.watches += [chunks(line(bookmark("200")), whole[:40], ends=False), chunks(whole), hang]
    with watch(server) as one:
        knows(one, "u2")
        # It is known before the next watch is asked for.
        wait_until(lambda: len(server.watched()) >= 3, "a third watch")
    assert [asked.query["resourceVersion"] for asked in server.watched()[:3]] == ["100", "200", "300"]
    assert len(server.listed()) == 1


def test_a_long_line_in_small_pieces_is_one_event(server: ApiServer) -> None:
    big = line(event("ADDED", a_pod("big", annotations={"x": "y" * 3_000_000})))
    pieces = [big[at : at + 50_000] for at in range(0, len(big), 50_000)]
    server.watches += [chunks(*pieces), hang]
    with watch(server) as one:
        knows(one, "big")


def test_several_events_in_one_piece_and_split_characters_are_all_read(server: ApiServer) -> None:
    both = line(event("ADDED", a_pod("u1"))) + line(event("ADDED", a_pod("u2", "größe")))
    both = both.replace(b"\\u00f6", "ö".encode())
    at = both.index("ö".encode()) + 1
    server.watches += [chunks(both[:at], both[at:]), hang]
    with watch(server) as one:
        knows(one, "u1", "u2")
        assert one.value.named("ml", "größe")


@pytest.mark.parametrize("hanging", [hang, silence])
def test_a_server_that_falls_silent_is_told(server: ApiServer, hanging: Any) -> None:
    server.watches += [hanging]
    with watch(server, grace=-0.9) as one:
        assert "said nothing for" in fails(one, "said nothing")


def test_a_watch_that_always_breaks_off_at_once_is_told(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.watches += [chunks(ends=False)] * 3 + [silence]
    with watch(server) as one:
        fails(one, "broke off")
        wait_until(lambda: len(server.watched()) == 4, "the fourth watch")
    assert [record.levelname for record in caplog.records if "broke off" in record.message] == ["WARNING"]


def test_a_cause_is_logged_once_and_its_end_too(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server.lists += [status(500, "ill")] * 3
    with watch(server) as one:
        wait_until(lambda: one.health.success, "a success")
        server.events.put(bookmark("5"))
        wait_until(
            lambda: any("can be read again" in record.message for record in caplog.records),
            "the end to be told",
        )
    told = [record.message for record in caplog.records]
    assert [("ill" in text, "can be read again" in text) for text in told] == [(True, False), (False, True)]


def test_the_pause_doubles_and_is_spread(server: ApiServer) -> None:
    one = PodWatch(ApiClient(server.access), "n", clock=FakeClock(), random=Random(1))
    pauses = [one._fail("x") for _ in range(12)]
    for number, pause in enumerate(pauses):
        longest = min(2.0**number, 60.0)
        assert longest / 2 <= pause <= longest
    assert len(set(pauses)) == len(pauses)


def test_a_server_that_asks_to_be_left_alone_is(server: ApiServer) -> None:
    server.lists.append(status(429, "slow down", Retry_After="30"))
    one = PodWatch(ApiClient(server.access), "n", clock=FakeClock(), random=NoWait())
    assert one._turn() == 30.0


def test_beyond_2000_pods_the_rest_has_no_names_and_the_log_says_so(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watching, "MOST_PODS", 3)
    server.pods = [a_pod(f"u{number}", f"p{number}") for number in range(6)]
    with watch(server) as one:
        knows(one, "u0", "u1", "u2")
    assert [record.message for record in caplog.records if "over 3 pods" in record.message] != []


def test_a_pod_without_a_uid_is_lost_alone(server: ApiServer) -> None:
    # What no server should send.
    server.pods = [{"metadata": {"name": "x"}}, {}, None, a_pod("u1")]  # type: ignore[list-item]
    with watch(server) as one:
        knows(one, "u1")


@pytest.mark.parametrize("where", ["lists", "watches"])
@pytest.mark.parametrize("hanging", [hang, silence])
def test_stop_ends_a_connection_that_hangs(server: ApiServer, where: str, hanging: Any) -> None:
    getattr(server, where).append(hanging)
    one = PodWatch(ApiClient(server.access), "n", clock=FakeClock(), random=NoWait())
    one.start()
    wait_until(server.watched if where == "watches" else server.listed, "the request")
    one.stop(patience=10.0)
    assert not one._thread.is_alive()


def test_stop_ends_the_wait_for_the_first_list(server: ApiServer) -> None:
    one = PodWatch(ApiClient(server.access), "n", clock=FakeClock(), random=Random(1), jitter=3600.0)
    one.start()
    one.stop(patience=10.0)
    assert not one._thread.is_alive()
    assert server.asked == []


def test_before_anything_is_known_it_is_no_success(server: ApiServer) -> None:
    one = PodWatch(ApiClient(server.access), "n", clock=FakeClock())
    one.nudge()
    assert (len(one.value), one.health.success, one.health.last_success) == (0, False, None)


def test_a_server_that_is_not_there_is_told_with_the_remedy() -> None:
    with serving() as gone:
        access = gone.access
    one = PodWatch(ApiClient(access), "n", clock=FakeClock(), random=NoWait())
    one._turn()
    assert "cannot be reached (Connection refused)" in one.health.error
    assert "--kubernetes-api" in one.health.error
