"""A scripted client: it makes the calls that a file of questions says, and grades the answers."""

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

from tools.agent_questions.grading import faults_of
from tools.agent_questions.question import (
    Question,
    QuestionFileError,
    read_questions,
    values_at,
)

QUESTIONS = Path(__file__).with_name("questions.yaml")
LEAST_RIGHT_FRAC = 0.95
"""Share of the questions that have to be right: 38 of 40."""


@dataclass(frozen=True)
class Outcome:
    """A question as it was answered."""

    question: Question
    faults: list[str]
    time_s: float
    n_chars: int
    """Of all texts and structured answers: what an agent has to read."""


async def asked(client: Any, questions: Sequence[Question]) -> list[Outcome]:
    """Return the outcomes of all questions, one after the other."""
    return [await _asked(client, question) for question in questions]


async def _asked(client: Any, question: Question) -> Outcome:
    answers: list[dict[str, Any]] = []
    start_s, n_chars = time.monotonic(), 0
    for call in question.calls:
        try:
            arguments = filled(call.arguments, answers)
        except LookupError as error:
            return Outcome(question, [str(error)], time.monotonic() - start_s, n_chars)
        result = await client.call_tool(call.tool, arguments)
        text = "".join(part.text for part in result.content)
        data = dict(result.structured_content or {})
        n_chars += len(text) + len(repr(data))
        answers.append({**data, "text": text, "is_error": result.is_error})
    faults = faults_of(question, answers)
    return Outcome(question, faults, time.monotonic() - start_s, n_chars)


def filled(arguments: Any, answers: Sequence[Mapping[str, Any]]) -> Any:
    """Return arguments with the values of earlier answers that they name.

    `LookupError` where an answer has no such value.
    """
    if isinstance(arguments, dict) and "$answer" in arguments:
        number, path = arguments["$answer"], arguments["path"]
        for value in values_at(answers[number - 1], path):
            return value
        raise LookupError(f"the answer to call {number} has no {path}")
    if isinstance(arguments, dict):
        return {name: filled(value, answers) for name, value in arguments.items()}
    if isinstance(arguments, list):
        return [filled(item, answers) for item in arguments]
    return arguments


def report(outcomes: Sequence[Outcome], is_verbose: bool) -> str:
    """Return the outcomes as text: what is wrong, then how many are right."""
    lines = []
    for outcome in outcomes:
        if outcome.faults or is_verbose:
            word = "WRONG" if outcome.faults else "right"
            question = outcome.question
            lines.append(
                f"{word}  {question.id}  {outcome.time_s:.2f} s, {outcome.n_chars:,} characters:"
                f" {question.question.strip()}"
            )
            lines += [f"       {fault}" for fault in outcome.faults]
            lines += [f"       right: {question.right.strip()}"] * bool(outcome.faults)
    n_right = sum(not outcome.faults for outcome in outcomes)
    calls = sum(len(outcome.question.calls) for outcome in outcomes)
    total_s = sum(outcome.time_s for outcome in outcomes)
    lines.append(f"{n_right} of {len(outcomes)} right, {calls} calls, {total_s:.1f} s")
    return "\n".join(lines) + "\n"


async def _over_stdio(questions: Sequence[Question], address: str) -> list[Outcome]:
    planner = str(Path(sys.executable).with_name("planner"))
    server = address or StdioServerParameters(command=planner, args=["mcp"])
    async with Client(server) as client:
        return await asked(client, questions)


def main(words: Sequence[str] | None = None) -> int:
    """Ask the questions of a file; return 0 where enough are right, 1 else, 2 for a bad file."""
    parser = argparse.ArgumentParser(prog="scripts/agent_questions", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=QUESTIONS, help="ours without it")
    parser.add_argument("--url", default="", help="of a server over HTTP; else stdio is started")
    parser.add_argument("--only", default="", help="questions whose id begins so")
    parser.add_argument("-v", "--verbose", action="store_true", help="right ones too")
    options = parser.parse_args(words)
    try:
        questions = read_questions(options.file)
    except QuestionFileError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    questions = [question for question in questions if question.id.startswith(options.only)]
    outcomes = asyncio.run(_over_stdio(questions, options.url))
    sys.stdout.write(report(outcomes, options.verbose))
    n_right = sum(not outcome.faults for outcome in outcomes)
    return 0 if n_right >= LEAST_RIGHT_FRAC * len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
