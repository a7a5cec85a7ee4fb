"""A question in an address, there and back."""

import base64
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.handlers.limits import DEFAULTS
from service.handlers.problems import Refusal
from service.pages.question import (
    MOST_TOP,
    TOP,
    packed_question,
    question_of,
    question_query,
    unpacked,
)

NAMES = st.sampled_from(["llama3-70b", "h100-x512", "a.b_c-d"])
WORD = st.text("abcdefghij0123456789._-", min_size=1, max_size=8)
AXES = st.dictionaries(st.sampled_from(["tp", "pp", "cp", "mbs"]), WORD, max_size=3)
DOCUMENTS = NAMES | st.builds(
    lambda text: {"text": text},
    st.text(min_size=1, max_size=60).filter(lambda text: "\0" not in text and text.isprintable()),
)


@given(
    st.fixed_dictionaries(
        {"model": DOCUMENTS, "cluster": DOCUMENTS, "top": st.integers(1, MOST_TOP)},
        optional={
            "pins": AXES.filter(bool),
            "only": st.dictionaries(
                st.sampled_from(["tp", "pp"]), st.lists(WORD, min_size=2, max_size=3), min_size=1
            ),
            "max": st.dictionaries(st.sampled_from(["cp"]), st.integers(1, 99), min_size=1),
            "set": st.dictionaries(st.just("pools.0.nodes"), WORD, min_size=1),
            "objective": st.sampled_from(["cost", "energy"]),
            "within": st.sampled_from([1.05, 2.0]),
            "all_variants": st.just(True),
            "pareto": st.just(["step_time", "memory"]),
        },
    )
)
def test_an_address_asks_what_was_asked(request_):
    query = {key: tuple(values) for key, values in question_query(request_).items()}
    assert question_of(query, DEFAULTS) == request_


def test_names_stand_plainly_and_texts_are_packed():
    named = {"model": "llama3-8b", "cluster": "h100-x8", "pins": {"tp": "8"}, "top": TOP}
    plain = question_query(named)
    assert plain == {"model": ["llama3-8b"], "cluster": ["h100-x8"], "pin": ["tp=8"]}
    texts = question_query({"model": {"text": "model: {}\n"}, "cluster": "h100-x8", "top": 200})
    assert set(texts) == {"q", "top"}


def test_no_question_is_none_and_half_a_question_is_refused():
    assert question_of({"sort": ("step",)}, DEFAULTS) is None
    with pytest.raises(Refusal, match="cluster"):
        question_of({"model": ("llama3-8b",)}, DEFAULTS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top", "0"),
        ("top", "5001"),
        ("top", "x"),
        ("pin", "tp"),
        ("max", "tp=x"),
        ("set", "x"),
        ("within", "nan"),
        ("within", "-1"),
        ("step_limit_s", "1e400"),
    ],
)
def test_nonsense_is_refused_with_its_name(name, value):
    query = {"model": ("a",), "cluster": ("b",), name: (value,)}
    with pytest.raises(Refusal, match=name) as refused:
        question_of(query, DEFAULTS)
    assert refused.value.status == 422


def test_words_that_are_no_questions_are_refused():
    bomb = base64.urlsafe_b64encode(zlib.compress(b'{"model": "' + b"a" * 5_000_000 + b'"}', 9))
    no_object = base64.urlsafe_b64encode(zlib.compress(b"[1]")).decode()
    for text, status in (
        ("!!!", 400),
        ("abcd", 400),
        (bomb.decode(), 413),
        (no_object, 400),
        ("a" * 50_000, 413),
        (packed_question({"model": "x"})[:-4], 413),
    ):
        with pytest.raises(Refusal) as refused:
            unpacked(text, DEFAULTS)
        assert refused.value.status == status, text[:20]


def test_a_short_word_holds_few_values():
    word = packed_question({"model": "a", "cluster": "b", "allow": ["x"] * 200_000})
    assert len(word) < 2_000
    with pytest.raises(Refusal) as refused:
        unpacked(word, DEFAULTS)
    assert (refused.value.status, refused.value.code) == (413, "too-large")


def test_texts_too_long_for_an_address_are_refused():
    import random

    noise = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=80_000))
    with pytest.raises(Refusal) as refused:
        question_query({"model": {"text": noise}, "cluster": "x"})
    assert refused.value.status == 413
    assert json.dumps(refused.value.to_json())
