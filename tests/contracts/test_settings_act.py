"""Every case of ``tests/house/acts``: another value of one setting, and another outcome."""

from __future__ import annotations

import pytest

from tests.house.acts.case import Case
from tests.house.acts.registry import cases

SHOWN = (
    "seed", "continue_last_backup", "tensorboard_port", "unet.weight_dtype", "concepts.0.image.enable_fixed_flip",
    "dataloader_threads", "learning_rate_cycles", "layer_filter_regex", "rlhf_dpo_sequential_strategy", "rlhf_sampler",
    "rlhf_rewards.0.clip_high", "rlhf_reward_on_error", "rlhf_rollout_temperature", "rlhf_nft_beta",
    "samples.0.cfg_scale", "save_skip_first", "validation_draws", "acceleration.shared", "prevent_overwrites",
)  # fmt: skip
"""Settings that are made without effect in the usual run of the tests, of each kind of outcome and of each list; all of
them are in the long one.
"""


def named(case: Case) -> str:
    return case.path


def of(paths: tuple[str, ...]) -> list[Case]:
    found = {case.path: case for case in cases()}
    return [found[path] for path in paths]


def test_the_two_configs_of_a_case_differ_in_the_setting_alone() -> None:
    assert [case.path for case in cases() if not case.changes_the_config()] == []


@pytest.mark.parametrize("case", sorted(cases(), key=lambda case: case.shared), ids=named)
def test_the_setting_acts(case: Case) -> None:
    assert case.acts(), f"{case.path} changes nothing of: {case.see.name}"


# -- that a setting without effect, and an outcome that differs by chance, would be seen ---------------------------


@pytest.mark.parametrize("case", of(SHOWN), ids=named)
def test_without_its_effect_a_case_fails(case: Case) -> None:
    with case.inert():
        assert not case.acts()


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in cases() if case.path not in SHOWN], ids=named)
def test_without_its_effect_every_case_fails(case: Case) -> None:
    with case.inert():
        assert not case.acts()
