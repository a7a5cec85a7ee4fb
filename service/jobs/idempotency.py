"""Idempotency keys: a request that is sent again gets the first answer, or the first job."""

from typing import Any

from sqlalchemy import Connection, delete, select, update

from service.handlers.problems import Refusal
from service.jobs.leases import is_abandoned
from service.jobs.records import Bounds, Reply
from service.jobs.store import Store, elapsed_s, has_as_many, insert_once, keep, kept, keys


def key_conflict(key: str) -> Refusal:
    """Return the problem of an idempotency key that came with another body."""
    return Refusal(
        422,
        "key-reused",
        "an idempotency key came with another request",
        f"Idempotency-Key {key[:40]!r} was used for another call or body: take a new key",
    )


def key_in_use(key: str) -> Refusal:
    """Return the problem of an idempotency key whose first request is not answered yet."""
    return Refusal(
        409,
        "key-in-use",
        "the first request with this idempotency key is not answered yet",
        f"Idempotency-Key {key[:40]!r}: ask again later",
        retry_after_s=1.0,
    )


class Keys:
    """Idempotency keys of a store; every method is one transaction."""

    def __init__(self, store: Store, bounds: Bounds) -> None:
        self.store = store
        self.bounds = bounds

    # Of calls that are answered at once

    def claim(self, owner: str, key: str, fingerprint: str, claim: str) -> Reply | None:
        """Take an idempotency key for a call; return the reply where it was answered before.

        `claim` is a `new_claim` of this call. Raises `Refusal`: 422 where the key came with
        another body, 409 while the first request with it is worked on.
        """

        def work(connection: Connection) -> Reply | None:
            own = (keys.c.owner == owner, keys.c.key == key)
            now_s = elapsed_s(connection)
            row = {
                "owner": owner,
                "key": key,
                "fingerprint": fingerprint,
                "claim": claim,
                "expires_s": now_s + self.bounds.claim_s,
            }
            self._check_keys(connection, owner, key)
            if insert_once(connection, keys, row):
                return None
            result = connection.execute(select(keys).where(*own).with_for_update()).one_or_none()
            if result is None:
                raise key_in_use(key)  # deleted between the two statements
            if result.fingerprint != fingerprint:
                raise key_conflict(key)
            payload = kept(connection, result.sha256) if result.sha256 else None
            if payload is not None:
                return Reply(payload, result.etag)
            waits = result.claim != claim and result.sha256 is None and now_s < result.expires_s
            if waits and not is_abandoned(result.claim):
                raise key_in_use(key)
            connection.execute(update(keys).where(*own).values(row | {"sha256": None}))
            return None

        self.store.check_space()
        return self.store.write(work)

    def _check_keys(self, connection: Connection, owner: str, key: str) -> None:
        """Raise `Refusal` 429 for a new key of an owner who has as many as there may be."""
        if not has_as_many(connection, keys, owner, self.bounds.keys_per_owner):
            return
        own = select(keys.c.key).where(keys.c.owner == owner, keys.c.key == key)
        if connection.execute(own).first() is None:
            raise Refusal(
                429,
                "too-many-keys",
                "too many idempotency keys",
                f"{self.bounds.keys_per_owner} keys of yours are remembered: ask without one",
                retry_after_s=600.0,
            )

    def reply(self, owner: str, key: str, claim: str, reply: Reply) -> None:
        """Keep the reply to the call that holds a key."""

        def work(connection: Connection) -> None:
            values = {
                "sha256": keep(connection, reply.payload),
                "etag": reply.etag,
                "expires_s": elapsed_s(connection) + self.bounds.key_s,
            }
            connection.execute(update(keys).where(*_claimed(owner, key, claim)).values(values))

        self.store.write(work)

    def release(self, owner: str, key: str, claim: str) -> None:
        """Free a key whose call was refused: the next request with it is a first one."""
        freed = delete(keys).where(*_claimed(owner, key, claim), keys.c.sha256.is_(None))
        self.store.write(lambda connection: connection.execute(freed) and None)


def _claimed(owner: str, key: str, claim: str) -> tuple[Any, ...]:
    return keys.c.owner == owner, keys.c.key == key, keys.c.claim == claim
