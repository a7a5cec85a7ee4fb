"""The card as a part of a longer document, such as a design review."""

from dataclasses import replace

from planner.documents import Drawn
from planner.render.card.card import AnswerCard
from planner.render.card.html import card_html
from planner.render.card.markdown import card_markdown
from planner.render.card.text import card_lines


def card_part(card: AnswerCard) -> Drawn:
    """Return the card without its commands: the document says what to type itself."""
    own = replace(card, commands=())
    return Drawn(
        card_html(own), card_markdown(own, level=0), tuple(card_lines(own, is_whole=True))
    )
