"""Whom limits count for one, how often each may ask, and whose answers are cut off for memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger.http.registry import NOBODY, Backlog, Clients, client_of

SAME = [
    ("the ports of one address", ("10.0.0.1", 1), ("10.0.0.1", 2)),
    ("IPv4, alone and carried by IPv6", ("10.0.0.1", 1), ("::ffff:10.0.0.1", 1, 0, 0)),
    ("a network of IPv6", ("2001:db8:1:2::1", 1, 0, 0), ("2001:db8:1:2:ffff:ffff:ffff:ffff", 1, 0, 0)),
    ("a link-local address on two links", ("fe80::1%eth0", 1, 0, 2), ("fe80::1%eth1", 1, 0, 3)),
]
OTHER = [
    ("two addresses", ("10.0.0.1", 1), ("10.0.0.2", 1)),
    ("two networks of IPv6", ("2001:db8:1:2::1", 1, 0, 0), ("2001:db8:1:3::1", 1, 0, 0)),
    ("two neighbours on a link", ("fe80::1%eth0", 1, 0, 2), ("fe80::2%eth0", 1, 0, 2)),
    ("loopback and a mapped one", ("::1", 1, 0, 0), ("127.0.0.1", 1)),
    ("somebody and nobody", ("10.0.0.1", 1), None),
]


@pytest.mark.parametrize(("one", "other"), [case[1:] for case in SAME], ids=[case[0] for case in SAME])
def test_these_two_peers_are_one_client(one, other):
    assert client_of(one) == client_of(other) != NOBODY


@pytest.mark.parametrize(("one", "other"), [case[1:] for case in OTHER], ids=[case[0] for case in OTHER])
def test_these_two_peers_are_two_clients(one, other):
    assert client_of(one) != client_of(other)


@pytest.mark.parametrize("peer", [None, "", "/run/x.sock", (), ("no address", 1), (b"\0", 1)])
def test_a_peer_that_has_no_address_is_nobody(peer):
    assert client_of(peer) == NOBODY


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b"]), st.floats(0, 3)), max_size=200))
@settings(deadline=None, max_examples=50)
def test_a_client_makes_no_more_requests_than_its_rate_and_twice_that_at_once(steps):
    clients, now, taken = Clients(5.0), 0.0, {b"a": 0, b"b": 0}
    for client, passed in steps:
        now += passed
        taken[client] += clients.take(client, now)
    assert all(count <= 10 + 5 * now + 1e-6 for count in taken.values())


def test_the_rate_of_one_is_not_that_of_another_and_comes_back():
    clients = Clients(5.0)
    assert [clients.take(b"a", 0.0) for _ in range(11)] == [True] * 10 + [False]
    assert clients.take(b"b", 0.0)
    assert [clients.take(b"a", 0.2), clients.take(b"a", 0.2)] == [True, False]


def test_who_has_gone_is_remembered_as_long_as_his_rate_is_not_whole():
    clients = Clients(5.0)
    clients.join(b"a", 0.0)
    clients.take(b"a", 0.0)
    clients.tidy(100.0)
    assert len(clients) == 1
    clients.leave(b"a")
    clients.take(b"a", 100.0)
    clients.tidy(100.1)
    assert len(clients) == 1
    clients.tidy(100.3)
    assert len(clients) == 0


def test_clients_that_come_and_go_by_thousands_are_not_all_remembered():
    clients = Clients(5.0)
    clients.join(b"stays", 0.0)
    for number in range(100_000):
        client = b"%d" % number
        clients.join(client, 0.0)
        clients.leave(client)
    assert len(clients) <= 4097
    assert clients.connections(b"stays") == 1


class Taker:
    def __init__(self, client=b"a"):
        self.client = client
        self.cut = False

    def abort(self):
        self.cut = True


def test_a_body_that_many_take_counts_once_and_until_the_last_has_it():
    backlog, page = Backlog(1000), b"x" * 900
    takers = [Taker() for _ in range(50)]
    for taker in takers:
        backlog.hold(taker, page)
    assert backlog.bytes == 900
    for taker in takers[1:]:
        backlog.release(taker)
        backlog.release(taker)
    assert (backlog.bytes, len(backlog)) == (900, 1)
    backlog.release(takers[0])
    assert (backlog.bytes, len(backlog)) == (0, 0)
    assert not any(taker.cut for taker in takers)


def test_beyond_the_memory_the_oldest_answer_of_the_client_that_holds_most_is_cut_off():
    backlog = Backlog(1000)
    modest, *greedy = Taker(b"modest"), Taker(b"greedy"), Taker(b"greedy"), Taker(b"greedy")
    backlog.hold(modest, b"m" * 300)
    for number, taker in enumerate(greedy):
        backlog.hold(taker, b"%d" % number * 300)
    assert [taker.cut for taker in (modest, *greedy)] == [False, True, False, False]
    assert backlog.bytes == 900


def test_an_answer_bigger_than_the_memory_is_not_cut_off_for_itself():
    backlog, alone = Backlog(1000), Taker()
    backlog.hold(alone, b"x" * 5000)
    assert not alone.cut
    backlog.hold(Taker(b"b"), b"y" * 10)
    assert alone.cut


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.booleans()), max_size=60))
@settings(deadline=None, max_examples=100)
def test_what_is_held_is_the_sum_of_the_bodies_that_somebody_takes(steps):
    bodies = [bytes([number]) * 100 * number for number in range(1, 7)]
    takers = [Taker(b"%d" % (number % 3)) for number in range(10)]
    backlog, holds = Backlog(900), {}
    for taker, body, begins in steps:
        if begins:
            holds[taker] = body
            takers[taker].cut = False
            backlog.hold(takers[taker], bodies[body])
        else:
            holds.pop(taker, None)
            backlog.release(takers[taker])
        holds = {one: held for one, held in holds.items() if not takers[one].cut}
        assert backlog.bytes == sum(len(bodies[held]) for held in set(holds.values()))
        assert backlog.bytes <= 900 or len(holds) == 1
