"""Logs whose reader has stopped reading: nobody who logs waits for them."""

import logging
import os
import re
import time

from service.telemetry import logs
from service.telemetry.logs import PlainLines, QueuedLines
from tests.service.waiting import wait_until


def test_a_pipe_that_nobody_reads_stops_no_one(monkeypatch):
    monkeypatch.setattr(logs, "MOST_LINES", 100)
    monkeypatch.setattr(logs, "FLUSH_S", 0.05)
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream, os.fdopen(reading) as reader:
        handler = QueuedLines(stream)
        handler.setFormatter(PlainLines())
        logger = logging.Logger("test")
        logger.addHandler(handler)
        begun_s = time.monotonic()
        for _ in range(2_000):
            logger.info("x" * 500)  # a pipe holds 64 kB
        assert time.monotonic() - begun_s < 2.0
        handler.flush()  # nor does the end of the process wait
        n_lost = handler.n_dropped
        assert n_lost > 1_000
        monkeypatch.setattr(logs, "FLUSH_S", 10.0)
        n_read = 0
        n_said = 0
        while n_said < n_lost:  # said in parts where the reader is slower than the writer
            said = re.search(r"(\d+) lines of the log were dropped", reader.readline())
            n_said += int(said[1]) if said else 0
            n_read += not said
        assert n_said == n_lost
        assert n_read == 2_000 - n_lost
        logger.info("on again")
        assert "on again" in reader.readline()
        wait_until(lambda: not handler._lines.unfinished_tasks)
