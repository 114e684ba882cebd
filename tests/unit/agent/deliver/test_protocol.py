"""The version of remote write: 2.0 for a receiver that understands it, else 1.0, without a lost sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from write_helpers import (
    Post,
    ScriptedReceiver,
    block,
    emptied,
    everything,
    feed,
    in_order,
    only_state,
    receiving,
    run,
    sending,
    settings,
    until,
)

WRITTEN = "X-Prometheus-Remote-Write-Samples-Written"


class ModernReceiver(ScriptedReceiver):
    """Understands 2.0; `refused` are the samples that it refuses."""

    def __init__(self, *refused: tuple[int, int]) -> None:
        super().__init__(self.answer)
        self.refused = set(refused)
        self.kept: set[tuple[int, int]] = set()

    def answer(self, post: Post) -> str:
        good = [sample for sample in post.samples if sample not in self.refused]
        self.kept.update(good)
        status = "204 No Content" if len(good) == len(post.samples) else "400 Bad Request"
        return status if post.version == "1.0" else f"{status}\n{WRITTEN}: {len(good)}"


def versions(there: ScriptedReceiver) -> list[str]:
    return [post.version for post in there.posts]


def test_a_receiver_that_counts_written_samples_gets_2_0(tmp_path: Path) -> None:
    async def test() -> None:
        there = ModernReceiver()
        async with receiving(there), sending(tmp_path, settings(there.url, protocol="auto")) as here:
            feed(here, 3, range(20))
            await emptied(here)
            state = only_state(here)
            assert (state.protocol, state.sent_samples, state.requests["2xx"]) == (
                "2.0",
                60,
                len(there.posts),
            )
        assert set(versions(there)) == {"2.0"}
        assert sorted(there.received) == everything(3, 20)
        assert in_order(there.received)

    run(test)


@pytest.mark.parametrize(
    "answer",
    [
        "415 Unsupported Media Type",
        # A receiver of 1.0 that reads no headers finds an empty request.
        "204 No Content",
        "200 OK",
        "400 Bad Request",
        "404 Not Found",
        "405 Method Not Allowed",
        "406 Not Acceptable",
        "422 Unprocessable Entity",
        "500 Internal Server Error",
        "501 Not Implemented",
    ],
)
def test_a_receiver_without_2_0_gets_1_0_from_then_on(tmp_path: Path, answer: str) -> None:
    async def test() -> None:
        stored: list[tuple[int, int]] = []

        def script(post: Post) -> str:
            if post.version == "2.0":
                return answer
            stored.extend(post.samples)
            return "204 No Content"

        there = ScriptedReceiver(script)
        async with receiving(there), sending(tmp_path, settings(there.url, protocol="auto")) as here:
            feed(here, 2, range(20))
            await emptied(here)
            state = only_state(here)
            assert (state.protocol, state.sent_samples, sum(state.dropped.values())) == ("1.0", 40, 0)
            assert not (state.failing or state.refusing)
        assert sorted(stored) == everything(2, 20)
        assert in_order(stored)
        assert versions(there).count("2.0") == 1

    run(test)


@pytest.mark.parametrize("answer", ["503 Service Unavailable", "429 Too Many Requests", "502 Bad Gateway"])
def test_an_overloaded_receiver_is_not_taken_for_an_old_one(tmp_path: Path, answer: str) -> None:
    async def test() -> None:
        there = ModernReceiver()
        there.script = lambda post: answer if len(there.posts) < 3 else there.answer(post)
        async with receiving(there), sending(tmp_path, settings(there.url, protocol="auto")) as here:
            feed(here, 1, range(5))
            await emptied(here)
        assert set(versions(there)) == {"2.0"}

    run(test)


def test_a_request_that_both_versions_refuse_says_nothing_about_the_version(tmp_path: Path) -> None:
    async def test() -> None:
        there = ModernReceiver()
        there.script = lambda post: "404 Not Found" if len(there.posts) < 3 else there.answer(post)
        async with receiving(there), sending(tmp_path, settings(there.url, protocol="auto")) as here:
            here.accept(block(1, 0))
            await emptied(here)
            state = only_state(here)
            assert (state.protocol, state.refusing, state.dropped["rejected"]) == ("", True, 1)
            here.accept(block(1, 1))
            await emptied(here)
            assert only_state(here).protocol == "2.0"
        assert versions(there) == ["2.0", "1.0", "2.0"]

    run(test)


def test_a_receiver_that_is_downgraded_gets_1_0(tmp_path: Path) -> None:
    async def test() -> None:
        there = ModernReceiver()
        async with receiving(there), sending(tmp_path, settings(there.url, protocol="auto")) as here:
            here.accept(block(1, 0))
            await emptied(here)
            there.script = lambda post: "204 No Content"
            here.accept(block(1, 1))
            await emptied(here)
            assert only_state(here).protocol == "1.0"
        assert versions(there) == ["2.0", "2.0", "1.0"]

    run(test)


def test_changed_settings_try_2_0_again(tmp_path: Path) -> None:
    async def test() -> None:
        there = ModernReceiver()
        there.script = lambda post: "204 No Content"
        one = settings(there.url, protocol="auto")
        async with receiving(there):
            one = replace(one, url=there.url)
            async with sending(tmp_path, one) as here:
                here.accept(block(1, 0))
                await emptied(here)
                there.script = there.answer
                await here.apply([replace(one, remote_timeout=7.0)])
                here.accept(block(1, 1))
                await emptied(here)
        assert versions(there) == ["2.0", "1.0", "2.0"]

    run(test)


@pytest.mark.parametrize("answer", ["415 Unsupported Media Type", "204 No Content"])
def test_with_protocol_2_0_samples_wait_for_a_receiver_that_understands_it(
    tmp_path: Path, answer: str
) -> None:
    async def test() -> None:
        there = ModernReceiver()
        there.script = lambda post: answer if len(there.posts) < 4 else there.answer(post)
        async with receiving(there), sending(tmp_path, settings(there.url, protocol="2.0")) as here:
            here.accept(block(1, 0))
            await until(lambda: only_state(here).failing, "the first response")
            assert only_state(here).last_error == (
                f"the receiver returned HTTP status {answer[:3]}; it does not understand remote write 2.0, "
                "set protocol: auto"
            )
            await emptied(here)
            assert sum(only_state(here).dropped.values()) == 0
        assert set(versions(there)) == {"2.0"}
        assert there.kept == {(1, 0)}

    run(test)


def test_samples_that_a_2xx_response_does_not_count_are_lost(tmp_path: Path) -> None:
    async def test() -> None:
        there = ScriptedReceiver(lambda post: f"204 No Content\n{WRITTEN}: {len(post.samples) - 3}")
        async with receiving(there), sending(tmp_path, settings(there.url, protocol="auto")) as here:
            here.accept(block(1, 0, samples=10))
            await emptied(here)
            state = only_state(here)
            assert (state.sent_samples, state.dropped["rejected"], state.queued_samples) == (7, 3, 0)
            assert state.last_error == "the receiver wrote only 7 of 10 samples of a request"

    run(test)


@pytest.mark.parametrize("written", ["", "many", "-1", "1e3", "\u0663", "9" * 400])
def test_a_count_that_is_no_number_is_not_used(tmp_path: Path, written: str) -> None:
    async def test() -> None:
        text = written.encode().decode("latin-1")
        there = ScriptedReceiver(lambda post: f"204 No Content\n{WRITTEN}: {text}")
        async with receiving(there), sending(tmp_path, settings(there.url, protocol="auto")) as here:
            here.accept(block(1, 0, samples=10))
            await emptied(here)
            state = only_state(here)
            assert (state.sent_samples, sum(state.dropped.values())) == (10, 0)

    run(test)


def test_with_2_0_only_the_refused_samples_are_lost(tmp_path: Path) -> None:
    async def test() -> None:
        there = ModernReceiver((1, 7), (2, 3))
        async with receiving(there), sending(tmp_path, settings(there.url, protocol="auto")) as here:
            feed(here, 3, range(20))
            await emptied(here)
            state = only_state(here)
            assert (state.sent_samples, state.dropped["rejected"], state.refusing) == (58, 2, False)
        assert there.kept == set(everything(3, 20)) - there.refused
        assert set(versions(there)) == {"2.0"}

    run(test)


def test_many_refused_samples_in_front_do_not_cost_those_that_a_2_0_receiver_wrote(tmp_path: Path) -> None:
    async def test() -> None:
        there = ModernReceiver(*((1, number) for number in range(12)))
        async with receiving(there), sending(tmp_path, settings(there.url, protocol="auto")) as here:
            for number in range(40):
                here.accept(block(1, number))
            await emptied(here)
            state = only_state(here)
            assert (state.sent_samples, state.dropped["rejected"]) == (28, 12)

    run(test)


def test_without_a_setting_receivers_get_1_0(tmp_path: Path) -> None:
    async def test() -> None:
        there = ModernReceiver()
        async with receiving(there), sending(tmp_path, settings(there.url)) as here:
            feed(here, 1, range(3))
            await emptied(here)
            assert only_state(here).protocol == "1.0"
        assert set(versions(there)) == {"1.0"}

    run(test)
