"""A client of the planning service: `Client`, its errors, and what its requests may hold."""

from planner.client.client import (
    ALWAYS_JOBS,
    AUTHORITY,
    FACTS,
    FINAL,
    PATHS,
    PRIORITY,
    TAKES_TIME_LIMIT,
    TOKEN,
    URL,
    Client,
    Progress,
)
from planner.client.client import ServiceAnswer as Answer
from planner.client.errors import ServiceError
from planner.client.requests import (
    Data,
    FileText,
    FileTexts,
    Result,
    Source,
    calibration_text,
    document,
    file_name,
    plan_of,
    reference_of,
    run_of,
)
from planner.client.transport import RETRIES

__all__ = [
    "ALWAYS_JOBS",
    "AUTHORITY",
    "FACTS",
    "FINAL",
    "PATHS",
    "PRIORITY",
    "RETRIES",
    "TAKES_TIME_LIMIT",
    "TOKEN",
    "URL",
    "Answer",
    "Client",
    "Data",
    "FileText",
    "FileTexts",
    "Progress",
    "Result",
    "ServiceError",
    "Source",
    "calibration_text",
    "document",
    "file_name",
    "plan_of",
    "reference_of",
    "run_of",
]
