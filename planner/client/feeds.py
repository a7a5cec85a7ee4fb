"""What a client follows: its jobs, and webhooks. Methods of `planner.client.Client`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from planner.client.requests import Data
from planner.client.transport import LOST, Transport, json_bytes, pause, reply_object


class JobFeeds:
    """Lists and watches jobs, and registers webhooks."""

    _transport: Transport

    def jobs(
        self,
        state: str = "",
        *,
        labels: str = "",
        call: str = "",
        created_after: float | str = "",
        created_before: float | str = "",
        page: int = 100,
    ) -> Iterator[Data]:
        """Yield one's own jobs, the newest first; all of them for an admin.

        `labels` selects as Kubernetes does: `team=vision,stage!=old`, `a in (b,c)`, `!a`. Times
        are seconds since 1970, or `2025-11-29T08:00:00Z`.
        """
        wanted = {"state": state, "labels": labels, "call": call}
        wanted |= {"created_after": str(created_after), "created_before": str(created_before)}
        for answer in self._pages("/v1/jobs", wanted, page):
            yield from answer["jobs"]

    def list_jobs(self, **wanted: str) -> tuple[list[Data], int]:
        """Return all jobs that `jobs` yields, and the version to watch them from."""
        listed: list[Data] = []
        version = 0
        for answer in self._pages("/v1/jobs", wanted, 1_000):
            listed += answer["jobs"]
            version = version or int(answer["resource_version"])
        return listed, version

    def _pages(self, path: str, wanted: Mapping[str, str], page: int) -> Iterator[Data]:
        query = {name: value for name, value in wanted.items() if value}
        cursor = ""
        while True:
            more = {"cursor": cursor} if cursor else {}
            sent = urlencode({"limit": page, **query, **more})
            answer = reply_object(self._transport.send("GET", f"{path}?{sent}").payload)
            yield answer
            cursor = answer["next_cursor"]
            if not cursor:
                return

    def watch_jobs(
        self, version: int = 0, *, labels: str = "", call: str = "", state: str = ""
    ) -> Iterator[Data]:
        """Yield what changes in one's own jobs, as long as it is asked for.

        `{"type", "resource_version", "job"}`: ADDED, MODIFIED, DELETED, or BOOKMARK without a
        job. They begin after `version`, which `list_jobs` gives; without it now. With `state` only
        those after which a job is in it. A lost connection is taken up where it was. Raises
        `ServiceError` with the code `history-trimmed` where the changes after `version` are
        forgotten: list the jobs again.
        """
        query = {"labels": labels, "call": call, "state": state}
        tried, told = 0, version
        while True:
            wanted = urlencode({name: value for name, value in query.items() if value})
            path = f"/v1/jobs:watch?{wanted}" if wanted else "/v1/jobs:watch"
            try:
                for event in self._transport.events(path, told):
                    told, tried = int(event.pop("n")), 0
                    yield event
                raise ConnectionError("the changes ended")
            except LOST as error:
                tried += 1
                if tried > self._transport.retries:
                    raise self._transport.unreachable(error) from None
                pause(tried)

    # ---- webhooks

    def create_webhook(
        self, url: str, *, secret: str = "", states: Sequence[str] = (), labels: str = ""
    ) -> Data:
        """Register an address that is told of jobs; return the webhook with its secret.

        `planner.client.webhooks.verified` checks what a receiver is sent. Where the connection is
        lost it is not tried again, since it would be registered twice.
        """
        asked = {"url": url, "secret": secret, "states": list(states), "labels": labels}
        return reply_object(self._transport.send_new("/v1/webhooks", json_bytes(asked)).payload)

    def webhooks(self, *, page: int = 100) -> Iterator[Data]:
        """Yield one's own webhooks, the oldest first; all of them for an admin."""
        for answer in self._pages("/v1/webhooks", {}, page):
            yield from answer["webhooks"]

    def webhook(self, webhook_id: str) -> Data:
        """Return a webhook."""
        return reply_object(self._transport.send("GET", _path(webhook_id)).payload)

    def delete_webhook(self, webhook_id: str) -> None:
        """Delete a webhook; what was still to be sent is not sent."""
        self._transport.send("DELETE", _path(webhook_id))

    def test_webhook(self, webhook_id: str) -> Data:
        """Let a webhook be sent a test, and return its delivery."""
        return reply_object(self._transport.send("POST", f"{_path(webhook_id)}:test").payload)

    def deliveries(self, webhook_id: str, *, page: int = 100) -> Iterator[Data]:
        """Yield what was sent to a webhook and what waits, the newest first."""
        for answer in self._pages(f"{_path(webhook_id)}/deliveries", {}, page):
            yield from answer["deliveries"]


def job_tags(labels: Mapping[str, str], webhook: Mapping[str, Any] | None) -> Data:
    """Return what a submission says of a job besides its work."""
    found: Data = {"labels": dict(labels)} if labels else {}
    return found | ({"webhook": dict(webhook)} if webhook else {})


def _path(webhook_id: str) -> str:
    return f"/v1/webhooks/{quote(webhook_id, safe='')}"
