"""`planner import`, and models of other formats in place of model files."""

import json
import re
import shutil
from pathlib import Path

import pytest

import planner
from planner.cli.app import app
from planner.cli.spec_check import check_spec
from planner.errors import EmitError, SpecError
from planner.render.document import text_of
from planner.solver.solve import solve
from planner.specs.loader import import_model, load_model
from tests.planner.command import run_here

DATA = Path(__file__).parents[1] / "specs" / "importers" / "data"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    shutil.copy(DATA / "llama3-8b.json", "config.json")
    return tmp_path


def run(*words):
    """Run a command in this process; return its exit code."""
    code = app(list(words), standalone_mode=False)
    return code or 0


class TestImportModel:
    def test_to_standard_output(self, folder, capsys, snapshot):
        run("import", "model", "config.json")
        out, err = capsys.readouterr()
        fields = [re.split(r"\s+# ", line.strip()) for line in out.splitlines()]
        assert ["layers: 32", "num_hidden_layers"] in fields
        assert ["global_batch: 512", "assumed: 4.2 M tokens a step"] in fields
        assert ["rotary_base: 500000.0", "rope_theta"] in fields
        snapshot(f"{out}\n{err}")
        assert max(map(len, err.splitlines())) <= 100

    def test_to_a_file_under_a_name(self, folder, capsys):
        run("import", "model", "config.json", "--out", "m.yaml", "--name", "mine")
        assert capsys.readouterr().out == ""
        given = load_model("m.yaml")
        assert given.shape.name == "mine"
        assert given.shape.layers == 32
        assert given.notes == ()
        assert "name: mine" in (folder / "m.yaml").read_text()

    def test_fields_that_are_set(self, folder, capsys):
        fields = ("--set", "sequence=16384", "--set", "training.optimizer=muon")
        run("import", "model", "config.json", "--out", "m.yaml", *fields)
        given = load_model("m.yaml")
        assert (given.job.seq_len, given.job.optimizer) == (16384, "muon")
        assert given.job.global_batch * given.job.seq_len == 4 * 2**20
        text = (folder / "m.yaml").read_text()
        assert "# --set training.seq_len" in text
        assert "# assumed: 4.2 M tokens a step" in text
        assert "training.seq_len" not in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("field", "said"),
        [
            ("training.seq=1", "did you mean `seq_len`"),
            ("sequence=x", "expected a whole number, got the text 'x'"),
            ("model.hidden=0", "model.hidden"),
        ],
    )
    def test_fields_that_cannot_be_set(self, folder, field, said):
        command = run_here("import", "model", "config.json", "--set", field)
        assert (command.returncode, said in " ".join(command.stderr.split())) == (1, True)

    def test_a_type_that_is_not_known(self, folder):
        data = json.loads((folder / "config.json").read_text())
        data |= {"model_type": "mine", "architectures": ["MineForCausalLM"]}
        (folder / "config.json").write_text(json.dumps(data))
        by_fields, _ = import_model("config.json")
        assert by_fields.format == "Hugging Face config.json (mine)"
        found, given = import_model("config.json", as_type="llama")
        assert given.shape.layers == 32
        assert found.notes[0] == "model_type mine is read as llama"
        del data["num_hidden_layers"]
        (folder / "config.json").write_text(json.dumps(data))
        with pytest.raises(SpecError, match="the file does not say num_hidden_layers"):
            import_model("config.json", as_type="llama")
        with pytest.raises(SpecError, match="--as: no type 'lama'") as caught:
            import_model("config.json", as_type="lama")
        assert "one of llama" in str(caught.value)

    def test_solve_reads_it_as_a_type_too(self, folder, capsys):
        data = json.loads((folder / "config.json").read_text())
        data |= {"model_type": "mine", "architectures": ["MineForCausalLM"]}
        (folder / "config.json").write_text(json.dumps(data))
        words = ["solve", "config.json", "h100-x8", "--set", "training.global_batch=8"]
        run(*words, "--top", "1", "--as", "llama", "--format", "json", "--no-cache")
        notes = json.loads(capsys.readouterr().out)["notes"]
        assert any("model_type mine is read as llama" in note for note in notes)

    def test_refusals(self, folder):
        (folder / "m.yaml").write_text("model: {}\n")
        with pytest.raises(SpecError, match="no format that says a model"):
            import_model("m.yaml")
        with pytest.raises(SpecError, match="no such file"):
            import_model("no.json")
        with pytest.raises(SpecError, match="is not a name"):
            import_model("config.json", name="rm -rf")
        with pytest.raises(EmitError, match="cannot write no/such/"):
            run("import", "model", "config.json", "--out", "no/such/m.yaml")

    def test_says_how_to_change_what_was_assumed(self, folder, capsys):
        run("import", "model", "config.json", "--out", "m.yaml")
        err = " ".join(capsys.readouterr().err.split())
        assert "edit m.yaml to change one" in err
        assert "--set" not in err  # an option of solve alone


class TestInPlaceOfAModelFile:
    def test_solve_lists_the_assumptions(self, folder):
        result = solve("config.json", "h100-x8", top=1, pins={"tp": 8})
        lines = text_of(result).splitlines()
        assert lines[1].startswith("assumed training.seq_len = 8192 (max_position_embeddings); ")
        assert "--set PATH=VALUE changes one" in " ".join(lines[1:4])
        assert max(len(line) for line in lines if not line.startswith("next:")) <= 100
        assert any(
            note.startswith("assumed training.seq_len") for note in result.to_json()["notes"]
        )

    def test_it_is_the_same_plan_as_from_the_file_that_import_writes(self, folder):
        run("import", "model", "config.json", "--out", "llama.yaml")
        options = {"top": 2, "pins": {"tp": 8}}
        first, second = (solve(x, "h100-x8", **options) for x in ("config.json", "llama.yaml"))
        assert [p.plan_id for p in first.plans] == [p.plan_id for p in second.plans]
        assert second.notes == tuple(n for n in first.notes if "figures" in n)

    def test_python_data(self, folder):
        data = json.loads((folder / "config.json").read_text())
        pins = {"tp": 8, "recompute": "full"}
        of_dict = planner.evaluate(data, "h100-x8", pins=pins)
        of_file = planner.evaluate("config.json", "h100-x8", pins=pins)
        assert of_dict.plans[0].plan_id == of_file.plans[0].plan_id
        assert of_dict.notes == of_file.notes

    @pytest.mark.slow
    def test_evaluate_and_recommend_say_it_too(self, folder, capsys):
        run("evaluate", "config.json", "h100-x8", "--pin", "tp=8")
        assert "\nAssumed: training.seq_len = 8192" in capsys.readouterr().out
        run("recommend", "micro-batch", "config.json", "h100-x8", "--pin", "tp=8")
        assert "\nassumed training.seq_len = 8192" in capsys.readouterr().out
        found = planner.recommend("sequence", "config.json", "h100-x8", step=8192)
        assert not any("training.seq_len" in note for note in found.notes)
        assert any("training.global_batch = 512" in note for note in found.notes)

    def test_set_reaches_its_fields(self, folder):
        given = load_model("config.json", [("model.layers", 4), ("training.tokens", "1T")])
        assert (given.shape.layers, given.job.tokens) == (4, 1e12)
        with pytest.raises(SpecError, match=r"--set model\.layer=4: model\.layer: unknown key"):
            load_model("config.json", [("model.layer", 4)])

    def test_check_spec(self, folder, snapshot):
        snapshot(check_spec("config.json"))

    def test_as_a_cluster(self, folder):
        with pytest.raises(SpecError, match="this is a model file, and a cluster file is needed"):
            solve("llama3-8b", "config.json")


class TestFilesOfTheFolder:
    def test_the_folder_itself(self, folder):
        (folder / "Llama-3-8B").mkdir()
        shutil.move("config.json", "Llama-3-8B/config.json")
        for name in ("Llama-3-8B", "Llama-3-8B/", f"{folder}/Llama-3-8B"):
            assert load_model(name).shape.name == "Llama-3-8B"

    def test_the_folder_in_the_cache_of_the_hub(self, folder):
        model = folder / "models--meta-llama--Meta-Llama-3-8B"
        (model / "refs").mkdir(parents=True)
        (model / "snapshots" / "62bd457b").mkdir(parents=True)
        (model / "refs" / "main").write_text("62bd457b")
        shutil.move("config.json", model / "snapshots" / "62bd457b" / "config.json")
        given = load_model(model)
        assert given.shape.name == "Meta-Llama-3-8B"
        assert given.path.endswith("62bd457b/config.json")

    def test_a_folder_without_one(self, folder):
        (folder / "empty").mkdir()
        with pytest.raises(SpecError, match="is a directory, not a file"):
            load_model("empty")

    @pytest.mark.parametrize(
        ("name", "what"),
        [
            ("tokenizer_config.json", "the configuration of a tokenizer"),
            ("generation_config.json", "the configuration of text generation"),
            ("model-00001-of-00004.safetensors", "a file of weights"),
            ("pytorch_model.bin", "a file of weights"),
        ],
    )
    def test_another_file_of_it(self, folder, name, what):
        (folder / name).write_bytes(b"\x80" * 2_000_000)
        with pytest.raises(SpecError) as caught:
            load_model(name)
        assert str(caught.value) == f"{name}: is {what}, not of a model\n  fix: give config.json"

    def test_the_index_of_the_weights_beside_it(self, folder):
        (folder / "model.safetensors.index.json").write_text("{}")
        assert load_model("model.safetensors.index.json").path == "config.json"
        (folder / "alone").mkdir()
        shutil.move("model.safetensors.index.json", "alone")
        with pytest.raises(SpecError, match="is the index of a model's weight files"):
            load_model("alone/model.safetensors.index.json")

    def test_an_empty_file(self, folder):
        (folder / "config.json").write_text("")
        with pytest.raises(SpecError, match="the file is empty"):
            load_model("config.json")

    def test_a_name_of_the_hub(self, folder):
        with pytest.raises(SpecError) as caught:
            load_model("meta-llama/Meta-Llama-3-8B")
        assert "hf download meta-llama/Meta-Llama-3-8B config.json" in str(caught.value)
        with pytest.raises(SpecError, match="there is no folder 'models' either"):
            load_model("models/m.yaml")


def test_answers_for_encoders_say_what_they_count(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sizes = {"hidden_size": 768, "intermediate_size": 3072, "vocab_size": 30522}
    config = {"model_type": "bert", "num_hidden_layers": 12, "num_attention_heads": 12, **sizes}
    (tmp_path / "bert.json").write_text(json.dumps(config))
    pins = ("--pin", "tp=1", "--pin", "pp=1", "--framework", "any", "-v")
    shown = run_here("solve", str(tmp_path / "bert.json"), "h100-x8", *pins)
    assert shown.returncode == 0
    assert "causal" not in shown.stdout
    assert "attention to both sides counted in full" in " ".join(shown.stdout.split())
    assert "planner emit last#1 --for" in shown.stdout  # FSDP2 and DeepSpeed run encoders


def test_answers_for_encoder_decoders_name_what_runs_them(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = {"model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6}
    config |= {"num_heads": 8, "vocab_size": 32128}
    (tmp_path / "t5.json").write_text(json.dumps(config))
    shown = run_here("solve", str(tmp_path / "t5.json"), "8xh100")
    assert shown.returncode == 0
    assert "framework deepspeed: Megatron-LM has no encoder+dense" in shown.stdout
    assert "planner emit last#1 --for deepspeed" in shown.stdout
