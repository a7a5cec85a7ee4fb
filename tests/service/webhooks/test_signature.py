"""Signatures as Standard Webhooks has them."""

import base64
import time
from pathlib import Path
from typing import Any

import pytest

from service.handlers.problems import Refusal
from service.webhooks.signature import check_secret, new_secret, signature_headers


def test_the_signature_is_that_of_the_specification():
    """The example of the specification of Standard Webhooks."""
    headers = signature_headers(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_secrets_are_made_anew_and_taken():
    secrets = {new_secret() for _ in range(3)}
    assert len(secrets) == 3
    for each in secrets:
        check_secret(each)
    check_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "secret",
        "whsec_",
        "whsec_short",
        "whsec_" + "é" * 40,
        "whsec_" + base64.b64encode(b"x" * 23).decode(),
        "whsec_" + base64.b64encode(b"x" * 65).decode(),
        base64.b64encode(b"x" * 32).decode(),
    ],
)
def test_what_is_no_secret_is_refused_and_not_repeated(secret):
    with pytest.raises(Refusal) as caught:
        check_secret(secret)
    assert caught.value.errors[0].field == "secret"
    assert len(secret) < 8 or secret not in str(caught.value.to_json())


def test_the_lines_of_the_docs_verify_what_is_sent():
    page = (Path(__file__).parents[3] / "docs" / "webhooks.md").read_text()
    lines = page.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(lines, names)
    secret, body = new_secret(), b'{"type": "job.succeeded"}'
    headers = signature_headers(secret, "msg_1", int(time.time()), body)
    assert names["is_ours"](secret, headers, body)
    assert not names["is_ours"](secret, headers, body + b" ")
    assert not names["is_ours"](new_secret(), headers, body)
    old = signature_headers(secret, "msg_1", int(time.time()) - 1_000, body)
    assert not names["is_ours"](secret, old, body)
