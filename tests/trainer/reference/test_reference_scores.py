"""Reference scores of a run: computed before it, the right ones in every step, and only as often as needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.model.batch import PairBatch
from modules.model.noising.schedule import DiscreteSchedule
from modules.trainer.assembly import Run, assemble
from modules.trainer.callbacks import Callback
from modules.trainer.distributed import Processes
from modules.trainer.reference import ReferenceScores as scores_module
from modules.trainer.reference.ReferenceScores import FOLDER, ReferenceScores
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError
from modules.util.TrainProgress import TrainProgress
from tests.trainer.builders import FEW_LAYERS, run_here, same_weights, settings, write_config

DRAWS = 3
ALONE = Processes(0, 1, 0, torch.device("cpu"))


def job(folder: Path, **changes: Any) -> TrainConfig:
    cached = {"rlhf_dpo_reference_cache": True, "rlhf_dpo_reference_cache_draws": DRAWS}
    return TrainConfig.from_dict(settings(folder, **{**FEW_LAYERS, **cached, **changes}))


def together(made: TrainConfig) -> Run:
    folder = Path(made.workspace_dir)
    return assemble(made, folder, folder / "samples", ALONE, lambda *_: True)


def scores_of(parts: Run, made: TrainConfig) -> ReferenceScores:
    assert parts.reference is not None
    return ReferenceScores(made, parts.setup, parts.model, parts.reference, ALONE)


def prepare(scores: ReferenceScores, parts: Run, stop_after: int = 10**6) -> tuple[bool, list[int]]:
    """Whether it was finished, and how far it was at each report."""
    seen: list[int] = []
    finished = scores.prepare(
        parts.loader, lambda done, total: seen.append(done), lambda: len(seen) >= stop_after
    )
    return finished, seen


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, TrainConfig]]:
    made = job(tmp_path_factory.mktemp("job"))
    with closing(together(made)) as parts:
        yield parts, made


@pytest.fixture
def run(shared: tuple[Run, TrainConfig], tmp_path: Path) -> tuple[Run, TrainConfig]:
    """The parts with an empty cache folder."""
    parts, made = shared
    fresh = made.copy_of()
    fresh.cache_dir = str(tmp_path / "cache")
    return parts, fresh


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pairs of each batch that is scored, from now on."""
    seen: list[int] = []
    original = scores_module.reference_scores

    def count(scorer: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(len(scorer))
        return original(scorer, *arguments, **options)

    monkeypatch.setattr(scores_module, "reference_scores", count)
    return seen


def training_batches(parts: Run, epochs: int = 2) -> list[PairBatch]:
    found: list[PairBatch] = []
    for group in parts.loader.accumulation_groups(TrainProgress()):
        found += [batch for batch in group if isinstance(batch, PairBatch)]
        if group.last and group.epoch + 1 == epochs:
            break
    return found


def test_a_step_gets_the_scores_of_the_reference_at_its_draws(run: tuple[Run, TrainConfig]) -> None:
    parts, made = run
    scores = scores_of(parts, made)
    assert prepare(scores, parts)[0]
    weights = [parameter.detach().clone() for parameter in parts.parameters]
    draws_seen = set()
    try:
        with torch.no_grad():
            for parameter in parts.parameters:
                parameter.add_(0.1)  # training continues; the reference does not change
        for pair in training_batches(parts):
            drawn, cached = scores.draws(pair)
            assert pair.rejected is not None
            for side, draw, known_B in zip((pair.chosen, pair.rejected), drawn, cached.scores, strict=True):
                cond = parts.setup.condition(parts.model, side)
                parts.model.set_mode("no_dropout")
                assert parts.reference is not None
                with torch.no_grad(), parts.reference():
                    direct_B = parts.setup.score(parts.model, side.latents_BChw, cond, draw, side.size)
                torch.testing.assert_close(known_B.float(), direct_B, rtol=1e-5, atol=1e-6)
            draws_seen |= set(zip(pair.pair_ids, drawn[0].timestep_B.tolist(), strict=True))
    finally:
        with torch.no_grad():
            for parameter, weight in zip(parts.parameters, weights, strict=True):
                parameter.copy_(weight)
    # two epochs of six pairs, each time at another draw
    assert len(draws_seen) == 12


def test_each_draw_is_scored_once_and_known_in_the_next_run(
    run: tuple[Run, TrainConfig], computed: list[int]
) -> None:
    parts, made = run
    finished, seen = prepare(scores_of(parts, made), parts)
    assert finished
    assert sum(computed) == DRAWS * len(parts.loader) == 18
    assert seen[-1] == len(parts.loader)
    assert list((Path(made.cache_dir) / FOLDER).glob("*.safetensors"))
    computed.clear()
    again = scores_of(parts, made)
    assert prepare(again, parts)[0]
    assert computed == []
    again.draws(training_batches(parts, 1)[0])


def test_stopped_on_the_way_it_resumes_where_it_was(
    run: tuple[Run, TrainConfig], computed: list[int]
) -> None:
    parts, made = run
    finished, _ = prepare(scores_of(parts, made), parts, stop_after=2)
    assert not finished
    first = sum(computed)
    assert 0 < first < 18
    assert prepare(scores_of(parts, made), parts)[0]
    assert sum(computed) == 18


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"learning_rate": 0.5, "batch_size": 3, "epochs": 9, "rlhf_dpo_beta": 1.0}, True),
        ({"rlhf_dpo_label_smoothing": 0.2, "clip_grad_norm": 0.0}, True),
        ({"seed": 43}, False),
        ({"rlhf_dpo_reference_cache_draws": DRAWS + 1}, False),
        ({"rlhf_dpo_shared_noise": False}, False),
        ({"rlhf_dpo_timestep_sampling": "UNIFORM"}, False),
        ({"offset_noise_weight": 0.1}, False),
        ({"max_noising_strength": 0.5}, False),
        ({"timestep_shift": 2.0}, False),
    ],
    ids=lambda value: next(iter(value), "nothing") if isinstance(value, dict) else "",
)
def test_the_key_follows_what_scores_depend_on(
    run: tuple[Run, TrainConfig], changes: dict[str, Any], same: bool
) -> None:
    parts, made = run
    other = TrainConfig.from_dict({**made.to_dict(), **changes})
    assert (scores_of(parts, made)._key() == scores_of(parts, other)._key()) == same


def test_the_key_follows_what_the_model_is_told_and_its_schedule(
    run: tuple[Run, TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, made = run
    model, plain = parts.model, scores_of(parts, made)._key()
    with monkeypatch.context() as patched:
        patched.setattr(model, "prompt_weighting", True)
        assert scores_of(parts, made)._key() != plain
    with monkeypatch.context() as patched:
        patched.setattr(model, "guidance", 3.5)
        assert scores_of(parts, made)._key() == plain, "this family is told no guidance"
        patched.setattr(model, "spec", replace(model.spec, embeds_guidance=True))
        told = scores_of(parts, made)._key()
        patched.setattr(model, "guidance", 1.0)
        assert len({plain, told, scores_of(parts, made)._key()}) == 3
    with monkeypatch.context() as patched:
        patched.setattr(model, "prompt_chunks", 1)
        assert scores_of(parts, made)._key() == plain, "a batch's text states say so themselves"
        patched.setattr(model, "trains_text", True)
        one = scores_of(parts, made)._key()
        patched.setattr(model, "prompt_chunks", 2)
        assert scores_of(parts, made)._key() != one
    with monkeypatch.context() as patched:
        other = DiscreteSchedule.from_config({"beta_end": 0.03})
        patched.setattr(model, "schedule", other)
        assert scores_of(parts, made)._key() != plain


def test_another_reference_has_another_key(run: tuple[Run, TrainConfig], tmp_path: Path) -> None:
    parts, made = run
    keys = {scores_of(parts, made)._key()}
    assert parts.handle is not None
    original = parts.handle.state_dict()
    for value in (0.0, 1.0):
        snapshot = {name: torch.full_like(tensor, value) for name, tensor in original.items()}
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(parts.reference, "snapshot_state", lambda state=snapshot: state)
            keys.add(scores_of(parts, made)._key())
    assert len(keys) == 3


def test_the_lines_of_a_pair_s_caption_are_one_prompt_and_can_be_kept(tmp_path: Path) -> None:
    made = job(tmp_path, rlhf_dpo_reference_cache=False)
    for side in ("chosen", "rejected"):
        (tmp_path / "data" / side / "001.txt").write_text("one prompt\nanother prompt")
    with closing(together(made)) as parts:
        scores_of(parts, made).check(parts.loader)


def test_pairs_of_several_resolutions_are_refused(tmp_path: Path) -> None:
    made = job(tmp_path, rlhf_dpo_reference_cache=False, resolution="32, 64")
    with closing(together(made)) as parts:
        with pytest.raises(ConfigError, match="one resolution") as caught:
            prepare(scores_of(parts, made), parts)
        assert caught.value.field == "rlhf_dpo_reference_cache"


def test_a_loss_without_a_reference_has_nothing_to_cache(run: tuple[Run, TrainConfig]) -> None:
    parts, made = run
    scores = scores_of(parts, made)
    scores._objective = replace(scores._objective, needs_reference=False)
    with pytest.raises(ConfigError, match="no reference to cache"):
        prepare(scores, parts)


def test_rewards_are_0_before_the_first_update_where_images_pass_singly(tmp_path: Path) -> None:
    seen: list[dict[str, float]] = []

    class Numbers(Callback):
        def step(self, progress: Any, metrics: Any, *_: Any) -> None:
            seen.append(dict(metrics))

    draws = {"rlhf_dpo_reference_cache": True, "rlhf_dpo_reference_cache_draws": DRAWS, "max_steps": 1}
    run_here(write_config(tmp_path, **draws, rlhf_dpo_execution_mode="SEQUENTIAL"), callback=Numbers())
    (first,) = seen
    assert {first[f"dpo/{name}"] for name in ("accuracy", "chosen_reward", "rejected_reward")} == {0.0}


@pytest.mark.parametrize(
    "before",
    [
        pytest.param({"batch_size": 3}, id="batch"),
        pytest.param({"rlhf_dpo_execution_mode": "FULL_CONCURRENT"}, id="mode", marks=pytest.mark.slow),
    ],
)
def test_what_an_earlier_run_cached_changes_no_weight(tmp_path: Path, before: dict[str, Any]) -> None:
    """Scores that were rounded in other batches are not those of this run."""
    draws = {"rlhf_dpo_reference_cache": True, "rlhf_dpo_reference_cache_draws": 3}
    changes = {**draws, "batch_size": 1, "rlhf_dpo_execution_mode": "SEQUENTIAL", "epochs": 1}
    kept = str(tmp_path / "kept")
    run_here(write_config(tmp_path / "before", **{**changes, **before}, cache_dir=kept))
    run_here(write_config(tmp_path / "after", **changes, cache_dir=kept))
    run_here(write_config(tmp_path / "alone", **changes))
    assert len(list((tmp_path / "kept" / FOLDER).glob("*.safetensors"))) == 2
    assert same_weights(tmp_path / "after" / "out.safetensors", tmp_path / "alone" / "out.safetensors")
