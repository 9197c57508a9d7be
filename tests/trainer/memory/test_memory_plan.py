"""What is predicted of a run's memory is what the run takes: bytes of the real thing, counted while it runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.adapter.reference import create_reference
from modules.model.batch import ImageBatch, PairBatch, Sources
from modules.model.noising.noise import NoiseOptions
from modules.modelSetup import training
from modules.objective.preference import ObjectiveOptions, get_preference_loss
from modules.trainer.memory.live_bytes import LiveBytes
from modules.trainer.memory.memory_plan import MemoryPlan, Planner, plan_memory, state_bytes
from modules.trainer.memory.memory_step import PROMPT, ShapeDryRun, StepBytes
from modules.trainer.memory.SavedBytes import SavedBytes
from modules.trainer.memory.shape_only import ModelNotLocal, shape_only_model
from modules.trainer.optim.optimizers import create_optimizer
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import Optimizer
from modules.util.errors import UserError
from modules.weights.one_file import save_file as save_single_file
from tests.tiny import SIZE, factories, small_folder, tiny_setup
from tests.tiny.batches import train_pairs
from tests.tiny.stable_diffusion import write_standard_pipeline
from tests.tiny.stable_diffusion_xl import write_standard
from tests.trainer.builders import run_here, settings, write_config
from tests.trainer.optim.kinds import usual_kinds
from tests.usual import usual

KEYS = usual(sorted(factories()), "FLUX_DEV_1")
"""The other families, and the other kind of denoisers, take the same paths: they are slow tests."""


def config_of(
    key: str, checkpointing: bool = False, part: dict[str, Any] | None = None, **changes: Any
) -> TrainConfig:
    changes = {"layer_filter_preset": "attn-only", **changes}
    made = settings(
        Path("unused"), concepts=[], base_model_name=str(small_folder(key)), model_type=key, **changes
    )
    made.pop("unet")
    made[tiny_setup(key).spec.denoiser] = {"gradient_checkpointing": checkpointing, **(part or {})}
    return TrainConfig.from_dict(made)


def planner(config: TrainConfig) -> Planner:
    setup = tiny_setup(config.model_type.value)
    return Planner(
        config, ShapeDryRun(setup, shape_only_model(setup, config), config, cuda=False), cuda=False
    )


def real_step(config: TrainConfig, mode: str, count: int = 2) -> StepBytes:
    """The same step on real tensors."""
    setup = tiny_setup(config.model_type.value)
    model = training.load_model(setup, config)
    training.prepare(setup, model, config)
    trained = [p for _, _, named in training.trainable_parameters(model, config) for _, p in named]
    side = SIZE[0] // model.latent_factor
    # models that only edit are predicted with one image
    edited = int(setup.spec.edits_only)
    shown = Sources([torch.zeros(count, 3, *SIZE, dtype=torch.uint8)] * (edited * setup.spec.sees_sources))
    cond = setup.encode_text(model, [PROMPT] * count, seen=shown)
    names = [str(number) for number in range(count)]

    def batch() -> ImageBatch:
        latents = torch.randn(count, model.latent_channels, side, side)
        seen = torch.randn(count, 1 + model.latent_channels, side, side) if setup.spec.inpainting else None
        return ImageBatch(
            latents,
            cond,
            [PROMPT] * count,
            names,
            [0] * count,
            SIZE,
            torch.ones(count),
            inpaint_BChw=seen,
            sources=Sources([torch.randn_like(latents)] * edited),
        )

    chosen, rejected = batch(), batch()
    draw = setup.draw_noise(model, chosen, NoiseOptions(), seed=1)
    tensors = [t for m in model.modules().values() for t in (*m.parameters(), *m.buffers())]
    reference = create_reference(config.training_method, config.effective_dpo_ref_mode(), model.adapter)
    with LiveBytes(tensors) as live, SavedBytes(tensors) as saved:
        train_pairs(
            setup, model, PairBatch(names, chosen, rejected), (draw, draw), reference, get_preference_loss("SIGMOID"),
            ObjectiveOptions(beta=100.0), mode, parameters=trained,
        )  # fmt: skip
    return StepBytes(saved.peak, live.peak)


@pytest.mark.parametrize("key", KEYS)
def test_weights_adapter_and_optimizer_are_counted_exactly(key: str) -> None:
    config = config_of(key, layer_filter_preset="full")
    plan = planner(config)
    setup = tiny_setup(key)
    model = training.load_model(setup, config)
    bases = {name: [*m.parameters()] for name, m in model.modules().items()}
    handle = training.prepare(setup, model, config)
    for name, tensors in bases.items():
        of_the_shape = plan.part_bytes(name) - sum(t.nbytes for t in plan.model.module(name).buffers())
        assert of_the_shape == sum(t.nbytes for t in tensors), name
    adapter = [tensor for _, tensor in handle.named_tensors()]
    assert plan.adapter_bytes() == sum(t.nbytes for t in adapter)
    groups = [(name, 1e-3, named) for name, _, named in training.trainable_parameters(model, config)]
    optimizer = create_optimizer(config.optimizer, groups)
    for _, parameter in handle.named_parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state = [t for values in optimizer.state.values() for t in values.values() if t.dim() > 0]
    assert plan.optimizer_bytes() == sum(t.nbytes for t in state) == 2 * plan.gradient_bytes()


@pytest.mark.slow
def test_copies_of_online_training_are_counted_where_they_are_kept(tmp_path: Path) -> None:
    # the layers of the plans
    run_here(write_config(tmp_path, max_steps=1, layer_filter_preset="attn-only"))

    def copies(**changes: Any) -> dict[str, int]:
        config = config_of("STABLE_DIFFUSION_15", rlhf_prompts_file="unused", **changes)
        (step,) = [phase for phase in plan_memory(config, cuda=False).phases if phase.name == "training step"]
        return {
            name: size for name, size in step.items.items() if name in ("old policy", "reference snapshot")
        }

    adapter = planner(config_of("STABLE_DIFFUSION_15")).adapter_bytes()
    existing = {"lora_model_name": str(tmp_path / "out.safetensors")}
    assert copies(rlhf_mode="GRPO") == {}
    assert copies(rlhf_mode="NFT") == {"old policy": adapter}
    assert copies(rlhf_mode="NFT", rlhf_ema_ref_device="CPU") == {}
    assert copies(rlhf_mode="GRPO", **existing) == {}
    assert copies(rlhf_mode="GRPO", **existing, rlhf_kl_beta=0.1) == {"reference snapshot": adapter}


@pytest.mark.parametrize("key", KEYS)
def test_activations_are_those_of_a_real_step(key: str) -> None:
    config = config_of(key, layer_filter_preset="full")
    predicted = planner(config).dry_run.step(2, SIZE, "FULL_CONCURRENT")
    real = real_step(config, "FULL_CONCURRENT")
    assert predicted.saved == pytest.approx(real.saved, rel=0.15)
    assert predicted.peak == pytest.approx(real.peak, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "mode"),
    [
        ("STABLE_DIFFUSION_15", "FULL_CONCURRENT"),
        ("FLUX_DEV_1", "SEQUENTIAL"),
        ("STABLE_DIFFUSION_15", "SEQUENTIAL"),
        ("FLUX_DEV_1", "FULL_CONCURRENT"),
        ("Z_IMAGE", "FULL_CONCURRENT"),
        ("Z_IMAGE", "SEQUENTIAL"),
    ],
)
def test_recomputed_activations_count_too(key: str, mode: str) -> None:
    config = config_of(key, checkpointing=True, layer_filter_preset="full")
    predicted, real = planner(config).dry_run.step(2, SIZE, mode), real_step(config, mode)
    assert predicted.peak == pytest.approx(real.peak, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["STABLE_DIFFUSION_15", "FLUX_DEV_1"])
def test_half_precision_is_predicted(key: str) -> None:
    config = config_of(key, part={"weight_dtype": "BFLOAT_16"}, train_dtype="BFLOAT_16")
    predicted, real = planner(config).dry_run.step(2, SIZE), real_step(config, "FULL_CONCURRENT")
    assert predicted.saved == pytest.approx(real.saved, rel=0.15)
    assert predicted.peak == pytest.approx(real.peak, rel=0.15)


@pytest.mark.parametrize("kind", usual(["FLOAT_8", "INT_8", "NFLOAT_4"], "NFLOAT_4"))
def test_weights_in_fewer_bits_are_counted(kind: str) -> None:
    if kind != "FLOAT_8":
        pytest.importorskip("bitsandbytes")
    config = config_of("FLUX_DEV_1", part={"weight_dtype": kind}, train_dtype="BFLOAT_16")
    full = planner(config_of("FLUX_DEV_1", part={"weight_dtype": "BFLOAT_16"}, train_dtype="BFLOAT_16"))
    plan = planner(config)
    assert plan.part_bytes("transformer") < full.part_bytes("transformer")
    model = training.load_model(tiny_setup("FLUX_DEV_1"), config)
    model.place("cpu")
    tensors = [*model.denoiser.parameters(), *model.denoiser.buffers()]
    assert plan.part_bytes("transformer") == pytest.approx(sum(t.nbytes for t in tensors), rel=0.02)


def test_offloaded_weights_are_not_on_the_device() -> None:
    here, there = (
        planner(config_of("FLUX_DEV_1", checkpointing=True, part={"offload_fraction": share}))
        for share in (0.0, 1.0)
    )
    assert there.part_bytes("transformer") < 0.5 * here.part_bytes("transformer")


# one of each: states of full size, of rows and columns, of 8 bits, none
@pytest.mark.parametrize("kind", usual_kinds(Optimizer.ADAMW, Optimizer.ADAFACTOR, Optimizer.ADAMW_8BIT, Optimizer.SGD))
def test_state_of_large_parameters_follows_from_small_ones(
    kind: Optimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig.from_dict({"__version": 1, "optimizer": {"optimizer": kind.value}})
    whole = state_bytes(config, (64, 4096), torch.float32)
    monkeypatch.setattr("modules.trainer.memory.memory_plan._MEASURED_NUMEL", 1 << 16)
    assert state_bytes(config, (64, 4096), torch.float32) == pytest.approx(whole, rel=0.02, abs=64)


@pytest.mark.slow
def test_the_plan_is_the_largest_phase() -> None:
    plan = plan_memory(config_of("STABLE_DIFFUSION_15", cache_batch_size=1), cuda=False)
    named = {phase.name: phase for phase in plan.phases}
    assert set(named) == {"encoding prompts", "encoding images", "training step"}
    assert plan.total == max(phase.total for phase in plan.phases) == plan.to_dict()["total_bytes"]
    assert "weights: text_encoder" not in named["training step"].items
    assert named["training step"].items["gradients"] > 0
    assert any("optimizer state" in line for line in plan.lines())


SAMPLED = {
    "resolution": "64",
    "sample_before_training": True,
    "samples": [{"prompt": "a cat", "width": 64, "height": 64}],
}
"""Samples of the size of the images."""


def weights_of(plan: MemoryPlan) -> dict[str, set[str]]:
    """The parts of the model that are on the device, by phase."""
    return {
        phase.name: {name.removeprefix("weights: ") for name in phase.items if name.startswith("weights: ")}
        for phase in plan.phases
    }


@pytest.mark.usefixtures("without_a_step")
def test_each_phase_has_what_is_there_in_it() -> None:
    key = "FLUX_DEV_1"
    texts = {"text_encoder", "text_encoder_2"}
    cached = plan_memory(config_of(key, **SAMPLED), cuda=False)
    assert weights_of(cached) == {
        "encoding prompts": texts,
        "encoding images": {"vae"},
        "training step": {"transformer"},
        "encoding prompts of samples": texts,
        "making samples": {"transformer", "vae"},
    }
    for phase in cached.phases:
        trains = "transformer" in weights_of(cached)[phase.name]
        assert ("optimizer state" in phase.items) == ("adapter" in phase.items) == trains
    in_every_step = plan_memory(config_of(key, latent_caching=False, batch_size=3), cuda=False)
    everything = {"transformer", "vae", *texts}
    assert weights_of(in_every_step) == {
        "encoding prompts": everything,
        "encoding images": everything,
        "training step": everything,
    }
    few = plan_memory(config_of(key, latent_caching=False, batch_size=1), cuda=False)
    for one, other in zip(in_every_step.phases[:2], few.phases, strict=False):
        assert one.items["working memory"] == other.items["working memory"], "each is encoded by itself"


def test_sources_that_a_text_encoder_sees_take_memory(tmp_path: Path) -> None:
    """In encoding prompts and in the step; with every layer trained, also the one that mixes images with texts."""
    key, size = "QWEN_21", (64, 64)
    needs = []
    for count in range(3):
        folder = tmp_path / str(count)
        folder.mkdir()
        for number in range(1, count + 1):
            (folder / ("a.png" if number == 1 else f"a.{number}.png")).touch()
        given = {"path": str(folder), "source_path": str(folder) if count else ""}
        made = config_of(key, rlhf_enabled=True, layer_filter_preset="full")
        made.concepts = [ConceptConfig.from_dict(given)]
        dry_run = planner(made).dry_run
        needs.append((dry_run.texts(1, size), dry_run.step(1, size).saved))
    assert needs[0][0] < needs[1][0] < needs[2][0]
    assert needs[0][1] < needs[1][1] < needs[2][1]


@pytest.mark.slow
def test_smaller_sources_take_less_memory_and_those_of_prompts_count(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "x", "source": "a.png"}', encoding="utf-8")
    folder = ConceptConfig.from_dict({"path": str(tmp_path), "source_path": str(tmp_path)})

    def saved(**changes: Any) -> int:
        made = config_of("FLUX_2", **changes)
        made.concepts = [] if changes.get("rlhf_mode") else [folder]
        return planner(made).dry_run.step(1, (128, 128)).saved

    whole, small = saved(), saved(source_resolution=64)
    assert small < whole
    online = {"rlhf_mode": "NFT", "rlhf_reward": "brightness"}
    prompts = {"rlhf_prompts_file": str(tmp_path / "prompts.jsonl")}
    assert saved(**online) < saved(**online, **prompts, source_resolution=64) < saved(**online, **prompts)


@pytest.mark.slow
@pytest.mark.usefixtures("without_a_step")
def test_online_runs_encode_their_sources_next_to_the_denoiser(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "x", "source": "a.png"}', encoding="utf-8")
    online = {"rlhf_mode": "NFT", "rlhf_reward": "brightness"}
    prompts = {"rlhf_prompts_file": str(tmp_path / "prompts.jsonl")}
    plain, edits = (config_of("FLUX_2", **online, **changes) for changes in ({}, prompts))
    assert "encoding images" not in weights_of(plan_memory(plain, cuda=False))
    assert {"vae", "transformer"} <= weights_of(plan_memory(edits, cuda=False))["encoding images"]
    small = planner(config_of("FLUX_2", **online, **prompts, source_resolution=64)).dry_run
    whole = planner(edits).dry_run
    assert small.denoising((128, 128)) < whole.denoising((128, 128))
    few, many = (one.images(1, one.source_size((128, 128))) for one in (small, whole))
    assert few < many


@pytest.mark.slow
@pytest.mark.usefixtures("without_a_step")
def test_samples_are_predicted_at_their_own_sizes() -> None:
    def phases(resolution: str, *samples: dict[str, Any]) -> dict[str, int]:
        listed = [{"prompt": "a cat", **sample} for sample in samples]
        config = config_of(
            "FLUX_DEV_1", sample_before_training=True, samples=listed, resolution=resolution, batch_size=1
        )
        return {phase.name: phase.items["working memory"] for phase in plan_memory(config, cuda=False).phases[3:]}

    small, large = {"width": 64, "height": 96}, {"width": 512, "height": 256}
    plain = phases("128", small)
    assert "denoising samples" not in plain and plain["making samples"] > 0
    both = phases("128", small, large)
    assert both["making samples"] == phases("512", large)["making samples"] > 4 * plain["making samples"]
    assert both["denoising samples"] > phases("128", {"width": 256, "height": 256})["denoising samples"] > 0
    assert "denoising samples" not in phases("512", small, large)
    # a size that is impossible is reported elsewhere; one that is switched off is not made
    assert phases("128", {"width": 72, "height": 104}, {**large, "enabled": False}) == plain


@pytest.mark.usefixtures("without_a_step")
@pytest.mark.parametrize(
    "samples",
    usual([[], None, [{"prompt": "a cat", "enabled": False}]], None, [{"prompt": "a cat", "enabled": False}]),
)
def test_without_samples_none_are_counted(samples: list[dict[str, Any]] | None) -> None:
    given = {"sample_before_training": True, "sample_definition_file_name": "none.json"}
    plan = plan_memory(config_of("FLUX_DEV_1", **given, samples=samples), cuda=False)
    assert list(weights_of(plan)) == ["encoding prompts", "encoding images", "training step"]


@pytest.mark.usefixtures("without_a_step")
def test_filling_the_cache_takes_no_denoiser() -> None:
    plan = plan_memory(config_of("STABLE_DIFFUSION_15", only_cache=True), cuda=False)
    assert weights_of(plan) == {"encoding prompts": {"text_encoder"}, "encoding images": {"vae"}}
    scored = {"rlhf_enabled": True, "rlhf_dpo_reference_cache": True}
    plan = plan_memory(config_of("STABLE_DIFFUSION_15", only_cache=True, **scored), cuda=False)
    assert weights_of(plan)["training step"] == {"unet"}


@pytest.mark.slow
@pytest.mark.usefixtures("without_a_step")
def test_trained_text_encoders_stay() -> None:
    config = config_of("STABLE_DIFFUSION_15", text_encoder={"train": True}, **SAMPLED)
    assert weights_of(plan_memory(config, cuda=False)) == {
        "encoding images": {"vae"},
        "training step": {"unet", "text_encoder"},
        "making samples": {"unet", "text_encoder", "vae"},
    }


@pytest.mark.usefixtures("without_a_step")
def test_online_runs_encode_beside_everything() -> None:
    plan = plan_memory(
        config_of("STABLE_DIFFUSION_15", rlhf_mode="GRPO", rlhf_reward="brightness"), cuda=False
    )
    assert weights_of(plan) == {
        "encoding prompts": {"unet", "text_encoder"},
        "making images": {"unet"},
        "decoding images": {"unet", "vae"},
        "training step": {"unet"},
    }
    assert "optimizer state" in plan.phases[0].items and not plan.notes


@pytest.mark.slow
def test_more_memory_where_more_is_asked_for() -> None:
    def total(**changes: Any) -> int:
        return plan_memory(config_of("STABLE_DIFFUSION_15", **changes), cuda=False).phases[-1].total

    plain = total()
    assert total(batch_size=4) > plain > total(checkpointing=True)
    assert total(ema="GPU") > plain
    assert total(rlhf_dpo_execution_mode="SEQUENTIAL") < plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "write"),
    [
        # its file has all that the other has, and a second text encoder
        ("STABLE_DIFFUSION_XL_10_BASE", write_standard),
        ("STABLE_DIFFUSION_15", write_standard_pipeline),
    ],
)
def test_a_model_in_one_file_is_predicted_like_its_folder(
    key: str, write: Callable[[Path], object], tmp_path: Path
) -> None:
    write(tmp_path / "folder")
    file = tmp_path / "model.safetensors"
    shutil.copytree(tmp_path / "folder" / "tokenizer", tmp_path / "tokenizer")
    save_single_file(tiny_setup(key).load(str(tmp_path / "folder")), file)
    config, same = config_of(key), config_of(key)
    config.base_model_name, same.base_model_name = str(file), str(tmp_path / "folder")
    assert plan_memory(config).to_dict() == plan_memory(same).to_dict()


def test_what_cannot_be_predicted_is_told_from_what_is_not_there(tmp_path: Path) -> None:
    config = config_of("STABLE_DIFFUSION_15")
    config.base_model_name = "nobody/no-such-model-here"
    with pytest.raises(ModelNotLocal, match="cannot be estimated"):
        plan_memory(config)
    config.base_model_name = str(tmp_path / "nothing")
    with pytest.raises(UserError, match="does not exist") as caught:
        plan_memory(config)
    assert not isinstance(caught.value, ModelNotLocal)
