"""Secrets and signatures of webhooks, as Standard Webhooks has them.

    webhook-id: msg_...              the same at every attempt
    webhook-timestamp: 1700000000    of the attempt, seconds since 1970
    webhook-signature: v1,BASE64     HMAC-SHA256 of ID.TIMESTAMP.BODY under the secret

A secret is `whsec_` and the base64 of 24 to 64 bytes, which are the key.
"""

import base64
import binascii
import hashlib
import hmac
import secrets

from service.handlers.problems import malformed

PREFIX, VERSION = "whsec_", "v1"
LEAST_BYTES, MOST_BYTES, NEW_BYTES = 24, 64, 32


def new_secret() -> str:
    """Return a secret that nobody can guess."""
    return PREFIX + base64.b64encode(secrets.token_bytes(NEW_BYTES)).decode()


def check_secret(text: str, field: str = "secret") -> None:
    """Raise `Refusal` 422 for a text that is no secret; the text is not repeated."""
    try:
        valid = text.startswith(PREFIX) and LEAST_BYTES <= len(key_of(text)) <= MOST_BYTES
    except ValueError:
        valid = False
    if not valid:
        detail = (
            f"{field}: no secret of a webhook: {PREFIX} and the base64 of {LEAST_BYTES} to"
            f" {MOST_BYTES} random bytes"
        )
        raise malformed(field, detail, 422)


def key_of(secret: str) -> bytes:
    """Return the key that a secret stands for; `ValueError` where it is none."""
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("the secret is no base64") from None


def signature_headers(secret: str, message_id: str, time_s: int, body: bytes) -> dict[str, str]:
    """Return the headers that tell a receiver who has sent a body."""
    signed = f"{message_id}.{time_s}.".encode() + body
    digest = hmac.new(key_of(secret), signed, hashlib.sha256).digest()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(time_s),
        "webhook-signature": f"{VERSION},{base64.b64encode(digest).decode()}",
    }
