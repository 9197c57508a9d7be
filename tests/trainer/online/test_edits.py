"""Online training of models that edit images: each prompt has a source image, which everything that follows sees."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from modules.curation.ImageGroup import ImageGroup
from modules.curation.intake.groups import ScanOptions, scan_groups
from modules.reward.base import Reward, RewardBatch, create_reward
from modules.reward.builtin import SourceLikeness
from modules.runner.votes.VoteBook import Question, Vote, VoteBook
from modules.trainer.online.EpochMaker import EpochMaker
from modules.trainer.online.prompts import collect_prompts, online_summary
from modules.util.config.load import load_config
from modules.util.errors import UserError
from scripts import runctl
from tests.dataLoader.builders import write_image
from tests.tiny import small_folder
from tests.trainer.builders import run_and_go_back, run_here, same_weights
from tests.trainer.online.builders import Listening, write_online
from tests.trainer.online.test_person import Votes, voter
from tests.usual import usual

INSTRUCTIONS = ("make it night", "paint it red", "add a hat", "remove it")
CASES = {
    "GRPO": "FLUX_2",
    "GSPO": "LONGCAT_IMAGE_EDIT",
    "DGPO": "QWEN_21",
    "NFT": "FLUX_KONTEXT_DEV_1",
    "AWM": "QWEN_EDIT",
    "ONLINE_DPO": "QWEN_EDIT_PLUS",
}
"""Every mode, every family."""


def write_sources(folder: Path, size: tuple[int, int] = (48, 48), first: int = 50) -> Path:
    """A list of instructions with an image for each."""
    rows = []
    for number, text in enumerate(INSTRUCTIONS):
        write_image(folder / "before" / f"{number}.png", size=size, seed=first + number, caption=None)
        rows.append(json.dumps({"prompt": text, "source": f"before/{number}.png"}))
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def write_edits(folder: Path, mode: str = "GRPO", **changes: Any) -> Path:
    """A config of an epoch of two prompts with two images each."""
    key = changes.pop("model_type", CASES[mode])
    given: dict[str, Any] = {
        "model_type": key,
        "base_model_name": str(small_folder(key)),
        "rlhf_prompts_file": str(write_sources(folder)),
        "rlhf_group_size": 2,
        "rlhf_rollout_steps": 2,
        "rlhf_rollout_size": "64x64",
        "batch_size": 2,
        "epochs": 1,
        "layer_filter_preset": "attn-only",
        "rlhf_reward": "source_likeness",
    }
    return write_online(folder, mode, **{**given, **changes})


@pytest.mark.parametrize("mode", usual(CASES, "GRPO"))
def test_the_source_counts_and_the_same_one_gives_the_same_numbers(tmp_path: Path, mode: str) -> None:
    heard = {name: Listening() for name in ("one", "same", "other")}
    configs = {name: write_edits(tmp_path / name, mode, rlhf_reward="brightness") for name in heard}
    write_sources(tmp_path / "other", first=90)
    for name, config in configs.items():
        run_here(config, callback=heard[name])
    one, same, other = (
        [m["rl/reward_mean"] for m in heard[name].metrics if "rl/reward_mean" in m] for name in heard
    )
    assert one == same != other
    assert same_weights(tmp_path / "one" / "out.safetensors", tmp_path / "same" / "out.safetensors")
    # rollout and training see the same images, or ratios would not be 1 before the first update
    assert heard["one"].metrics[0].get("rl/ratio_error", 0.0) == 0.0
    assert not heard["one"].warnings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        ("NFT", {"model_type": "QWEN_EDIT", "rlhf_rollout_cfg_scale": 2.0}),
        ("GRPO", {"rlhf_kl_beta": 0.1, "rlhf_rollout_cfg_scale": 2.0, "rlhf_rollout_cfg_layout": "JOINT"}),
    ],
)
def test_stopped_and_continued_is_bit_equal(tmp_path: Path, mode: str, changes: dict[str, Any]) -> None:
    config = write_edits(tmp_path, mode, **changes)
    run_and_go_back(config, 1)
    run_here(config, "continue_last_backup=true")
    assert same_weights(tmp_path / "whole.safetensors", tmp_path / "out.safetensors")


def test_another_source_is_no_resume_and_no_next_epoch(tmp_path: Path) -> None:
    config = write_edits(tmp_path, rlhf_prompts_per_epoch=4, epochs=2)
    run_here(config, callback=Listening(stop_at=1))
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "before", kept)
    write_image(tmp_path / "before" / "2.png", size=(48, 48), seed=99, caption=None)
    with pytest.raises(UserError, match="pairs or prompts have changed since the backup was made"):
        run_here(config, "continue_last_backup=true")
    shutil.copytree(kept, tmp_path / "before", dirs_exist_ok=True)

    class Changing(Listening):
        def step(self, *arguments: Any) -> None:
            super().step(*arguments)
            write_image(tmp_path / "before" / "2.png", size=(48, 48), seed=99, caption=None)

    with pytest.raises(UserError, match="2.png has changed since the run began"):
        run_here(config, "continue_last_backup=true", callback=Changing())


@pytest.mark.slow
def test_images_move_to_where_a_reward_that_sees_the_source_is(tmp_path: Path) -> None:
    """Two runs with the same noise and opposite rewards: after an epoch, one's images are more like their sources."""
    found = []
    for name, weight in (("like", 1.0), ("unlike", -1.0)):
        heard = Listening()
        changes: dict[str, Any] = {
            "model_type": "FLUX_2",
            "epochs": 2,
            # of the second epoch only the images matter
            "max_steps": 5,
            "batch_size": 8,
            "rlhf_group_size": 4,
            "rlhf_prompts_per_epoch": 4,
            "rlhf_inner_epochs": 2,
            "learning_rate": 0.1,
            "layer_filter_preset": "full",
            "rlhf_timestep_range_high": 1.0,
            "rlhf_rewards": [{"reward": "source_likeness", "weight": weight}],
        }
        run_here(write_edits(tmp_path / name, "NFT", **changes), callback=heard)
        found.append([m["reward/source_likeness/mean"] for m in heard.metrics if "rl/reward_mean" in m])
    assert found[0][0] == found[1][0]
    assert found[0][1] > found[1][1] + 1e-3


def test_a_reward_is_given_the_source_of_each_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RewardBatch] = []
    score = SourceLikeness._score

    def watched(reward: SourceLikeness, batch: RewardBatch) -> torch.Tensor:
        seen.append(batch)
        return score(reward, batch)

    monkeypatch.setattr(SourceLikeness, "_score", watched)
    config = write_edits(tmp_path, "NFT", source_resolution=64, rlhf_rollout_size="64x32")
    heard = Listening()
    run_here(config, callback=heard)
    numbers = {text: number for number, text in enumerate(INSTRUCTIONS)}
    (batch,) = seen
    assert batch.images_BCHW.shape[2:] == (32, 64)
    for prompt, (source_CHW,) in zip(batch.prompts, batch.sources, strict=True):
        with Image.open(tmp_path / "before" / f"{numbers[prompt]}.png") as image:
            middle = torch.tensor(image.convert("RGB").resize((1, 1)).getpixel((0, 0))).float()
        assert (source_CHW.float().mean(dim=(1, 2)) - middle).abs().max() < 40
        # about 64 x 64 pixels, in the shape of the rollout
        assert source_CHW.shape[1] * source_CHW.shape[2] in range(3000, 6000)
        assert source_CHW.shape[2] > source_CHW.shape[1]
    assert any(
        "4 source images have a different shape from rlhf_rollout_size" in one for one in heard.warnings
    )


def test_votes_and_kept_images_name_and_show_the_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All instructions are the same, so only the source tells the questions apart."""
    config = write_edits(tmp_path, "NFT", rlhf_reward="person", rlhf_keep_images=4, rlhf_prompts_per_epoch=2)
    _rows(tmp_path, *({"prompt": "make it night", "source": f"before/{n}.png"} for n in range(4)))
    told: list[str] = []

    def look(book: VoteBook, question: Question) -> Vote:
        runctl.main([str(tmp_path / "run"), "votes"])
        told.append(capsys.readouterr().out)
        return Vote((0,), (1,), done=True)

    heard = Votes()
    with voter(tmp_path / "run", look):
        run_here(config, callback=heard)
    book = VoteBook(tmp_path / "run")
    book.refresh()
    questions = list(book.questions.values())
    assert len({one.sources for one in questions}) == len(questions) == 2
    assert [names for names, _ in heard.sources] == [one.sources for one in questions]
    for (names, (copy,)), said in zip(heard.sources, told, strict=True):
        assert mean_colour(copy) == pytest.approx(mean_colour(Path(names[0])), abs=8)
        assert f"source {names[0]}: {copy}" in said
    kept = tmp_path / "run" / "rollouts" / "epoch-0"
    listed = json.loads((kept / "images.json").read_text(encoding="utf-8"))["images"]
    for one in listed:
        (source,) = one["sources"]
        assert source["file"] == one["file"].replace(".png", "-source.png")
        assert mean_colour(kept / source["file"]) == pytest.approx(mean_colour(Path(source["name"])), abs=8)
    # the pair tool compares only images of one source
    found = list(scan_groups(kept, tmp_path / "pairs", ScanOptions(near_duplicates=None)))
    assert [len(one.files) for one in found if isinstance(one, ImageGroup)] == [2, 2] and len(found) == 2


def mean_colour(path: Path) -> tuple[int, ...]:
    with Image.open(path) as image:
        return tuple(image.convert("RGB").resize((1, 1), Image.Resampling.BOX).getpixel((0, 0)))  # type: ignore[arg-type]


# -- before a run ----------------------------------------------------------------------------------------------


def _rows(folder: Path, *rows: dict[str, str]) -> None:
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def _second(folder: Path) -> None:
    shutil.copy(folder / "before" / "0.png", folder / "before" / "1.2.png")


FAULTS: dict[str, tuple[Callable[[Path], object], dict[str, Any], str]] = {
    "missing": (lambda folder: (folder / "before/1.png").unlink(), {}, "1.png: the file does not exist"),
    "damaged": (lambda folder: (folder / "before/2.png").write_bytes(b"x"), {}, "2.png: not an image"),
    "family": (
        lambda folder: None,
        {"model_type": "FLUX_DEV_1"},
        "4 prompts have a source image, but FLUX.1 dev takes none",
    ),
    "none": (
        lambda folder: _rows(folder, *({"prompt": text} for text in INSTRUCTIONS)),
        {"model_type": "QWEN_EDIT", "rlhf_reward": "brightness"},
        "4 prompts have no source image, but Qwen-Image-Edit edits images",
    ),
    "some": (
        lambda folder: _rows(folder, {"prompt": "a"}, {"prompt": "b", "source": "before/0.png"}),
        {},
        '1 prompt has no source image, but others have one: a -> write {"prompt": ..., "source": ...} in each line',
    ),
    "counts": (_second, {}, "some prompts have 1 source image and others 2"),
    "many": (
        _second,
        {"model_type": "QWEN_EDIT"},
        "there are 2 source images, but Qwen-Image-Edit takes at most 1",
    ),
    "reward": (
        lambda folder: _rows(folder, *({"prompt": text} for text in INSTRUCTIONS)),
        {},
        "the reward 'source_likeness' compares with source images, but the prompts have none",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_sources_are_found_before_a_model_is_loaded(tmp_path: Path, name: str) -> None:
    change, changes, message = FAULTS[name]
    path = write_edits(tmp_path, "GRPO", **changes)
    change(tmp_path)
    with pytest.raises(UserError) as caught:
        collect_prompts(load_config(path))
    assert message in " ".join(str(caught.value).split())


def test_a_server_that_needs_sources_is_told_before_the_first_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(reward: Reward, device: object = "cpu") -> None:
        reward.required_fields = ("source",)

    # as a server says it, once it is asked
    monkeypatch.setattr(type(create_reward("brightness")), "load", loaded)
    monkeypatch.setattr(EpochMaker, "make", lambda *_: pytest.fail("images are made"))
    path = write_edits(tmp_path, "GRPO", rlhf_reward="brightness")
    _rows(tmp_path, *({"prompt": text} for text in INSTRUCTIONS))
    with pytest.raises(
        UserError, match="'brightness' compares with source images, but the prompts have none"
    ):
        run_here(path)


@pytest.mark.parametrize(
    "uses", [{"rlhf_kl_beta": 0.1, "rlhf_kl_type": "V"}, {"rlhf_dgpo_use_ema_ref": False}], ids=["kl", "loss"]
)
def test_what_a_dgpo_reference_is_guided_by_has_to_be_there(tmp_path: Path, uses: dict[str, Any]) -> None:
    given = {**uses, "rlhf_dgpo_kl_cfg": 2.0}
    path = write_edits(tmp_path, "DGPO", **given)
    with pytest.raises(UserError, match="reads the negative prompt with the source image"):
        collect_prompts(load_config(path))
    assert collect_prompts(load_config(path, ["rlhf_rollout_cfg_scale=2"]))
    assert collect_prompts(load_config(write_edits(tmp_path, "DGPO", **given, model_type="FLUX_2")))


def test_captions_of_concepts_are_instructions_for_their_sources(tmp_path: Path) -> None:
    write_sources(tmp_path)
    for number, text in enumerate(INSTRUCTIONS):
        write_image(tmp_path / "after" / f"{number}.png", seed=number, caption=text)
    own = {"path": str(tmp_path / "after"), "source_path": str(tmp_path / "before"), "type": "STANDARD"}
    config = load_config(write_edits(tmp_path, rlhf_prompts_file="", concepts=[own]))
    prompts = collect_prompts(config)
    assert {(one.text, *one.sources) for one in prompts} == {
        (text, str(tmp_path / "before" / f"{number}.png")) for number, text in enumerate(INSTRUCTIONS)
    }
    assert "4 source images are edited" in online_summary(config)
    shutil.copytree(tmp_path / "after", tmp_path / "alone")
    (tmp_path / "alone" / "0.txt").write_text("draw a cat", encoding="utf-8")
    without = {"path": str(tmp_path / "alone"), "type": "STANDARD"}
    config = load_config(write_edits(tmp_path, rlhf_prompts_file="", concepts=[own, without]))
    with pytest.raises(UserError, match="have no source image, but others have one") as caught:
        collect_prompts(config)
    assert caught.value.hint == "set source_path in each concept"
