"""What is found in the data before anything is loaded, and what a run then trains on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from modules.dataLoader.preflight import inspect_data
from modules.dataLoader.source import collect_source
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import DPOConfidence
from modules.util.enum.DPOObjective import DPOObjective
from modules.util.errors import DataError
from tests.dataLoader.builders import (
    AveragingModel,
    concept,
    config,
    dpo_config,
    loader,
    write_image,
    write_pairs,
)


def faults(made: TrainConfig) -> str:
    return "\n".join(str(fault) for fault in inspect_data(made).faults)


@pytest.mark.child
def test_the_data_are_looked_at_without_torch() -> None:
    code = "import sys, modules.dataLoader.preflight, modules.dataLoader.source; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipes_in_place_of_images_and_captions_are_listed_and_nothing_waits(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    write_image(folder / "good.png")
    write_image(folder / "caption.png", caption=None)
    os.mkfifo(folder / "caption.txt")
    os.mkfifo(folder / "pipe.png")
    (folder / "pipe.txt").write_text("x", encoding="utf-8")
    start = time.monotonic()
    found = faults(config(tmp_path, [concept(folder)]))
    assert f"{folder / 'pipe.png'}: is not a file" in found
    assert "caption.txt cannot be read" in found
    assert time.monotonic() - start < 5
    with pytest.raises(DataError, match="pipe"):
        loader(config(tmp_path, [concept(folder)]))


def test_pairs_with_the_same_image_on_both_sides_are_left_out_and_counted(tmp_path: Path) -> None:
    made = dpo_config(tmp_path, 5)
    for number in (1, 3):
        name = f"pair_{number:04d}.png"
        shutil.copy(tmp_path / "chosen" / name, tmp_path / "rejected" / name)
    report = inspect_data(made)
    assert (report.units, report.faults) == (3, [])
    assert any("2 pairs left out" in line and "pair_0003" in line for line in report.lines())
    given = loader(made)
    assert [pair.id[-4:] for pair in given.units.entries] == ["0000", "0002", "0004"]
    assert sum(len(batch) for batch in given.batches()) == 3


def test_a_text_encoder_whose_stop_saves_no_time_is_warned_of(tmp_path: Path) -> None:
    stops = {"train": True, "stop_training_after": 1, "stop_training_after_unit": "EPOCH"}

    def told(made: TrainConfig) -> list[str]:
        return [line for line in inspect_data(made).warnings if "text_encoder.stop_training_after" in line]

    (of_pairs,) = told(dpo_config(tmp_path, 2, text_encoder=stops))
    assert "the reference" in of_pairs
    assert told(dpo_config(tmp_path, 2, text_encoder={"train": True})) == []
    folder = tmp_path / "chosen"
    assert told(config(tmp_path, [concept(folder)], text_encoder=stops)) == []
    prior = [concept(folder), concept(tmp_path / "rejected", "PRIOR_PREDICTION")]
    (of_prior,) = told(config(tmp_path, prior, text_encoder=stops))
    assert "prior images" in of_prior
    masked = {"masked_training": True, "masked_prior_preservation_weight": 0.5}
    (of_masks,) = told(config(tmp_path, [concept(folder)], text_encoder=stops, **masked))
    assert "masked prior preservation" in of_masks
    both = {"model_type": "STABLE_DIFFUSION_XL_10_BASE", "text_encoder_2": {"train": True}}
    (of_the_other,) = told(dpo_config(tmp_path / "xl", 2, text_encoder=stops, **both))
    assert "text_encoder_2 is trained to the end" in of_the_other


def test_an_embedding_whose_stop_saves_no_time_is_warned_of(tmp_path: Path) -> None:
    stops = {"stop_training_after": 1, "stop_training_after_unit": "EPOCH"}
    words = [{"placeholder": "<fox>", **stops}]
    found = inspect_data(dpo_config(tmp_path, 2, additional_embeddings=words)).warnings
    (said,) = [line for line in found if "stop_training_after" in line]
    assert "additional_embeddings[0].stop_training_after: the reference" in said


def test_pairs_that_are_all_the_same_are_refused(tmp_path: Path) -> None:
    made = dpo_config(tmp_path, 2)
    shutil.rmtree(tmp_path / "rejected")
    shutil.copytree(tmp_path / "chosen", tmp_path / "rejected")
    assert "every pair has the same image on both sides" in faults(made)


def test_the_lines_of_a_pair_s_caption_are_one_prompt(tmp_path: Path) -> None:
    made = dpo_config(tmp_path, 2)
    for side in ("chosen", "rejected"):
        (tmp_path / side / "pair_0000.txt").write_text("a fox\nin the snow\n", encoding="utf-8")
    model = AveragingModel()
    loader(made, model)
    assert {prompt for asked in model.texts_encoded for prompt in asked} == {"a fox in the snow", "prompt 1"}


def test_a_prompt_file_of_several_lines_is_refused_for_pairs(tmp_path: Path) -> None:
    chosen, rejected = write_pairs(tmp_path, 2)
    (tmp_path / "prompts.txt").write_text("one\ntwo\n", encoding="utf-8")
    text = {"prompt_source": "concept", "prompt_path": str(tmp_path / "prompts.txt")}
    sides = [concept(chosen, "DPO_CHOSEN", text=text), concept(rejected, "DPO_REJECTED", text=text)]
    assert "in its prompt file, but a pair has one" in faults(config(tmp_path, sides, rlhf_enabled=True))


def test_captions_of_one_file_are_trained_and_pairs_join_their_lines(tmp_path: Path) -> None:
    chosen, rejected = write_pairs(tmp_path, 3)
    captions = {"pair_0000": {"caption": "a fox\nin the snow", "tags": "red"}, "pair_0001": {"caption": "a cat"}}
    (tmp_path / "captions.json").write_text(json.dumps(captions), encoding="utf-8")
    text = {"prompt_source": "metadata", "prompt_path": str(tmp_path / "captions.json"), "tag_delimiter": ", "}
    sides = [concept(chosen, "DPO_CHOSEN", text=text), concept(rejected, "DPO_REJECTED", text=text)]
    made, model = config(tmp_path, sides, rlhf_enabled=True), AveragingModel()
    found = inspect_data(made)
    assert not found.faults
    assert [line for line in found.warnings if "1 image is not listed" in line and "pair_0002" in line]
    loader(made, model)
    assert {prompt for asked in model.texts_encoded for prompt in asked} == {"a fox, red in the snow, red", "a cat"}


def test_an_epoch_of_more_than_ten_million_items_is_refused_at_once(tmp_path: Path) -> None:
    for number in range(11):
        write_image(tmp_path / "images" / f"{number}.png")
    made = config(tmp_path, [concept(tmp_path / "images", balancing=1_000_000)])
    start = time.process_time()
    assert "an epoch would have 11,000,000 items" in faults(made)
    assert time.process_time() - start < 3
    with pytest.raises(DataError, match="11,000,000"):
        loader(made)
    assert faults(config(tmp_path, [concept(tmp_path / "images", balancing=100)])) == ""


def sure(folder: Path, text: str) -> TrainConfig:
    """A run that counts how sure the person was; ``text`` says how sure."""
    made = dpo_config(folder, 3)
    made.rlhf_dpo_confidence = DPOConfidence.SMOOTHING
    if text:
        (folder / "chosen" / "confidence.json").write_text(text)
    return made


def test_pairs_know_how_sure_the_person_was_where_that_counts(tmp_path: Path) -> None:
    made = sure(tmp_path, '{"pair_0001": 0.75, "gone": 0.9}')
    assert faults(made) == ""
    given = loader(made, prepare=False)
    assert [pair.certainty for pair in given.units.entries] == [None, 0.75, None]
    before = given.data_digest()
    (tmp_path / "chosen" / "confidence.json").write_text('{"pair_0001": 0.76}')
    assert loader(made, prepare=False).data_digest() != before
    made.rlhf_dpo_confidence = DPOConfidence.OFF
    assert {pair.certainty for pair in loader(made, prepare=False).units.entries} == {None}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "none of 3 pairs says how certain its ranking was"),
        ('{"gone": 0.9}', "pairs says how certain its ranking was"),
        ('{"pair_0001": 0.2}', "not an object of numbers from 0.5 to 1"),
        ("{", "confidence.json"),
    ],
)
def test_a_run_that_counts_it_needs_to_know_it(tmp_path: Path, text: str, part: str) -> None:
    assert part in faults(sure(tmp_path, text))


def test_numbers_of_concepts_that_pairs_do_not_use_are_told(tmp_path: Path) -> None:
    made = dpo_config(tmp_path, 2)
    assert made.concepts is not None
    chosen, rejected = made.concepts

    def told() -> list[str]:
        return [line for line in inspect_data(made).warnings if "has no effect" in line]

    assert told() == []
    chosen.balancing = 2.0
    assert told() == []
    chosen.loss_weight, rejected.loss_weight, rejected.balancing = 0.5, 3.0, 5.0
    weights = [
        "loss_weight 0.5 of concept 'chosen' has no effect: pairs are not weighted",
        "loss_weight 3 of concept 'rejected' has no effect: pairs are not weighted",
    ]
    repeats = (
        "balancing 5 of concept 'rejected' has no effect: the balancing of the chosen concept, 2, applies to both "
        "sides of the pairs"
    )
    assert told() == [*weights, repeats]
    made.rlhf_supervised_mix = 0.25
    assert told() == [weights[1], repeats]
    rejected.balancing = 2.0
    assert told() == [weights[1]]
    rejected.balancing, made.rlhf_dpo_objective = 5.0, DPOObjective.KTO
    assert told() == [weights[1]]


def test_validation_whose_pairs_are_all_left_out_is_a_fault(tmp_path: Path) -> None:
    made = dpo_config(tmp_path, 6, rlhf_dpo_validation=True, rlhf_dpo_validation_percentage=10.0)
    held = collect_source(made, made.load_concepts()).validation
    assert held is not None and held.entries
    for pair in held.entries:
        shutil.copy(pair.chosen.path, pair.rejected.path)
    said = faults(made)
    assert "validation" in said and held.entries[0].id in said
