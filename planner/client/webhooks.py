"""What receivers of webhooks check: that a request is of the service, and not an old one.

    from planner.client.webhooks import verified

    event = verified(secret, request.headers, request.body)     # ValueError: answer 400
    if event["type"] == "job.succeeded":
        ...

The headers are those of Standard Webhooks, whose libraries check them as well. A request may come
more than once: remember `webhook-id`, and drop what has come before.
"""

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

PREFIX, VERSION = "whsec_", "v1"
TOLERANCE_S = 300.0
"""How far the clocks of both machines may differ, and how old a request may be."""


def verified(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance_s: float = TOLERANCE_S,
    now_s: float | None = None,
) -> dict[str, Any]:
    """Return the event in a request: `{"type", "timestamp", "data"}`, the job in `data`.

    `headers` are those of the request, in whatever case; `body` are its very bytes. Raises
    `ValueError` where the request is not signed with the secret, or is older than `tolerance_s`.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, moment = given["webhook-id"], given["webhook-timestamp"]
        signatures = given["webhook-signature"].split()
        sent_s = int(moment)
    except (KeyError, ValueError):
        raise ValueError("the request has no headers of a webhook") from None
    now_s = time.time() if now_s is None else now_s
    if abs(now_s - sent_s) > tolerance_s:
        raise ValueError(f"the request is {now_s - sent_s:.0f} s old")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the secret is whsec_ and base64") from None
    digest = hmac.new(key, f"{message_id}.{moment}.".encode() + body, hashlib.sha256).digest()
    expected = f"{VERSION},{base64.b64encode(digest).decode()}".encode()
    # While a secret is changed there are several signatures.
    if not any(hmac.compare_digest(expected, each.encode()) for each in signatures):
        raise ValueError("the signature is not that of the secret")
    event: dict[str, Any] = json.loads(body)
    return event
