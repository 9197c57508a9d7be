"""What is said about a card, and the execution mode that is chosen for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.trainer.callbacks import Callback
from modules.trainer.memory import memory_advice
from modules.trainer.memory.memory_advice import (
    changed,
    cheapest_saving,
    check_sources,
    choose_execution_mode,
    choose_mode,
    verdict,
)
from modules.trainer.memory.memory_plan import GIB, MemoryPlan, Phase, plan_memory
from modules.trainer.memory.shape_only import ModelNotLocal
from modules.util.config.load import load_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import UnsupportedError, UserError
from scripts.train import main
from tests.contracts.test_family_training import family_config


def config_of(**changes: Any) -> TrainConfig:
    return TrainConfig.from_dict({"__version": 1, "rlhf_enabled": True, **changes})


def plan_of(total: float) -> MemoryPlan:
    return MemoryPlan((Phase("training step", {"all": int(total * GIB)}),), "", (512, 512))


def model_plan(config: TrainConfig) -> MemoryPlan:
    """4 GiB of weights in 32 bits, 2 GiB of activations an image, a quarter of it with checkpointing."""
    bits = {"FLOAT_32": 4.0, "BFLOAT_16": 2.0, "FLOAT_8": 1.0, "NFLOAT_4": 0.5}[
        config.unet.weight_dtype.value
    ]
    images = config.batch_size * (1 if config.rlhf_dpo_execution_mode == "SEQUENTIAL" else 2)
    share = 0.25 if config.unet.gradient_checkpointing else 1.0
    return plan_of(bits * (1 - config.unet.offload_fraction) + 2.0 * images * share)


@pytest.mark.parametrize(
    ("free", "mode"),
    [
        (11, "FULL_CONCURRENT"),
        (10, "FULL_CONCURRENT"),
        (9, "POLICY_CONCURRENT"),
        (7, "SEQUENTIAL"),
        (3, "SEQUENTIAL"),
    ],
)
def test_the_fastest_mode_that_fits(free: int, mode: str) -> None:
    assert choose_mode(free, {"FULL_CONCURRENT": 10, "POLICY_CONCURRENT": 8, "SEQUENTIAL": 5}) == mode


@pytest.mark.parametrize(("free", "mode"), [(24, "FULL_CONCURRENT"), (7, "SEQUENTIAL")])
def test_auto_follows_the_free_memory_of_the_device(
    free: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free * GIB, 80 * GIB))
    config = config_of(rlhf_dpo_execution_mode="AUTO", unet={"gradient_checkpointing": False})
    settled, said = choose_execution_mode(config, torch.device("cuda"), model_plan)
    assert settled.rlhf_dpo_execution_mode == mode and mode in said and f"{free}.0 GiB" in said
    assert config.rlhf_dpo_execution_mode == "AUTO", "a later start may find more memory"


def test_auto_without_cuda_and_modes_that_are_given() -> None:
    settled, said = choose_execution_mode(
        config_of(rlhf_dpo_execution_mode="AUTO"), torch.device("cpu"), model_plan
    )
    assert settled.rlhf_dpo_execution_mode == "FULL_CONCURRENT" and "cpu" in said
    given = config_of(rlhf_dpo_execution_mode="SEQUENTIAL")
    assert choose_execution_mode(given, torch.device("cpu"), model_plan) == (given, "")


def test_auto_is_careful_where_nothing_can_be_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_config: TrainConfig) -> MemoryPlan:
        raise ModelNotLocal("not known")

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (80 * GIB, 80 * GIB))
    config, cuda = config_of(rlhf_dpo_execution_mode="AUTO"), torch.device("cuda")
    settled, said = choose_execution_mode(config, cuda, nothing, lambda _config: None)
    assert settled.rlhf_dpo_execution_mode == "SEQUENTIAL" and "not known" in said


def test_auto_waits_for_a_model_that_has_to_be_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def plan(config: TrainConfig) -> MemoryPlan:
        if not fetched:
            raise ModelNotLocal("not on this machine")
        return model_plan(config)

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (80 * GIB, 80 * GIB))
    config = config_of(rlhf_dpo_execution_mode="AUTO", base_model_name="someone/a-model")
    settled, _ = choose_execution_mode(
        config, torch.device("cuda"), plan, lambda c: fetched.append(c.base_model_name)
    )
    assert settled.rlhf_dpo_execution_mode == "FULL_CONCURRENT" and fetched == ["someone/a-model"]


def test_what_lowers_the_need_is_said_without_a_card_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(config: TrainConfig) -> MemoryPlan:
        half = config.vae.weight_dtype.value == "BFLOAT_16"
        images = Phase("encoding images", {"weights: vae": (6 if half else 11) * GIB})
        return MemoryPlan((images, Phase("training step", {"weights: unet": 8 * GIB})), "", (1024, 1024))

    monkeypatch.setattr(memory_advice, "plan_memory", plan)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    lines = memory_advice.advise(config_of(vae={"weight_dtype": "FLOAT_32"}))
    assert any("encoding images takes the most memory" in one and "would take 8.00 GiB with" in one for one in lines)
    assert any("vae.weight_dtype=BFLOAT_16" in one for one in lines)
    assert not any(
        "takes the most memory" in one for one in memory_advice.advise(config_of(vae={"weight_dtype": "BFLOAT_16"}))
    )


def test_a_window_is_told_what_is_needed_and_what_would_make_it_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_advice, "device_bytes", lambda _name: int(3.2 * GIB))
    config = config_of(unet={"gradient_checkpointing": False}, train_device="auto")
    told = memory_advice.forecast(config, model_plan)
    assert told["needed_bytes"] == model_plan(config).total and told["free_bytes"] == int(3.2 * GIB)
    assert told["saving"]["changes"] == {
        "unet.gradient_checkpointing": True,
        "unet.weight_dtype": "BFLOAT_16",
    }
    assert told["saving"]["needed_bytes"] <= 3.2 * GIB
    monkeypatch.setattr(memory_advice, "device_bytes", lambda _name: GIB // 100)
    assert memory_advice.forecast(config, model_plan)["saving"] is None
    monkeypatch.setattr(memory_advice, "device_bytes", lambda _name: 80 * GIB)
    assert memory_advice.forecast(config, model_plan)["saving"] is None

    def unknown(_config: TrainConfig) -> MemoryPlan:
        raise UserError("not here")

    assert memory_advice.forecast(config, unknown) == {"unknown": "not here"}


def test_auto_does_not_hide_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(_config: TrainConfig) -> MemoryPlan:
        raise UserError("no such layer")

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (80 * GIB, 80 * GIB))
    with pytest.raises(UserError, match="no such layer"):
        choose_execution_mode(config_of(rlhf_dpo_execution_mode="AUTO"), torch.device("cuda"), wrong)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (5.5, {"unet": {"gradient_checkpointing": True}}),
        (3.2, {"unet": {"gradient_checkpointing": True, "weight_dtype": "BFLOAT_16"}}),
        (
            1.6,
            {
                "unet": {"gradient_checkpointing": True, "weight_dtype": "FLOAT_8"},
                "rlhf_dpo_execution_mode": "SEQUENTIAL",
            },
        ),
    ],
)
def test_the_cheapest_change_is_named(limit: float, expected: dict[str, Any]) -> None:
    config = config_of(unet={"gradient_checkpointing": False})
    saving = cheapest_saving(config, int(limit * GIB), model_plan)
    assert saving is not None and saving[0] == expected and saving[1] <= limit * GIB
    assert changed(config, saving[0]).to_dict() != config.to_dict()


def test_activations_leave_the_device_where_nothing_else_helps() -> None:
    def plan(config: TrainConfig) -> MemoryPlan:
        activations = 1 if config.unet.activation_offloading else 3
        return MemoryPlan((Phase("training step", {"activations": activations * GIB}),), "", (512, 512))

    changes, total = cheapest_saving(config_of(), 2 * GIB, plan) or ({}, 0)
    assert (changes["unet"]["activation_offloading"], total) == (True, GIB)
    rounded = config_of(unet={"weight_dtype": "NFLOAT_4"})
    changes, total = cheapest_saving(rounded, 2 * GIB, plan) or ({}, 0)
    assert (changes["unet"], total) == ({"activation_offloading": True}, GIB)
    whole = config_of(training_method="FINE_TUNE", rlhf_enabled=False)
    assert cheapest_saving(whole, 2 * GIB, plan) == ({"unet": {"activation_offloading": True}}, GIB)


def test_rewards_and_model_take_turns_where_both_do_not_fit() -> None:
    def plan(config: TrainConfig) -> MemoryPlan:
        reward = 0 if config.rlhf_reward_swap else 4
        images = config.rlhf_rollout_batch_size or config.batch_size
        making = Phase("making images", {"weights": reward * GIB, "working memory": images * GIB})
        return MemoryPlan((making,), "", (512, 512))

    online = {
        "unet": {"weight_dtype": "BFLOAT_16"},
        "rlhf_mode": "GRPO",
        "rlhf_reward": "pickscore",
        "rlhf_rollout_batch_size": 4,
    }
    turns = {"rlhf_reward_swap": True}
    assert cheapest_saving(config_of(**online), 5 * GIB, plan) == (turns, 4 * GIB)
    both = {**turns, "rlhf_rollout_batch_size": 1}
    assert cheapest_saving(config_of(**online), 2 * GIB, plan) == (both, GIB)
    for nothing_to_move in ({"rlhf_reward": "brightness"}, {"rlhf_reward_device": "cpu"}):
        saving = cheapest_saving(config_of(**{**online, **nothing_to_move}), 5 * GIB, plan)
        assert saving == ({"rlhf_rollout_batch_size": 1}, 5 * GIB)


def test_encoders_are_halved_where_they_are_what_takes_the_most() -> None:
    """16 GiB of text encoder in float32, alone while it encodes; the step takes 2 GiB an image more than 4."""

    def plan(config: TrainConfig) -> MemoryPlan:
        half = config.text_encoder.weight_dtype.value == "BFLOAT_16"
        step = Phase("training step", {"weights: unet": 4 * GIB, "activations": 2 * config.batch_size * GIB})
        prompts = Phase("encoding prompts", {"weights: text_encoder": (8 if half else 16) * GIB})
        return MemoryPlan((prompts, step), "", (512, 512))

    both = {name: {"weight_dtype": "BFLOAT_16"} for name in ("text_encoder", "vae")}
    assert cheapest_saving(config_of(), 10 * GIB, plan) == (both, 8 * GIB)
    smaller = cheapest_saving(config_of(batch_size=4), 10 * GIB, plan)
    assert smaller is not None and smaller[1] == 8 * GIB
    assert smaller[0].items() >= {**both, "batch_size": 1}.items()
    assert cheapest_saving(config_of(text_encoder={"weight_dtype": "BFLOAT_16"}), 7 * GIB, plan) is None
    trained = config_of(text_encoder={"train": True})
    assert cheapest_saving(trained, 10 * GIB, plan) is None, "what is trained keeps its type"
    word = config_of(text_encoder={"train": True}, training_method="EMBEDDING", rlhf_enabled=False)
    assert cheapest_saving(word, 10 * GIB, plan) == (both, 8 * GIB), "an embedding leaves the model as it is"
    assert cheapest_saving(word, int(2.5 * GIB), model_plan) == (
        {"unet": {"weight_dtype": "FLOAT_8"}},
        2 * GIB,
    )


def test_what_encodes_in_every_step_is_kept_out_of_it_first() -> None:
    def plan(config: TrainConfig) -> MemoryPlan:
        return plan_of(model_plan(config).total / GIB + (0 if config.latent_caching else 10))

    config = config_of(latent_caching=False)
    assert plan(config).total == 15 * GIB
    assert cheapest_saving(config, 12 * GIB, plan) == ({"latent_caching": True}, 5 * GIB)


def test_a_verdict_names_figures_and_settings() -> None:
    config = config_of(unet={"gradient_checkpointing": False})
    plan = model_plan(config)
    assert verdict(config, plan, 9 * GIB, model_plan) == ["fits: 9.0 GiB are free"]
    said = verdict(config, plan, int(5.5 * GIB), model_plan)
    assert "8.0 GiB are needed" in said[0] and "unet.gradient_checkpointing=True" in said[1]
    assert "smaller model" in verdict(config, plan, GIB // 4, model_plan)[1]


def test_without_a_device_there_is_nothing_to_compare_with() -> None:
    assert memory_advice.device_bytes("cpu") is None


@pytest.mark.parametrize(
    ("name", "free"),
    [
        ("auto", 5),
        ("cuda", 5),
        ("cuda:0", 5),
        ("cuda:1", None),
        ("cuda:0,cuda:1", 5),
        ("cuda:1,cuda:2", None),
    ],
)
def test_a_card_that_is_not_here_has_no_memory(
    name: str, free: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(device: torch.device) -> tuple[int, int]:
        if (device.index or 0) > 0:
            raise RuntimeError("CUDA error: invalid device ordinal")
        return 5, 8

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", asked)
    assert memory_advice.device_bytes(name) == free


class Listener(Callback):
    """Keeps the plan and the warnings that are told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def memory_plan(self, plan: Any) -> None:
        self.told.append(plan)

    def warning(self, message: str) -> None:
        self.told.append(message)


def test_a_run_tells_its_plan_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener()
    monkeypatch.setattr(memory_advice, "device_bytes", lambda _name: 6 * GIB)
    config = config_of(unet={"gradient_checkpointing": False})
    memory_advice.log_memory(config, listener, model_plan)
    plan, warning = listener.told
    assert plan["free_bytes"] == 6 * GIB and plan["total_bytes"] == 8 * GIB
    assert "does not fit" in warning and "gradient_checkpointing" in warning


def test_a_run_starts_although_its_memory_cannot_be_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the prediction, not of the run."""
    listener = Listener()
    def broken(_config: TrainConfig) -> MemoryPlan:
        raise KeyError("no such part")

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (80 * GIB, 80 * GIB))
    config = config_of(rlhf_dpo_execution_mode="AUTO")
    memory_advice.log_memory(config, listener, broken)
    plan, warning = listener.told
    assert plan == {"unknown": warning} and "KeyError: 'no such part'" in warning
    settled, said = choose_execution_mode(config, torch.device("cuda"), broken)
    assert settled.rlhf_dpo_execution_mode == "SEQUENTIAL" and "KeyError" in said


def test_a_dry_run_tells_that_its_memory_cannot_be_predicted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_config: TrainConfig) -> MemoryPlan:
        raise KeyError("no such part")

    def savings_break(config: TrainConfig) -> MemoryPlan:
        return model_plan(config) if config == given else broken(config)

    monkeypatch.setattr(memory_advice, "device_bytes", lambda _name: 6 * GIB)
    given = config_of(unet={"gradient_checkpointing": False}, train_device="auto")
    said = "the memory of the run cannot be estimated: KeyError: 'no such part'"
    for planner in (broken, savings_break):
        caplog.clear()
        assert memory_advice.forecast(given, planner) == {"unknown": said}
        (record,) = caplog.records
        assert record.exc_info and record.exc_info[0] is KeyError
    monkeypatch.setattr(memory_advice, "plan_memory", broken)
    assert memory_advice.advise(given) == [said]


def edit_plan(config: TrainConfig) -> MemoryPlan:
    """2 GiB of weights, 2 GiB for a result in each of the passes that are made at once, and as much for its source."""
    side = config.source_resolution or 1024
    passes = 1 if config.rlhf_dpo_execution_mode == "SEQUENTIAL" else 2
    total = 2.0 + passes * 2.0 * (1 + (side / 1024) ** 2)
    return replace(plan_of(total), source_size=(side, side))


EDITS = {"model_type": "FLUX_2", "rlhf_dpo_execution_mode": "FULL_CONCURRENT"}


@pytest.mark.parametrize(("free", "side", "less"), [(9.0, 768, 8.2), (8.0, 512, 7.0), (6.6, 384, 6.6)])
def test_source_images_that_are_too_large_for_the_card_are_an_error(
    free: float, side: int, less: float
) -> None:
    config = config_of(**EDITS)
    with pytest.raises(
        UnsupportedError, match="with source images of 1024x1024 pixels, the run needs 10.0"
    ) as caught:
        check_sources(config, edit_plan(config), int(free * GIB), edit_plan)
    assert f"and {free} GiB are free" in caught.value.message and caught.value.field == "source_resolution"
    assert caught.value.hint == f"set it to {side}: the run then needs {less} GiB"


def test_other_runs_may_start_whatever_is_predicted() -> None:
    """What fits, what smaller source images do not help, and what began with images of this size."""
    config = config_of(**EDITS)
    check_sources(config, edit_plan(config), 10 * GIB, edit_plan)
    check_sources(config, edit_plan(config), 6 * GIB, edit_plan)
    check_sources(config, model_plan(config_of()), 1 * GIB, model_plan)
    resumed = config_of(**EDITS, continue_last_backup=True)
    check_sources(resumed, edit_plan(resumed), 8 * GIB, edit_plan)
    auto = config_of(**{**EDITS, "rlhf_dpo_execution_mode": "AUTO"})
    check_sources(auto, edit_plan(auto), 6 * GIB, edit_plan)


@pytest.mark.slow
def test_a_dry_run_finds_source_images_that_are_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = {"sample_after_unit": "NEVER", "rlhf_dpo_execution_mode": "POLICY_CONCURRENT"}
    path = family_config(tmp_path, "FLUX_KONTEXT_DEV_1", resolution="320", train_device="auto", **alone)
    free = plan_memory(changed(load_config(path), {"source_resolution": 256})).total
    monkeypatch.setattr(memory_advice, "device_bytes", lambda _name: free)
    assert main(["--config-path", str(path), "--dry-run", "--json"]) == 2
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert error["field"] == "source_resolution" and error["hint"].startswith("set it to 256: ")
    assert "with source images of 320x320 pixels" in error["message"]


@pytest.mark.parametrize(
    "tell", [verdict, lambda *given: memory_advice.log_memory(given[0], Callback(), given[3])]
)
def test_the_text_and_the_run_itself_end_with_it(tell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_advice, "device_bytes", lambda _name: 8 * GIB)
    config = config_of(**EDITS)
    with pytest.raises(UnsupportedError, match="with source images"):
        tell(config, edit_plan(config), 8 * GIB, edit_plan)
