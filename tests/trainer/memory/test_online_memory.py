"""What is predicted of online training is what its phases hold: making images, scoring them, learning from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import CLIPModel

from modules.accelerator.base import ACCELERATORS, Accelerator
from modules.model.Model import Model
from modules.reward.base import RewardBatch, create_reward
from modules.reward.clip import CLIP_H14, CLIP_L14
from modules.rollout import generate
from modules.trainer.memory.live_bytes import LiveBytes
from modules.trainer.memory.memory_plan import MemoryPlan, Planner, plan_memory
from modules.trainer.memory.memory_step import ShapeDryRun
from modules.trainer.memory.RewardMemory import RewardMemory, rewards_next_to_the_model
from modules.trainer.memory.shape_only import shape_only_model
from modules.trainer.online.steps.coupled import CoupledStep
from modules.trainer.online.steps.decoupled import DecoupledStep
from modules.util.config.load import load_config
from modules.util.config.TrainConfig import TrainConfig
from tests.reward.tiny_clip import save_tiny_clip
from tests.tiny import tiny_setup
from tests.trainer.builders import run_here
from tests.trainer.online.builders import write_online
from tests.usual import usual

GUIDED = {"rlhf_rollout_cfg_scale": 3.0}


def planner(config: TrainConfig) -> Planner:
    setup = tiny_setup(config.model_type.value)
    dry_run = ShapeDryRun(setup, shape_only_model(setup, config), config, cuda=False)
    return Planner(config, dry_run, cuda=False)


def planned(folder: Path, mode: str = "GRPO", **changes: Any) -> MemoryPlan:
    return plan_memory(load_config(write_online(folder, mode, **changes)), cuda=False)


def items(plan: MemoryPlan) -> dict[str, Mapping[str, int]]:
    return {phase.name: phase.items for phase in plan.phases}


def measured(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[int]:
    """The peaks of live bytes during each call of a function, besides the model's own tensors."""
    act, peaks = getattr(owner, name), []

    def watched(*args: Any, **options: Any) -> Any:
        model = next((one for one in args if isinstance(one, Model)), None) or args[0]._model_of_test
        tensors = [
            t for module in model.modules().values() for t in (*module.parameters(), *module.buffers())
        ]
        with LiveBytes(tensors) as live:
            made = act(*args, **options)
        peaks.append(live.peak)
        return made

    monkeypatch.setattr(owner, name, watched)
    return peaks


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        GUIDED,
        {**GUIDED, "rlhf_rollout_cfg_layout": "JOINT"},
    ],
)
def test_making_images_takes_what_is_predicted(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks = measured(monkeypatch, generate, "guided_prediction")
    path = write_online(tmp_path, "NFT", epochs=1, rlhf_rollout_batch_size=4, **changes)
    run_here(path)
    dry_run = planner(config := load_config(path)).dry_run
    conditions = sum(one.nbytes for one in dry_run._batch(4, (32, 32)).cond.tensors.values())  # type: ignore[union-attr]
    there = conditions * (2 if config.rlhf_rollout_cfg_scale > 1 else 1)
    assert dry_run.rollout(4, (32, 32)) - there == pytest.approx(max(peaks), rel=0.15)


class WithGradients(Accelerator):
    """Asks for what a compiled denoiser does: rollouts that run the program of training."""

    name = "with_gradients"
    safety = "lossless"
    stage = "both"
    requires_grad_rollout = True

    def setup(self, models: Mapping[str, torch.nn.Module]) -> None:
        pass

    def teardown(self) -> None:
        pass


@pytest.mark.slow
def test_a_rollout_with_gradients_holds_the_graph_of_one_step_as_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ACCELERATORS.keys()
    monkeypatch.setitem(ACCELERATORS._items, "with_gradients", WithGradients)
    steps = measured(monkeypatch, generate, "guided_prediction")
    rollouts = measured(monkeypatch, generate, "_roll")
    run_here(path := write_online(tmp_path, epochs=1, acceleration={"shared": ["with_gradients"]}))
    assert max(rollouts) < 1.2 * max(steps)
    predicted = planner(load_config(path)).dry_run.rollout(4, (32, 32))
    assert predicted == pytest.approx(max(rollouts), rel=0.1)


@pytest.mark.parametrize(
    ("mode", "changes"),
    usual(
        [
            ("GRPO", {}),
            ("GRPO", {**GUIDED, "rlhf_rollout_cfg_layout": "JOINT"}),
            ("GRPO", {"rlhf_kl_beta": 0.1}),
            ("GSPO", {"rlhf_gspo_strategy": "EXACT"}),
            ("NFT", {}),
            ("DGPO", {}),
            ("AWM", {}),
        ],
        ("NFT", {}),
    ),
)
def test_learning_from_images_takes_what_is_predicted(
    mode: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_online(tmp_path, mode, epochs=1, unet={"gradient_checkpointing": False}, **changes)
    peak = measured_steps(path, monkeypatch)
    predicted = planner(load_config(path)).dry_run.step(4, (32, 32)).peak
    assert predicted == pytest.approx(peak, rel=0.15)


def measured_steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The peak of live bytes of a run's optimizer steps."""
    monkeypatch.setattr(CoupledStep, "_model_of_test", property(lambda step: step._model), raising=False)
    monkeypatch.setattr(
        DecoupledStep, "_model_of_test", property(lambda step: step.loader.model), raising=False
    )
    coupled = measured(monkeypatch, CoupledStep, "forward_backward")
    decoupled = measured(monkeypatch, DecoupledStep, "forward_backward")
    run_here(path)
    return max(*coupled, *decoupled, 0)


ONE_BY_ONE = {"batch_size": 1, "gradient_accumulation_steps": 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "changes"),
    [
        ("GRPO", {}),
        ("GSPO", ONE_BY_ONE),
        ("GRPO", ONE_BY_ONE),
        ("NFT", {}),
        ("NFT", {"rlhf_num_train_timesteps": 2, "rlhf_rollout_steps": 8}),
        ("DGPO", {**ONE_BY_ONE, "rlhf_dgpo_group_strategy": "STASH"}),
    ],
)
def test_gradients_of_earlier_passes_are_counted_once(
    mode: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # an adapter as large as the activations
    path = write_online(tmp_path, mode, epochs=1, lora_rank=128, layer_filter_preset="attn-mlp", **changes)
    peak = measured_steps(path, monkeypatch)
    step = items(plan_memory(load_config(path), cuda=False))["training step"]
    predicted = step["gradients"] + step["activations and working memory"]
    assert predicted == pytest.approx(peak, rel=0.05)


def reward_of(**params: Any) -> list[dict[str, Any]]:
    return [{"reward": "pickscore", "params": params}]


@pytest.mark.parametrize("dtype", usual(["float32", "bfloat16"], "float32"))
def test_rewards_take_what_is_predicted(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(save_tiny_clip(tmp_path / "clip"))
    path = write_online(tmp_path / "run", rlhf_rewards=reward_of(source=source, dtype=dtype, batch_size=3))
    config = load_config(path)
    memory = RewardMemory(config, planner(config).dry_run)
    reward: Any = create_reward("pickscore", {"source": source, "dtype": dtype, "batch_size": 3})
    reward.load()
    tensors = [*reward.clip.model.parameters(), *reward.clip.model.buffers()]
    assert memory.weights() == {"weights: reward pickscore": sum(one.nbytes for one in tensors)}
    peaks: list[int] = []
    for name in ("get_image_features", "get_text_features"):
        watch_passes(monkeypatch, name, tensors, peaks)
    # longer than the model reads
    reward.score(RewardBatch(torch.rand(8, 3, 32, 32), [f"{letter} " * 20 for letter in "abcdefgh"]))
    assert len(peaks) == 6 and memory.working() == pytest.approx(max(peaks), rel=0.15)


def watch_passes(
    monkeypatch: pytest.MonkeyPatch, name: str, tensors: list[torch.Tensor], peaks: list[int]
) -> None:
    act = getattr(CLIPModel, name)

    def watched(*args: Any, **options: Any) -> Any:
        with LiveBytes(tensors) as live:
            made = act(*args, **options)
        # they are brought to the device for the pass
        peaks.append(live.peak + sum(one.nbytes for one in options.values()))
        return made

    monkeypatch.setattr(CLIPModel, name, watched)


@pytest.mark.slow
def test_published_rewards_are_counted_without_being_on_this_machine() -> None:
    for name, params, millions in (
        ("pickscore", {}, 986.1),
        ("clip_score", {}, 427.6),
        ("clip_score", {"source": CLIP_L14}, 427.6),
        ("clip_source", {"source": CLIP_H14}, 986.1),
    ):
        outline = create_reward(name, params).outline()
        assert outline is not None, name
        assert sum(p.numel() for p in outline.module.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("without_a_step")
def test_rewards_stay_next_to_the_model_unless_they_take_turns(tmp_path: Path) -> None:
    source = str(save_tiny_clip(tmp_path / "clip"))
    weights, reward = "weights: reward pickscore", {"rlhf_rewards": reward_of(source=source)}
    beside = items(planned(tmp_path / "beside", **reward))
    assert list(beside) == [
        "encoding prompts",
        "making images",
        "decoding images",
        "scoring images",
        "training step",
    ]
    assert all(found[weights] > 0 for found in beside.values())
    assert "weights: unet" in beside["scoring images"]
    turns = items(planned(tmp_path / "turns", **reward, rlhf_reward_swap=True))
    assert [name for name, found in turns.items() if weights in found] == ["scoring images"]
    assert not {"weights: unet", "adapter"} & turns["scoring images"].keys()
    assert "optimizer state" in turns["scoring images"]
    elsewhere = items(planned(tmp_path / "cpu", **reward, rlhf_reward_device="cpu"))
    assert "scoring images" not in elsewhere and weights not in elsewhere["training step"]


@pytest.mark.parametrize(
    ("own", "named", "together"),
    [
        ("cuda", "cuda:0", True),
        ("cuda:0", "cuda", True),
        ("auto", "cuda:00", True),
        ("cuda:1", "auto", True),
        ("cuda:0,cuda:1", "cuda:1", True),
        ("cuda:1,cuda:2", "cuda", True),
        ("auto", "cuda:1", False),
        ("cuda:0", "cuda:1", False),
        ("cuda:0", "cpu", False),
    ],
)
def test_rewards_are_counted_on_the_model_s_card_whatever_it_is_called(
    own: str, named: str, together: bool
) -> None:
    config = TrainConfig.from_dict(
        {
            "rlhf_enabled": True,
            "rlhf_mode": "GRPO",
            "rlhf_reward": "pickscore",
            "train_device": own,
            "rlhf_reward_device": named,
        }
    )
    assert bool(rewards_next_to_the_model(config)) == together


@pytest.mark.slow
def test_more_images_at_once_take_more(tmp_path: Path) -> None:
    few, many = (items(planned(tmp_path / str(count), rlhf_rollout_batch_size=count)) for count in (1, 4))
    for phase in ("making images", "decoding images"):
        assert many[phase]["working memory"] > 3 * few[phase]["working memory"]
    assert few["training step"] == many["training step"]


@pytest.mark.slow
@pytest.mark.usefixtures("without_a_step")
def test_an_old_policy_of_main_memory_visits_the_device(tmp_path: Path) -> None:
    here, there = (
        items(planned(tmp_path / device, "NFT", rlhf_ema_ref_device=device)) for device in ("GPU", "CPU")
    )
    assert here["making images"]["old policy"] == there["making images"]["old policy"] > 0
    assert "old policy" in here["training step"] and "old policy" not in there["training step"]


@pytest.mark.slow
@pytest.mark.usefixtures("without_a_step")
def test_what_is_not_counted_is_told(tmp_path: Path) -> None:
    def notes(name: str, mode: str, reward: str, **changes: Any) -> tuple[str, ...]:
        rewards = [{"reward": "brightness"}, {"reward": reward, "params": changes.pop("params", {})}]
        return planned(tmp_path / name, mode, rlhf_rewards=rewards, **changes).notes

    assert notes("all", "GRPO", "remote", params={"url": "http://127.0.0.1:1"}) == ()
    kept, reward = notes("some", "NFT", "hpsv2", acceleration={"rollout": ["diffusers_cache"]})
    assert "diffusers_cache" in kept and "hpsv2" not in kept
    assert "hpsv2" in reward and "brightness" not in reward


@pytest.mark.usefixtures("without_a_step")
def test_sizes_of_images_are_those_of_the_rollout(tmp_path: Path) -> None:
    plan = planned(tmp_path, resolution="32", rlhf_rollout_size="64x32")
    assert plan.size == (32, 64)
