"""Logs of the service: one JSON object a line, with the request and the job that it is about.

    {"time": "2026-03-01T12:00:00.123Z", "level": "INFO", "logger": "planner.access",
     "message": "POST /v1/plans:solve", "request_id": "6f1c...", "status": 200, ...}

No body, no token and no query string is ever logged.
"""

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Any, TextIO

REQUEST: ContextVar[str] = ContextVar("request", default="")
"""Id of the request that is being answered."""
JOB: ContextVar[str] = ContextVar("job", default="")
"""Id of the job that is worked on."""
LEVELS = ("debug", "info", "warning", "error")
access = logging.getLogger("planner.access")


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON; its field `fields` is added."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, variable in (("request_id", REQUEST), ("job_id", JOB)):
            value = variable.get()
            if value:
                line[name] = value
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class PlainLines(logging.Formatter):
    """Formats a record for a terminal."""

    def __init__(self) -> None:
        super().__init__(datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields = getattr(record, "fields", {})
        parts = [self.formatTime(record, self.datefmt), record.levelname, record.getMessage()]
        # A path is what a caller wrote: it must not begin a line, nor speak to the terminal.
        line = _plain(" ".join([*parts, *(f"{name}={value}" for name, value in fields.items())]))
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class OfGrpc(logging.Filter):
    """What gRPC logs of calls: no bytes that a caller sent, which may be most of a token.

    Metadata that is no UTF-8 and connections that are gone are the callers' doing: a line each.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record where it is one of those; it is logged all the same."""
        text = record.getMessage()
        error = type(record.exc_info[1]).__name__ if record.exc_info else ""
        if text.startswith("Invalid encoding on "):
            text = "a call has a path or metadata that is no UTF-8"
        elif error == "UnicodeDecodeError":
            text = "a call was ended: its path is no UTF-8"
        elif error != "ExecuteBatchError":  # there is nobody any more whom it could be sent
            return True
        record.msg, record.args, record.exc_info, record.exc_text = text, (), None, None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


def guard_grpc() -> None:
    """Let what gRPC logs pass through `OfGrpc`."""
    logger = logging.getLogger("grpc._cython.cygrpc")
    if not any(isinstance(each, OfGrpc) for each in logger.filters):
        logger.addFilter(OfGrpc())


def configure(level: str = "info", form: str = "json", stream: TextIO | None = None) -> None:
    """Send the logs of this process to a stream (stderr) as `json` or `text`."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else PlainLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # The server's own lines about connections tell nothing that the access log does not.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, root.level))
    guard_grpc()


def log_access(level: int, message: str, **fields: Any) -> None:
    """Log one request with what is known of it."""
    if access.isEnabledFor(level):
        access.log(level, message, extra={"fields": fields})
