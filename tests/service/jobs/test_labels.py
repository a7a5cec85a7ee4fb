"""Labels and selectors, as Kubernetes has them."""

import pytest

from service.handlers.problems import Refusal
from service.jobs.labels import (
    MOST_REQUIREMENTS,
    MOST_SELECTOR,
    Requirement,
    checked_labels,
    read_selector,
    selects,
)

JOBS = {
    "none": {},
    "a": {"team": "vision", "stage": "a"},
    "b": {"team": "vision", "stage": "b"},
    "text": {"team": "text", "empty": ""},
}


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        ("", "none a b text"),
        ("  ", "none a b text"),
        ("team=vision", "a b"),
        ("team==vision", "a b"),
        (" team = vision , stage = b ", "b"),
        ("team!=vision", "none text"),
        ("team in (vision,text)", "a b text"),
        ("team in ( text )", "text"),
        ("team notin (vision, text)", "none"),
        ("stage", "a b"),
        ("!stage", "none text"),
        ("! stage,team", "text"),
        ("empty=", "text"),
        ("empty in ()", "text"),
        ("empty!=,team", "a b"),
        ("in=x", ""),
        ("notin", ""),
    ],
)
def test_selectors_select_as_those_of_kubernetes(selector, wanted):
    read = read_selector(selector)
    assert " ".join(name for name, given in JOBS.items() if selects(read, given)) == wanted


@pytest.mark.parametrize(
    "selector",
    [
        ",",
        "a,",
        "a,,b",
        "a=b c",
        "a=b=c",
        "a in",
        "a in (b",
        "a in b",
        "a in (b))",
        "a in (b, -)",
        "a inn (b)",
        "!",
        "!a=b",
        "=b",
        "a=b;c",
        "a=é",
        "/a=b",
        "UPPER.case/a",
        "a/b/c",
        "-a",
        "a=" + "x" * 64,
        "x" * 64,
        "x" * (MOST_SELECTOR + 1),
        ",".join(["a"] * (MOST_REQUIREMENTS + 1)),
        "a in (" + ",".join(f"v{i}" for i in range(65)) + ")",
    ],
)
def test_what_selects_nothing_readable_is_refused(selector):
    with pytest.raises(Refusal) as caught:
        read_selector(selector)
    assert (caught.value.status, caught.value.errors[0].field) == (400, "labels")
    assert len(caught.value.detail) < 400


def test_a_selector_is_read_into_its_parts():
    assert read_selector("a=b,c notin (d,e,d),!f") == (
        Requirement("a", "in", ("b",)),
        Requirement("c", "notin", ("d", "e")),
        Requirement("f", "absent"),
    )


def test_labels_come_in_the_order_of_their_names():
    given = {"b": "", "a.example/x": "1", "A": "v-1.x_y"}
    assert list(checked_labels(given).items()) == sorted(given.items())


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        ([], "labels"),
        ("team=a", "labels"),
        ({f"l{i}": "" for i in range(33)}, "labels"),
        ({"": "a"}, "labels."),
        ({"a": 1}, "labels.a"),
        ({"a": None}, "labels.a"),
        ({"a": "b "}, "labels.a"),
        ({"a": "b\n"}, "labels.a"),
        ({"a": ".b"}, "labels.a"),
        ({"x" * 400: "a"}, f"labels.{'x' * 400}"),
        ({"a\u0000": "b"}, "labels.a\u0000"),
    ],
)
def test_labels_that_are_none_are_refused(labels, field):
    with pytest.raises(Refusal) as caught:
        checked_labels(labels)
    assert (caught.value.status, caught.value.errors[0].field) == (422, field)
