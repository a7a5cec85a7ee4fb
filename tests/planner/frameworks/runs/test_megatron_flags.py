import pytest

from planner.errors import UsageError
from planner.frameworks.megatron.flags import default_of, flag_table, parse_flags, set_flags
from planner.frameworks.shell.marks import mark
from searches.frameworks.megatron.settings import CHOICES, DEFAULTS
from searches.frameworks.registry import framework_rules


def test_the_table_is_that_of_the_release_that_rules_are_for() -> None:
    release, by_name, by_dest = flag_table()
    assert release == framework_rules("megatron").release
    assert len(by_name) > 800
    assert by_name["--fp8-format"].dest == "fp8"
    assert by_dest["recompute_modules"].nargs == "+"


def test_defaults_and_choices_of_the_rules_are_the_parser_s() -> None:
    _, _, by_dest = flag_table()
    for dest, value in DEFAULTS.items():
        if dest in by_dest and dest not in RESOLVED_LATER:
            assert by_dest[dest].default == value, dest
    for dest, words in CHOICES.items():
        assert set(by_dest[dest].choices) == set(words), dest


RESOLVED_LATER = frozenset(("num_query_groups", "recompute_modules", "use_gloo_process_groups"))
"""The parser leaves them empty; validate_args or the configuration class fills them in."""


def words(text: str) -> list[str]:
    return text.split()


def test_values_by_kind() -> None:
    parsed = parse_flags(
        words(
            "--num-layers 2 --lr=1e-4 --min-lr -1e-5 --bf16 --disable-bias-linear"
            " --recompute-modules a b --rampup-batch-size 1 2 3 --attention-backend flash"
            " --moe-layer-freq ([0]*1+[1]*1)"
        )
    )
    assert parsed.settings == {
        "num_layers": 2,
        "lr": 1e-4,
        "min_lr": -1e-5,
        "bf16": True,
        "add_bias_linear": False,
        "recompute_modules": ["a", "b"],
        "rampup_batch_size": [1, 2, 3],
        "attention_backend": "flash",
        "moe_layer_freq": [0, 1],
    }
    assert parsed.written["recompute_modules"] == "--recompute-modules a b"
    assert (parsed.unknown, parsed.faults) == ((), ())


def test_the_last_of_two_counts() -> None:
    assert parse_flags(words("--lr 1 --lr 2")).settings == {"lr": 2.0}


@pytest.mark.parametrize(
    ("text", "unknown", "fault"),
    [
        ("--tensor-model-parralel-size 2", ("--tensor-model-parralel-size",), ""),
        ("--tensor-model-parallel 2", ("--tensor-model-parallel",), ""),
        ("--nope=3 --bf16", ("--nope",), ""),
        ("--nope 3 4 --bf16", ("--nope",), ""),
        ("--num-layers x", (), "--num-layers: 'x' is not a whole number"),
        ("--lr x", (), "--lr: 'x' is not a number"),
        (
            "--no-rope-freq [0]*3+x",
            (),
            "--no-rope-freq: '[0]*3+x' is neither a number nor a list such as ([0]*3+[1]*5)",
        ),
        (
            "--no-rope-freq (0,1)",
            (),
            "--no-rope-freq: '(0,1)' is neither a number nor a list such as ([0]*3+[1]*5)",
        ),
        ("--num-layers", (), "--num-layers needs a value"),
        ("--num-layers --bf16", (), "--num-layers needs a value"),
        ("--bf16=1", (), "--bf16 takes no value"),
        ("--num-layers 2 3", (), "'3' belongs to no flag"),
        ("--rampup-batch-size 1 2", (), "--rampup-batch-size needs 3 values, not 2"),
        ("--recompute-modules", (), "--recompute-modules needs at least one value"),
    ],
)
def test_what_the_parser_refuses(text: str, unknown: tuple[str, ...], fault: str) -> None:
    parsed = parse_flags(words(text))
    assert parsed.unknown == unknown
    assert parsed.faults == ((fault,) if fault else ())


def test_words_outside_the_choices_stay_for_the_rules() -> None:
    parsed = parse_flags(words("--ckpt-format zip --fp8-recipe tensorwise"))
    assert parsed.settings["ckpt_format"] == "zip"
    known = "torch, torch_dist, torch_dcp, fsdp_dtensor"
    assert parsed.odd_words == {"ckpt_format": f"--ckpt-format: 'zip' is not one of {known}"}


def test_values_that_the_script_does_not_say() -> None:
    parsed = parse_flags([mark("X"), "--num-layers", mark("N"), "--data-path", f"a/{mark('D')}"])
    assert parsed.open_values == {"num_layers": ("N",), "data_path": ("D",)}
    assert parsed.settings["data_path"] == "a/${D}"
    assert parsed.faults == ()


def test_settings_by_hand() -> None:
    parsed = parse_flags(["--num-layers", mark("N"), "--bf16"])
    changed = set_flags(
        parsed, [("num_layers", "4"), ("--bf16", "false"), ("recompute-modules", "mlp moe")]
    )
    assert changed.settings == {
        "num_layers": 4,
        "bf16": False,
        "recompute_modules": ["mlp", "moe"],
    }
    assert changed.open_values == {}
    with pytest.raises(UsageError, match="no such flag"):
        set_flags(parsed, [("tensor_parallel", "4")])
    for path, value in (("num_layers", "x"), ("bf16", "1"), ("fp8_recipe", "x")):
        with pytest.raises(UsageError, match=path):
            set_flags(parsed, [(path, value)])


def test_defaults() -> None:
    assert default_of("tensor_model_parallel_size") == 1
    assert default_of("no_such") is None
