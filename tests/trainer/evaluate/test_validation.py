"""Validation: the same draws every time, averages over pairs and images, nothing of the run disturbed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modules.dataLoader.create import create_data_loader
from modules.model.batch import PairBatch
from modules.modelSetup import training
from modules.trainer.assembly import Run, assemble
from modules.trainer.distributed import Processes
from modules.trainer.evaluate import validation as validation_module
from modules.trainer.evaluate.validation import STREAM, ImageValidation, PairValidation
from modules.util.config.TrainConfig import TrainConfig
from tests.trainer.builders import FEW_LAYERS, settings, write_pairs
from tests.usual import usual

SIZES = ((32, 32), (32, 32), (64, 32))
ALONE = Processes(0, 1, 0, torch.device("cpu"))


def config(folder: Path, **changes: Any) -> TrainConfig:
    return TrainConfig.from_dict(settings(folder, **FEW_LAYERS, **changes))


def pair_job(folder: Path, **changes: Any) -> TrainConfig:
    training = write_pairs(folder / "train", 4)
    held = [{**c, "type": f"{c['type']}_VAL"} for c in write_pairs(folder / "held", 5, SIZES)]
    for side in ("chosen", "rejected"):
        # other pictures than those trained on
        for path in (folder / "held" / side).glob("*.txt"):
            path.write_text(f"{path.stem} held back")
    concepts = [*training, *({**c, "name": f"{c['name']}-val"} for c in held)]
    return config(
        folder,
        **{"concepts": concepts, "rlhf_dpo_validation": True, "rlhf_dpo_validation_draws": 2, **changes},
    )


def image_job(folder: Path, names: tuple[str, ...] = ("one", "two"), **changes: Any) -> TrainConfig:
    training = {**write_pairs(folder / "train", 3)[0], "type": "STANDARD"}
    concepts = [training]
    for number, name in enumerate(names):
        made = write_pairs(folder / f"held{number}", 3 - number, SIZES)[number % 2]
        concepts.append({**made, "name": name, "type": "VALIDATION"})
    changes = {"concepts": concepts, "validation": True, "validation_draws": 2, **changes}
    return config(folder, rlhf_enabled=False, **changes)


def together(made: TrainConfig) -> Run:
    folder = Path(made.workspace_dir)
    parts = assemble(made, folder, folder / "samples", ALONE, lambda *_: True)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in parts.parameters:
            # away from the reference, so that there is something to measure
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator).to(parameter.device))
    return parts


def pairs_of(parts: Run, made: TrainConfig) -> PairValidation:
    """A validation that knows no reference scores yet."""
    assert parts.validation_loader is not None
    assert parts.reference is not None
    return PairValidation(made, parts.setup, parts.model, parts.validation_loader, parts.reference, ALONE)


def images_of(parts: Run, made: TrainConfig) -> ImageValidation:
    assert parts.validation_loader is not None
    return ImageValidation(made, parts.setup, parts.model, parts.validation_loader, ALONE)


@pytest.fixture(scope="module")
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture(scope="module")
def preference(tmp_path_factory: pytest.TempPathFactory, stack: ExitStack) -> tuple[Run, TrainConfig]:
    made = pair_job(tmp_path_factory.mktemp("pairs"))
    return stack.enter_context(closing(together(made))), made


@pytest.fixture(scope="module")
def supervised(tmp_path_factory: pytest.TempPathFactory, stack: ExitStack) -> tuple[Run, TrainConfig]:
    made = image_job(tmp_path_factory.mktemp("images"))
    return stack.enter_context(closing(together(made))), made


@pytest.fixture(scope="module")
def pair_values(preference: tuple[Run, TrainConfig]) -> dict[str, float]:
    """What the pairs' validation measures, to compare with."""
    return dict(pairs_of(*preference).run())


@pytest.fixture(scope="module")
def image_values(supervised: tuple[Run, TrainConfig]) -> dict[str, float]:
    """As ``pair_values``, of the images."""
    return dict(images_of(*supervised).run())


# -- pairs ---------------------------------------------------------------------------------------------------


def test_the_tags_and_what_they_are(preference: tuple[Run, TrainConfig]) -> None:
    parts, made = preference
    values = pairs_of(parts, made).run()
    assert values.keys() == {
        "dpo/val_loss", "dpo/val_accuracy", "dpo/val_chosen_reward", "dpo/val_rejected_reward"
    }  # fmt: skip
    # every pair by itself, with the formula written out
    assert parts.validation_loader is not None
    assert parts.reference is not None
    losses, correct, chosen_rewards = [], [], []
    for pair in parts.validation_loader.batches(1):
        assert isinstance(pair, PairBatch)
        for r in range(2):
            options = validation_module.replace(
                training.noise_options(made, preference=True), strata=2, pool=0
            )
            drawn = parts.setup.draw_pair_noise(
                parts.model, pair, options, made.seed, made.rlhf_dpo_shared_noise, STREAM, (r,), stratum=r
            )
            parts.model.set_mode("eval")
            assert pair.rejected is not None
            with torch.no_grad():
                policy = scores(parts, pair, drawn)
                with parts.reference():
                    frozen = scores(parts, pair, drawn)
            chosen, rejected = (float(p - f) for p, f in zip(policy, frozen, strict=True))
            losses.append(math.log1p(math.exp(-made.rlhf_dpo_beta * (chosen - rejected))))
            correct.append(chosen > rejected)
            chosen_rewards.append(chosen)
    assert len(losses) == 10
    assert len({*losses}) == 10
    assert values["dpo/val_loss"] == pytest.approx(sum(losses) / 10, rel=1e-4)
    assert values["dpo/val_accuracy"] == pytest.approx(sum(correct) / 10)
    assert values["dpo/val_chosen_reward"] == pytest.approx(sum(chosen_rewards) / 10, rel=1e-3, abs=1e-7)


def scores(parts: Run, pair: PairBatch, drawn: Any) -> list[torch.Tensor]:
    """Of the chosen and the rejected side, with the weights as they are."""
    assert pair.rejected is not None
    return [
        parts.setup.score(
            parts.model, side.latents_BChw, parts.setup.condition(parts.model, side), draw, side.size
        )
        for side, draw in ((pair.chosen, drawn[0]), (pair.rejected, drawn[1]))
    ]


@pytest.mark.slow
def test_an_untrained_adapter_is_the_reference(tmp_path: Path) -> None:
    made = pair_job(tmp_path)
    with closing(assemble(made, tmp_path, tmp_path, ALONE, lambda *_: True)) as parts:
        values = pairs_of(parts, made).run()
    assert values["dpo/val_loss"] == pytest.approx(math.log(2), rel=1e-6)
    assert (values["dpo/val_chosen_reward"], values["dpo/val_rejected_reward"]) == (0.0, 0.0)


@pytest.mark.parametrize("kind", usual(["preference", "supervised"], "supervised"))
def test_every_validation_draws_the_same_and_disturbs_nothing(
    request: pytest.FixtureRequest, kind: str
) -> None:
    parts, made = request.getfixturevalue(kind)
    validation = pairs_of(parts, made) if kind == "preference" else images_of(parts, made)
    weights = [parameter.detach().clone() for parameter in parts.parameters]
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = validation.run()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert validation.run() == first
    fresh = pairs_of(parts, made) if kind == "preference" else images_of(parts, made)
    assert fresh.run() == first
    assert all(parameter.grad is None for parameter in parts.parameters)
    assert all(torch.equal(p, w) for p, w in zip(parts.parameters, weights, strict=True))
    assert torch.is_grad_enabled()


def test_it_follows_the_policy_but_asks_the_reference_once(
    preference: tuple[Run, TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, made = preference
    asked = []
    original = validation_module.execution.reference_scores

    def count(*arguments: Any, **options: Any) -> Any:
        asked.append(arguments)
        return original(*arguments, **options)

    own = SimpleNamespace(**{**vars(validation_module.execution), "reference_scores": count})
    monkeypatch.setattr(validation_module, "execution", own)
    validation = pairs_of(parts, made)
    first = validation.run()
    assert len(asked) == 2 * 3  # draws x batches: two of one size, one of the other
    weights = [parameter.detach().clone() for parameter in parts.parameters]
    try:
        with torch.no_grad():
            for parameter in parts.parameters:
                parameter.mul_(1.5)
        second = validation.run()
        assert len(asked) == 6
        assert second != first
        # what it remembers is what it would compute
        assert second == pairs_of(parts, made).run()
    finally:
        with torch.no_grad():
            for parameter, weight in zip(parts.parameters, weights, strict=True):
                parameter.copy_(weight)


OF_TRAINING = {
    "rlhf_dpo_label_smoothing": 0.2,
    "rlhf_supervised_mix": 0.5,
    "rlhf_dpo_adaptive_beta": True,
    "rlhf_dpo_timestep_strata": 4,
    "rlhf_dpo_timestep_sampling": "UNIFORM",
}


def test_values_do_not_depend_on_how_is_trained(
    preference: tuple[Run, TrainConfig], pair_values: dict[str, float]
) -> None:
    parts, made = preference

    def values(**changes: Any) -> dict[str, float]:
        other = made.copy_of()
        for name, value in changes.items():
            object.__setattr__(other, name, value)
        return pairs_of(parts, other).run()

    # all at once; which of them acts is looked for only if one does
    assert values(**OF_TRAINING) == pair_values, [
        name for name, value in OF_TRAINING.items() if values(**{name: value}) != pair_values
    ]
    # part of how noise is made, and so of what is measured
    assert values(offset_noise_weight=0.3) != pair_values


@pytest.mark.parametrize("kind", usual(["preference", "supervised"], "supervised"))
def test_batches_do_not_matter_beyond_rounding(request: pytest.FixtureRequest, kind: str) -> None:
    parts, made = request.getfixturevalue(kind)
    validation = pairs_of(parts, made) if kind == "preference" else images_of(parts, made)
    one = validation.run()
    larger = made.copy_of()
    larger.batch_size = 3
    loader = create_data_loader(
        larger, parts.model, parts.setup, validation=True, share=parts.validation_loader
    )
    loader.prepare()
    with closing(loader):
        arguments = (made, parts.setup, parts.model, loader)
        other: PairValidation | ImageValidation
        if kind == "preference":
            assert parts.reference is not None
            other = PairValidation(*arguments, parts.reference, ALONE)
        else:
            other = ImageValidation(*arguments, ALONE)
        assert other.run() == pytest.approx(one, rel=1e-4, abs=1e-6)


class Summing(Processes):
    """One of two processes that were run one after the other: adds what the first one had."""

    held: torch.Tensor | None = None

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        if Summing.held is None:
            Summing.held = values.clone()
            return values
        total, Summing.held = values + Summing.held, None
        return total


@pytest.mark.parametrize("kind", ["preference", "supervised"])
def test_two_processes_come_to_what_one_does(request: pytest.FixtureRequest, kind: str) -> None:
    parts, made = request.getfixturevalue(kind)
    validation = pairs_of(parts, made) if kind == "preference" else images_of(parts, made)
    alone, found = validation.run(), {}
    for rank in (0, 1):
        loader = create_data_loader(
            made, parts.model, parts.setup, validation=True, share=parts.validation_loader,
            rank=rank, world_size=2, barrier=lambda: None,
        )  # fmt: skip
        loader.prepare()
        process = Summing(rank, 2, rank, torch.device("cpu"))
        other: PairValidation | ImageValidation
        with closing(loader):
            if kind == "preference":
                assert parts.reference is not None
                other = PairValidation(made, parts.setup, parts.model, loader, parts.reference, process)
            else:
                other = ImageValidation(made, parts.setup, parts.model, loader, process)
            found = other.run()
    assert found == pytest.approx(alone, rel=1e-4, abs=1e-6)


# -- images --------------------------------------------------------------------------------------------------


def test_images_are_averaged_concept_by_concept_and_all_together(image_values: dict[str, float]) -> None:
    values = image_values
    assert values.keys() == {"loss/validation", "loss/validation/one", "loss/validation/two"}
    one, two = values["loss/validation/one"], values["loss/validation/two"]
    assert one != two
    assert values["loss/validation"] == pytest.approx((3 * one + 2 * two) / 5)


@pytest.mark.slow
def test_a_single_concept_has_no_curve_of_its_own(tmp_path: Path) -> None:
    made = image_job(tmp_path, ("only",))
    with closing(together(made)) as parts:
        assert images_of(parts, made).run().keys() == {"loss/validation"}


@pytest.mark.slow
def test_a_concept_whose_name_begins_like_anothers(tmp_path: Path) -> None:
    made = image_job(tmp_path, ("a", "a/b"))
    with closing(together(made)) as parts:
        values = images_of(parts, made).run()
    one, two = values["loss/validation/a"], values["loss/validation/a/b"]
    assert values["loss/validation"] == pytest.approx((3 * one + 2 * two) / 5)
    assert one != two


@pytest.mark.parametrize(
    "changes",
    [
        {"loss_weight_fn": "MIN_SNR_GAMMA"},
        {"perturbation_noise_weight": 0.5},
        {"timestep_distribution": "UNIFORM"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_weights_of_noise_levels_are_left_out(
    supervised: tuple[Run, TrainConfig], image_values: dict[str, float], changes: dict[str, Any]
) -> None:
    parts, made = supervised
    other = TrainConfig.from_dict({**made.to_dict(), **changes})
    assert images_of(parts, other).run() == image_values


def test_captions_are_never_dropped(
    supervised: tuple[Run, TrainConfig], image_values: dict[str, float]
) -> None:
    parts, made = supervised
    other = made.copy_of()
    other.text_encoder.dropout_probability = 1.0
    assert images_of(parts, other).run() == image_values
