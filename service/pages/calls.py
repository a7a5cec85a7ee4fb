"""The calls that workers know: those of the service, and those that pages alone make.

Pages' calls are named `page-...`; no operation of REST or gRPC leads to them. A module of this
package states them as `PAGE_CALLS`.
"""

from service.handlers.calls import CALLS as PUBLIC
from service.handlers.calls import (
    PAGE_CALLS,
    ServiceCall,
    answer,
    dumps,
    is_complete,
    read_request,
    request_size,
)
from service.handlers.running_call import RunningCall
from service.pages.routes import modules

__all__ = [
    "CALLS",
    "PAGE_CALLS",
    "RunningCall",
    "ServiceCall",
    "answer",
    "dumps",
    "is_complete",
    "read_request",
    "request_size",
]

PAGE_CALLS.update(
    {
        name: call
        for module in modules()
        for name, call in vars(module).get("PAGE_CALLS", {}).items()
    }
)
CALLS: dict[str, ServiceCall] = {**PUBLIC, **PAGE_CALLS}
"""By name."""
