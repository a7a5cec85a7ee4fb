"""What the service measures, as Prometheus reads it. Seconds and bytes; labels are bounded."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.telemetry.connection_tally import ConnectionTally
from service.telemetry.snapshot import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.15,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)


class MeasuredMetrics(Protocol):
    """What has a snapshot: the engine."""

    def snapshot(self) -> Snapshot:
        """Return what there is to measure now."""


class AnsweredCall(Protocol):
    """An answer, as far as it is measured."""

    @property
    def payload(self) -> bytes:
        """The JSON text."""

    @property
    def cached(self) -> bool:
        """Whether it came from memory."""

    @property
    def seconds(self) -> Mapping[str, float]:
        """Wall-clock time by phase."""


class Metrics:
    """Counters of one process of the service; both transports tell it what they answered."""

    def __init__(self, engine: MeasuredMetrics) -> None:
        self.registry = CollectorRegistry()
        arguments: Any = {"registry": self.registry}
        self._seconds = Histogram(
            "planner_call_seconds",
            "Time of an answered call by phase: queue, work (in a worker), total.",
            ("call", "phase"),
            buckets=BUCKETS_S,
            **arguments,
        )
        self._requests = Counter(
            "planner_requests_total",
            "Requests by transport, operation and status.",
            ("transport", "operation", "status"),
            **arguments,
        )
        self._plans = Counter(
            "planner_plans_total",
            "Plans of computed answers by stage of the search.",
            ("stage",),
            **arguments,
        )
        self._rejections = Counter(
            "planner_rejections_total",
            "Candidates of computed answers by the rule that excluded them.",
            ("rule",),
            **arguments,
        )
        self._cached: dict[str, Any] = {}
        self._counted: dict[tuple[str, str, int | str], Any] = {}
        self.connections: dict[str, ConnectionTally] = {}
        """By listener: `rest`, `grpc`, `probes`."""
        self.registry.register(_Engine(engine))
        self.registry.register(_Connections(self.connections))
        ProcessCollector(registry=self.registry)

    def tally(self, transport: str) -> ConnectionTally:
        """Return what counts the connections of a listener."""
        return self.connections.setdefault(transport, ConnectionTally(transport))

    def request(self, transport: str, operation: str, status: int | str) -> None:
        """Count a request, whatever came of it; `operation` is one of a fixed set."""
        which = transport, operation, status
        counter = self._counted.get(which)
        if counter is None:
            counter = self._counted[which] = self._requests.labels(
                transport, operation, str(status)
            )
        counter.inc()

    def answered(self, call: str, answer: AnsweredCall, total_s: float) -> None:
        """Count an answer: its time, and what was searched where it was computed for it."""
        for phase, seconds in answer.seconds.items():
            self._seconds.labels(call, phase).observe(seconds)
        total = self._cached.get(call)
        if total is None:
            total = self._cached[call] = self._seconds.labels(call, "total")
        total.observe(total_s)
        if answer.cached or call not in ("solve", "evaluate"):
            return
        for stage, n in (section(answer.payload, "counts") or {}).items():
            self._plans.labels(stage).inc(n)
        for row in section(answer.payload, "rejected") or ():
            self._rejections.labels(row["code"]).inc(row["n"])

    def text(self) -> bytes:
        """Return all of it in the text format of Prometheus."""
        return generate_latest(self.registry)


def section(payload: bytes, name: str) -> Any:
    """Return one top field of an answer without reading the others; None where it has none.

    Answers are written with an indent of one blank, so that a line that begins with one blank and
    a quotation mark is a top field: texts hold no line feeds that are not escaped.
    """
    begin = payload.find(b'\n "%s": ' % name.encode())
    if begin < 0:
        return None
    end = payload.find(b'\n "', begin + 1)
    text = payload[begin : end if end > 0 else payload.rfind(b"}")]
    return json.loads(text.partition(b": ")[2].strip().removesuffix(b","))


class _Engine(Collector):
    """What the engine holds and has counted, read when it is asked for."""

    def __init__(self, engine: MeasuredMetrics) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        now = self._engine.snapshot()
        gauges = {
            "planner_queue_depth": (now.queue_depth, "Requests that wait for a worker."),
            "planner_in_flight": (now.in_flight, "Requests that workers compute."),
            "planner_cache_entries": (now.cache_entries, "Answers kept in memory."),
            "planner_cache_bytes": (now.cache_bytes, "Bytes of the answers kept in memory."),
            "planner_workers_alive": (now.workers_alive, "Worker processes."),
            "planner_mean_work_seconds": (now.mean_work_s, "Mean time at a worker, of late."),
            "planner_mean_job_seconds": (now.mean_job_s, "Mean time of a job, of late."),
        }
        for name, (value, meaning) in gauges.items():
            yield GaugeMetricFamily(name, meaning, value=value)
        jobs = GaugeMetricFamily(
            "planner_jobs",
            "Jobs in the store by state, as of some seconds ago.",
            labels=("state",),
        )
        for state, n in sorted(now.jobs.items()):
            jobs.add_metric((state,), n)
        yield jobs
        yield from _of_groups(now)
        counters = {
            "planner_cache_hits": (now.counts.get("cached", 0), "Answers from memory."),
            "planner_workers_died": (now.workers_died, "Worker processes that died."),
            "planner_jobs_accepted": (now.counts.get("jobs_accepted", 0), "Jobs accepted here."),
            "planner_jobs_yielded": (now.counts.get("jobs_yielded", 0), "Jobs that made room."),
            "planner_jobs_finished": (now.counts.get("jobs_finished", 0), "Jobs finished here."),
            "planner_webhooks_delivered": (
                now.counts.get("webhooks_delivered", 0),
                "Deliveries of webhooks that arrived.",
            ),
            "planner_webhooks_retried": (
                now.counts.get("webhooks_retried", 0),
                "Attempts of deliveries that failed and are repeated.",
            ),
            "planner_webhooks_failed": (
                now.counts.get("webhooks_failed", 0),
                "Deliveries of webhooks that were given up.",
            ),
            "planner_answers_stopped": (
                now.counts.get("stopped", 0),
                "Answers with the best so far.",
            ),
        }
        for name, (value, meaning) in counters.items():
            yield CounterMetricFamily(name, meaning, value=value)
        refused = CounterMetricFamily(
            "planner_refused", "Requests refused, by code of the problem.", labels=("code",)
        )
        for code, n in sorted(now.refused.items()):
            refused.add_metric((code,), n)
        yield refused


def _of_groups(now: Snapshot) -> Iterable[Metric]:
    """Yield what is measured by group: the file of tenants bounds how many there are."""
    jobs = GaugeMetricFamily(
        "planner_group_jobs",
        "Jobs that wait and run by group and state, as of some seconds ago.",
        labels=("group", "state"),
    )
    cpu = CounterMetricFamily(
        "planner_group_cpu_seconds", "CPU seconds of calls and jobs here.", labels=("group",)
    )
    refused = CounterMetricFamily(
        "planner_group_refused", "Requests here that a quota refused.", labels=("group",)
    )
    for name, counts in sorted(now.groups.items()):
        for state in ("PENDING", "RUNNING"):
            jobs.add_metric((name, state), counts.jobs[state])
        cpu.add_metric((name,), counts.cpu_s)
        refused.add_metric((name,), counts.refused)
    yield from (jobs, cpu, refused)


class _Connections(Collector):
    """Connections by listener, read when they are asked for."""

    def __init__(self, tallies: Mapping[str, ConnectionTally]) -> None:
        self._tallies = tallies

    def collect(self) -> Iterable[Metric]:
        now = GaugeMetricFamily(
            "planner_connections", "Open connections.", labels=("transport", "state")
        )
        ended = CounterMetricFamily(
            "planner_connections_ended",
            "Idle connections that ended for new ones, by what was full.",
            labels=("transport", "reason"),
        )
        refused = CounterMetricFamily(
            "planner_connections_refused",
            "New connections that found no place, by what was full.",
            labels=("transport", "reason"),
        )
        for name, tally in sorted(self._tallies.items()):
            for state, n in tally.measure().items():
                now.add_metric((name, state), n)
            for reason in ("address", "total"):
                ended.add_metric((name, reason), tally.ended[reason])
                refused.add_metric((name, reason), tally.refused[reason])
        yield from (now, ended, refused)
