"""Logs of the service: one JSON object a line, with the request and the job that it is about.

    {"time": "2026-03-01T12:00:00.123Z", "level": "INFO", "logger": "planner.access",
     "message": "POST /v1/plans:solve", "request_id": "6f1c...", "status": 200, ...}

No body, no token and no query string is ever logged.
"""

import json
import logging
import os
import queue
import sys
import threading
import time
from contextvars import ContextVar
from typing import Any, TextIO

REQUEST: ContextVar[str] = ContextVar("request", default="")
"""Id of the request that is being answered."""
JOB: ContextVar[str] = ContextVar("job", default="")
"""Id of the job that is worked on."""
LEVELS = ("debug", "info", "warning", "error")
MOST_LINES = 10_000
"""Lines that wait to be written."""
FLUSH_S = 1.0
"""How long the end of the process waits for them."""
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


class QueuedLines(logging.Handler):
    """Writes lines in a thread: who does not read them stops no one who logs.

    Lines that find no place while nothing is read are dropped, and a line says how many.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self.n_dropped = 0
        """Lines that found no place, in all."""
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lines: queue.Queue[str] = queue.Queue(MOST_LINES)
        self._n_told = self.n_dropped
        threading.Thread(target=self._write, daemon=True, name="log").start()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a line over."""
        if os.getpid() != self._process:  # a fork has no thread
            self._begin()
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self.n_dropped += 1
        except Exception:
            self.handleError(record)

    def _write(self) -> None:
        lines = self._lines
        while True:
            line = lines.get()
            try:
                self._stream.write(line + "\n")
                if lines.empty():
                    self._tell_dropped()
                    self._stream.flush()
            except (OSError, ValueError):  # a pipe that is closed: there is nobody to tell
                pass
            finally:
                lines.task_done()

    def _tell_dropped(self) -> None:
        n, self._n_told = self.n_dropped - self._n_told, self.n_dropped
        if n:
            text = f"{n} lines of the log were dropped: they were not read in time"
            record = logging.makeLogRecord(
                {"name": "planner.service", "levelno": 30, "levelname": "WARNING", "msg": text}
            )
            self._stream.write(self.format(record) + "\n")

    def flush(self) -> None:
        """Wait for the lines that were handed over, for a while."""
        end_s = time.monotonic() + FLUSH_S
        while self._lines.unfinished_tasks and time.monotonic() < end_s:
            time.sleep(0.005)


def configure(level: str = "info", form: str = "json", stream: TextIO | None = None) -> None:
    """Send the logs of this process to a stream (stderr) as `json` or `text`."""
    handler = QueuedLines(sys.stderr) if stream is None else logging.StreamHandler(stream)
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
