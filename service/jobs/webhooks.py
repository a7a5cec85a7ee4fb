"""Webhooks of callers, and what is to be sent to them: rows in the store.

A delivery is a row from the very transaction that changes its job, with the bytes that are sent
and the id that receivers know it by. Whoever sends it claims it for a while; what was not settled
by then, because its process died, is claimed by another. So every change is sent at least once,
under one id.
"""

import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from service.handlers.problems import Refusal, with_fix
from service.jobs.changes import Change, Kind
from service.jobs.feed_tables import deliveries, webhooks
from service.jobs.labels import read_selector, selects
from service.jobs.records import Bounds, NewWebhook
from service.jobs.store import Store, elapsed_s

WAITING, DELIVERED, FAILED = "WAITING", "DELIVERED", "FAILED"
CLAIM_S = 120.0
"""How long a process may take to send a delivery before another does."""
RETRIES_S = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Time before each further attempt, as Standard Webhooks has it: three days in all."""
PING = "webhook.test"
CLEAN_UP_ROWS = 500
PER_OWNER = 4
"""Deliveries of one owner that a process sends at the same time."""
CANDIDATES = 200
"""Webhooks with something to send that are looked at."""


@dataclass(frozen=True, slots=True)
class WebhookView:
    """A webhook as its owner sees it: without its secret."""

    webhook_id: str
    owner: str
    url: str
    states: tuple[str, ...]
    labels: str
    """Selector of the jobs that it is told of."""
    job_id: str
    """The only job that it is told of; empty for all that the selector selects."""
    created_at: float
    """Time of day, seconds since 1970."""
    n_dropped: int
    """Changes that it is not told of, because too many deliveries waited."""

    def to_json(self) -> dict[str, Any]:
        """Return it as both transports show it."""
        return {
            "webhook_id": self.webhook_id,
            "owner": self.owner,
            "url": self.url,
            "states": list(self.states),
            "labels": self.labels,
            "job_id": self.job_id,
            "created_at": self.created_at,
            "n_dropped": self.n_dropped,
        }


@dataclass(frozen=True, slots=True)
class Delivery:
    """What is to be sent now."""

    delivery_id: str
    """The id by which receivers know it: the same at every attempt."""
    claim: str
    webhook_id: str
    owner: str
    url: str
    secret: str
    body: bytes
    attempt: int
    """From 1."""


@dataclass(frozen=True, slots=True)
class DeliveryView:
    """A delivery as the owner of its webhook sees it."""

    delivery_id: str
    webhook_id: str
    job_id: str
    kind: str
    state: str
    attempts: int
    status: int | None
    """Of the last answer over HTTP."""
    error: str
    """Why the last attempt failed."""
    created_at: float
    """Time of day, seconds since 1970; so is the next."""
    finished_at: float | None

    def to_json(self) -> dict[str, Any]:
        """Return it as both transports show it."""
        return {
            "delivery_id": self.delivery_id,
            "webhook_id": self.webhook_id,
            "job_id": self.job_id,
            "type": self.kind,
            "state": self.state,
            "attempts": self.attempts,
            "status": self.status,
            "error": self.error,
            "created_at": self.created_at,
            "finished_at": self.finished_at,
        }


class Webhooks:
    """Webhooks and deliveries of a store; every method is one transaction or works in one."""

    def __init__(self, store: Store, bounds: Bounds) -> None:
        self._store, self._bounds = store, bounds

    # Registration

    def register(self, new: NewWebhook) -> WebhookView:
        """Register a webhook and return it; `Refusal` 429 where its owner has too many."""
        webhook_id = secrets.token_hex(16)

        def work(connection: Connection) -> WebhookView:
            own = select(webhooks).where(webhooks.c.webhook_id == webhook_id)
            if connection.execute(own).first() is None:
                count = select(func.count()).where(
                    webhooks.c.owner == new.owner, webhooks.c.job_id == ""
                )
                if connection.execute(count).scalar_one() >= self._bounds.webhooks_per_owner:
                    raise Refusal(
                        429,
                        "too-many-webhooks",
                        "too many webhooks",
                        f"{self._bounds.webhooks_per_owner} webhooks of yours are registered, as"
                        " many as one caller may have: delete one",
                        retry_after_s=60.0,
                    )
                self.add(connection, new, "", webhook_id)
            return _webhook(connection.execute(own).one())

        self._store.check_space()
        return self._store.write(work)

    def add(
        self, connection: Connection, new: NewWebhook, job_id: str, webhook_id: str = ""
    ) -> None:
        """Add a webhook; with a `job_id` it is told of this job alone."""
        row = {
            "webhook_id": webhook_id or secrets.token_hex(16),
            "owner": new.owner,
            "job_id": job_id,
            "url": new.url,
            "secret": new.secret,
            "states": ",".join(new.states),
            "selector": new.selector,
            "created_at": self._store.wall(),
        }
        connection.execute(insert(webhooks).values(row))

    def get(self, webhook_id: str, owner: str | None) -> WebhookView:
        """Return a webhook; `Refusal` 404 where it is unknown or another owner's."""
        return self._store.read(lambda connection: self._found(connection, webhook_id, owner))

    def _found(self, connection: Connection, webhook_id: str, owner: str | None) -> WebhookView:
        known = webhook_id.isascii() and webhook_id.isalnum() and len(webhook_id) <= 32
        row = None
        if known:
            own = select(webhooks).where(webhooks.c.webhook_id == webhook_id)
            row = connection.execute(own).one_or_none()
        if row is None or owner not in (None, row.owner):
            problem = Refusal(
                404,
                "unknown-webhook",
                "there is no such webhook",
                f"no webhook {webhook_id[:40]!r} of yours",
            )
            raise with_fix(problem, "GET /v1/webhooks lists yours", "webhook_id")
        return _webhook(row)

    def page(
        self, owner: str | None, *, after: int = 0, limit: int = 50
    ) -> tuple[list[WebhookView], str]:
        """Return webhooks, the oldest first, and the cursor of the next page; empty at the end."""
        listed = select(webhooks).where(webhooks.c.seq > after)
        if owner is not None:
            listed = listed.where(webhooks.c.owner == owner)
        listed = listed.order_by(webhooks.c.seq).limit(limit + 1)
        rows = self._store.read(lambda connection: connection.execute(listed).all())
        cursor = str(rows[limit - 1].seq) if len(rows) > limit else ""
        return [_webhook(row) for row in rows[:limit]], cursor

    def remove(self, webhook_id: str, owner: str | None) -> WebhookView:
        """Remove a webhook with its deliveries, and return it; `Refusal` 404."""

        def work(connection: Connection) -> WebhookView:
            found = self._found(connection, webhook_id, owner)
            _remove(connection, [webhook_id])
            return found

        return self._store.write(work)

    def forget_jobs(self, connection: Connection, job_ids: Sequence[str]) -> None:
        """Remove the webhooks of single jobs that are forgotten."""
        own = select(webhooks.c.webhook_id).where(webhooks.c.job_id.in_(job_ids))
        gone = list(connection.execute(own).scalars())
        if gone:
            _remove(connection, gone)

    # Deliveries

    def put(self, connection: Connection, changes: Sequence[Change]) -> None:
        """Keep what is to be sent of changes, within the transaction that makes them."""
        owners = sorted({change.owner for change in changes})
        of_jobs = ["", *sorted({change.job["job_id"] for change in changes})]
        hooks = connection.execute(
            select(webhooks)
            .where(webhooks.c.owner.in_(owners), webhooks.c.job_id.in_(of_jobs))
            .order_by(webhooks.c.seq)
        ).all()
        if not hooks:
            return
        rows: list[dict[str, Any]] = []
        for change in changes:
            rows += [
                self._delivery(connection, hook, _kind(change), change.job["job_id"], change.job)
                for hook in hooks
                if hook.owner == change.owner and _is_told(hook, change)
            ]
        left = {owner: self._room(connection, owner) for owner in {row["owner"] for row in rows}}
        dropped: dict[str, int] = {}
        kept = []
        for row in rows:
            left[row["owner"]] -= 1
            if left[row["owner"]] >= 0:
                kept.append(row)
            else:
                dropped[row["webhook_id"]] = dropped.get(row["webhook_id"], 0) + 1
        if kept:
            connection.execute(insert(deliveries), kept)
        for webhook_id in sorted(dropped):
            connection.execute(
                update(webhooks)
                .where(webhooks.c.webhook_id == webhook_id)
                .values(n_dropped=webhooks.c.n_dropped + dropped[webhook_id])
            )

    def _room(self, connection: Connection, owner: str) -> int:
        waiting = select(func.count()).where(
            deliveries.c.owner == owner, deliveries.c.state == WAITING
        )
        n: int = connection.execute(waiting).scalar_one()
        return self._bounds.deliveries_per_owner - n

    def _delivery(
        self, connection: Connection, hook: Any, kind: str, job_id: str, data: Any
    ) -> dict[str, Any]:
        """Return the row of a delivery."""
        now = self._store.wall()
        moment = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
        body = {"type": kind, "timestamp": moment.replace("+00:00", "Z"), "data": data}
        return {
            "delivery_id": f"msg_{secrets.token_hex(16)}",
            "webhook_id": hook.webhook_id,
            "owner": hook.owner,
            "job_id": job_id,
            "kind": kind,
            "body": json.dumps(body, separators=(",", ":")).encode(),
            "state": WAITING,
            "attempts": 0,
            "claim": "",
            "due_s": elapsed_s(connection),
            "error": "",
            "created_at": now,
        }

    def ping(self, webhook_id: str, owner: str | None) -> DeliveryView:
        """Let a webhook be told of nothing, so that its receiver can be tried; `Refusal` 404."""

        def work(connection: Connection) -> DeliveryView:
            found = self._found(connection, webhook_id, owner)
            if self._room(connection, found.owner) <= 0:
                raise Refusal(
                    429,
                    "too-many-deliveries",
                    "too many deliveries wait",
                    f"{self._bounds.deliveries_per_owner} deliveries of yours wait",
                    retry_after_s=60.0,
                )
            row = self._delivery(connection, found, PING, "", {"webhook_id": webhook_id})
            connection.execute(insert(deliveries).values(row))
            own = select(deliveries).where(deliveries.c.delivery_id == row["delivery_id"])
            return _shown(connection.execute(own).one())

        return self._store.write(work)

    def log(
        self, webhook_id: str, owner: str | None, *, before: int | None = None, limit: int = 50
    ) -> tuple[list[DeliveryView], str]:
        """Return deliveries of a webhook, the newest first, and the cursor of the next page."""

        def work(connection: Connection) -> list[Any]:
            self._found(connection, webhook_id, owner)
            listed = select(deliveries).where(deliveries.c.webhook_id == webhook_id)
            if before is not None:
                listed = listed.where(deliveries.c.seq < before)
            listed = listed.order_by(deliveries.c.seq.desc()).limit(limit + 1)
            return list(connection.execute(listed).all())

        rows = self._store.read(work)
        cursor = str(rows[limit - 1].seq) if len(rows) > limit else ""
        return [_shown(row) for row in rows[:limit]], cursor

    # Sending

    def is_due(self, now_s: float) -> bool:
        """Tell whether something is to be sent at a time of the store's clock."""
        due = select(deliveries.c.seq).where(
            deliveries.c.state == WAITING, deliveries.c.due_s <= now_s
        )
        first = self._store.read(lambda connection: connection.execute(due.limit(1)).first())
        return first is not None

    def claim(
        self, limit: int, busy: Collection[str] = (), most_of: Mapping[str, int] | None = None
    ) -> list[Delivery]:
        """Return deliveries that are due, claimed for `CLAIM_S`, the oldest of each webhook.

        None of webhooks that are `busy`, and of an owner no more than `most_of` has for it, else
        `PER_OWNER`: a receiver that does not answer holds up nobody else.
        """
        claim = secrets.token_hex(16)
        left = dict(most_of or {})

        def work(connection: Connection) -> list[Delivery]:
            now_s = elapsed_s(connection)
            oldest = func.min(deliveries.c.seq).label("seq")
            due = (
                select(oldest, deliveries.c.owner)
                .where(
                    deliveries.c.state == WAITING,
                    deliveries.c.due_s <= now_s,
                    deliveries.c.webhook_id.not_in(busy),
                    deliveries.c.owner.not_in([name for name, n in left.items() if n <= 0]),
                )
                .group_by(deliveries.c.webhook_id, deliveries.c.owner)
                .order_by(oldest)
                .limit(CANDIDATES)
            )
            places, chosen = dict(left), list[int]()
            for row in connection.execute(due):
                places[row.owner] = places.get(row.owner, PER_OWNER) - 1
                if places[row.owner] >= 0 and len(chosen) < limit:
                    chosen.append(row.seq)
            free = (
                select(deliveries.c.seq)
                .where(deliveries.c.seq.in_(chosen), deliveries.c.due_s <= now_s)
                .order_by(deliveries.c.seq)
                .with_for_update(skip_locked=True)
            )
            taken = list(connection.execute(free).scalars())
            connection.execute(
                update(deliveries)
                .where(deliveries.c.seq.in_(taken))
                .values(claim=claim, due_s=now_s + CLAIM_S, attempts=deliveries.c.attempts + 1)
            )
            both = deliveries.join(webhooks, deliveries.c.webhook_id == webhooks.c.webhook_id)
            rows = connection.execute(
                select(deliveries, webhooks.c.url, webhooks.c.secret)
                .select_from(both)
                .where(deliveries.c.seq.in_(taken))
                .order_by(deliveries.c.seq)
            ).all()
            return [
                Delivery(
                    x.delivery_id,
                    claim,
                    x.webhook_id,
                    x.owner,
                    x.url,
                    x.secret,
                    x.body,
                    x.attempts,
                )
                for x in rows
            ]

        return self._store.write(work)

    def settle(
        self, delivery: Delivery, status: int | None, error: str, *, may_retry: bool = True
    ) -> str:
        """Keep how an attempt went, `error` empty where it arrived; return the state after it.

        Nothing changes where another process has claimed the delivery meanwhile.
        """
        retry = delivery.attempt <= len(RETRIES_S) and may_retry
        state = DELIVERED if not error else WAITING if retry else FAILED

        def work(connection: Connection) -> None:
            now_s = elapsed_s(connection)
            values: dict[str, Any] = {"state": state, "status": status, "error": error[:300]}
            if state == WAITING:
                values |= {"due_s": now_s + RETRIES_S[delivery.attempt - 1], "claim": ""}
            else:
                values |= {"finished_at": self._store.wall()}
                values |= {"expires_s": now_s + self._bounds.retention_s}
            own = (
                deliveries.c.delivery_id == delivery.delivery_id,
                deliveries.c.claim == delivery.claim,
            )
            connection.execute(update(deliveries).where(*own).values(values))

        self._store.write(work)
        return state

    def clean_up(self, now_s: float) -> int:
        """Remove deliveries that were settled long ago; return how many."""
        old = select(deliveries.c.seq).where(deliveries.c.expires_s <= now_s).limit(CLEAN_UP_ROWS)
        gone = delete(deliveries).where(deliveries.c.seq.in_(old.scalar_subquery()))
        some = gone.returning(deliveries.c.seq)
        n = 0
        while forgotten := self._store.write(lambda c: len(c.execute(some).all())):
            n += forgotten
        return n


def _kind(change: Change) -> str:
    return f"job.{str(change.job['state']).lower()}"


def _is_told(hook: Any, change: Change) -> bool:
    return (
        change.kind is not Kind.DELETED
        and change.job["state"] in hook.states.split(",")
        and hook.job_id in ("", change.job["job_id"])
        and selects(read_selector(hook.selector), change.labels)
    )


def _remove(connection: Connection, webhook_ids: Sequence[str]) -> None:
    connection.execute(delete(deliveries).where(deliveries.c.webhook_id.in_(webhook_ids)))
    connection.execute(delete(webhooks).where(webhooks.c.webhook_id.in_(webhook_ids)))


def _webhook(row: Any) -> WebhookView:
    return WebhookView(
        row.webhook_id,
        row.owner,
        row.url,
        tuple(row.states.split(",")),
        row.selector,
        row.job_id,
        row.created_at,
        row.n_dropped,
    )


def _shown(row: Any) -> DeliveryView:
    return DeliveryView(
        row.delivery_id,
        row.webhook_id,
        row.job_id,
        row.kind,
        row.state,
        row.attempts,
        row.status,
        row.error,
        row.created_at,
        row.finished_at,
    )
