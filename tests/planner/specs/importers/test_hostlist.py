import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import BadValue
from planner.specs.importers.hostlist import compress_hosts, expand_hosts, natural_key

LABEL = st.from_regex(
    r"[a-z]{1,4}[0-9]{0,4}(-[a-z]{0,3}[0-9]{1,4})?([.][a-z]{2,5})?", fullmatch=True
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[001-003,007]", ["n001", "n002", "n003", "n007"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("rack[1-2]-n[01-02]", ["rack1-n01", "rack1-n02", "rack2-n01", "rack2-n02"]),
        ("gpu[1,3]-ib, login", ["gpu1-ib", "gpu3-ib", "login"]),
        ("10.140.71.103", ["10.140.71.103"]),
        ("ip-10-0-1-[7-8].ec2.internal", ["ip-10-0-1-7.ec2.internal", "ip-10-0-1-8.ec2.internal"]),
    ],
)
def test_expand(text, names):
    assert list(expand_hosts(text)) == names


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n[1-3",
        "n1-3]",
        "n[3-1]",
        "n[a-b]",
        "n[[1]]",
        "n[]",
        "n 1",
        "n[1-999999999]",
        "n[1-999][1-999]",
        "n1,,n2",
        "n[1][2][3][4][5][6][7]",
        "-n1",
        "(null)",
    ],
)
def test_a_bad_list_is_one_clear_error(text):
    with pytest.raises(BadValue):
        expand_hosts(text)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n001", "n002", "n003", "n007"], "n[001-003,007]"),
        (["n9", "n10"], "n[9-10]"),
        (["n2", "n1"], "n[2,1]"),  # the order is kept
        (["a1", "b2"], "a1,b2"),
        (["r1-n01", "r1-n02", "r2-n01"], "r1-n[01-02],r2-n01"),
        (["r1-n1", "r2-n1", "r2-n2"], "r[1-2]-n1,r2-n2"),
        (["n1", "n01"], "n[1,01]"),
        (["n1", "n1"], "n1,n1"),
        ([], ""),
    ],
)
def test_compress(names, text):
    assert compress_hosts(names) == text


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["n001", "n002"], "n[001-002]"),
        (["n1-ib", "n2-ib"], "n1-ib,n2-ib"),
        (["r1-n1", "r2-n1", "r2-n2"], "r1-n1,r2-n1,r2-n2"),
        (["r1-n1", "r1-n2", "r2-n1"], "r1-n[1-2],r2-n1"),
    ],
)
def test_slurm_reads_brackets_at_the_end_of_a_name_only(names, text):
    assert compress_hosts(names, for_slurm=True) == text


@given(st.lists(LABEL, min_size=1, max_size=12), st.booleans())
def test_compressing_loses_nothing(names, for_slurm):
    assert list(expand_hosts(compress_hosts(names, for_slurm=for_slurm))) == names


@given(
    st.lists(st.integers(0, 1200), min_size=1, max_size=40, unique=True),
    st.integers(1, 5),
    st.sampled_from(["", "-ib", ".local"]),
)
def test_compressing_numbered_hosts_loses_nothing(numbers, width, tail):
    names = [f"n{number:0{width}d}{tail}" for number in numbers]
    assert list(expand_hosts(compress_hosts(names))) == names


def test_natural_order():
    assert sorted(["n10", "n2", "n1", "m3"], key=natural_key) == ["m3", "n1", "n2", "n10"]
    assert sorted(["rack10", "rack2-n3", "rack2"], key=natural_key)[-1] == "rack10"
