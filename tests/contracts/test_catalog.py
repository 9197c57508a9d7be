"""The lists of names for forms agree with what the registries hold."""

from __future__ import annotations

import inspect
import subprocess
import sys

from modules.accelerator.base import ACCELERATORS as REGISTERED_ACCELERATORS
from modules.modelSetup.registry import MODEL_SETUPS
from modules.reward.base import REWARDS as REGISTERED_REWARDS
from modules.util.catalog import ACCELERATORS, REWARDS, unknown_name
from modules.util.enum.ModelType import ModelType


def test_rewards_and_their_parameters() -> None:
    assert sorted(REWARDS) == REGISTERED_REWARDS.keys()
    for name, entry in REWARDS.items():
        taken = dict(inspect.signature(REGISTERED_REWARDS.get(name)).parameters)
        assert set(entry.params) == set(taken), name
        needed = {key for key, one in taken.items() if one.default is inspect.Parameter.empty}
        assert set(entry.needed) == needed, name


def test_accelerators_and_their_slots() -> None:
    assert sorted(ACCELERATORS) == REGISTERED_ACCELERATORS.keys()
    for name, entry in ACCELERATORS.items():
        stage = REGISTERED_ACCELERATORS.get(name).stage
        assert entry.slot == ("shared" if stage == "both" else "rollout"), name


def test_the_list_needs_no_torch() -> None:
    code = "import sys, modules.util.catalog, modules.util.prompts_file; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_gets_the_nearest() -> None:
    assert unknown_name("brightness", REWARDS) == ""
    assert "did you mean 'brightness'" in unknown_name("brightnes", REWARDS)
    assert "did you mean" not in unknown_name("zzz", REWARDS)


def test_what_is_known_of_a_family_without_torch() -> None:
    for family in ModelType:
        spec = MODEL_SETUPS.get(family.value)().spec
        assert family.flow_matching is (spec.prediction == "flow"), family
        assert family.usual_side == spec.default_resolution, family
        assert family.embeds_guidance is spec.embeds_guidance, family
        assert family.chunks_prompts is spec.chunks_prompts, family
        assert family.denoiser == spec.denoiser, family
        assert family.text_encoders == spec.text_encoders, family
