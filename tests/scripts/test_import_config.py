"""The command that imports files of other programs: what it writes, what it says, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modules.util.config.foreign.Notes import MOST_CHARACTERS
from modules.util.config.load import load_config, load_layered
from modules.util.config.TrainConfig import TrainConfig
from scripts import import_onetrainer as former
from scripts.import_config import main

SAME: dict[str, Any] = {
    "__version": 11, "training_method": "LORA", "learning_rate": 1e-4, "lora_alpha": 16.0, "epochs": 10,
    "text_encoder": {"train": False}, "concepts": [], "samples": [],
}  # fmt: skip


def given(path: Path, **data: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**SAME, **data}), encoding="utf-8")
    return path


def test_an_import_that_loses_nothing_ends_with_0_and_leaves_no_notes(tmp_path: Path) -> None:
    source, target = given(tmp_path / "in.json"), tmp_path / "new" / "out.json"
    assert former.main([str(source), str(target)]) == 0
    assert [path.name for path in target.parent.iterdir()] == ["out.json"]
    written = json.loads(target.read_text())
    assert written["__version"] == TrainConfig.VERSION
    assert "learning_rate" not in written, "it is our default"
    preset = tmp_path / "preset.json"
    preset.write_text(json.dumps({"__version": 1, "learning_rate": 3e-5}), encoding="utf-8")
    below = load_layered(preset, target, check=False)
    assert (below.learning_rate, below.lora_alpha) == (3e-5, 16.0), "a preset below it acts"
    first = target.read_bytes()
    assert main([str(source), str(target)]) == 0
    assert target.read_bytes() == first
    assert main([str(source), str(target), "--full"]) == 2, "it would have other content"
    assert target.read_bytes() == first
    assert main([str(source), str(target), "--full", "--overwrite"]) == 0
    assert json.loads(target.read_text())["learning_rate"] == 1e-4


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)])
def test_what_is_imported_is_never_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], overwrite: tuple[str, ...]
) -> None:
    source = given(tmp_path / "theirs" / "in.json")
    before, link = source.read_bytes(), tmp_path / "link.json"
    link.symlink_to(source)
    for target in (source, link, tmp_path / "theirs" / ".." / "theirs" / "in.json"):
        assert main([str(source), str(target), *overwrite]) == 2
        assert "is the file that is imported" in capsys.readouterr().err
    assert main([str(source.parent), str(source.parent), *overwrite]) == 2
    assert "in.json: refused: " in capsys.readouterr().out
    assert [(path.name, path.read_bytes()) for path in source.parent.iterdir()] == [("in.json", before)]


def test_other_files_are_replaced_only_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = given(tmp_path / "in.json", future_loss=True), tmp_path / "out.json"
    for there in ("my own notes", '{"learning_rate": 0.5}', "[]"):
        target.write_text(there)
        assert main([str(source), str(target)]) == 2
        assert "--overwrite" in capsys.readouterr().err
        assert target.read_text() == there and not (tmp_path / "out.json.notes.txt").exists()
    assert main([str(source), str(target), "--overwrite"]) == 3
    assert load_config(target).lora_alpha == 16.0


def test_notes_that_are_no_longer_true_are_replaced(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    notes = tmp_path / "out.json.notes.txt"
    assert main([str(given(tmp_path / "in.json", future_loss=True)), str(target)]) == 3
    assert "future_loss" in notes.read_text()
    assert main([str(given(tmp_path / "in.json")), str(target)]) == 0
    assert notes.read_text() == "every setting was imported\n"


def test_only_what_changes_the_training_ends_with_3(tmp_path: Path) -> None:
    target = str(tmp_path / "out.json")
    assert main([str(given(tmp_path / "in.json", huggingface_cache_dir="x")), target]) == 0
    assert main([str(given(tmp_path / "in.json", future_loss=True)), target]) == 3


def test_notes_are_short_joined_and_without_lists_of_choices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = {"weight_dtype": "INT_W8A8", "train": False}
    source = given(
        tmp_path / "in.json", model_type="FLUX_DEV_1", transformer=part, text_encoder=part, text_encoder_2=part,
        ema="SOMETIMES", base_model_name="x" * 300, made_up="y" * 300,
        concepts=[{"path": "a", "image": {"enable_made_up_turns": True}}] * 5,
    )  # fmt: skip
    assert main([str(source), str(tmp_path / "out.json")]) == 3
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert max(map(len, lines)) <= MOST_CHARACTERS
    (weights,) = [line for line in lines if "INT_8" in line]
    assert weights.startswith(
        "transformer, text_encoder, text_encoder_2.weight_dtype = INT_W8A8: INT_8 instead"
    )
    (turns,) = [line for line in lines if "turns" in line]
    assert turns.startswith("concepts[0].image and 4 more.enable_made_up_turns = true"), turns
    (ema,) = [line for line in lines if line.startswith("ema")]
    assert "CPU" not in ema


@pytest.mark.parametrize(
    ("data", "near"),
    [
        ({"model_type": "HUNYUAN_VIDEO"}, ("model_type", "FLUX_DEV_1")),
        ({"training_method": "EMBEDDING", "model_type": "QWEN"}, ("training_method", "LORA")),
        ({"training_method": "FINE_TUNE_VAE"}, ("training_method", "FINE_TUNE")),
        ({"optimizer": {"optimizer": "PRODIGY_NEW"}, "learning_rate": 1.0}, ("optimizer", "PRODIGY")),
        ({"optimizer": {"optimizer": "ADAMW_ADV_8BIT"}, "learning_rate": 1.0}, ("optimizer", "ADAMW")),
    ],
    ids=str,
)
def test_the_nearest_is_taken_when_it_is_asked_for(
    data: dict[str, Any], near: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = given(tmp_path / "in.json", **data), tmp_path / "out.json"
    assert main([str(source), str(target)]) == 2
    what, why, last = capsys.readouterr().err.splitlines()
    assert "is not supported" in what
    assert why == f"  -> nearest: {near[1]}; --lenient uses it"
    assert last == "nothing was written"
    assert not target.exists()
    assert main([str(source), str(target), "--lenient"]) == 3
    config = load_config(target)
    made = getattr(config, near[0])
    assert getattr(made, "optimizer", made) == near[1]
    assert config.learning_rate == (1e-4 if near[1] == "ADAMW" else data.get("learning_rate", 1e-4))
    assert f"{near[1]} instead" in (tmp_path / "out.json.notes.txt").read_text()


def test_gguf_files_and_impossible_weights_of_the_loss_are_refused_however(tmp_path: Path) -> None:
    for data in (
        {"base_model_name": "models/flux-Q4_K.gguf"},
        {"unet": {"model_name": "unet.GGUF"}},
        {"loss_weight_fn": "SIGMA"},
        {"model_type": "NOT_A_MODEL"},
    ):
        assert main([str(given(tmp_path / "in.json", **data)), str(tmp_path / "out.json"), "--lenient"]) == 2
    assert not (tmp_path / "out.json").exists()


def test_a_gguf_file_of_a_transformer_is_taken_over(tmp_path: Path) -> None:
    source = given(
        tmp_path / "in.json",
        model_type="FLUX_DEV_1",
        training_method="LORA",
        transformer={"model_name": "flux-Q4_K.gguf", "weight_dtype": "GGUF"},
        text_encoder_2={"weight_dtype": "BFLOAT_16"},
    )
    assert main([str(source), str(tmp_path / "out.json")]) in (0, 3)
    made = load_config(tmp_path / "out.json").transformer
    assert (made.model_name, made.weight_dtype) == ("flux-Q4_K.gguf", "BFLOAT_16")


def test_strict_refuses_unknown_settings_and_values_of_the_wrong_kind(tmp_path: Path) -> None:
    for data in ({"sample_made_up": 1}, {"backup_after_unit": "FORTNIGHT"}, {"future_loss": True}):
        source = str(given(tmp_path / "in.json", **data))
        assert main([source, str(tmp_path / "out.json"), "--strict"]) == 2
        assert not (tmp_path / "out.json").exists()
    source = str(given(tmp_path / "in.json", huggingface_cache_dir="x"))
    assert main([source, str(tmp_path / "out.json"), "--strict"]) == 0


def test_a_comparison_writes_nothing_and_shows_both_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = given(
        tmp_path / "in.json", unet={"weight_dtype": "FLOAT_W8A8"}, future_loss=True, compile=True,
        learning_rate_warmup_steps=200, gradient_accumulation_steps=8,
    )  # fmt: skip
    assert main([str(source), "--diff"]) == 3
    assert capsys.readouterr().out.splitlines() == [
        "changed:",
        "  unet.weight_dtype: FLOAT_W8A8 -> FLOAT_8  (FLOAT_8 instead; activations are not rounded to 8 bits)",
        "lost:",
        "  future_loss: true -> -  (unknown setting)",
        "same meaning elsewhere:",
        "  compile: true -> acceleration.shared  (set as an accelerator)",
        "  learning_rate_warmup_steps: 200 -> 25  (the file counts batches, not optimizer steps)",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["in.json"]
    with pytest.raises(SystemExit) as ended:
        main([str(source)])
    assert ended.value.code == 2


@pytest.mark.parametrize(
    ("warmup", "together", "steps"),
    [(200, 8, 25.0), (201, 8, 25.0), (0.1, 8, 0.1), (15, 8, 0.0), (200, 1, 200.0)],
)
def test_a_warm_up_in_batches_becomes_one_in_optimizer_steps(
    warmup: float, together: int, steps: float, tmp_path: Path
) -> None:
    source = given(
        tmp_path / "in.json", learning_rate_warmup_steps=warmup, gradient_accumulation_steps=together
    )
    assert main([str(source), str(tmp_path / "out.json")]) == (3 if warmup == 15 else 0)
    assert load_config(tmp_path / "out.json").learning_rate_warmup_steps == steps


def test_a_folder_is_mirrored_with_a_line_for_each_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there, here = tmp_path / "there", tmp_path / "there" / "ours"
    given(there / "mine.json")
    given(there / "deep" / "lost.json", future_loss=True)
    given(there / "#built in.json", model_type="HUNYUAN_VIDEO")
    (there / "concepts.json").write_text('[{"path": "a"}]')
    (there / "samples.json").write_text('[{"prompt": "a"}]')
    (there / "package.json").write_text('{"name": "x"}')
    (there / "secrets.json").write_text('{"huggingface_token": "hf_x", "cloud": {}}')
    assert main([str(there), str(here)]) == 2
    assert capsys.readouterr().out.splitlines() == [
        '#built in.json: refused: model_type: "HUNYUAN_VIDEO" is not supported: it makes videos',
        "concepts.json: same training",
        "mine.json: same training",
        "samples.json: same training",
        "deep/lost.json: the training differs, 1 note",
    ]
    written = sorted(str(path.relative_to(here)) for path in here.rglob("*") if path.is_file())
    assert written == [
        "concepts.json",
        "deep/lost.json",
        "deep/lost.json.notes.txt",
        "mine.json",
        "samples.json",
    ]
    assert main([str(there), str(here), "--user-only"]) == 3
    assert len(capsys.readouterr().out.splitlines()) == 4, "what was written before is not read"
    assert main([str(there), "--diff", "--user-only"]) == 3
    (there / "broken.json").write_text("{")
    assert main([str(there), str(here), "--user-only"]) == 2
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main([str(empty), str(tmp_path / "x")]) == 2


def test_a_file_that_the_system_refuses_is_an_error_without_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(given(tmp_path / "in.json")), str(tmp_path / ("x" * 300))]) == 2
    assert main(["x" * 300, str(tmp_path / "out.json")]) == 2
    assert "File name too long" in capsys.readouterr().err
