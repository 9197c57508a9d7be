"""While a run trains, only what it trains is on the device; the rest is there while it encodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.model.Model import Model
from modules.modelSetup.families.StableDiffusionSetup import StableDiffusionSetup
from modules.trainer.evaluate.sample_texts import keep_sample_texts
from modules.util.config.SampleConfig import SampleConfig
from tests.tiny import tiny_model, tiny_setup
from tests.tiny.batches import images
from tests.trainer.builders import run_here, same_weights, write_config, write_pairs
from tests.trainer.online.builders import Listening, write_online
from tests.usual import usual


class Record:
    """Which parts are on the device, played: they stay where ``place`` or ``borrowed`` brought them last.

    Attributes:
        seen: (what was done, parts on the device meanwhile), in order.
        placed: parts brought there for good.
        lent, moved: parts that are borrowed now, and that ever were.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, frozenset[str]]] = []
        self.placed: set[str] = set()
        self.lent: list[str] = []
        self.moved: list[str] = []
        place, borrowed = Model.place, Model.borrowed

        def recorded_place(
            model: Model, device: torch.device | str, parts: tuple[str, ...] | None = None
        ) -> Model:
            self.placed.update(model.modules() if parts is None else parts)
            return place(model, device, parts)

        @contextmanager
        def recorded_borrowed(model: Model, part: str) -> Iterator[torch.nn.Module]:
            self.lent.append(part)
            self.moved.append(part)
            try:
                with borrowed(model, part) as module:
                    yield module
            finally:
                self.lent.remove(part)

        monkeypatch.setattr(Model, "place", recorded_place)
        monkeypatch.setattr(Model, "borrowed", recorded_borrowed)
        for name in ("_encode", "_encode_image", "_decode", "denoise"):
            self._watch(monkeypatch, name)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        act = getattr(StableDiffusionSetup, name)

        def watched(*args: Any, **options: Any) -> Any:
            self.seen.append((name, frozenset(self.placed | set(self.lent))))
            return act(*args, **options)

        monkeypatch.setattr(StableDiffusionSetup, name, watched)

    def during(self, name: str) -> set[frozenset[str]]:
        return {there for what, there in self.seen if what == name}


ALONE: dict[str, dict[str, Any]] = {
    "pairs": {},
    "pairs, kept scores of the reference": {"rlhf_dpo_reference_cache": True},
    "pairs, others held back": {"rlhf_dpo_validation": True, "concepts": ("DPO_CHOSEN", "DPO_REJECTED")},
    "images": {"rlhf_enabled": False, "concepts": ("STANDARD",)},
    "whole model": {"rlhf_enabled": False, "concepts": ("STANDARD",), "training_method": "FINE_TUNE"},
}


@pytest.mark.parametrize("case", usual(ALONE, "pairs"))
def test_what_encodes_is_alone_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    changes = dict(ALONE[case])
    if "concepts" in changes:
        made = write_pairs(tmp_path / "data")
        changes["concepts"] = [
            {**one, "type": kind} for one, kind in zip(made, changes["concepts"], strict=False)
        ]
    if "rlhf_dpo_validation" in changes:
        held = write_pairs(tmp_path / "held", 2, ((48, 32),))
        changes["concepts"] += [
            {**one, "name": f"{one['name']} held", "type": f"{one['type']}_VAL"} for one in held
        ]
        for path in (tmp_path / "held").rglob("*.txt"):
            path.write_text(f"{path.stem} held back")
    record = Record(monkeypatch)
    trainer = run_here(write_config(tmp_path, max_steps=1, **changes))
    assert record.during("_encode") == {frozenset({"text_encoder"})}
    assert record.during("_encode_image") == {frozenset({"vae"})}
    assert record.during("denoise") == {frozenset({"unet"})}
    assert trainer.progress.global_step == 1


@pytest.mark.slow
def test_filling_the_cache_needs_no_denoiser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record(monkeypatch)
    config = write_config(tmp_path, max_steps=1, backup_before_save=True)
    filled = run_here(config, "only_cache=true")
    assert filled.progress.global_step == 0 and record.moved == ["vae", "text_encoder"]
    assert not record.placed and not record.during("denoise")
    with pytest.raises(RuntimeError, match="not been started"):
        _ = filled.parts
    record.moved.clear()
    assert run_here(config).progress.global_step == 1 and not record.moved
    again = run_here(config, "only_cache=true", "continue_last_backup=true")
    assert again.progress.global_step == 1, "what is told is where the backup is"


@pytest.mark.slow
def test_scores_to_keep_need_the_denoiser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record(monkeypatch)
    config = write_config(tmp_path, max_steps=1, rlhf_dpo_reference_cache=True)
    run_here(config, "only_cache=true")
    assert record.during("denoise") == {frozenset({"unet"})}
    known = record.seen.copy()
    run_here(config)
    assert [what for what, _ in record.seen[len(known) :]].count("denoise") < [w for w, _ in known].count(
        "denoise"
    )


@pytest.mark.slow
def test_nothing_is_moved_to_encode_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_config(tmp_path, max_steps=1)
    first = run_here(config)
    weights = {name: parameter.detach().clone() for name, parameter in first.parts.named}
    record = Record(monkeypatch)
    again = run_here(config)
    assert not record.moved
    assert record.during("denoise") == {frozenset({"unet"})}
    assert all(torch.equal(weights[name], parameter) for name, parameter in again.parts.named)


@pytest.mark.slow
def test_a_trained_text_encoder_comes_with_the_denoiser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record(monkeypatch)
    run_here(
        write_config(tmp_path, max_steps=1, text_encoder={"train": True, "gradient_checkpointing": False})
    )
    assert record.during("_encode_image") == {frozenset({"vae"})}
    assert record.during("_encode") == record.during("denoise") == {frozenset({"unet", "text_encoder"})}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["FULL_CONCURRENT", "POLICY_CONCURRENT", "SEQUENTIAL"])
def test_what_is_not_kept_is_encoded_once_where_the_denoiser_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    record = Record(monkeypatch)
    changes = {"latent_caching": False, "rlhf_dpo_execution_mode": mode, "gradient_accumulation_steps": 2}
    trainer = run_here(write_config(tmp_path, max_steps=1, batch_size=2, **changes))
    everything = {frozenset({"unet", "text_encoder", "vae"})}
    for what in ("_encode", "_encode_image", "denoise"):
        assert record.during(what) == everything
    done = [what for what, _ in record.seen]
    # the next step is made before the run sees that it has taken all
    before = done[: len(done) - done[::-1].index("denoise")]
    assert before.count("_encode") == 4, "the pairs of two micro-batches, with a prompt for both sides"
    assert before.count("_encode_image") == 8, "both sides of four pairs, each by itself"
    assert trainer.progress.global_step == 1


def test_captions_of_images_that_are_not_kept_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record(monkeypatch)
    concepts = [{**write_pairs(tmp_path / "data")[0], "type": "STANDARD"}]
    changes = {"rlhf_enabled": False, "concepts": concepts, "latent_caching": False, "max_steps": 3}
    dropping = {"text_encoder": {"dropout_probability": 1.0}}
    run_here(write_config(tmp_path / "dropped", **changes, **dropping))
    done = [what for what, _ in record.seen]
    before = done[: len(done) - done[::-1].index("denoise")]
    assert before.count("_encode") == 1 + 3 * 2, "the empty prompt, and two of each of three batches"
    for path in (tmp_path / "data" / "chosen").glob("*.txt"):
        path.write_text("", encoding="utf-8")
    run_here(write_config(tmp_path / "empty", **changes))
    assert same_weights(tmp_path / "dropped" / "out.safetensors", tmp_path / "empty" / "out.safetensors")


SAMPLE = {"prompt": "a cat", "negative_prompt": "fog", "width": 64, "height": 64, "diffusion_steps": 1}


def test_samples_need_no_text_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record(monkeypatch)
    trainer = run_here(write_config(tmp_path, max_steps=1, samples=[SAMPLE], sample_before_training=True))
    assert record.during("_encode") == {frozenset({"text_encoder"})}
    assert record.during("_decode") == {frozenset({"unet", "vae"})}
    assert record.during("denoise") == {frozenset({"unet"})}
    assert list(trainer.parts.model.kept_texts) == [("a cat", "negative: fog")]


def test_samples_of_a_trained_text_encoder_are_what_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record(monkeypatch)
    text_encoder = {"train": True, "gradient_checkpointing": False}
    trainer = run_here(
        write_config(
            tmp_path, max_steps=1, samples=[SAMPLE], sample_before_training=True, text_encoder=text_encoder
        )
    )
    assert trainer.parts.model.kept_texts == {}
    assert record.during("_encode") == {frozenset({"unet", "text_encoder"})}


@pytest.mark.parametrize("cfg", [1.0, 7.0])
def test_texts_encoded_ahead_make_the_same_images(cfg: float) -> None:
    setup, model = tiny_setup(), tiny_model()
    sample = SampleConfig.from_dict({**SAMPLE, "cfg_scale": cfg})
    wanted = sample.filled(setup.spec)

    def image() -> torch.Tensor:
        request = {"seeds": [3], "steps": 2, "cfg": wanted.cfg_scale, "size": (32, 32), "scheduler": "EULER"}
        return images(setup, model, ["a cat"], "fog", **request)

    live = image()
    keep_sample_texts(setup, model, [sample], lambda *_: True)
    (texts,) = model.kept_texts
    assert texts == (("a cat", "negative: fog") if cfg > 1 else ("a cat",))
    assert torch.equal(image(), live)
    model.kept_texts[texts] = model.kept_texts[texts].select([0] * len(texts)).to("cpu", torch.float16)
    assert not torch.equal(image(), live), "those that are kept are those that are used"


@pytest.mark.slow
def test_images_to_learn_from_are_made_with_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record(monkeypatch)
    run_here(write_online(tmp_path, max_steps=1))
    assert record.during("_encode") == {frozenset({"unet", "text_encoder"})}
    assert record.during("_decode") == {frozenset({"unet", "vae"})}
    assert record.during("denoise") == {frozenset({"unet"})}


def test_a_stop_while_encoding_leaves_nothing_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Record(monkeypatch)
    config = write_config(tmp_path, max_steps=1, cache_batch_size=1)
    listening = Listening(stop_in="encoding prompts")
    stopped = run_here(config, callback=listening)
    assert stopped.progress.global_step == 0
    assert any(phase.startswith("encoding prompts") for phase in listening.phases)
    assert not record.lent and not record.placed
    assert run_here(config).progress.global_step == 1


def test_a_borrowed_part_comes_back_even_after_an_error() -> None:
    model = tiny_model()
    model.device = torch.device("meta")
    moved: list[str] = []
    vae = model.vae
    vae.to = lambda device: (moved.append(str(device)), vae)[1]  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no room"), model.borrowed("vae"):
        raise RuntimeError("no room")
    assert moved == ["meta", "cpu"]


def test_a_borrowed_part_that_does_not_fit_comes_back_whole() -> None:
    model = tiny_model()
    model.device = torch.device("meta")
    moved: list[str] = []
    vae = model.vae

    def full(device: torch.device) -> torch.nn.Module:
        moved.append(str(device))
        if str(device) == "meta":
            raise torch.OutOfMemoryError("half of it is there")
        return vae

    vae.to = full  # type: ignore[method-assign]
    with pytest.raises(torch.OutOfMemoryError), model.borrowed("vae"):
        raise AssertionError("the block must not be entered")
    assert moved == ["meta", "cpu"]
