"""The calls that workers know: those of the service, and those that pages alone make.

Pages' calls are named `page-...`; no operation of REST or gRPC leads to them. A module of this
package states them as `PAGE_CALLS`.
"""

from service.calls import CALLS as PUBLIC
from service.calls import Call, Running, answer, dumps, is_complete, measure, read_request
from service.pages.routes import modules

__all__ = [
    "CALLS", "PAGE_CALLS", "Call", "Running", "answer", "dumps", "is_complete", "measure",
    "read_request",
]  # fmt: skip

PAGE_CALLS: dict[str, Call] = {
    name: call for module in modules() for name, call in vars(module).get("PAGE_CALLS", {}).items()
}
CALLS: dict[str, Call] = {**PUBLIC, **PAGE_CALLS}
"""By name."""
