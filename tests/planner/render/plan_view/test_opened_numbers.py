"""Every number on the plan view opens: it has a card, and the card's formula gives the number."""

import math
import re
from html.parser import HTMLParser

import pytest

from planner.render.plan_view.quantities import UNITS, evaluated, quantity_text
from tests.planner.render.plan_view import plans

VOID = {"input", "br", "meta", "link", "img", "hr"}
NAMES = {"num", "named", "opened", "doc"}
"""Classes in which digits may stand: numbers that open, names, cards, documentation."""
TEXTS = {"pre", "code", "script", "style"}
"""Elements that hold files, commands and data."""


class Walk(HTMLParser):
    """What a page holds: numbers with what they open, cards by id, digits that stand elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, set[str]]] = []
        self.numbers: list[str] = []
        self.cards: dict[str, dict[str, str]] = {}
        self.strays: list[str] = []
        self.ids: list[str] = []
        self._card = ""
        self._field = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        classes = set((given.get("class") or "").split())
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if "num" in classes:
            assert tag == "button"
            assert given["type"] == "button"
            self.numbers.append(str(given["popovertarget"]))
        if "opened" in classes:
            assert "popover" in given
            assert given["role"] == "dialog"
            self._card = str(given["id"])
            self.cards[self._card] = {}
        found = classes & {"name", "value", "formula", "substituted", "source"}
        if self._card and found:
            self._field = found.pop()
        if tag not in VOID:
            self.open.append((tag, classes))

    def handle_endtag(self, tag: str) -> None:
        name, classes = self.open.pop()
        assert name == tag
        self._field = ""
        if "opened" in classes:
            self._card = ""

    def handle_data(self, data: str) -> None:
        if self._field:
            card = self.cards[self._card]
            card[self._field] = card.get(self._field, "") + data
        inside = set().union(*(classes for _, classes in self.open))
        tags = {tag for tag, _ in self.open}
        if re.search(r"\d", data) and not inside & NAMES and not tags & TEXTS:
            self.strays.append(data.strip())


def test_reads_its_own_formulas():
    assert evaluated("2 × (3.5 ms + 500 us) × 1,000 / 4 s") == 2.0
    assert evaluated("max(1,000, 2^11) − 48") == 2000.0
    assert evaluated("−1.5e−3 s + 2 ms") == pytest.approx(0.0005)
    assert evaluated("3 GiB / 1,024 MiB") == 3.0
    assert evaluated("sqrt(9) + log2(8) + exp(0) + ceil(1.2)") == 9.0
    for text in ("m × L", "2 furlongs", "__import__('os')", "1 +", "", "1 / 0", "max(1"):
        with pytest.raises(ValueError, match="no arithmetic"):
            evaluated(text)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0.0, "s", "0 s"),
        (24.5788, "s", "24.58 s"),
        (0.0042, "s", "4.2 ms"),
        (3e-5, "s", "30 us"),
        (86400.0 * 400, "s", "400 days"),
        (3.5 * 2**30, "B", "3.5 GiB"),
        (-(2.0**31), "B", "−2 GiB"),
        (9.89e14, "FLOP/s", "989 TFLOP/s"),
        (0.4321, "%", "43.21 %"),
        (48.5e9, "B/s", "48.5 GB/s"),
        (81920, "", "81,920"),
    ],
)
def test_numbers_are_written_in_the_unit_that_fits(value, kind, text):
    assert quantity_text(value, kind, 6 if kind == "" else 4) == text
    unit = text.rpartition(" ")[2]
    assert unit in UNITS or kind == ""


@pytest.mark.parametrize("name", plans.all_plans())
def test_every_number_opens(name):
    walk = Walk(plans.shown(name))
    assert len(walk.ids) == len(set(walk.ids))
    assert walk.numbers
    assert not walk.strays
    assert set(walk.numbers) == set(walk.cards)  # none is missing, none is idle
    for key, card in walk.cards.items():
        for field in ("name", "value", "formula", "substituted", "source"):
            assert card.get(field, "").strip(), f"{key} has no {field}"
        assert re.search(r"\d", card["substituted"]), key


@pytest.mark.parametrize("name", plans.all_plans())
def test_every_formula_gives_its_number(name):
    for card in plans.viewed(name).deck.cards.values():
        value = evaluated(card.derivation.substituted)
        assert math.isclose(value, card.value, rel_tol=2e-4, abs_tol=1e-9), card


@pytest.mark.parametrize("name", plans.all_plans())
def test_every_derivation_that_a_card_names_is_there(name):
    view, text = plans.viewed(name), plans.shown(name)
    known = {method.key for method in view.methods}
    for card in view.deck.cards.values():
        assert not card.derivation.method or card.derivation.method in known
        assert not card.derivation.method or f'id="method-{card.derivation.method}"' in text


def test_the_headline_numbers_are_there_and_right():
    found = plans.opened("interleaved")
    plan, cards = found.plan, plans.viewed("interleaved").deck.cards
    expected = {
        "step-time": plan.step_time_s,
        "step-p10": plan.step_time_p10_s,
        "step-p90": plan.step_time_p90_s,
        "tokens-per-s": plan.tokens_per_s,
        "mfu": plan.mfu,
        "devices": 512,
        "global-batch": 128,
        "micro-batches": 8,
        "tokens-per-step": 128 * 8192,
        "usable-memory": plan.usable_bytes,
        "training-time": plan.training_s,
        "cost": plan.run.cost_usd,
        "energy": plan.run.energy_j,
        "gpu-hours": 512 * plan.run.expected_s / 3600,
        f"memory-{plan.breakdown.peak_stage}-peak": plan.breakdown.peak_bytes,
    }
    for key, value in expected.items():
        assert cards[key].value == pytest.approx(value, rel=1e-12), key
    # Every layer runs forward again: a third of the model's FLOPs but for the head.
    weights = 8192 * (8192 + 2 * 1024) + 8192 * 8192 + 3 * 8192 * 28672
    again = 80 * (2 * weights + 2 * 8192 * 8192)
    assert cards["recomputed-flops"].value == 128 * 8192 * again
    share = 1 + again / cards["flops-per-token"].value
    assert cards["hfu"].value == pytest.approx(plan.mfu * share, rel=1e-12)
    # F = 6 (80 (h (h_q + 2 h_kv) + h_q h + 3 h f) + h V) + 6 L h_q s with the sizes of Llama-3 70B
    body = 80 * (8192 * (8192 + 2 * 1024) + 8192 * 8192 + 3 * 8192 * 28672) + 8192 * 128256
    assert cards["flops-per-token"].value == 6 * body + 6 * 80 * 8192 * 8192
