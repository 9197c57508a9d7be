"""The number of steps an online run says it has is the number it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from modules.trainer.online import settings as online_settings
from modules.trainer.online.settings import nominal_steps_per_epoch
from modules.trainer.online.step_plan import order_of, plan_steps
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UserError
from tests.trainer.builders import run_here
from tests.trainer.online.builders import write_online

MODES = ("GRPO", "GSPO", "DGPO", "NFT", "ONLINE_DPO", "AWM")


def config_of(**changes: Any) -> TrainConfig:
    return TrainConfig.from_dict(
        {"__version": 1, "rlhf_enabled": True, "rlhf_reward": "brightness", **changes}
    )


def taken(config: TrainConfig, world_size: int, epoch: int) -> int:
    """Steps of an epoch, cut as ``OnlineLoader`` cuts them, from the batches all processes make."""
    count = 2 * config.rlhf_prompts_per_epoch
    ranks = [online_settings.create_sampler(config, count, rank, world_size) for rank in range(world_size)]
    made = [[len(batch) for batch in sampler.batches(epoch)] for sampler in ranks]
    images = [sum(sizes) for sizes in zip(*made, strict=True)]
    rule = online_settings.step_rule(config, ranks[0])
    return sum(
        1
        for inner in range(config.rlhf_inner_epochs)
        for _ in plan_steps(order_of(len(images), rule.unit, config.seed, epoch, inner), images, rule)
    )


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    mode=st.sampled_from(MODES),
    world_size=st.integers(1, 3),
    group_size=st.integers(2, 6),
    batch_size=st.integers(1, 6),
    batches=st.integers(1, 6),
    docs=st.integers(0, 24),
    accumulation=st.integers(1, 5),
    inner=st.integers(1, 3),
    mean=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_steps_are_counted_as_they_are_cut(
    mode: str, world_size: int, group_size: int, batch_size: int, batches: int, docs: int, accumulation: int,
    inner: int, mean: bool, epoch: int,
) -> None:  # fmt: skip
    changes: dict[str, Any] = {
        "rlhf_mode": mode, "rlhf_group_size": group_size, "batch_size": batch_size, "rlhf_docs_per_step": docs,
        "gradient_accumulation_steps": accumulation, "rlhf_inner_epochs": inner,
        "rlhf_prompts_per_epoch": world_size * batch_size * batches,
    }  # fmt: skip
    if mean and mode in ("GRPO", "GSPO"):
        changes["rlhf_loss_aggregation"] = "PROMPT_MEAN"
    try:
        config = config_of(**changes)
        online_settings.check_online(config, world_size)
    except UserError:
        assume(False)
    assert nominal_steps_per_epoch(config, world_size) == taken(config, world_size, epoch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "steps", "epochs"),
    [
        # 16 images: steps of 5 have 6, the last one 4
        ({"rlhf_docs_per_step": 5}, 3, 2),
        pytest.param({"rlhf_docs_per_step": 4}, 4, 1, marks=pytest.mark.slow),
        pytest.param(
            {"rlhf_docs_per_step": 0, "gradient_accumulation_steps": 3}, 3, 1, marks=pytest.mark.slow
        ),
    ],
)
def test_a_run_takes_as_many_steps_as_it_says(
    changes: dict[str, Any], steps: int, epochs: int, tmp_path: Path
) -> None:
    more = {"batch_size": 2, "rlhf_prompts_per_epoch": 4, "rlhf_rollout_steps": 2, "epochs": epochs}
    trainer = run_here(write_online(tmp_path, **more, **changes))
    assert trainer.progress.global_step == trainer.total_steps == epochs * steps
    assert trainer.parts.loader.steps_per_epoch == steps
    assert trainer.parts.schedule.total_steps == epochs * steps
