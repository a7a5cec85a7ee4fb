"""Who is let in and when."""

import asyncio

import pytest

from service.access.admission import ENTRY_BYTES, Cache, Rates, Turns, TurnShare
from service.handlers.problems import Refusal
from tests.service.clocks import Clocks


def test_the_cache_holds_so_many_bytes_and_drops_what_was_not_used():
    cache: Cache[str] = Cache(10 * (ENTRY_BYTES + 1000))
    for n in range(10):
        cache.put(b"%d" % n, str(n), 1000)
    assert cache.get(b"0") == "0"  # used: the next to go is 1
    cache.put(b"a", "a", 1000)
    assert (cache.get(b"1"), cache.get(b"0"), cache.get(b"a"), len(cache)) == (None, "0", "a", 10)
    cache.put(b"b", "b", 10 * 1000)  # larger than a quarter
    assert cache.get(b"b") is None
    assert cache.n_bytes == 10 * (ENTRY_BYTES + 1000)


def test_a_caller_has_a_burst_and_then_a_rate_of_its_own():
    clocks = Clocks()
    rates = Rates(per_s=2.0, burst=3, monotonic=clocks.monotonic)
    for _ in range(3):
        rates.take("ann")
    with pytest.raises(Refusal) as caught:
        rates.take("ann")
    assert (caught.value.status, caught.value.retry_after_s) == (429, 0.5)
    rates.take("bob")
    clocks.pass_(0.5)
    rates.take("ann")
    clocks.pass_(3600.0)
    for _ in range(3):
        rates.take("ann")
    with pytest.raises(Refusal):
        rates.take("ann")


async def _wait_turn(turns: Turns, caller: str, order: list[str]) -> None:
    await turns.take(caller)
    order.append(caller)
    await asyncio.sleep(0)
    turns.give(0.2, caller)


def test_turns_go_round_the_callers():
    async def run() -> list[str]:
        turns, order = Turns(1, 10), []
        await turns.take("first")
        asked = [asyncio.create_task(_wait_turn(turns, name, order)) for name in "aaaabbc"]
        await asyncio.sleep(0)
        turns.give(0.2, "first")
        await asyncio.gather(*asked)
        assert (turns.n_held, turns.n_waiting) == (0, 0)
        return order

    assert asyncio.run(run()) == list("abcabaa")


def test_a_full_line_is_refused_with_the_time_that_it_takes():
    async def run() -> Refusal:
        turns = Turns(2, 3)
        await turns.take("x")
        turns.give(0.5, "x")  # measured: half a second each
        await turns.take("x")
        await turns.take("x")
        asked = [asyncio.create_task(turns.take("a")) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Refusal) as caught:
            await turns.take("b")
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        assert turns.n_waiting == 0
        return caught.value

    problem = asyncio.run(run())
    assert (problem.status, problem.code) == (429, "overloaded")
    assert problem.retry_after_s == pytest.approx(4 * 0.5 / 2)


def test_a_turn_that_came_too_late_goes_to_the_next():
    async def run() -> None:
        turns = Turns(1, 10)
        await turns.take("x")
        leaves, stays = (asyncio.create_task(turns.take(name)) for name in "ab")
        await asyncio.sleep(0)
        turns.give(0.1, "x")
        leaves.cancel()  # its turn was given and not yet seen
        await asyncio.gather(leaves, return_exceptions=True)
        await asyncio.wait_for(stays, 1.0)
        assert turns.n_held == 1

    asyncio.run(run())


def test_a_spare_slot_is_for_callers_who_hold_none():
    async def run() -> None:
        turns = Turns(2, 10, n_spare=1)
        await turns.take("busy")
        await turns.take("busy")
        more = asyncio.create_task(turns.take("busy"))
        await asyncio.sleep(0)
        await asyncio.wait_for(turns.take("other"), 1.0)
        last = asyncio.create_task(turns.take("third"))
        await asyncio.sleep(0)
        assert (turns.n_held, turns.n_waiting) == (3, 2)
        turns.give(0.1, "other")  # not to the one who has waited longest, who holds two
        await asyncio.wait_for(last, 1.0)
        assert not more.done()
        turns.give(0.1, "busy")
        turns.give(0.1, "third")
        await asyncio.wait_for(more, 1.0)
        turns.give(0.1, "busy")
        turns.give(0.1, "busy")
        assert (turns.n_held, turns.n_waiting) == (0, 0)

    asyncio.run(run())


# Groups


async def _waiting(turns: Turns, caller: str, share: TurnShare, order: list[str]) -> None:
    await turns.take(caller, share)
    order.append(caller)


def _in_order(names: list[tuple[str, TurnShare]], held_s: float = 1.0) -> list[str]:
    """Return in which order callers get the one slot that there is, each holding it for a time."""

    async def running() -> list[str]:
        turns, order = Turns(1, 100), []
        await turns.take("first")
        shares = dict(names)
        tasks = [asyncio.create_task(_waiting(turns, n, s, order)) for n, s in names]
        await asyncio.sleep(0)
        turns.give(held_s, "first")
        for n in range(len(names)):
            while len(order) <= n:
                await asyncio.sleep(0)
            turns.give(held_s, order[n], shares[order[n]])
        await asyncio.gather(*tasks)
        return order

    return asyncio.run(running())


def test_the_more_urgent_gets_the_next_slot():
    names = [
        ("c", TurnShare("c", 1.0, 2)),
        ("b", TurnShare("b", 1.0, 1)),
        ("a", TurnShare("a", 1.0, 0)),
    ]
    assert _in_order(names) == ["a", "b", "c"]


def test_groups_share_slots_by_weight_and_none_starves():
    heavy, light = TurnShare("heavy", 3.0), TurnShare("light", 1.0)
    names = [(f"l{n}", light) for n in range(4)] + [(f"h{n}", heavy) for n in range(12)]
    order = _in_order(names)
    for begin in range(0, 16, 4):
        assert sum(name.startswith("l") for name in order[begin : begin + 4]) == 1


def test_a_full_queue_refuses_the_least_urgent_first():
    async def running() -> tuple[list[str], list[str]]:
        turns, order = Turns(1, 2), []
        await turns.take("first")
        background, urgent = TurnShare("b", 1.0, 2), TurnShare("u", 1.0, 0)
        tasks = [
            asyncio.create_task(_waiting(turns, f"b{n}", background, order)) for n in range(2)
        ]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(_waiting(turns, "u", urgent, order)))
        await asyncio.sleep(0)
        with pytest.raises(Refusal):
            await turns.take("b2", background)
        turns.give(1.0, "first")
        await asyncio.sleep(0)
        turns.give(1.0, "u", urgent)
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert turns.n_waiting == 0
        return order, [type(each).__name__ for each in found]

    assert asyncio.run(running()) == (["u", "b0"], ["NoneType", "Refusal", "NoneType"])
