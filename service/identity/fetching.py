"""JSON from providers of identities: over TLS, within bounds of time and size, no redirects."""

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.handlers.problems import Refusal

TIMEOUT_S = 5.0
MOST_BYTES = 1_000_000


class FetchFailed(Exception):
    """A provider did not answer, or not with what was asked for; the text is for the log."""


@dataclass(frozen=True, slots=True)
class JsonRequest:
    """What a provider is asked."""

    url: str
    ca: Path | None = None
    """Certificates that the provider's must come from; None for those of the system."""
    body: Mapping[str, Any] | None = None
    """Posted; None for a GET."""
    token_file: Path | None = None
    """File with the bearer token of this service, read now: it may have been replaced."""


Fetch = Callable[[JsonRequest], Mapping[str, Any]]
"""Returns the object that a provider answers with; `FetchFailed`. Called in a thread."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it could lead a token of ours anywhere."""

    def redirect_request(self, *args: Any) -> None:
        """Return nothing, which makes an error of it."""


def fetch_json(request: JsonRequest) -> Mapping[str, Any]:
    """Return the object that a provider answers with; `FetchFailed` where it does not."""
    where = request.url
    try:
        headers = {"accept": "application/json"}
        data = None
        if request.body is not None:
            data = json.dumps(request.body).encode()
            headers["content-type"] = "application/json"
        if request.token_file is not None:
            headers["authorization"] = f"Bearer {request.token_file.read_text().strip()}"
        context = ssl.create_default_context(cafile=request.ca and str(request.ca))
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), _NoRedirects()
        )
        asked = urllib.request.Request(where, data, headers)
        with opener.open(asked, timeout=TIMEOUT_S) as answer:
            content = answer.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise FetchFailed(f"{where}: HTTP {error.code}") from None
    except urllib.error.URLError as error:
        raise FetchFailed(f"{where}: {error.reason}") from None
    except (OSError, ValueError) as error:
        raise FetchFailed(f"{where}: {error}") from None
    if len(content) > MOST_BYTES:
        raise FetchFailed(f"{where}: more than {MOST_BYTES} bytes")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise FetchFailed(f"{where}: no JSON") from None
    if not isinstance(found, dict):
        raise FetchFailed(f"{where}: no object")
    return found


def provider_away(name: str) -> Refusal:
    """Return the problem of a provider that does not answer, so that nobody knows who calls."""
    return Refusal(
        503,
        "identity-unavailable",
        "who you are cannot be asked for now",
        f"the provider {name} of identities does not answer",
        retry_after_s=5.0,
    )
