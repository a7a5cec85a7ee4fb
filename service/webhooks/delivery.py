"""What sends the deliveries of a process: claims those that are due, sends, keeps how it went."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from service.handlers.problems import Refusal
from service.jobs.store import Store
from service.jobs.webhooks import DELIVERED, PER_OWNER, WAITING, Delivery, Webhooks
from service.jobs.work import InStore
from service.webhooks.sender import Sender

log = logging.getLogger("planner.service")

SENDERS = 16
"""Deliveries that a process sends at the same time."""
LOOK_S = 1.0
"""How often the store is asked for deliveries that are due."""


class DeliveryWork:
    """The loop that sends deliveries, of one process of the service."""

    def __init__(
        self,
        store: Store,
        webhooks: Webhooks,
        sender: Sender,
        in_store: InStore,
        look_s: float = LOOK_S,
    ) -> None:
        """Prepare; `start` begins the work."""
        self._store, self._webhooks, self._sender = store, webhooks, sender
        self._in_store, self._look_s = in_store, look_s
        self._news = asyncio.Event()
        self._open: dict[asyncio.Task[None], Delivery] = {}
        self._loop: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(SENDERS, thread_name_prefix="webhook")
        self.counted: Counter[str] = Counter()
        """Attempts by outcome: `delivered`, `retried`, `failed`."""

    def start(self) -> None:
        """Begin to send, where webhooks may lead anywhere."""
        if self._sender.destinations.hosts:
            self._loop = asyncio.create_task(self._work())

    def look(self) -> None:
        """Look for deliveries that are due, at once."""
        self._news.set()

    async def close(self, within_s: float) -> None:
        """Claim nothing more; what is on its way has `within_s` to end, else others send it."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        if self._open:
            await asyncio.wait(self._open, timeout=within_s)
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        while True:
            self._news.clear()
            try:
                if await self._claimed():
                    continue
            except Refusal as problem:
                log.warning("webhooks wait: %s", problem.detail)
            except Exception:
                log.exception("a defect in the webhooks")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await self._news.wait()

    async def _claimed(self) -> bool:
        """Begin to send what is due; tell whether there was something."""
        n_free = SENDERS - len(self._open)
        if n_free <= 0 or not await self._in_store(self._is_due):
            return False
        await self._in_store(self._store.tick)
        busy = {each.webhook_id for each in self._open.values()}
        claimed = await self._in_store(self._webhooks.claim, n_free, busy, self._places())
        for delivery in claimed:
            task = asyncio.create_task(self._sent(delivery))
            self._open[task] = delivery
            task.add_done_callback(self._ended)
        return bool(claimed)

    def _is_due(self) -> bool:
        """Tell whether something is due, by the time of day since the clock was moved last.

        The clock itself is moved, which is a write, only where this is so.
        """
        return self._webhooks.is_due(self._store.reckoned_s())

    def _places(self) -> Mapping[str, int]:
        """Return how many more deliveries of an owner may be on their way."""
        n_open = Counter(each.owner for each in self._open.values())
        return {owner: PER_OWNER - n for owner, n in n_open.items()}

    def _ended(self, task: "asyncio.Task[None]") -> None:
        del self._open[task]
        self._news.set()

    async def _sent(self, delivery: Delivery) -> None:
        begun_s = time.monotonic()
        loop = asyncio.get_running_loop()
        attempt = await loop.run_in_executor(self._threads, self._sender.send, delivery)
        fields = {
            "delivery": delivery.delivery_id,
            "webhook": delivery.webhook_id,
            "attempt": delivery.attempt,
            "status": attempt.status,
            "seconds": round(time.monotonic() - begun_s, 3),
        }
        try:
            state = await self._in_store(
                self._webhooks.settle,
                delivery,
                attempt.status,
                attempt.error,
                may_retry=attempt.may_retry,
            )
        except Refusal as problem:  # its claim ends, and it is sent again
            log.warning("a webhook is not settled: %s", problem.detail, extra={"fields": fields})
            return
        outcome = {DELIVERED: "delivered", WAITING: "retried"}.get(state, "failed")
        self.counted[f"webhooks_{outcome}"] += 1
        log.info("webhook %s", outcome, extra={"fields": fields})
