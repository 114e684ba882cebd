"""Checking passwords: the number of bcrypt checks, and what timing and memory do not reveal."""

from __future__ import annotations

import asyncio
import re
from threading import Event, Thread

import bcrypt
import pytest

from gpuledger.http.web_config.passwords import CheckerBusy, PasswordChecker
from running import PATIENCE
from unit.http.support import until
from unit.http.web_config.support import CountingCheck, hash_of

USERS = {"alice": hash_of("secret", 10), "bob": hash_of("other", 12)}


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


async def answer(passwords, name, password, users=USERS):
    given = passwords.check_password(users, name, password)
    return given if isinstance(given, bool) else await given


@pytest.mark.parametrize(
    ("name", "password", "correct"),
    [
        ("alice", b"secret", True),
        ("bob", b"other", True),
        ("alice", b"other", False),
        ("alice", b"", False),
        ("carol", b"secret", False),
        ("", b"", False),
    ],
)
def test_passwords_are_checked_with_one_check_each(name, password, correct):
    check = CountingCheck()

    async def scenario():
        return await answer(PasswordChecker(check), name, password)

    assert run(scenario) is correct
    assert len(check.calls) == 1


def test_unknown_users_take_as_many_checks_as_known_ones():
    known, unknown = CountingCheck(), CountingCheck()

    async def scenario():
        for check, name in ((known, "alice"), (unknown, "mallory")):
            passwords = PasswordChecker(check)
            for number in range(20):
                assert not await answer(passwords, name, b"%d" % number, {"alice": USERS["alice"]})

    run(scenario)
    assert len(known.calls) == len(unknown.calls) == 20
    assert known.costs == unknown.costs


def test_an_unknown_user_has_the_stable_bcrypt_cost_of_some_user():
    check = CountingCheck()

    async def scenario():
        passwords = PasswordChecker(check)
        for number in range(64):
            for password in (b"a", b"b"):
                await answer(passwords, f"nobody-{number}", password)

    run(scenario)
    pairs = list(zip(check.costs[::2], check.costs[1::2], strict=True))
    assert {first for first, _ in pairs} == {"10", "12"}
    assert all(first == second for first, second in pairs)


def test_a_dummy_hash_is_well_formed_and_never_matches():
    def anything(password, stored):
        assert re.fullmatch(rb"\$2b\$1[02]\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}", stored)
        return True

    async def scenario():
        return await answer(PasswordChecker(anything), "nobody", b"x")

    assert run(scenario) is False


def test_results_are_cached_for_correct_and_wrong_passwords():
    check = CountingCheck()

    async def scenario():
        passwords = PasswordChecker(check)
        return [
            await answer(passwords, "alice", password)
            for password in (b"secret", b"wrong", b"secret", b"wrong")
        ]

    assert run(scenario) == [True, False, True, False]
    assert len(check.calls) == 2


def test_a_changed_hash_is_checked_again():
    check = CountingCheck()

    async def scenario():
        passwords = PasswordChecker(check)
        before = await answer(passwords, "alice", b"secret")
        return before, await answer(passwords, "alice", b"secret", {"alice": hash_of("new")})

    assert run(scenario) == (True, False)


def test_wrong_guesses_do_not_evict_correct_results_and_the_cache_is_bounded():
    check = CountingCheck()

    async def scenario():
        passwords = PasswordChecker(check, remembered=4)
        await answer(passwords, "alice", b"secret")
        for number in range(10):
            await answer(passwords, "alice", b"%d" % number)
        before = len(check.calls)
        assert await answer(passwords, "alice", b"secret")
        assert len(check.calls) == before
        await answer(passwords, "alice", b"9")
        assert len(check.calls) == before
        await answer(passwords, "alice", b"0")
        assert len(check.calls) == before + 1

    run(scenario)


def test_the_cache_contains_no_passwords():
    async def scenario():
        passwords = PasswordChecker(CountingCheck())
        assert await answer(passwords, "alice", b"opensesame", {"alice": hash_of("opensesame")})
        return repr(vars(passwords))

    contents = run(scenario)
    assert "opensesame" not in contents
    assert "alice" not in contents


def test_concurrent_identical_passwords_take_one_check():
    check = CountingCheck()

    async def scenario():
        passwords = PasswordChecker(check)
        return await asyncio.gather(*(answer(passwords, "alice", b"secret") for _ in range(50)))

    assert run(scenario) == [True] * 50
    assert len(check.calls) == 1


def test_too_many_concurrent_checks_are_rejected_but_cached_results_are_not():
    go_on = Event()
    check = CountingCheck()

    def slow(password, stored):
        if password != b"secret":
            go_on.wait(PATIENCE)
        return check(password, stored)

    async def scenario():
        passwords = PasswordChecker(slow, threads=2, waiting=3)
        assert await answer(passwords, "alice", b"secret")
        waiting = [passwords.check_password(USERS, "alice", b"%d" % number) for number in range(3)]
        with pytest.raises(CheckerBusy):
            passwords.check_password(USERS, "alice", b"one more")
        assert passwords.check_password(USERS, "alice", b"secret") is True
        go_on.set()
        await until(lambda: all(future.done() for future in waiting))
        return await answer(passwords, "alice", b"one more")

    assert run(scenario) is False


def test_a_check_that_raises_is_a_wrong_password_and_checking_continues(caplog):
    def broken(password, stored):
        if password == b"\0":
            raise ValueError("no zero bytes")
        if password == b"boom":
            raise RuntimeError("a bug")
        return True

    async def scenario():
        passwords = PasswordChecker(broken, threads=1)
        return [await answer(passwords, "alice", password) for password in (b"\0", b"boom", b"secret")]

    assert run(scenario) == [False, False, True]
    assert caplog.messages == ["bcrypt failed"]


@pytest.mark.parametrize("started", [(False, True, True), (True, False)])
def test_threads_that_cannot_start_fail_one_request_and_no_later_one(started, monkeypatch):
    """Without memory for a thread, as under RLIMIT_AS. One thread of two is enough."""
    results, start = list(started), Thread.start

    def start_or_raise(thread):
        if not results.pop(0):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(Thread, "start", start_or_raise)

    async def scenario():
        passwords = PasswordChecker(CountingCheck(), threads=2)
        with pytest.raises(RuntimeError, match="new thread"):
            await answer(passwords, "alice", b"secret")
        return await answer(passwords, "alice", b"secret")

    assert run(scenario) is True


def test_hashes_of_htpasswd_and_others_work_with_bcrypt():
    long = b"x" * 100
    users = {
        prefix.decode(): bcrypt.hashpw(long[:72], bcrypt.gensalt(4, prefix=b"2b")).replace(b"2b", prefix, 1)
        for prefix in (b"2a", b"2b", b"2y")
    }

    async def scenario():
        passwords = PasswordChecker()
        correct = [await answer(passwords, name, long, users) for name in users]
        wrong = [await answer(passwords, name, b"x" * 71, users) for name in (*users, "nobody")]
        return correct, wrong

    assert run(scenario) == ([True] * 3, [False] * 4)
