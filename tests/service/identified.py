"""Who a header says that its sender is, asked from where nothing runs."""

import asyncio

from service.access.auth import Auth
from service.access.caller import Caller


def identified(auth: Auth, sent: bytes | str | None, address: str = "") -> Caller:
    return asyncio.run(auth.identified(sent, address))
