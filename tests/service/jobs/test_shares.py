"""Whose job is next: priorities, weights, newcomers; by simulation, no clock runs."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from service.handlers.problems import Refusal
from service.jobs.queue import Jobs
from service.jobs.records import Bounds, Lease, NewJob, State
from service.jobs.shares import Line, Share, lines_in_order
from service.jobs.store import Clock, Store
from service.tenants.groups import Group, Priority, Quotas, Tenants
from tests.service.clocks import Clocks
from tests.service.conftest import STORES

DAY_S = 86_400.0
SLOT_S = 300.0
stores = pytest.mark.parametrize("database", STORES, indirect=True)


def order(lines: list[Line], shares: dict[str, Share], clocks: dict[tuple[str, int], float]):
    return [(line.tenant, line.priority) for line in lines_in_order(lines, shares, clocks)]


def test_priorities_come_before_clocks_and_clocks_before_names():
    lines = [Line("a", 2), Line("b", 1), Line("c", 1), Line("d", 1)]
    clocks = {("b", 1): 9.0, ("c", 1): 8.0, ("d", 1): 8.0}
    assert order(lines, {}, clocks) == [("c", 1), ("d", 1), ("b", 1), ("a", 2)]


def test_what_runs_counts_before_it_is_charged_by_weight():
    shares = {"a": Share(weight=4.0), "b": Share()}
    lines = [Line("a", 1, n_running=3), Line("b", 1, n_running=1)]
    assert order(lines, shares, {})[0] == ("a", 1)
    lines = [Line("a", 1, n_running=5), Line("b", 1, n_running=1)]
    assert order(lines, shares, {})[0] == ("b", 1)


def test_groups_at_their_quota_are_passed_over():
    full, almost = Share(most_running=2, n_running=2), Share(most_running=2, n_running=1)
    lines = [Line("a", 0), Line("b", 1), Line("c", 2)]
    assert order(lines, {"a": full, "b": almost}, {}) == [("b", 1), ("c", 2)]


@dataclass
class Simulation:
    """Workers of one service, whose jobs take the CPU seconds that they say; nothing is slept."""

    jobs: Jobs
    clocks: Clocks
    n_workers: int = 1
    running: list[tuple[float, Lease]] = field(default_factory=list)
    done_s: Counter[str] = field(default_factory=Counter)
    order: list[str] = field(default_factory=list)
    n: int = 0

    def submit(self, tenant: str, cpu_s: float, priority: int = 1, owner: str = "") -> str:
        self.n += 1
        body = f"{cpu_s}".encode()
        new = NewJob(
            owner or f"of-{tenant}", "solve", f"{self.n:064d}", body, 0.0, tenant, priority
        )
        return self.jobs.submit(new).job_id

    def run(self, seconds: float) -> None:
        """Let the workers work for a time; charges come with heartbeats every 5 s and at ends."""
        end_s = self.clocks.monotonic_s + seconds
        while self.clocks.monotonic_s < end_s:
            while len(self.running) < self.n_workers and (lease := self.jobs.lease()):
                self.running.append((self.clocks.monotonic_s, lease))
                self.order.append(lease.tenant)
            if not self.running:
                return
            ends = [begun + float(lease.body) for begun, lease in self.running]
            step_s = min(5.0, max(0.0, min(ends) - self.clocks.monotonic_s))
            self.clocks.pass_(step_s)
            now_s = self.clocks.monotonic_s
            spent = {lease: now_s - begun for begun, lease in self.running}
            self.jobs.beat({lease: [] for lease in spent}, spent)
            for begun, lease in list(self.running):
                if begun + float(lease.body) <= now_s + 1e-9:
                    assert self.jobs.finish(lease, lease.body, cpu_s=now_s - begun)
                    self.done_s[lease.tenant] += now_s - begun
                    self.running.remove((begun, lease))
            self.jobs.store.tick()


@pytest.fixture
def simulated(open_store: Callable[..., Store]) -> Callable[..., Simulation]:
    def simulate(*groups: Group, n_workers: int = 1) -> Simulation:
        clocks = Clocks()
        store = open_store(clock=Clock(clocks.monotonic, clocks.wall))
        bounds = Bounds(queued=10_000, queued_per_owner=10_000, retention_s=DAY_S)
        jobs = Jobs(store, bounds, "a", clocks.monotonic, Tenants(groups, groups[0].name))
        return Simulation(jobs, clocks, n_workers)

    return simulate


@stores
def test_groups_share_by_weight_whatever_their_jobs_take(simulated):
    heavy, light = Group("heavy", weight=3.0), Group("light")
    sim = simulated(heavy, light)
    for _ in range(6):
        sim.submit("light", 20.0)
    for _ in range(20):
        sim.submit("heavy", 10.0)
    sim.run(240.0)
    ratio = sim.done_s["heavy"] / sim.done_s["light"]
    assert 2.0 <= ratio <= 4.0


@stores
def test_several_workers_are_shared_from_the_first_lease_on(simulated):
    sim = simulated(Group("a"), Group("b"), n_workers=4)
    for _ in range(8):
        sim.submit("a", 3_600.0)
    for _ in range(8):
        sim.submit("b", 3_600.0)
    sim.run(10.0)
    assert Counter(sim.order) == {"a": 2, "b": 2}


@stores
def test_a_call_of_a_scheduler_comes_before_the_sweeps_of_a_capacity_team(simulated):
    sim = simulated(Group("capacity"), Group("scheduler"))
    for _ in range(5):
        sim.submit("capacity", 10.0, Priority.BACKGROUND)
    sim.run(10.0)
    sim.submit("capacity", 10.0, Priority.NORMAL)
    sim.submit("scheduler", 10.0, Priority.URGENT)
    sim.run(30.0)
    assert sim.order == ["capacity", "scheduler", "capacity", "capacity"]


@pytest.mark.slow
@stores
def test_who_had_much_while_others_were_away_is_not_kept_waiting_for_it(simulated):
    sim = simulated(Group("early"), Group("late"))
    for _ in range(40):
        sim.submit("early", 10.0)
    sim.run(200.0)
    for _ in range(20):
        sim.submit("late", 10.0)
    before = sim.done_s["early"]
    sim.run(100.0)
    assert abs((sim.done_s["early"] - before) - sim.done_s["late"]) <= 20.0


@pytest.mark.slow
@stores
def test_nobody_starves_inside_one_priority(simulated):
    groups = [Group("small", weight=0.5), *(Group(f"large{n}", weight=10.0) for n in range(3))]
    sim = simulated(*groups)
    for group in groups:
        for _ in range(15):
            sim.submit(group.name, 10.0 if group.weight > 1.0 else 1.0)
    sim.run(300.0)
    assert sim.order.index("small") < 4
    assert sim.order.count("small") >= 2


@stores
def test_owners_take_turns_inside_their_group(simulated):
    sim = simulated(Group("a"))
    for owner in ["ann"] * 4 + ["bob"] * 2:
        sim.submit("a", 1.0, owner=owner)
    owners = []
    while lease := sim.jobs.lease():
        owners.append(sim.jobs.get(lease.job_id, None).owner)
    assert owners == ["ann", "bob", "ann", "bob", "ann", "ann"]


@pytest.mark.slow
@stores
def test_the_same_history_gives_the_same_order(simulated):
    orders = []
    for offset in ("", "x"):
        sim = simulated(Group(f"a{offset}", 2.0), Group(f"b{offset}"), Group(f"c{offset}", 0.5))
        sim.n = 1_000 * len(orders)  # other requests: known ones are answered from the store
        for n in range(18):
            sim.submit(f"{'abc'[n % 3]}{offset}", 3.0 + n % 7, n % 2 + 1)
        sim.run(300.0)
        orders.append([name[0] for name in sim.order])
    assert len(orders[0]) == 18
    assert orders[0] == orders[1]


# Quotas


def refused(work: Callable[[], Any]) -> dict[str, Any]:
    with pytest.raises(Refusal) as caught:
        work()
    assert (caught.value.status, caught.value.code) == (429, "quota-exceeded")
    found = caught.value.to_json()["quota"]
    assert found["group"] == "a"
    return found


@stores
def test_jobs_beyond_those_that_may_run_wait_and_others_go_on(simulated):
    sim = simulated(Group("a", quotas=Quotas(running_jobs=1)), Group("b"), n_workers=3)
    for tenant in "aaab":
        sim.submit(tenant, 100.0)
    sim.run(50.0)
    assert sorted(sim.order) == ["a", "b"]
    sim.run(60.0)
    assert sorted(sim.order) == ["a", "a", "b"]


@stores
def test_queued_jobs_are_bounded_by_group(simulated):
    sim = simulated(Group("a", quotas=Quotas(queued_jobs=2)), Group("b"))
    for owner in ("ann", "bob"):
        sim.submit("a", 1.0, owner=owner)
    found = refused(lambda: sim.submit("a", 1.0, owner="eve"))
    assert (found["quota"], found["used"], found["limit"]) == ("queued_jobs", 2, 2)
    assert found["frees_in_s"] is None
    sim.submit("b", 1.0)
    assert sim.jobs.lease() is not None
    sim.submit("a", 1.0)


@stores
def test_cpu_seconds_are_bounded_within_a_window_and_free_when_it_has_passed(simulated):
    sim = simulated(Group("a", quotas=Quotas(cpu_s=100.0, window_s=3_600.0)), Group("b"))
    for _ in range(3):
        sim.submit("a", 60.0)
    sim.submit("b", 1.0)
    sim.run(400.0)
    assert Counter(sim.order) == {"a": 2, "b": 1}  # the third of a waits for the window
    found = refused(lambda: sim.submit("a", 1.0))
    assert (found["quota"], found["window_s"], found["limit"]) == ("cpu_s", 3_600.0, 100.0)
    assert found["used"] == pytest.approx(120.0)
    frees_in_s = found["frees_in_s"]
    assert 3_000.0 < frees_in_s <= 3_600.0 + SLOT_S
    for more_s, may in ((frees_in_s - 1.0, False), (2.0, True)):
        sim.clocks.pass_(more_s)
        sim.jobs.store.tick()
        assert (sim.jobs.lease() is not None) is may
    sim.submit("a", 1.0)


@stores
def test_results_are_bounded_in_number_and_bytes_until_they_expire(simulated):
    sim = simulated(Group("a", quotas=Quotas(stored_results=2, stored_bytes=10**6)), Group("b"))
    for _ in range(2):
        sim.submit("a", 10.0)
    sim.run(30.0)
    found = refused(lambda: sim.submit("a", 1.0))
    assert (found["quota"], found["used"], found["limit"]) == ("stored_results", 2, 2)
    assert 0 < found["frees_in_s"] <= DAY_S
    sim.clocks.pass_(found["frees_in_s"] + 1.0)
    sim.jobs.clean_up()
    sim.submit("a", 1.0)
    sim.jobs.tenants.replace([Group("a", quotas=Quotas(stored_bytes=4))], "a")
    sim.run(10.0)
    uses = {use.quota: use for use in sim.jobs.uses(sim.jobs.tenants.group("a"))}
    stored = uses["stored_bytes"]
    if stored.is_used_up:
        assert refused(lambda: sim.submit("a", 1.0))["quota"] == "stored_bytes"
    assert stored.used > 0


@stores
def test_a_repeated_charge_and_a_lost_lease_count_once(simulated):
    sim = simulated(Group("a"))
    sim.submit("a", 100.0)
    lease = sim.jobs.lease()
    assert lease is not None

    def used_s() -> float:
        return next(
            x.used for x in sim.jobs.uses(sim.jobs.tenants.group("a")) if x.quota == "cpu_s"
        )

    for _ in range(2):
        sim.jobs.beat({lease: []}, {lease: 7.0})
    assert used_s() == pytest.approx(7.0)
    sim.jobs.give_back(lease, 9.0)
    assert used_s() == pytest.approx(9.0)
    second = sim.jobs.lease()
    assert second is not None
    assert second.charged_s == pytest.approx(9.0)
    assert sim.jobs.beat({lease: []}, {lease: 50.0}) == set()  # it is not held any more
    assert sim.jobs.finish(second, b"1", cpu_s=2.0)
    assert used_s() == pytest.approx(11.0)
    assert sim.jobs.get(second.job_id, None).state is State.SUCCEEDED
