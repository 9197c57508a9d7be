"""Every public preset of OneTrainer: what is trained here trains the same or says how not; the rest is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from modules.util.config.foreign.importing import CHANGED, DONE, import_file
from modules.util.config.load import find_problems, load_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.ModelType import ModelType
from modules.util.errors import UserError
from scripts import import_config as script
from tests.usual import usual
from tests.util.config.onetrainer.presets import PRESETS

EXPLAINED = {
    r"transformer\.weight_dtype = INT_W8A8": "instead",
    r"compile = true": "trained in main memory",
}
"""Notes that the presets may have, each with the words that say what follows."""


def offered(name: str) -> bool:
    return PRESETS[name]["model_type"] in ModelType.__members__


def write(folder: Path, name: str) -> Path:
    path = folder / Path(name).with_suffix(".json").name
    path.write_text(json.dumps(PRESETS[name]), encoding="utf-8")
    return path


OFFERED = [name for name in PRESETS if offered(name)]


@pytest.mark.parametrize("name", usual(OFFERED, *OFFERED[::3]))
def test_a_preset_of_a_family_that_is_trained(name: str, tmp_path: Path) -> None:
    data, source, target = PRESETS[name], write(tmp_path, name), tmp_path / "ours.json"
    imported = import_file(source)
    for note in imported.notes.listed():
        texts = [text for pattern, text in EXPLAINED.items() if re.match(pattern, note)]
        assert texts, note
        assert texts[0] in note
    config = imported.made
    assert isinstance(config, TrainConfig)
    assert script.main([str(source), str(target)]) == imported.outcome()
    assert imported.outcome() in (DONE, CHANGED)
    assert load_config(target) == config
    problems = find_problems(config)
    assert (problems.errors, problems.warnings) == ([], [])
    assert config.model_type == data["model_type"]
    assert config.training_method == data["training_method"]
    if config.training_method == "EMBEDDING":
        asked = {name: value for name, value in data.get("embedding", {}).items() if name != "uuid"}
        assert {name: getattr(config.embedding, name) for name in asked} == asked
    assert config.batch_size == data.get("batch_size", 1)
    assert config.learning_rate == data.get("learning_rate", 3e-6)
    part = getattr(config, config.model_type.denoiser)
    asked = data.get(config.model_type.denoiser, {})
    assert part.offload_fraction == asked.get("offload_fraction", data.get("layer_offload_fraction", 0.0))
    for encoder in config.model_type.text_encoders:
        there = data.get(encoder, {}).get("offload_fraction", data.get("layer_offload_fraction", 0.0))
        assert getattr(config, encoder).offload_fraction == there
    given = asked.get("weight_dtype", data.get("weight_dtype", "FLOAT_32"))
    assert bits(part.weight_dtype) <= bits(given)
    few = data.get("quantization", {})
    if few.get("layer_filter_preset", "blocks") == "blocks":
        assert not config.quantization.layer_filter.strip()
    elif bits(part.weight_dtype) < 16:
        assert config.quantization.layer_filter_preset == few["layer_filter_preset"]
    assert config.vb_loss_strength == (1.0 if data["model_type"] == "PIXART_ALPHA" else 0.0)
    if "optimizer_defaults" in data:
        assert config.optimizer.fused_back_pass
        assert config.clip_each_weight
        assert config.optimizer.params["scale_parameter"] is False


def bits(dtype: str) -> int:
    return next(count for text, count in {"32": 32, "16": 16, "8": 8, "4": 4}.items() if text in dtype)


@pytest.mark.parametrize("name", [name for name in PRESETS if not offered(name)])
def test_a_preset_that_is_not_offered_is_refused_with_the_reason(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = write(tmp_path, name), tmp_path / "ours.json"
    assert script.main([str(source), str(target)]) == 2
    assert not target.exists()
    error = capsys.readouterr().err
    assert "model_type" in error
    assert "is not supported: " in error
    assert "nearest: " in error
    with pytest.raises(UserError):
        import_file(source)


def test_weights_that_are_trained_in_main_memory_are_so_here(tmp_path: Path) -> None:
    fractions = {}
    for name, data in PRESETS.items():
        if offered(name) and data["training_method"] == "FINE_TUNE":
            made = import_file(write(tmp_path, name)).made
            assert isinstance(made, TrainConfig)
            if made.trains_in_main_memory():
                fractions[name] = getattr(made, made.model_type.denoiser).offload_fraction
    assert len(fractions) >= 8
    assert {fractions[name] for name in fractions if "Krea" in name} == {0.8, 0.3}
