"""Spans of OpenTelemetry, where a provider is configured; without one they cost nothing.

A provider is there when `opentelemetry-instrument` started the service, or when the environment
names one (`OTEL_PYTHON_TRACER_PROVIDER=sdk_tracer_provider`). The API package alone is none.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any


def configured_tracer() -> Any:
    """Return a tracer of the configured provider; None without one."""
    try:
        from opentelemetry import trace
    except ModuleNotFoundError:
        return None
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("planner.service")


@contextlib.contextmanager
def server_span(tracer: Any, name: str, headers: Mapping[str, str]) -> Iterator[Any]:
    """Hold a server span, a child of the one that `traceparent` names; its value is the span."""
    from opentelemetry import trace
    from opentelemetry.propagate import extract

    context = extract(dict(headers))
    kind = trace.SpanKind.SERVER
    with tracer.start_as_current_span(name, context=context, kind=kind) as span:
        yield span
