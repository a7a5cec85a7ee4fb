"""The card as Markdown: a heading, a table of figures, the drawing and bars as text."""

from planner.render.card.card import AnswerCard
from planner.render.card.text import bar_lines, drawing_lines
from planner.render.markdown import markdown_text


def card_markdown(card: AnswerCard, level: int = 2) -> str:
    """Return the card as Markdown below a heading of some level; 0: in bold, no heading."""
    sentence = markdown_text(card.sentence)
    parts = [
        f"{'#' * level} {sentence}" if level else f"**{sentence}**",
        markdown_text(f"{card.job}; on {card.cluster}"),
    ]
    if card.figures:
        rows = (
            f"| {markdown_text(x.label)} | {markdown_text(x.text)} | {markdown_text(x.note)} |"
            for x in card.figures
        )
        parts.append("\n".join(["| figure | value | |", "|---|---:|---|", *rows]))
    lines = [line for bar in card.bars for line in bar_lines(bar)]
    if card.drawing:
        lines += ["", *drawing_lines(card.drawing)]
    if lines:
        parts.append("\n".join(["```text", *lines, "```"]))
    parts += [markdown_text(text) for text in (card.why, card.choice, card.proof) if text]
    if card.closed:
        closed = "; ".join(f"{axis.option} {axis.text.partition(': ')[2]}" for axis in card.closed)
        parts.append(markdown_text(f"Off by default, but faster: {closed}"))
    if card.assumptions:
        parts.append("\n".join(["Assumed:", "", *(_assumption(card, i) for i in _places(card))]))
    parts += [f"Note: {markdown_text(text)}" for text in card.notes]
    parts += [f"**Warning** {markdown_text(text)}" for text in card.warnings]
    if card.commands:
        commands = (f"{x.line}    # {x.purpose}" for x in card.commands)
        parts.append("\n".join(["```sh", *commands, "```"]))
    return "\n\n".join(parts) + "\n"


def _places(card: AnswerCard) -> range:
    return range(len(card.assumptions))


def _assumption(card: AnswerCard, i: int) -> str:
    x = card.assumptions[i]
    option = f" (change with `{x.option}`)" if x.option else ""
    return f"- {markdown_text(x.text)}{option}"
