"""Webhooks of callers: registered, tried, looked at and removed."""

from collections.abc import Mapping
from typing import Any

from service.access.caller import Caller, not_allowed
from service.engine import Engine
from service.jobs.queue import cursor_number
from service.jobs.webhooks import DeliveryView, WebhookView
from service.webhooks.requests import new_webhook


class WebhookDesk:
    """What callers do with their webhooks, over an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._webhooks = engine.jobs.webhooks

    async def register(self, data: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
        """Register a webhook and return it with its secret, which nobody is told again."""
        _check_role(caller)
        new = new_webhook(data, caller.name, self._engine.destinations)
        view = await self._engine.from_store(caller, self._webhooks.register, new)
        return view.to_json() | {"secret": new.secret}

    async def page(
        self, caller: Caller, cursor: str = "", limit: int = 50
    ) -> tuple[list[WebhookView], str]:
        """Return the caller's webhooks, the oldest first, and the cursor of the next page."""
        after = cursor_number(cursor) if cursor else 0
        return await self._engine.from_store(
            caller, self._webhooks.page, caller.sees, after=after, limit=self._most(limit)
        )

    async def get(self, webhook_id: str, caller: Caller) -> WebhookView:
        """Return a webhook; `Refusal` 404."""
        return await self._engine.from_store(caller, self._webhooks.get, webhook_id, caller.sees)

    async def remove(self, webhook_id: str, caller: Caller) -> WebhookView:
        """Remove a webhook, with what was to be sent, and return it."""
        _check_role(caller)
        return await self._engine.from_store(
            caller, self._webhooks.remove, webhook_id, caller.sees
        )

    async def try_out(self, webhook_id: str, caller: Caller) -> DeliveryView:
        """Let a webhook be sent a test; return its delivery, which is looked at later."""
        _check_role(caller)
        found = await self._engine.from_store(caller, self._webhooks.ping, webhook_id, caller.sees)
        self._engine.look_for_deliveries()
        return found

    async def log(
        self, webhook_id: str, caller: Caller, cursor: str = "", limit: int = 50
    ) -> tuple[list[DeliveryView], str]:
        """Return deliveries of a webhook, the newest first, and the cursor of the next page."""
        before = cursor_number(cursor) if cursor else None
        return await self._engine.from_store(
            caller,
            self._webhooks.log,
            webhook_id,
            caller.sees,
            before=before,
            limit=self._most(limit),
        )

    def _most(self, limit: int) -> int:
        return max(1, min(limit, self._engine.options.page_items))


def _check_role(caller: Caller) -> None:
    if not caller.may("solve"):
        raise not_allowed(caller, "solve")
