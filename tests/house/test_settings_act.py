"""Every setting changes an outcome: two configs that differ in it alone give different weights, files, curves, samples,
memory or data. A new setting needs a case in ``tests/house/acts``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.SampleConfig import SampleConfig
from modules.util.config.section.RewardConfig import AcceleratorConfig, RewardConfig
from modules.util.config.settings import iter_settings
from modules.util.config.TrainConfig import TrainConfig
from tests.house.acts.case import Case
from tests.house.acts.registry import cases

LISTS = {
    "concepts": ConceptConfig,
    "samples": SampleConfig,
    "rlhf_rewards": RewardConfig,
    "acceleration.shared": AcceleratorConfig,
    "acceleration.rollout": AcceleratorConfig,
}
"""Lists of objects that have settings of their own."""

WITHOUT = {
    "rlhf_dpo_ref_mode": "shown in files; it is worked out of lora_model_name, and what a config says is replaced",
}
"""Settings that need not change anything, and why."""

SHOWN = (
    "seed", "continue_last_backup", "tensorboard_port", "unet.weight_dtype", "unet.learning_rate", "text_encoder.train",
    "transformer.offload_fraction", "concepts.0.image.enable_fixed_flip", "concepts.0.text.caps_randomize_mode",
    "resolution", "dataloader_threads", "clip_grad_norm", "learning_rate_cycles", "optimizer.momentum", "huber_delta",
    "lora_rs", "layer_filter_regex", "rlhf_dpo_beta", "rlhf_dpo_sequential_strategy", "rlhf_dpo_patience_value",
    "rlhf_sampler", "rlhf_rollout_temperature", "rlhf_rewards.0.clip_high", "rlhf_reward_on_error",
    "rlhf_gspo_strategy", "rlhf_dgpo_noise", "rlhf_nft_beta", "rlhf_online_dpo_pairs", "samples.0.cfg_scale",
    "save_skip_first", "validation_draws", "acceleration.shared", "prevent_overwrites",
)  # fmt: skip
"""Settings that are made without effect in the usual run of the tests; all of them are in the long one."""


def wanted() -> Iterator[str]:
    """Every setting; those of lists with the name of the list before them."""
    for one in iter_settings(TrainConfig):
        yield one.path
    for prefix, kind in LISTS.items():
        for one in iter_settings(kind):
            yield f"{prefix}.{one.path}"


def without_places(path: str) -> str:
    """``concepts.text.tag_delimiter`` for ``concepts.0.text.tag_delimiter``."""
    return ".".join(part for part in path.split(".") if not part.isdigit())


def missing(settings: Iterator[str], known: tuple[Case, ...]) -> list[str]:
    """Settings without a case, each with what to write."""
    there = {without_places(case.path) for case in known} | WITHOUT.keys()
    return [
        f"{path}: add Case({path!r}, <base>, <another value>, see.<what differs>) to a list in tests/house/acts; the "
        f"base has to be a config in which it acts"
        for path in settings
        if path not in there
    ]


def named(case: Case) -> str:
    return case.path


def of(paths: tuple[str, ...]) -> list[Case]:
    found = {case.path: case for case in cases()}
    return [found[path] for path in paths]


def test_every_setting_has_a_case() -> None:
    assert missing(wanted(), cases()) == []


def test_a_setting_without_a_case_is_found() -> None:
    (line,) = missing(iter(("seed", "no_such_setting")), cases())
    assert line.startswith("no_such_setting: add Case(")


def test_cases_and_exceptions_are_about_settings_each_once() -> None:
    known = set(wanted())
    paths = [without_places(case.path) for case in cases()]
    assert [path for path in (*paths, *WITHOUT) if path not in known] == []
    assert len(set(paths)) == len(paths)
    assert not WITHOUT.keys() & set(paths)


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
