"""Advice on whether a run fits on a card, the changes that would make it fit, and the execution mode that fits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from modules.modelSetup import training
from modules.modelSetup.SampleDenoiser import find_sample_model
from modules.trainer.callbacks import Callback
from modules.trainer.memory.memory_plan import GIB, MODES, MemoryPlan, plan_memory
from modules.trainer.memory.RewardMemory import rewards_next_to_the_model
from modules.trainer.memory.shape_only import ModelNotLocal
from modules.util.config.load import read_config
from modules.util.config.TrainConfig import TrainConfig
from modules.util.device_names import listed
from modules.util.enum.DPOExecutionMode import DPOExecutionMode
from modules.util.errors import UnsupportedError, UserError

_log = logging.getLogger(__name__)
Plan = Callable[[TrainConfig], MemoryPlan]
SOURCE_SIDES = (768, 512, 384, 256)
"""Values of ``source_resolution`` to recommend, largest first."""


class NoEstimate(UserError):
    """A fault of the estimate itself, which does not prevent the run."""


@contextmanager
def _estimating() -> Iterator[None]:
    """Raise any unexpected error as ``NoEstimate``, and log its traceback."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        message = f"the memory of the run cannot be estimated: {type(error).__name__}: {error}"
        _log.warning(message, exc_info=True)
        raise NoEstimate(message) from error


def device_bytes(name: str) -> int | None:
    """Free bytes of the CUDA device of a ``train_device``; ``None`` if this machine does not have it. Of several, the
    smallest number, because each holds the whole model.
    """
    names = listed(name)
    if len(names) > 1:
        return min((free for one in names if (free := device_bytes(one)) is not None), default=None)
    if name not in ("auto", "cuda") and not name.startswith("cuda:"):
        return None
    if not torch.cuda.is_available():
        return None
    device = torch.device("cuda" if name == "auto" else name)
    if (device.index or 0) >= torch.cuda.device_count():
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return free


def changed(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    """A copy of a config with changed values; names of parts take dictionaries."""
    values = config.to_dict()
    for name, value in changes.items():
        values[name] = {**values[name], **value} if isinstance(value, dict) else value
    return read_config(values)


def savings(config: TrainConfig) -> Iterator[dict[str, Any]]:
    """Changes that save memory, cheapest in time and quality first, each on top of all previous ones."""
    part = config.model_type.denoiser
    settings = getattr(config, part)
    frozen = config.training_method.keeps_the_model
    own: dict[str, Any] = {}
    changes: dict[str, Any] = {}

    def with_part(**values: Any) -> dict[str, Any]:
        own.update(values)
        changes[part] = dict(own)
        return dict(changes)

    if not config.latent_caching:
        changes["latent_caching"] = True
        yield dict(changes)
    if not settings.gradient_checkpointing:
        yield with_part(gradient_checkpointing=True)
    if frozen and settings.weight_dtype.value == "FLOAT_32":
        yield with_part(weight_dtype="BFLOAT_16")
    if config.trains_pairs and config.rlhf_dpo_execution_mode is not DPOExecutionMode.SEQUENTIAL:
        changes["rlhf_dpo_execution_mode"] = "SEQUENTIAL"
        yield dict(changes)
    if config.batch_size > 1:
        changes["batch_size"] = 1
        changes["gradient_accumulation_steps"] = config.gradient_accumulation_steps * config.batch_size
        yield dict(changes)
    for saving in _online_savings(config):
        changes |= saving
        yield dict(changes)
    if not frozen:
        yield with_part(activation_offloading=True)
        return
    if settings.weight_dtype.value not in ("INT_8", "NFLOAT_4", "FLOAT_8"):
        yield with_part(weight_dtype="FLOAT_8")
    if settings.weight_dtype.value != "NFLOAT_4":
        yield with_part(weight_dtype="NFLOAT_4")
        yield with_part(weight_dtype="FLOAT_8", offload_fraction=1.0)
    yield with_part(activation_offloading=True)


def _online_savings(config: TrainConfig) -> Iterator[dict[str, Any]]:
    """Settings of online training that save memory besides those of the model, cheapest first."""
    together = any(reward.has_weights for reward in rewards_next_to_the_model(config))
    if together and not config.rlhf_reward_swap:
        yield {"rlhf_reward_swap": True}
    if config.trains_online and config.rlhf_rollout_batch_size > 1:
        yield {"rlhf_rollout_batch_size": 1}


def cheapest_saving(
    config: TrainConfig, limit: int, plan: Plan = plan_memory
) -> tuple[dict[str, Any], int] | None:
    """The first change that brings a run below ``limit`` bytes, and the memory needed with it; ``None`` if
    none does.

    Each change is tried alone and, if encoders are on the device at peak memory, with these in 16 bits too.
    """
    for changes in ({}, *savings(config)):
        try:
            found = plan(changed(config, changes))
            halved = _encoders_halved(config, found)
            if found.total > limit and halved:
                changes = {**changes, **halved}
                found = plan(changed(config, changes))
        except UserError:
            # contradicts another setting of the config
            continue
        if found.total <= limit:
            return changes, found.total
    return None


def _encoders_halved(config: TrainConfig, plan: MemoryPlan) -> dict[str, Any]:
    """16 bits for the frozen text encoders and VAE that are in float32, if any of them is in the largest phase."""
    model = config.model_type
    trained = config.trained_parts()
    frozen = [name for name in model.text_encoders if name not in trained] + [model.parts[-1]]
    names = [name for name in frozen if getattr(config, name).weight_dtype.value == "FLOAT_32"]
    if not any(f"weights: {name}" in plan.largest.items for name in names):
        return {}
    return {name: {"weight_dtype": "BFLOAT_16"} for name in names}


def advise(config: TrainConfig) -> list[str]:
    """The memory table of a run and, with a CUDA device, whether it fits. A fault of the estimate itself is a line.

    Raises:
        UserError: the model's configs are not available, or the source images are too large for the device.
    """
    lines: list[str] = []
    try:
        with _estimating():
            plan = plan_memory(config)
            lines += plan.lines()
            free = device_bytes(config.train_device)
            if free is None:
                lines += [*_without_a_card(config, plan), "no CUDA device here to compare with"]
            else:
                lines += verdict(config, plan, free)
    except NoEstimate as error:
        lines.append(error.message)
    return lines


def forecast(config: TrainConfig, planner: Plan = plan_memory) -> dict[str, Any]:
    """The memory of a run as plain data, for a window.

    Returns:
        ``needed_bytes``, ``free_bytes`` (``None`` without a CUDA device) and ``saving``: if the run does not
            fit, ``changes`` (setting to value, parts with a dot) and ``needed_bytes`` with them; ``None`` if
            no change is needed or none suffices. If nothing is known, only ``unknown``: the reason.

    Raises:
        UnsupportedError: the source images are too large for the device.
    """
    if listed(config.train_device)[0] == "cpu":
        return {"unknown": "on the CPU, training uses the main memory"}
    try:
        with _estimating():
            return _forecast(config, planner)
    except NoEstimate as error:
        return {"unknown": error.message}


def _forecast(config: TrainConfig, planner: Plan) -> dict[str, Any]:
    try:
        plan = planner(config)
    except UserError as error:
        return {"unknown": error.message}
    free = device_bytes(config.train_device)
    made: dict[str, Any] = {"needed_bytes": plan.total, "free_bytes": free, "saving": None}
    if free is not None and plan.total > free:
        check_sources(config, plan, free, planner)
        found = cheapest_saving(config, free, planner)
        if found is not None:
            made["saving"] = {"changes": _by_setting(found[0]), "needed_bytes": found[1]}
    return made


def _without_a_card(config: TrainConfig, plan: MemoryPlan) -> list[str]:
    """Return changes that reduce the total memory if encoding needs more than a training step."""
    halved = _encoders_halved(config, plan)
    if plan.largest.name == "training step" or not halved:
        return []
    less = plan_memory(changed(config, halved))
    return [
        f"{plan.largest.name} takes the most memory; the whole run would take {less.total / GIB:.2f} GiB with: "
        f"{_settings(halved)}"
    ]


def log_memory(config: TrainConfig, callback: Callback, planner: Plan = plan_memory) -> None:
    """Report the estimated memory of a run on a CUDA device, and warn if it exceeds the free memory. A fault of the
    estimate itself is a warning, because the run may still train.

    Raises:
        UnsupportedError: it does because of the size of the source images.
    """
    try:
        with _estimating():
            plan, free = planner(config), device_bytes(config.train_device)
    except UserError as error:
        callback.memory_plan({"unknown": error.message})
        if isinstance(error, NoEstimate):
            callback.warning(error.message)
        return
    callback.memory_plan({**plan.to_dict(), "free_bytes": free})
    if free is None or plan.total <= free:
        return
    try:
        with _estimating():
            said = "; ".join(verdict(config, plan, free, planner))
    except NoEstimate as error:
        said = error.message
    callback.warning(said)


def verdict(config: TrainConfig, plan: MemoryPlan, free: int, planner: Plan = plan_memory) -> list[str]:
    """Return whether a plan fits into ``free`` bytes, and if not, what would.

    Raises:
        UnsupportedError: it does not because of the size of the source images.
    """
    if plan.total <= free:
        return [f"fits: {free / GIB:.1f} GiB are free"]
    check_sources(config, plan, free, planner)
    said = f"does not fit: {plan.total / GIB:.1f} GiB are needed and {free / GIB:.1f} GiB free"
    saving = cheapest_saving(config, free, planner)
    if saving is None:
        return [said, "no change of settings makes the run fit: use a smaller model or resolution"]
    return [said, f"it would take {saving[1] / GIB:.1f} GiB with: {_settings(saving[0])}"]


def check_sources(config: TrainConfig, plan: MemoryPlan, free: int, planner: Plan = plan_memory) -> None:
    """Check that it is not the size of the source images that makes a plan exceed ``free`` bytes. A resumed run
    is not checked, because the size is that of its beginning.

    Raises:
        UnsupportedError: the plan exceeds them, and with smaller source images it would not.
    """
    if plan.total <= free or plan.source_size is None or config.continue_last_backup:
        return
    height, width = plan.source_size
    if config.trains_pairs and config.rlhf_dpo_execution_mode is DPOExecutionMode.AUTO:
        config = _in_mode(config, MODES[-1])
        plan = planner(config)
    sides = [side for side in SOURCE_SIDES if side**2 < height * width]
    if plan.total <= free or not sides:
        return

    @cache
    def needed(side: int) -> int:
        return planner(changed(config, {"source_resolution": side})).total

    if needed(sides[-1]) > free:
        return
    side, less = next((side, less) for side in sides if (less := needed(side)) <= free)
    raise UnsupportedError(
        f"with source images of {width}x{height} pixels, the run needs {plan.total / GIB:.1f} GiB of GPU memory, and "
        f"{free / GIB:.1f} GiB are free",
        "source_resolution",
        f"set it to {side}: the run then needs {less / GIB:.1f} GiB",
    )


def _settings(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in _by_setting(changes).items())


def _by_setting(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes by the full names of settings, including members of parts."""
    flat: dict[str, Any] = {}
    for name, value in changes.items():
        inner = value if isinstance(value, dict) else {}
        flat |= {f"{name}.{key}": item for key, item in inner.items()} if inner else {name: value}
    return flat


def fetch_model(config: TrainConfig) -> None:
    """Download the missing files of a run's model."""
    training.fetch(config.model_type.spec, config)
    if config.sample_model_name.strip():
        find_sample_model(config.sample_model_name, config.model_type.spec)


def choose_mode(free: int, needed: Mapping[str, int]) -> str:
    """The fastest execution mode whose step fits; the one that needs the least memory if none does.

    Args:
        free: bytes available for the step.
        needed: bytes of the step in each mode.
    """
    return next((mode for mode in MODES if needed[mode] <= free), MODES[-1])


def choose_execution_mode(
    config: TrainConfig,
    device: torch.device,
    plan: Plan = plan_memory,
    fetch: Callable[[TrainConfig], object] = fetch_model,
) -> tuple[TrainConfig, str]:
    """Choose the execution mode of AUTO. Returns the config and a sentence about it, empty for any other
    mode.

    Args:
        fetch: download an unknown model first, as loading would do next.

    Raises:
        UserError: the model is not available, or the config does not fit it.
    """
    if not config.trains_pairs or config.rlhf_dpo_execution_mode is not DPOExecutionMode.AUTO:
        return config, ""
    if device.type != "cuda":
        return _in_mode(
            config, MODES[0]
        ), f"execution mode {MODES[0]}: memory is not estimated on {device.type}"
    free, _ = torch.cuda.mem_get_info(device)

    def needs() -> dict[str, int]:
        return {mode: plan(_in_mode(config, mode)).total for mode in MODES}

    try:
        with _estimating():
            try:
                needed = needs()
            except ModelNotLocal:
                fetch(config)
                needed = needs()
    except (ModelNotLocal, NoEstimate) as error:
        careful = MODES[-1]
        return _in_mode(config, careful), (
            f"execution mode {careful}, which needs the least memory: {error.message}"
        )
    mode = choose_mode(free, needed)
    return _in_mode(config, mode), (
        f"execution mode {mode}: it needs {needed[mode] / GIB:.1f} GiB, and {free / GIB:.1f} GiB are free"
    )


def resumed_mode(config: TrainConfig, state: Mapping[str, Any]) -> TrainConfig:
    """The config of a resumed run, with the execution mode that AUTO meant when the run began.

    Modes round differently, so that another mode, chosen because more memory is free today, would give other
    weights.

    Args:
        state: state of the backup.
    """
    began = state.get("execution_mode")
    auto = config.trains_pairs and config.rlhf_dpo_execution_mode is DPOExecutionMode.AUTO
    return _in_mode(config, began) if auto and began is not None else config


def _in_mode(config: TrainConfig, mode: str) -> TrainConfig:
    return config.model_copy(update={"rlhf_dpo_execution_mode": DPOExecutionMode(mode)})
