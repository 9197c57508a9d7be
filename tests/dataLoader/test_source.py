from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from modules.dataLoader.mixin.DataLoaderMgdsMixin import DataLoaderMgdsMixin
from modules.dataLoader.source import DataErrors, DataSource, collect_source, concept_tags, raise_faults
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.errors import DataError, UserErrors
from tests.dataLoader.builders import concept, config, dpo_config, write_image, write_pairs

BOTH = ("DPO_CHOSEN", "DPO_REJECTED")


def kinds(*names: str) -> list[ConceptConfig]:
    return [ConceptConfig.from_dict({"type": name, "name": f"{n}"}) for n, name in enumerate(names)]


def collected(made: object) -> DataSource:
    return collect_source(made, made.load_concepts())  # type: ignore[attr-defined, arg-type]


def faults(source: DataSource) -> str:
    return "\n".join(str(fault) for fault in source.faults)


def test_concepts_are_zipped_in_config_order() -> None:
    concepts = kinds("DPO_REJECTED", "STANDARD", "DPO_CHOSEN", "DPO_CHOSEN", "DPO_REJECTED", "DPO_CHOSEN")
    concepts[5].enabled = False
    pairs = DataLoaderMgdsMixin.pair_concepts(concepts)
    assert [(chosen.name, rejected.name) for chosen, rejected in pairs] == [("2", "0"), ("3", "4")]
    assert DataLoaderMgdsMixin.pair_concepts(concepts, validation=True) == []
    val = kinds("DPO_REJECTED_VAL", "DPO_CHOSEN_VAL")
    assert len(DataLoaderMgdsMixin.pair_concepts(val, validation=True)) == 1


@pytest.mark.parametrize("ending", ["", "_VAL"])
def test_a_missing_side_and_unequal_counts_are_different_errors(ending: str) -> None:
    chosen, rejected = (f"{name}{ending}" for name in BOTH)
    validation = bool(ending)
    with pytest.raises(DataError, match=f"1 enabled concepts of type {chosen} but none of type {rejected}"):
        DataLoaderMgdsMixin.pair_concepts(kinds(chosen), validation)
    with pytest.raises(DataError, match=f"2 enabled concepts of type {rejected} but none of type {chosen}"):
        DataLoaderMgdsMixin.pair_concepts(kinds(rejected, rejected), validation)
    with pytest.raises(RuntimeError, match=f"2 enabled concepts of type {chosen} and 1 of type {rejected}"):
        DataLoaderMgdsMixin.pair_concepts(kinds(chosen, rejected, chosen), validation)


def test_tags_are_unique() -> None:
    made = [
        ConceptConfig.from_dict({"name": n, "path": p})
        for n, p in (("a", "x"), ("a", "y"), ("", "b/a"), ("", ""))
    ]
    assert concept_tags(made) == ["a", "a#2", "a#3", "concept"]


def test_pairs_of_a_run(tmp_path: Path) -> None:
    source = collected(dpo_config(tmp_path, 5))
    assert source.dpo and len(source.train) == 5 and source.validation is None and not source.faults
    assert len(source.items()) == 10 and not source.warnings


def test_pairs_are_never_taken_from_other_concepts(tmp_path: Path) -> None:
    chosen, rejected = write_pairs(tmp_path, 2)
    made = config(tmp_path, [concept(chosen), concept(rejected)], rlhf_enabled=True)
    source = collected(made)
    assert "no enabled concepts of types DPO_CHOSEN and DPO_REJECTED" in faults(source)
    assert "2 concepts are not used" in source.warnings[0]


def test_mirrored_subfolders(tmp_path: Path) -> None:
    for side in ("chosen", "rejected"):
        write_image(tmp_path / side / "deep" / "a.png", caption="same")
        write_image(tmp_path / side / "a.png", caption="other")
    both = [
        concept(tmp_path / side, f"DPO_{side.upper()}", include_subdirectories=True)
        for side in ("chosen", "rejected")
    ]
    source = collected(config(tmp_path, both, rlhf_enabled=True))
    assert [pair.id for pair in source.train.entries] == ["chosen/a", "chosen/deep/a"] and not source.faults


def test_all_faults_of_pairs_are_found_together(tmp_path: Path) -> None:
    made = dpo_config(tmp_path, 8)
    chosen, rejected = tmp_path / "chosen", tmp_path / "rejected"
    (rejected / "pair_0000.png").unlink()
    (chosen / "pair_0001.png").unlink()
    shutil.copy(chosen / "pair_0002.png", chosen / "pair_0002.webp")
    (rejected / "pair_0003.txt").write_text("something else", encoding="utf-8")
    (rejected / "pair_0004.txt").write_text("prompt 4\nand more", encoding="utf-8")
    (chosen / "pair_0005.txt").unlink()
    text = faults(collected(made))
    for wanted in ("'chosen' has no partner", "'rejected' has no partner", "differ only in their extension",
                   "the prompts of 2 pairs differ", "no caption file"):  # fmt: skip
        assert wanted in text
    assert "pair_0005.png" in text and "chosen/pair_0005:" not in text


def test_the_same_concept_twice_is_two_concepts(tmp_path: Path) -> None:
    chosen, rejected = write_pairs(tmp_path, 2)
    twice = [concept(chosen, "DPO_CHOSEN"), concept(rejected, "DPO_REJECTED")] * 2
    source = collected(config(tmp_path, twice, rlhf_enabled=True))
    ids = [pair.id for pair in source.train.entries]
    assert len(set(ids)) == 4 and ids[2:] == ["chosen#2/pair_0000", "chosen#2/pair_0001"]


def test_validation_pairs_from_concepts(tmp_path: Path) -> None:
    chosen, rejected = write_pairs(tmp_path / "train", 4)
    val_chosen, val_rejected = write_pairs(tmp_path / "val", 2)
    concepts = [concept(chosen, "DPO_CHOSEN"), concept(rejected, "DPO_REJECTED"),
                concept(val_chosen, "DPO_CHOSEN_VAL"), concept(val_rejected, "DPO_REJECTED_VAL")]  # fmt: skip
    on = collected(config(tmp_path, concepts, rlhf_enabled=True, rlhf_dpo_validation=True))
    assert len(on.train) == 4 and on.validation is not None and len(on.validation) == 2
    assert "2 prompts of the validation pairs are trained on too" in on.warnings[0]
    off = collected(config(tmp_path, concepts, rlhf_enabled=True))
    assert len(off.train) == 4 and off.validation is None and "not used" in off.warnings[0]


def test_validation_pairs_held_back(tmp_path: Path) -> None:
    made = dpo_config(tmp_path, 20, rlhf_dpo_validation=True, rlhf_dpo_validation_percentage=20.0)
    source = collected(made)
    assert source.validation is not None and len(source.validation) == 4 and len(source.train) == 16
    assert not source.faults and not source.warnings
    assert sum(count for _, count in source.train.groups) == 16


def test_one_prompt_cannot_be_held_back(tmp_path: Path) -> None:
    chosen, rejected = write_pairs(tmp_path, 4, prompts=1)
    both = [concept(chosen, "DPO_CHOSEN"), concept(rejected, "DPO_REJECTED")]
    source = collected(config(tmp_path, both, rlhf_enabled=True, rlhf_dpo_validation=True))
    assert "at least two prompts" in faults(source)


def test_single_images(tmp_path: Path) -> None:
    for name in ("a", "b", "prior", "val", "unused"):
        write_image(tmp_path / name / "1.png")
    concepts = [concept(tmp_path / "a"), concept(tmp_path / "b", balancing=0.0),
                concept(tmp_path / "prior", "PRIOR_PREDICTION"), concept(tmp_path / "val", "VALIDATION"),
                concept(tmp_path / "unused", "DPO_CHOSEN")]  # fmt: skip
    source = collected(config(tmp_path, concepts, validation=True))
    assert [item.id for item in source.train.entries] == ["a/1.png", "prior/1.png"]
    assert source.validation is not None and [i.id for i in source.validation.entries] == ["val/1.png"]
    assert not source.faults and "b, unused" in source.warnings[0]


def test_nothing_to_train_or_validate_on(tmp_path: Path) -> None:
    write_image(tmp_path / "a" / "1.png")
    text = faults(collected(config(tmp_path, [concept(tmp_path / "a", "VALIDATION")])))
    assert "no enabled concept of type STANDARD" in text
    text = faults(collected(config(tmp_path, [concept(tmp_path / "a")], validation=True)))
    assert "no enabled concept of type VALIDATION" in text


def test_disabled_concepts_are_not_looked_at(tmp_path: Path) -> None:
    write_image(tmp_path / "a" / "1.png")
    concepts = [concept(tmp_path / "a"), concept(tmp_path / "nowhere", enabled=False)]
    assert not collected(config(tmp_path, concepts)).faults


def test_one_fault_is_itself_and_several_are_one_error() -> None:
    raise_faults([])
    one, two = DataError("one"), DataError("two")
    with pytest.raises(DataError, match="^one$"):
        raise_faults([one])
    with pytest.raises(DataErrors, match=r"one\n- two") as caught:
        raise_faults([one, two])
    assert isinstance(caught.value, RuntimeError) and isinstance(caught.value, UserErrors)
    assert caught.value.errors == (one, two)


def test_a_caption_of_several_lines_is_completed_once_for_a_pair(tmp_path):
    words = {"caption_prefix": "photo of", "caption_suffix": "at night", "trigger_word": "sks"}
    for side in ("chosen", "rejected"):
        write_image(tmp_path / side / "1.png", seed=len(side), caption="a cat\non a mat")
    concepts = [
        concept(tmp_path / side, f"DPO_{side.upper()}", text=words) for side in ("chosen", "rejected")
    ]
    made = config(tmp_path, concepts, rlhf_enabled=True)
    (pair,) = collect_source(made, made.load_concepts()).train.entries
    assert pair.chosen.prompts == ("photo of sks a cat on a mat at night",)


def test_images_of_two_concepts_that_would_have_one_name_are_a_fault(tmp_path):
    write_image(tmp_path / "X" / "anna" / "01.png", seed=1)
    write_image(tmp_path / "Y" / "01.png", seed=2)
    outer = concept(tmp_path / "X", name="people", include_subdirectories=True)
    made = config(tmp_path, [outer, concept(tmp_path / "Y", name="people/anna")])
    (fault,) = collect_source(made, made.load_concepts()).faults
    assert "people/anna/01.png" in str(fault) and "rename" in str(fault)
    # the same image in two concepts is no mistake
    made = config(tmp_path, [outer, concept(tmp_path / "X" / "anna", name="people/anna")])
    assert not collect_source(made, made.load_concepts()).faults


def test_pairs_of_two_concepts_that_would_have_one_name_are_a_fault(tmp_path):
    for place in ("X/chosen/anna/01.png", "X/rejected/anna/01.png", "Y/chosen/01.jpg", "Y/rejected/01.jpg"):
        write_image(tmp_path / place, seed=len(place))
    concepts = [
        concept(tmp_path / folder / side, f"DPO_{side.upper()}", name=f"{name}{side}", include_subdirectories=True)
        for folder, name in (("X", ""), ("Y", "")) for side in ("chosen", "rejected")
    ]  # fmt: skip
    concepts[2].name = "chosen/anna"
    made = config(tmp_path, concepts, rlhf_enabled=True)
    (fault,) = collect_source(made, made.load_concepts()).faults
    assert "chosen/anna/01" in str(fault)


def test_a_very_small_number_of_repeats_uses_some_images(tmp_path):
    for number in range(4):
        write_image(tmp_path / "X" / f"{number}.png", seed=number)
    made = config(tmp_path, [concept(tmp_path / "X", balancing=0.0004)])
    source = collect_source(made, made.load_concepts())
    assert not source.faults and len(source.train) == 4
    assert float(source.rules[0].rate) == pytest.approx(0.0004)


def test_validation_images_that_are_trained_on_too_are_told(tmp_path):
    for number in range(3):
        write_image(tmp_path / "X" / f"{number}.png", seed=number)
    write_image(tmp_path / "Y" / "0.png", seed=9)
    both = [concept(tmp_path / "X"), concept(tmp_path / "X" / ".." / "X", "VALIDATION", name="held")]
    made = config(tmp_path, both, validation=True)
    (said,) = collect_source(made, made.load_concepts()).warnings
    assert "3 validation images are trained on too" in said and "held/0.png" in said
    made = config(tmp_path, [both[0], concept(tmp_path / "Y", "VALIDATION")], validation=True)
    assert not collect_source(made, made.load_concepts()).warnings
