"""Passwords against bcrypt hashes: what a check costs, and what it never tells."""

from __future__ import annotations

import asyncio
import re
from threading import Event

import bcrypt
import pytest

from gpuledger.http.web_config.passwords import Busy, Passwords
from unit.http.support import until
from unit.http.web_config.support import Check, hash_of

USERS = {"alice": hash_of("secret", 10), "bob": hash_of("other", 12)}


def asking(scenario):
    return asyncio.run(asyncio.wait_for(scenario(), 30))


async def answer(passwords, name, password, users=USERS):
    given = passwords.ask(users, name, password)
    return given if isinstance(given, bool) else await given


@pytest.mark.parametrize(
    ("name", "password", "right"),
    [
        ("alice", b"secret", True),
        ("bob", b"other", True),
        ("alice", b"other", False),
        ("alice", b"", False),
        ("carol", b"secret", False),
        ("", b"", False),
    ],
)
def test_right_passwords_are_right_and_each_question_costs_one_check(name, password, right):
    check = Check()

    async def scenario():
        return await answer(Passwords(check), name, password)

    assert asking(scenario) is right
    assert len(check.asked) == 1


def test_a_name_that_is_not_there_costs_as_many_checks_as_one_that_is():
    known, unknown = Check(), Check()

    async def scenario():
        for check, name in ((known, "alice"), (unknown, "mallory")):
            passwords = Passwords(check)
            for number in range(20):
                assert not await answer(passwords, name, b"%d" % number, {"alice": USERS["alice"]})

    asking(scenario)
    assert len(known.asked) == len(unknown.asked) == 20
    assert known.costs == unknown.costs


def test_a_name_that_is_not_there_is_checked_at_the_cost_of_some_user_and_always_the_same():
    check = Check()

    async def scenario():
        passwords = Passwords(check)
        for number in range(64):
            for password in (b"a", b"b"):
                await answer(passwords, f"nobody-{number}", password)

    asking(scenario)
    pairs = list(zip(check.costs[::2], check.costs[1::2], strict=True))
    assert {first for first, _ in pairs} == {"10", "12"}
    assert all(first == second for first, second in pairs)


def test_a_made_up_hash_is_a_hash_in_form_and_opens_for_nobody():
    def anything(password, stored):
        assert re.fullmatch(rb"\$2b\$1[02]\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}", stored)
        return True

    async def scenario():
        return await answer(Passwords(anything), "nobody", b"x")

    assert asking(scenario) is False


def test_an_answer_is_remembered_right_or_wrong():
    check = Check()

    async def scenario():
        passwords = Passwords(check)
        return [
            await answer(passwords, "alice", password)
            for password in (b"secret", b"wrong", b"secret", b"wrong")
        ]

    assert asking(scenario) == [True, False, True, False]
    assert len(check.asked) == 2


def test_a_changed_hash_is_checked_anew():
    check = Check()

    async def scenario():
        passwords = Passwords(check)
        before = await answer(passwords, "alice", b"secret")
        return before, await answer(passwords, "alice", b"secret", {"alice": hash_of("new")})

    assert asking(scenario) == (True, False)


def test_guessing_does_not_push_out_who_was_right_and_memory_is_bounded():
    check = Check()

    async def scenario():
        passwords = Passwords(check, remembered=4)
        await answer(passwords, "alice", b"secret")
        for number in range(10):
            await answer(passwords, "alice", b"%d" % number)
        before = len(check.asked)
        assert await answer(passwords, "alice", b"secret")
        assert len(check.asked) == before
        await answer(passwords, "alice", b"9")
        assert len(check.asked) == before
        await answer(passwords, "alice", b"0")
        assert len(check.asked) == before + 1

    asking(scenario)


def test_what_is_remembered_tells_no_password():
    async def scenario():
        passwords = Passwords(Check())
        assert await answer(passwords, "alice", b"opensesame", {"alice": hash_of("opensesame")})
        return repr(vars(passwords))

    told = asking(scenario)
    assert "opensesame" not in told
    assert "alice" not in told


def test_the_same_question_at_the_same_time_is_one_check():
    check = Check()

    async def scenario():
        passwords = Passwords(check)
        return await asyncio.gather(*(answer(passwords, "alice", b"secret") for _ in range(50)))

    assert asking(scenario) == [True] * 50
    assert len(check.asked) == 1


def test_too_many_at_a_time_are_refused_and_those_remembered_are_not():
    go_on = Event()
    check = Check()

    def slow(password, stored):
        if password != b"secret":
            go_on.wait(30)
        return check(password, stored)

    async def scenario():
        passwords = Passwords(slow, threads=2, waiting=3)
        assert await answer(passwords, "alice", b"secret")
        waiting = [passwords.ask(USERS, "alice", b"%d" % number) for number in range(3)]
        with pytest.raises(Busy):
            passwords.ask(USERS, "alice", b"one more")
        assert passwords.ask(USERS, "alice", b"secret") is True
        go_on.set()
        await until(lambda: all(future.done() for future in waiting))
        return await answer(passwords, "alice", b"one more")

    assert asking(scenario) is False


def test_a_check_that_fails_is_a_wrong_password_and_the_next_one_is_checked(caplog):
    def broken(password, stored):
        if password == b"\0":
            raise ValueError("no zero bytes")
        if password == b"boom":
            raise RuntimeError("a bug")
        return True

    async def scenario():
        passwords = Passwords(broken, threads=1)
        return [await answer(passwords, "alice", password) for password in (b"\0", b"boom", b"secret")]

    assert asking(scenario) == [False, False, True]
    assert caplog.messages == ["bcrypt failed"]


def test_bcrypt_itself_takes_what_htpasswd_and_others_write():
    long = b"x" * 100
    users = {
        prefix.decode(): bcrypt.hashpw(long[:72], bcrypt.gensalt(4, prefix=b"2b")).replace(b"2b", prefix, 1)
        for prefix in (b"2a", b"2b", b"2y")
    }

    async def scenario():
        passwords = Passwords()
        right = [await answer(passwords, name, long, users) for name in users]
        wrong = [await answer(passwords, name, b"x" * 71, users) for name in (*users, "nobody")]
        return right, wrong

    assert asking(scenario) == ([True] * 3, [False] * 4)
