"""The settings of a round for every family and card."""

from __future__ import annotations

import json
from itertools import cycle, product

import pytest

from modules.project import presets
from modules.project.presets import chosen_from_data, find_preset, round_config, taste_config
from modules.project.ProjectFile import CARDS, ProjectFile
from modules.spec.registry import FAMILIES
from modules.trainer.online.settings import create_sampler
from modules.util.config.load import check_config
from modules.util.errors import UserError
from modules.util.program_files import PRESETS
from tests.usual import usual


def project(**changes) -> ProjectFile:
    model = {
        "type": changes.pop("type", "STABLE_DIFFUSION_15"),
        "base": changes.pop("base", "somebody/model"),
    }
    return ProjectFile.checked({"model": model, "generator": {"kind": "own"}, "held_out": [], **changes}, "x")


# every family has a card, and every card has families
USUAL = zip(FAMILIES, cycle(CARDS))


@pytest.mark.parametrize(("family", "card"), usual(product(FAMILIES, CARDS), *USUAL))
def test_every_preset_gives_a_config_that_passes(family, card):
    file = project(type=family, card=card)
    try:
        find_preset(file)
    except UserError as error:
        assert "no preset" in error.message
        return
    names = {
        "model_type": family,
        "base_model_name": "somebody/model",
        "output_model_destination": "a.safetensors",
    }
    config = round_config(file, names, 60, [])
    check_config(config)
    assert config.model_type.value == family and config.trains_pairs
    assert 2 <= config.epochs <= 60


def test_most_families_have_a_preset():
    found = []
    for family in FAMILIES:
        try:
            found.append(find_preset(project(type=family)))
        except UserError:
            continue
    assert len(found) >= 10


def test_the_card_chooses():
    names = {card: find_preset(project(type="FLUX_DEV_1", card=card)).stem for card in CARDS}
    assert names == {8: "#dev DPO 12 GB", 12: "#dev DPO 12 GB", 16: "#dev DPO 16 GB", 24: "#dev DPO"}
    names = {card: find_preset(project(type="Z_IMAGE", card=card)).stem for card in CARDS}
    assert names == {8: "#DPO 8 GB", 12: "#DPO 12 GB", 16: "#DPO 16 GB", 24: "#DPO"}
    base = "black-forest-labs/FLUX.2-klein-base-4B"
    # memory for source images is of no use to images of prompts alone
    names = {card: find_preset(project(type="FLUX_2", base=base, card=card)).stem for card in CARDS}
    whole = "#klein base 4B DPO"
    assert names == {8: f"{whole} 8 GB", 12: whole, 16: whole, 24: whole}
    assert round_config(project(card=8), {}, 60, []).batch_size == 1
    assert round_config(project(card=24), {}, 60, []).batch_size == 4


@pytest.mark.parametrize(
    ("family", "stem"),
    [
        ("STABLE_DIFFUSION_15", "#NFT"),
        ("STABLE_DIFFUSION_21", "#NFT"),
        ("STABLE_DIFFUSION_XL_10_BASE", "#NFT"),
        ("STABLE_DIFFUSION_35", "#NFT"),
        ("FLUX_2", "#klein base 4B NFT"),
        ("Z_IMAGE", "#NFT"),
    ],
)
def test_a_learned_taste_can_train_these_families(family, stem):
    assert find_preset(project(type=family, card=24), taste=True).stem == stem


@pytest.mark.parametrize(
    ("more", "tasks", "prompts", "batch", "accumulation"),
    [
        ({"type": "FLUX_2", "card": 24}, 8, 8, 4, 4),
        ({"type": "FLUX_2", "card": 24}, 60, 8, 4, 4),
        ({"type": "FLUX_2", "card": 24}, 5, 5, 4, 4),
        ({"type": "FLUX_2", "card": 8}, 1, 1, 1, 16),
        ({"base": "resources/demo_model", "card": 24}, 5, 4, 16, 1),
        ({"base": "resources/demo_model", "card": 24}, 1, 1, 8, 2),
    ],
)
def test_a_project_with_few_prompts_learns_from_all_it_has(more, tasks, prompts, batch, accumulation):
    """An epoch has as many prompts as there are, in whole batches, and optimizer steps stay as large."""
    config = taste_config(project(**more), {}, tasks, [])
    assert config.rlhf_prompts_per_epoch == prompts
    assert (config.batch_size, config.gradient_accumulation_steps) == (batch, accumulation)
    create_sampler(config, tasks, 0, 1)
    assert taste_config(project(**more), {}, tasks, ["rlhf_prompts_per_epoch=2"]).rlhf_prompts_per_epoch == 2


def test_a_batch_that_was_set_keeps_the_accumulation_of_the_preset():
    config = taste_config(project(base="resources/demo_model", card=24), {}, 1, ["batch_size=16"])
    assert (config.batch_size, config.gradient_accumulation_steps) == (16, 1)


def test_the_demo_model_has_its_own():
    assert find_preset(project(base="resources/demo_model")).stem == "#demo dpo"
    assert find_preset(project(base=str(PRESETS.parent / "resources" / "demo_model"))).stem == "#demo dpo"
    assert find_preset(project()).parent.name == "Stable Diffusion 1.5"


def test_what_follows_from_the_data():
    small, large = (round_config(project(), {}, pairs, []) for pairs in (30, 300))
    assert small.epochs > large.epochs
    steps = [config.epochs * pairs / 4 for config, pairs in ((small, 30), (large, 300))]
    assert 60 < steps[0] < steps[1] < 400
    assert round_config(project(image={"width": 768, "height": 512}), {}, 60, []).resolution == "640"
    assert round_config(project(), {}, 60, ["epochs=3"]).epochs == 3
    assert round_config(project(card=24), {}, 2, []).batch_size == 2


@pytest.mark.parametrize(
    ("override", "batch", "accumulation"),
    [("epochs=3", 1, 4), ("batch_size=4", 4, 1), ("gradient_accumulation_steps=2", 1, 2)],
)
def test_a_set_batch_is_not_multiplied_by_what_the_card_would_need(override, batch, accumulation):
    file = project(card=8)
    config = round_config(file, {}, 60, [override])
    assert (config.batch_size, config.gradient_accumulation_steps) == (batch, accumulation)
    steps = config.epochs * 60 / (batch * accumulation)
    assert "epochs" in override or 100 < steps < 130, "about as many as the data asks for"


def test_a_batch_set_for_a_learned_taste_keeps_the_accumulation_of_the_preset():
    config = taste_config(project(card=8), {}, 60, ["batch_size=4"])
    usual = taste_config(project(card=24), {}, 60, [])
    assert (config.batch_size, config.gradient_accumulation_steps) == (4, usual.gradient_accumulation_steps)


def test_only_values_that_the_run_uses_are_named_as_chosen_from_the_data():
    chosen = chosen_from_data(project(card=8), {}, 60, [])
    assert (chosen["batch_size"], chosen["gradient_accumulation_steps"]) == (1, 4)
    assert {"epochs", "resolution"} <= chosen.keys()
    assert "epochs" not in chosen_from_data(project(card=8), {}, 60, ["epochs=3"])


def test_a_preset_that_changes_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(presets, "PRESETS", tmp_path)
    (tmp_path / "family").mkdir()
    path = tmp_path / "family" / "#mine.json"
    kept = {"__version": 1, "model_type": "STABLE_DIFFUSION_15", "base_model_name": "a/model"}
    path.write_text(json.dumps({**kept, "rlhf_enabled": False}))
    with pytest.raises(UserError, match="no preset"):
        find_preset(project())
    path.write_text(json.dumps({**kept, "rlhf_enabled": True}))
    assert find_preset(project()) == path
    path.write_text("{")
    with pytest.raises(UserError, match="no preset"):
        find_preset(project())


def test_a_preset_that_could_not_be_read_is_read_again(tmp_path, monkeypatch):
    path = tmp_path / "one.json"
    path.write_text(next(PRESETS.glob("**/*DPO*.json")).read_text(encoding="utf-8"), encoding="utf-8")
    honest = presets.load_layered

    def fails(*_rest, **_named):
        raise UserError("its parent is not there", "preset", "")

    monkeypatch.setattr(presets, "load_layered", fails)
    assert presets._read(path) is None
    monkeypatch.setattr(presets, "load_layered", honest)
    assert presets._read(path) is not None
    monkeypatch.setattr(presets, "load_layered", fails)
    assert presets._read(path) is not None, "what was read is remembered"
