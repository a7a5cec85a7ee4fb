"""Webhooks as callers ask for them."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from service.handlers.problems import Refusal, malformed
from service.handlers.requests import schema_problem
from service.handlers.schemas import WebhookBody
from service.jobs.labels import checked_labels, read_selector
from service.jobs.records import FINAL, JobTags, NewWebhook, State
from service.webhooks.addresses import Destinations
from service.webhooks.signature import check_secret, new_secret

USUAL_STATES = (State.SUCCEEDED.value, State.FAILED.value, State.CANCELLED.value)
"""States that a webhook is told of where it names none: the ends of jobs."""
assert set(USUAL_STATES) | {State.EXPIRED} == FINAL


def new_webhook(data: Mapping[str, Any], owner: str, destinations: Destinations) -> NewWebhook:
    """Return a webhook that is asked for; `Refusal` for what it may not be."""
    body = _read(data)
    destinations.check(body.url)
    if body.secret:
        check_secret(body.secret)
    read_selector(body.labels, status=422)
    states = tuple(dict.fromkeys(body.states)) or USUAL_STATES
    return NewWebhook(owner, body.url, body.secret or new_secret(), states, body.labels.strip())


def job_tags(data: Mapping[str, Any], owner: str, destinations: Destinations) -> JobTags:
    """Return what a job is given besides its work: of the fields `labels` and `webhook`."""
    labels = checked_labels(data.get("labels", {}))
    asked = data.get("webhook")
    if asked is None:
        return JobTags(labels)
    if not isinstance(asked, Mapping):
        raise malformed("webhook", 'webhook: {"url": "...", "secret": "whsec_..."}', 422)
    try:
        for name, why in (
            (
                "secret",
                "secret: is missing: the webhook of a job needs one of yours, as it is not shown"
                " again: whsec_ and base64 of 24 to 64 random bytes",
            ),
            ("labels", "labels: a webhook of one job selects none"),
        ):
            if bool(asked.get(name)) is (name == "labels"):
                raise malformed(name, why, 422)
        return JobTags(labels, new_webhook(asked, owner, destinations))
    except Refusal as problem:
        raise problem.inside("webhook") from None


def _read(data: Mapping[str, Any]) -> WebhookBody:
    try:
        return WebhookBody.model_validate(data)
    except ValidationError as error:
        raise schema_problem("webhook", WebhookBody, error, data) from None
