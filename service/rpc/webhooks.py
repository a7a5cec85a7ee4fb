"""The methods of planner.v1.Planner on webhooks."""

from collections.abc import Mapping

from service.engine import Engine
from service.feeds.webhooks import WebhookDesk
from service.proto.planner.v1 import planner_pb2 as pb
from service.rpc.convert import message_of
from service.rpc.gate import GrpcExchange, Unary
from service.rpc.messages import message_bytes, page_limit, read_message


class WebhookMethods:
    """The methods, over an engine."""

    def __init__(self, engine: Engine) -> None:
        self._desk = WebhookDesk(engine)
        self.methods: Mapping[str, Unary] = {
            "CreateWebhook": self._create,
            "ListWebhooks": self._list,
            "GetWebhook": self._get,
            "DeleteWebhook": self._delete,
            "TestWebhook": self._test,
            "ListDeliveries": self._deliveries,
        }

    async def _create(self, request: bytes, exchange: GrpcExchange) -> bytes:
        assert exchange.caller is not None
        message = read_message(exchange.method, request)
        asked = {"url": message.url, "secret": message.secret, "labels": message.labels}
        made = await self._desk.register(
            {**asked, "states": list(message.states)}, exchange.caller
        )
        return message_bytes(message_of(made, pb.Webhook))

    async def _list(self, request: bytes, exchange: GrpcExchange) -> bytes:
        assert exchange.caller is not None
        message = read_message(exchange.method, request)
        page, cursor = await self._desk.page(
            exchange.caller, message.cursor, page_limit(message.limit, 50)
        )
        found = [message_of(each.to_json(), pb.Webhook) for each in page]
        return message_bytes(pb.ListWebhooksResponse(webhooks=found, next_cursor=cursor))

    async def _get(self, request: bytes, exchange: GrpcExchange) -> bytes:
        assert exchange.caller is not None
        message = read_message(exchange.method, request)
        found = await self._desk.get(message.webhook_id, exchange.caller)
        return message_bytes(message_of(found.to_json(), pb.Webhook))

    async def _delete(self, request: bytes, exchange: GrpcExchange) -> bytes:
        assert exchange.caller is not None
        message = read_message(exchange.method, request)
        await self._desk.remove(message.webhook_id, exchange.caller)
        return message_bytes(pb.DeleteWebhookResponse())

    async def _test(self, request: bytes, exchange: GrpcExchange) -> bytes:
        assert exchange.caller is not None
        message = read_message(exchange.method, request)
        delivery = await self._desk.try_out(message.webhook_id, exchange.caller)
        return message_bytes(message_of(delivery.to_json(), pb.WebhookDelivery))

    async def _deliveries(self, request: bytes, exchange: GrpcExchange) -> bytes:
        assert exchange.caller is not None
        message = read_message(exchange.method, request)
        page, cursor = await self._desk.log(
            message.webhook_id, exchange.caller, message.cursor, page_limit(message.limit, 50)
        )
        found = [message_of(each.to_json(), pb.WebhookDelivery) for each in page]
        return message_bytes(pb.ListDeliveriesResponse(deliveries=found, next_cursor=cursor))
