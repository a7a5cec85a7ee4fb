import pytest

from tools.checkers.compiled_hlo import collectives

PROGRAM = """HloModule jit_train_step

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%layer (p: (s32[], bf16[8,64])) -> (s32[], bf16[8,64]) {
  %gather.1 = bf16[64,128]{1,0} all-gather(%x), replica_groups=[1,8]<=[8], \
metadata={op_name="a/while/body"}
  %sum.1 = (f32[64]{0}, /*index=1*/f32[8,4]{1,0}) all-reduce(%y, %z), \
replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %cut = f32[8]{0} reduce-scatter(%w), replica_groups=mesh['i'=2,'j'=4] {'j'}, \
to_apply=%add
}

%stop (p: (s32[], bf16[8,64])) -> pred[] {
  %n = s32[] constant(4)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

%micro (p: (s32[])) -> (s32[]) {
  ROOT %layers = (s32[], bf16[8,64]) while(%t), condition=%stop, body=%layer
}

ENTRY %main (p: f32[]) -> f32[] {
  %loop = (s32[]) while(%u), condition=%other, body=%micro, \
backend_config={"known_trip_count":{"n":"2"}}
  ROOT %swap = (f32[2,4]{1,0}, f32[2,4]{1,0}) all-to-all(%v, %v), replica_groups={{0,1}}
}
"""


def test_collectives_count_as_often_as_their_loops_run() -> None:
    told = {one.kind: one for one in collectives(PROGRAM, 8)}
    rows = {k: (x.group_size, x.n_runs, x.elements, x.types) for k, x in told.items()}
    assert rows == {
        "all-gather": (8, 8, (8192,), ("bf16",)),
        "all-reduce": (2, 8, (64, 32), ("f32", "f32")),
        "reduce-scatter": (4, 8, (32,), ("f32",)),
        "all-to-all": (2, 1, (16,), ("f32",)),
    }
    assert told["all-gather"].source == "a/while/body"


def test_a_loop_that_does_not_say_its_runs_is_refused() -> None:
    text = PROGRAM.replace("constant(4)", "parameter(0)")
    with pytest.raises(ValueError, match="number of runs"):
        list(collectives(text, 8))
