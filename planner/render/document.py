"""The document of any answer, as text of a terminal, HTML or Markdown."""

from importlib import import_module

from planner.documents import LibraryAnswer, Part
from planner.render.html import html
from planner.render.markdown import markdown
from planner.render.terminal import terminal_text
from planner.text_lines import WIDTH

__all__ = ["answer_document", "html", "markdown", "text_of"]

DOCUMENTS = {
    "AllocationAnswer": ("scaling.allocation", "allocation_document"),
    "Comparison": ("comparison", "comparison_document"),
    "Explanation": ("explanation", "explanation_document"),
    "JoinedComparison": ("joined.comparison", "joined_comparison_document"),
    "JoinedExplanation": ("joined.explanation", "joined_explanation_document"),
    "JoinedReplan": ("joined.replan", "joined_replan_document"),
    "JoinedReport": ("joined.check", "joined_check_document"),
    "JoinedPlan": ("together", "joined_plan_document"),
    "Plan": ("plan", "plan_document"),
    "Recommendation": ("recommendation", "recommendation_document"),
    "Replan": ("replan", "replan_document"),
    "Report": ("check", "check_document"),
    "Result": ("result", "result_document"),
    "Scaling": ("scaling.curve", "scaling_document"),
    "ShardedExplanation": ("joined.replicas", "sharded_explanation_document"),
    "SingleChanges": ("neighborhood", "changes_document"),
    "Together": ("together", "together_document"),
    "TraceComparison": ("trace_comparison", "trace_document"),
}
"""Of each kind of answer the module of `planner.render.answers` and its function.

Modules are imported when an answer of their kind is shown: together they take 300 ms.
"""


def answer_document(answer: LibraryAnswer) -> list[Part]:
    """Return what people read of an answer."""
    module, function = DOCUMENTS[type(answer).__name__]
    answers = import_module(f"planner.render.answers.{module}")
    parts: list[Part] = getattr(answers, function)(answer)
    return parts


def text_of(answer: LibraryAnswer, width: int = WIDTH) -> str:
    """Return an answer as text of at most `width` columns, commands and tables apart."""
    return terminal_text(answer_document(answer), width)
