"""Answers are computed once, kept by bytes, and refused before they pile up."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from equipoise.web.answers import Answers, BusyError, PageAnswer, SlowError


def answer(size=10):
    return PageAnswer(title="t", headline="s", body=b"x" * size)


def run(checks, *, num_workers=2, **limits):
    """Run a coroutine over answers of its own."""
    with ThreadPoolExecutor(num_workers) as workers:

        async def main():
            return await checks(Answers(workers, **limits))

        return asyncio.run(main())


def test_equal_questions_wait_for_one_computation():
    begun, go = [], threading.Event()

    def make():
        begun.append(1)
        assert go.wait(10)
        return answer()

    async def checks(answers):
        found = [asyncio.create_task(answers.find("k", make)) for _ in range(50)]
        await asyncio.sleep(0)
        go.set()
        found = await asyncio.gather(*found)
        assert all(each is found[0] for each in found)
        assert await answers.find("k", make) is found[0]

    run(checks)
    assert begun == [1]


def test_the_oldest_answers_make_room_by_bytes():
    begun = []

    def make():
        begun.append(1)
        return answer(40)

    async def checks(answers):
        for key in "abc":
            await answers.find(key, make)
        await answers.find("a", lambda: pytest.fail("it was kept"))
        await answers.find("d", make)
        assert answers.kept.num_bytes == 120
        await answers.find("a", lambda: pytest.fail("it was used last"))
        await answers.find("b", make)

    run(checks, most_bytes=120)
    assert len(begun) == 5


def test_an_answer_too_large_to_keep_is_given_all_the_same():
    async def checks(answers):
        assert len((await answers.find("k", lambda: answer(200))).body) == 200
        assert answers.kept.num_bytes == 0

    run(checks, most_bytes=120)


def test_a_failure_reaches_all_and_is_computed_again():
    calls = []

    def make():
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("once")
        return answer()

    async def checks(answers):
        with pytest.raises(ValueError, match="once"):
            await answers.find("k", make)
        assert (await answers.find("k", make)).title == "t"

    run(checks)


def test_too_many_different_questions_are_refused_and_slow_ones_let_go():
    go = threading.Event()

    def make():
        assert go.wait(10)
        return answer()

    async def checks(answers):
        first = asyncio.create_task(answers.find("a", make))
        await asyncio.sleep(0)
        with pytest.raises(SlowError):
            await answers.find("a", make, limit_s=0.01)
        with pytest.raises(BusyError):
            await answers.find("b", make)
        go.set()
        assert (await first).title == "t"
        assert (await answers.find("b", make)).title == "t"

    run(checks, most_waiting=1)


def test_who_leaves_does_not_stop_what_others_wait_for():
    go = threading.Event()

    def make():
        assert go.wait(10)
        return answer()

    async def checks(answers):
        leaving = asyncio.create_task(answers.find("k", make))
        staying = asyncio.create_task(answers.find("k", make))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        go.set()
        assert (await staying).title == "t"

    run(checks)


def test_what_nobody_waits_for_any_more_is_not_begun():
    go, begun = threading.Event(), []

    def slow():
        assert go.wait(10)
        return answer()

    def make():
        begun.append(1)
        return answer()

    async def checks(answers):
        first = asyncio.create_task(answers.find("slow", slow))
        await asyncio.sleep(0)
        leaving = asyncio.create_task(answers.find("k", make))
        await asyncio.sleep(0)
        leaving.cancel()
        for _ in range(10):  # until all who hear of it have heard
            await asyncio.sleep(0)
        again = asyncio.create_task(answers.find("other", answer))
        go.set()
        await asyncio.gather(first, again)
        assert begun == []
        assert (await answers.find("k", make)).title == "t"
        assert begun == [1]

    run(checks, num_workers=1, most_waiting=2)  # the place of the one that left is free again
