"""The operations of the REST transport on webhooks."""

from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import Response

from service.engine import Engine
from service.feeds.webhooks import WebhookDesk
from service.handlers.limits import check_data, json_body
from service.handlers.problems import refused
from service.rest.responses import (
    NO_STORE,
    exchange_of,
    json_response,
    query_limit,
    request_query,
    webhook_of,
)

MOST_BYTES = 16_000
"""Of the body that registers a webhook: it is read on the event loop."""
Endpoint = Callable[[Request], Awaitable[Response]]


class WebhookEndpoints:
    """The operations, over an engine; `root` is the prefix of addresses in answers."""

    def __init__(self, engine: Engine, root: str) -> None:
        self._desk, self._root = WebhookDesk(engine), root
        self.functions: Mapping[str, Endpoint] = {
            "createWebhook": self._create,
            "listWebhooks": self._list,
            "getWebhook": self._get,
            "deleteWebhook": self._delete,
            "testWebhook": self._test,
            "listDeliveries": self._deliveries,
        }
        """By the ids of the operations."""

    async def _create(self, request: Request) -> Response:
        exchange, caller = exchange_of(request)
        if len(exchange.body) > MOST_BYTES:
            detail = f"the body has {len(exchange.body)} bytes; {MOST_BYTES} at most here"
            raise refused("too-large", detail, 413)
        data = json_body(exchange.body)
        if not isinstance(data, dict):
            raise refused("malformed", "the body is no JSON object", 400)
        check_data(data)
        made = await self._desk.register(data, caller)
        location = f"{self._root}/v1/webhooks/{made['webhook_id']}"
        return json_response(made, 201, {**NO_STORE, "location": location})

    async def _list(self, request: Request) -> Response:
        _, caller = exchange_of(request)
        query = request_query(request)
        page, cursor = await self._desk.page(
            caller, query.get("cursor", ""), query_limit(query, 50)
        )
        content = {"webhooks": [each.to_json() for each in page], "next_cursor": cursor}
        return json_response(content, 200, NO_STORE)

    async def _get(self, request: Request) -> Response:
        return json_response((await self._desk.get(*webhook_of(request))).to_json(), 200, NO_STORE)

    async def _delete(self, request: Request) -> Response:
        await self._desk.remove(*webhook_of(request))
        return Response(None, 204, NO_STORE)

    async def _test(self, request: Request) -> Response:
        delivery = await self._desk.try_out(*webhook_of(request))
        return json_response(delivery.to_json(), 200, NO_STORE)

    async def _deliveries(self, request: Request) -> Response:
        webhook_id, caller = webhook_of(request)
        query = request_query(request)
        page, cursor = await self._desk.log(
            webhook_id, caller, query.get("cursor", ""), query_limit(query, 50)
        )
        content = {"deliveries": [each.to_json() for each in page], "next_cursor": cursor}
        return json_response(content, 200, NO_STORE)
