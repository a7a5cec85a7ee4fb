"""What groups of callers have used, in the store, and whose job is next.

Every function works within a transaction of its caller. Time is the store's clock.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    Table,
    delete,
    func,
    select,
    update,
)

from service.jobs.records import OPEN, State
from service.jobs.shares import Line, Share, lines_in_order
from service.jobs.store import elapsed_s, insert_once, jobs, results, shares, usage
from service.tenants.groups import Group, Tenants
from service.tenants.quotas import QuotaUse, quota_exceeded

SLOT_S = 300.0
"""Seconds whose CPU time is one row; a window of a quota moves on by so much."""
LONGEST_WINDOW_S = 31 * 86_400.0
CLOCK = ""
"""In place of a group: the clock of a priority, where those who join it begin."""


# Shares


def join_line(connection: Connection, tenant: str, priority: int) -> None:
    """Let a group that has nothing to do in a priority begin at the time that the priority has.

    To be called before its job is inserted.
    """
    own = (jobs.c.tenant == tenant, jobs.c.priority == priority, jobs.c.state.in_(OPEN))
    if connection.execute(select(jobs.c.seq).where(*own).limit(1)).first() is not None:
        return
    now_s = _clocks(connection, [CLOCK], priority).get((CLOCK, priority), 0.0)
    _advance(connection, tenant, priority, now_s)


def _advance(connection: Connection, tenant: str, priority: int, to_s: float) -> None:
    """Move a clock on to a time; one that is past it stays."""
    row = {"tenant": tenant, "priority": priority, "virtual_s": to_s}
    if insert_once(connection, shares, row):
        return
    own = (shares.c.tenant == tenant, shares.c.priority == priority)
    connection.execute(
        update(shares).where(*own, shares.c.virtual_s < to_s).values(virtual_s=to_s)
    )


def _clocks(
    connection: Connection, tenants: Sequence[str], priority: int | None = None
) -> dict[tuple[str, int], float]:
    wanted = select(shares).where(shares.c.tenant.in_(tenants))
    if priority is not None:
        wanted = wanted.where(shares.c.priority == priority)
    rows = connection.execute(wanted).all()
    return {(row.tenant, row.priority): row.virtual_s for row in rows}


def next_job(
    connection: Connection, wanted: Sequence[ColumnElement[bool]], tenants: Tenants
) -> int | None:
    """Return the number of the job whose turn it is, locked; None where none may be leased.

    `wanted` are the conditions of the jobs among which it is.
    """
    lines, known = _lines(connection, wanted, tenants)
    clocks = _clocks(connection, [CLOCK, *sorted(known)]) if lines else {}
    for line in lines_in_order(lines, known, clocks):
        most_running = known[line.tenant].most_running
        if _is_spent(connection, tenants.group(line.tenant)) or (
            most_running is not None and not _has_place(connection, line.tenant, most_running)
        ):
            continue
        first = (
            select(jobs.c.seq)
            .where(*wanted, jobs.c.tenant == line.tenant, jobs.c.priority == line.priority)
            .order_by(jobs.c.turn, jobs.c.seq)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        seq: int | None = connection.execute(first).scalar_one_or_none()
        if seq is None:
            continue  # another process has just leased the last one
        clock_s = clocks.get((line.tenant, line.priority), 0.0)
        if clock_s > clocks.get((CLOCK, line.priority), 0.0):
            _advance(connection, CLOCK, line.priority, clock_s)
        return seq
    return None


def first_priority(
    connection: Connection, wanted: Sequence[ColumnElement[bool]], tenants: Tenants
) -> int | None:
    """Return the priority of the job whose turn it is; None where none may be leased."""
    lines, known = _lines(connection, wanted, tenants)
    for line in lines_in_order(lines, known, {}):
        if not _is_spent(connection, tenants.group(line.tenant)):
            return line.priority
    return None


def _lines(
    connection: Connection, wanted: Sequence[ColumnElement[bool]], tenants: Tenants
) -> tuple[list[Line], dict[str, Share]]:
    """Return the lines of jobs that wait, and what the choice knows of their groups."""
    waiting = connection.execute(
        select(jobs.c.tenant, jobs.c.priority).where(*wanted).distinct()
    ).all()
    if not waiting:
        return [], {}
    n_running = _n_running(connection)
    lines = [Line(x.tenant, x.priority, n_running.get((x.tenant, x.priority), 0)) for x in waiting]
    running: Counter[str] = Counter()
    for (name, _), n in n_running.items():
        running[name] += n
    groups = {line.tenant: tenants.group(line.tenant) for line in lines}
    known = {
        name: Share(group.weight, group.quotas.running_jobs, running[name])
        for name, group in groups.items()
    }
    return lines, known


def _n_running(connection: Connection) -> dict[tuple[str, int], int]:
    rows = connection.execute(
        select(jobs.c.tenant, jobs.c.priority, func.count().label("n"))
        .where(jobs.c.state == State.RUNNING.value)
        .group_by(jobs.c.tenant, jobs.c.priority)
    ).all()
    return {(row.tenant, row.priority): row.n for row in rows}


def _is_spent(connection: Connection, group: Group) -> bool:
    """Tell whether the CPU seconds of a group are used up for now."""
    quotas = group.quotas
    if quotas.cpu_s is None:
        return False
    now_s = elapsed_s(connection)
    return cpu_used_s(connection, group.name, quotas.window_s, now_s) >= quotas.cpu_s


def _has_place(connection: Connection, tenant: str, most: int) -> bool:
    """Tell whether another job of a group may run, with its clocks locked.

    Two processes that lease at the same moment would else both take the last place.
    """
    own = select(shares.c.priority).where(shares.c.tenant == tenant)
    connection.execute(own.order_by(shares.c.priority).with_for_update()).all()
    running = select(func.count()).where(
        jobs.c.tenant == tenant, jobs.c.state == State.RUNNING.value
    )
    n: int = connection.execute(running).scalar_one()
    return n < most


# CPU seconds


def charge(connection: Connection, tenant: str, cpu_s: float) -> None:
    """Add CPU seconds to what a group has used; fewer than 0 take back what was too much."""
    if not cpu_s:
        return
    slot = int(elapsed_s(connection) // SLOT_S)
    _add(connection, usage.c.cpu_s, {"tenant": tenant, "slot": slot}, cpu_s)


def charge_share(
    connection: Connection, tenant: str, priority: int, cpu_s: float, weight: float
) -> None:
    """Move the clock of a group on by CPU seconds of its jobs, by its weight."""
    own = {"tenant": tenant, "priority": priority}
    _add(connection, shares.c.virtual_s, own, cpu_s / weight)


def _add(
    connection: Connection, column: Column[float], own: Mapping[str, Any], amount: float
) -> None:
    """Add to a column of the row with a key; one that is not there is inserted."""
    table = column.table
    assert isinstance(table, Table)
    added = (
        update(table)
        .where(*(table.c[name] == value for name, value in own.items()))
        .values({column.name: column + amount})
    )
    if connection.execute(added).rowcount:
        return
    if not insert_once(connection, table, {**own, column.name: amount}):
        connection.execute(added)  # another process was faster


def charge_jobs(connection: Connection, totals_s: Mapping[str, float], tenants: Tenants) -> None:
    """Charge jobs with the CPU seconds that they have had in all; again changes nothing."""
    if not totals_s:
        return
    charged = select(jobs.c.job_id, jobs.c.tenant, jobs.c.priority, jobs.c.charged_s)
    rows = connection.execute(
        charged.where(jobs.c.job_id.in_(sorted(totals_s))).order_by(jobs.c.job_id)
    ).all()
    added: dict[tuple[str, int], float] = {}
    for row in rows:
        total_s = totals_s[row.job_id]
        where = (row.tenant, row.priority)
        added[where] = added.get(where, 0.0) + total_s - row.charged_s
        own = jobs.c.job_id == row.job_id
        connection.execute(update(jobs).where(own).values(charged_s=total_s))
    for tenant, priority in sorted(added):  # in one order everywhere: no deadlocks
        cpu_s = added[tenant, priority]
        if cpu_s:
            charge(connection, tenant, cpu_s)
            charge_share(connection, tenant, priority, cpu_s, tenants.group(tenant).weight)


def _slots(tenant: str, window_s: float, now_s: float) -> Select[Any]:
    """Return what selects the rows of a window, the oldest first."""
    first = int((now_s - window_s) // SLOT_S)
    own = (usage.c.tenant == tenant, usage.c.slot >= first)
    return select(usage.c.slot, usage.c.cpu_s).where(*own).order_by(usage.c.slot)


def cpu_used_s(connection: Connection, tenant: str, window_s: float, now_s: float) -> float:
    """Return the CPU seconds of a group within a window that ends now."""
    slots = _slots(tenant, window_s, now_s).subquery()
    total: float | None = connection.execute(select(func.sum(slots.c.cpu_s))).scalar_one()
    return max(0.0, total or 0.0)


def cpu_use(connection: Connection, group: Group) -> QuotaUse:
    """Return the CPU seconds of a group, and when fewer than its limit will be in the window."""
    quotas, now_s, frees_in_s = group.quotas, elapsed_s(connection), None
    rows = connection.execute(_slots(group.name, quotas.window_s, now_s)).all()
    used_s = max(0.0, sum(row.cpu_s for row in rows))
    if quotas.cpu_s is not None and used_s >= quotas.cpu_s:
        left_s = used_s
        for row in rows:
            left_s -= row.cpu_s
            frees_in_s = (row.slot + 1) * SLOT_S + quotas.window_s - now_s
            if left_s < quotas.cpu_s:
                break
    return QuotaUse("cpu_s", used_s, quotas.cpu_s, frees_in_s)


def forget_usage(connection: Connection, now_s: float) -> None:
    """Remove what no window reaches any more."""
    oldest = int((now_s - LONGEST_WINDOW_S) // SLOT_S)
    connection.execute(delete(usage).where(usage.c.slot < oldest))


# Quotas


def _count(connection: Connection, tenant: str, state: State) -> int:
    own = (jobs.c.tenant == tenant, jobs.c.state == state.value)
    n: int = connection.execute(select(func.count()).where(*own)).scalar_one()
    return n


def _stored(connection: Connection, group: Group, now_s: float) -> tuple[QuotaUse, QuotaUse]:
    """Return the results of a group's jobs and their bytes; equal ones count for every job."""
    own = (jobs.c.tenant == group.name, jobs.c.state == State.SUCCEEDED.value)
    size = func.coalesce(results.c.n_bytes, func.length(results.c.payload))
    joined = jobs.join(results, jobs.c.sha256 == results.c.sha256)
    n, n_bytes = connection.execute(
        select(func.count(), func.coalesce(func.sum(size), 0)).select_from(joined).where(*own)
    ).one()
    quotas = group.quotas
    uses = (
        QuotaUse("stored_results", n, quotas.stored_results),
        QuotaUse("stored_bytes", int(n_bytes), quotas.stored_bytes),
    )
    if not any(use.is_used_up for use in uses):
        return uses
    rows = connection.execute(
        select(jobs.c.expires_s, size.label("n_bytes"))
        .select_from(joined)
        .where(*own)
        .order_by(jobs.c.expires_s)
    ).all()
    expiries_s = [row.expires_s for row in rows]
    return (
        _freed(uses[0], [1 for _ in rows], expiries_s, now_s),
        _freed(uses[1], [row.n_bytes for row in rows], expiries_s, now_s),
    )


def _freed(
    use: QuotaUse, sizes: Sequence[int], expiries_s: Sequence[float], now_s: float
) -> QuotaUse:
    """Return a use with the time until enough has expired."""
    if not use.is_used_up or use.limit is None:
        return use
    left, frees_in_s = use.used, None
    for size, expires_s in zip(sizes, expiries_s, strict=True):
        left -= size
        frees_in_s = max(0.0, expires_s - now_s)
        if left < use.limit:
            break
    return QuotaUse(use.quota, use.used, use.limit, frees_in_s)


def uses_of(connection: Connection, group: Group) -> tuple[QuotaUse, ...]:
    """Return all quotas of a group with what of them is used."""
    now_s, quotas, name = elapsed_s(connection), group.quotas, group.name
    return (
        QuotaUse("running_jobs", _count(connection, name, State.RUNNING), quotas.running_jobs),
        QuotaUse("queued_jobs", _count(connection, name, State.PENDING), quotas.queued_jobs),
        cpu_use(connection, group),
        *_stored(connection, group, now_s),
    )


def check_quotas(connection: Connection, group: Group, waits: bool) -> None:
    """Raise `Refusal` 429 where a group may submit no job; `waits` tells whether it would wait."""
    quotas, uses = group.quotas, list[QuotaUse]()
    if waits and quotas.queued_jobs is not None:
        n = _count(connection, group.name, State.PENDING)
        uses.append(QuotaUse("queued_jobs", n, quotas.queued_jobs))
    if waits and quotas.cpu_s is not None:
        uses.append(cpu_use(connection, group))
    if quotas.stored_results is not None or quotas.stored_bytes is not None:
        uses += _stored(connection, group, elapsed_s(connection))
    for use in uses:
        if use.is_used_up:
            window_s = quotas.window_s if use.quota == "cpu_s" else None
            raise quota_exceeded(group.name, use, window_s)
