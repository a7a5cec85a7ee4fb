import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import SpecError
from planner.specs.yaml.document import MAX_BYTES, Document, load_yaml, parse_yaml, set_path


def refusal(text, file="f.yaml"):
    with pytest.raises(SpecError) as caught:
        parse_yaml(text, file)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15e12", 15e12),
        ("1.5e13", 1.5e13),
        ("15e+12", 15e12),
        ("1e-5", 1e-5),
        (".5", 0.5),
        ("1_000", 1000),
        ("0x10", 16),
        ("010", 10),
        ("-3", -3),
        ("+3", 3),
        ("1.", 1.0),
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("off", "off"),
        ("yes", "yes"),
        ("y", "y"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("1:7", "1:7"),
        ("190:20:30", "190:20:30"),
        ("2026-01-01", "2026-01-01"),
        ("'32'", "32"),
        ("e5", "e5"),
        ("80 GiB", "80 GiB"),
        ("~", None),
        ("null", None),
        ("", None),
        ("[]", []),
        ("{}", {}),
    ],
)
def test_scalars_mean_what_they_look_like(text, expected):
    value = parse_yaml(f"key: {text}").data["key"]
    assert value == expected
    assert type(value) is type(expected)


@given(st.integers(-(10**40), 10**40) | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_as_python_prints_them_are_numbers(number):
    assert parse_yaml(f"key: {number!r}").data["key"] == number


def test_marks_of_keys_and_values():
    document = parse_yaml("pools:\n  - name: a\n    nodes: 4\n", "c.yaml")
    assert document.key_marks["pools", 0, "nodes"] == (3, 5)
    assert document.value_marks["pools", 0, "nodes"] == (3, 12)
    assert str(document.problem(("pools", 0, "nodes"), "bad")) == "c.yaml:3:12: pools.0.nodes: bad"
    # What is missing is to be added to the nearest thing that exists.
    assert str(document.problem(("pools", 0, "x", "y"), "bad")) == "c.yaml:2:5: pools.0.x.y: bad"


def test_anchors_are_copies():
    data = parse_yaml("a: &x {n: 1}\nb: *x\n").data
    assert data == {"a": {"n": 1}, "b": {"n": 1}}
    assert data["a"] is not data["b"]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a: 1\nb: 2\na: 3\n", ["f.yaml:3:1: a:", "already on line 1", "remove one"]),
        ("m:\n  a: 1\n  a: 1\n", ["f.yaml:3:3: m.a:", "already on line 2"]),
        ("a:\n\tb: 1\n", ["f.yaml:2:1", "a tab", "spaces"]),
        ("a: b: c\n", ["f.yaml:1:5", "a second ': '"]),
        ("a: 1\n b: 2\n", ["f.yaml:2", "indented too far"]),
        ("- a\nb: 1\n", ["f.yaml:2:1", "does not fit"]),
        ("a: [1, 2\n", ["not valid YAML"]),
        ("a: 'x\n", ["not valid YAML"]),
        ("a: @x\n", ["f.yaml:1:4", "not valid YAML"]),
        ("a: *b\n", ["undefined alias 'b'", "quoted"]),
        ("a: 1\n---\nb: 2\n", ["f.yaml:2:1", "second document"]),
        ("", ["f.yaml: the file is empty"]),
        ("# only a comment\n", ["empty"]),
        ("a: &a [*a]\n", ["nested deeper"]),
        ("[" * 100 + "]" * 100, ["nested deeper"]),
        ("[" * 5000, ["nested too deeply"]),
        ("a: !!python/object:os.system x\n", ["f.yaml:1:4: a:", "not supported"]),
        ("a: !!binary aGk=\n", ["!!binary is not supported"]),
        ("a: !!int foo\n", ["not a number"]),
        ("a: " + "9" * 5000, ["not a number"]),
        ("1: 2\n", ["1 is not a text key", "quote it"]),
        ("? [a]\n: b\n", ["not a text key"]),
        ("b: &b {x: 1}\na: {<<: *b}\n", ["f.yaml:2:5", "merge keys"]),
        ("a: 1\nb: \x01\n", ["f.yaml:2", "control character"]),
    ],
)
def test_traps_are_refused_with_their_line(text, parts):
    message = refusal(text)
    for part in parts:
        assert part in message


def test_alias_bombs_stop_early():
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for above, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{above}'] * 9)}]")
    assert "more than 50,000 values" in refusal("\n".join(lines))


@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@`,? \n\t01.", max_size=30))
def test_any_text_is_read_or_refused(text):
    try:
        parse_yaml(text, "f.yaml")
    except SpecError as error:
        assert "f.yaml" in str(error)  # noqa: PT017  the other outcome is no error


class TestFiles:
    def refusal(self, path):
        with pytest.raises(SpecError) as caught:
            load_yaml(path)
        return str(caught.value)

    def test_missing_with_a_close_name(self, tmp_path):
        (tmp_path / "cluster.yaml").write_text("a: 1")
        message = self.refusal(tmp_path / "clutser.yaml")
        assert "no such file" in message
        assert f"did you mean {tmp_path / 'cluster.yaml'}?" in message

    def test_missing_suffix(self, tmp_path):
        (tmp_path / "x.yaml").write_text("a: 1")
        assert f"did you mean {tmp_path / 'x.yaml'}?" in self.refusal(tmp_path / "x")

    def test_missing_folder(self, tmp_path):
        assert "no folder" in self.refusal(tmp_path / "nowhere" / "x.yaml")

    def test_directory(self, tmp_path):
        (tmp_path / "x.yaml").write_text("a: 1")
        message = self.refusal(tmp_path)
        assert "is a directory" in message
        assert "x.yaml" in message

    def test_not_utf8(self, tmp_path):
        path = tmp_path / "x.yaml"
        path.write_bytes(b"a: 1\nb: \xe9\n")
        assert f"{path}:2: is not UTF-8 text" in self.refusal(path)
        path.write_bytes("a: 1".encode("utf-16"))
        assert "UTF-16" in self.refusal(path)

    def test_byte_order_mark(self, tmp_path):
        path = tmp_path / "x.yaml"
        path.write_bytes(b"\xef\xbb\xbfa: 1\n")
        assert load_yaml(path).data == {"a": 1}

    def test_too_large(self, tmp_path):
        path = tmp_path / "x.yaml"
        path.write_bytes(b"#" * (MAX_BYTES + 1))
        assert "larger than 1 MB" in self.refusal(path)

    def test_nul_in_the_name(self):
        assert "cannot be read" in self.refusal("a\0b")


class TestSetPath:
    document = parse_yaml("pools:\n  - nodes: 4\n    tags: []\ntraining: {seq_len: 1}\n", "c.yaml")

    def test_values_are_read_as_yaml(self):
        changed = set_path(self.document, "pools.0.nodes", "16")
        assert changed.data["pools"][0]["nodes"] == 16
        assert self.document.data["pools"][0]["nodes"] == 4
        assert (
            set_path(self.document, "training.tokens", "15e12").data["training"]["tokens"] == 15e12
        )
        assert (
            set_path(self.document, "training.x", "400 Gb/s").data["training"]["x"] == "400 Gb/s"
        )
        assert set_path(self.document, "training.x", "").data["training"]["x"] is None

    def test_problems_name_the_option(self):
        changed = set_path(self.document, "pools.0.nodes", "x")
        problem = changed.problem(("pools", 0, "nodes"), "bad")
        assert str(problem) == "--set pools.0.nodes=x: pools.0.nodes: bad"

    @pytest.mark.parametrize(
        ("path", "parts"),
        [
            (
                "pool.0.nodes",
                [
                    "no key 'pool' in the top level",
                    "keys there: pools, training",
                    "did you mean pools?",
                ],
            ),
            ("pools.1.nodes", ["no item '1' in pools, a list of 1", "0 to 0"]),
            ("pools.-1.nodes", ["no item '-1'"]),
            ("pools.first.nodes", ["no item 'first'"]),
            ("pools.0.tags.0", ["a list of 0"]),
            ("training.seq_len.x", ["training.seq_len is 1, and has no 'x' inside"]),
            ("training.", ["no key '' in training"]),
            ("", ["no key ''"]),
        ],
    )
    def test_unknown_paths_say_what_exists(self, path, parts):
        with pytest.raises(SpecError) as caught:
            set_path(self.document, path, "1")
        for part in ["--set", *parts]:
            assert part in str(caught.value)

    def test_bad_yaml_names_the_option(self):
        with pytest.raises(SpecError, match=r"--set training\.seq_len="):
            set_path(self.document, "training.seq_len", "[1")

    def test_python_data_has_no_marks(self):
        assert str(Document({"a": 1}).problem(("a",), "bad")) == "a: bad"
