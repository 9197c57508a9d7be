"""Everything a run consists of, put together from its config: model, data, optimizer, and what watches over them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils import get_total_norm

from modules.accelerator.plan import AccelerationPlan
from modules.adapter.PeftAdapter import AdapterHandle
from modules.adapter.reference import Reference, create_reference
from modules.dataLoader.BaseDataLoader import BaseDataLoader
from modules.dataLoader.create import create_data_loader
from modules.dataLoader.source import is_dpo
from modules.model.Model import Model
from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import create_model_setup
from modules.trainer.distributed import Processes
from modules.trainer.evaluate.best import BestKeeper
from modules.trainer.evaluate.patience import Patience
from modules.trainer.evaluate.sample_texts import are_samples_due, keep_sample_texts
from modules.trainer.evaluate.Sampler import Sampler
from modules.trainer.evaluate.validation import ImageValidation, PairValidation, Validation
from modules.trainer.memory.memory_advice import settle_mode
from modules.trainer.memory.memory_plan import fills_the_cache_alone, parts_of_a_step
from modules.trainer.memory.shape_only import Unforeseen, hollow_model
from modules.trainer.online import settings as online_settings
from modules.trainer.online.acceleration import hooks_of
from modules.trainer.online.OldPolicy import OldPolicy
from modules.trainer.online.prompts import collect_prompts
from modules.trainer.online_step import create_online_step
from modules.trainer.OnlineLoader import OnlineLoader
from modules.trainer.optim.ema import MovingAverage
from modules.trainer.optim.FusedSteps import FusedSteps
from modules.trainer.optim.LearningRateSchedule import LearningRateSchedule
from modules.trainer.optim.LossScaler import LossScaler
from modules.trainer.optim.optimizers import create_optimizer, evaluation_weights, trains_elsewhere
from modules.trainer.reference.ReferenceScores import ReferenceScores
from modules.trainer.steps import PreferenceStep, SupervisedStep, TrainStep
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.DataType import DataType
from modules.util.enum.EMAMode import EMAMode
from modules.util.errors import UnsupportedError
from modules.util.TrainProgress import TrainProgress

Group = tuple[str, float, list[tuple[str, torch.nn.Parameter]]]
Tell = Callable[[str, int, int], bool | None]
"""Told (what, done, of how many); ``False`` cancels."""

BEST_FOLDER, ROLLOUT_FOLDER = "best", "rollouts"


@dataclass
class Parts:
    """What a run works with.

    Args:
        handle: the adapters of a LORA run.
        reference: what a preference run compares with.
        named: names and trained parameters, in the optimizer's order.
        best, patience: only where validation on pairs asks for them.
    """

    config: TrainConfig
    setup: BaseModelSetup
    model: Model
    handle: AdapterHandle | None
    reference: Reference | None
    loader: BaseDataLoader | OnlineLoader
    named: list[tuple[str, torch.nn.Parameter]]
    optimizer: torch.optim.Optimizer
    schedule: LearningRateSchedule
    scaler: LossScaler
    ema: MovingAverage | None
    step: TrainStep
    known: ReferenceScores | None
    validation: Validation | None
    validation_loader: BaseDataLoader | None
    patience: Patience | None
    best: BestKeeper | None
    sampler: Sampler
    acceleration: AccelerationPlan
    old_policy: OldPolicy | None = None
    fused: FusedSteps | None = None

    def norm(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """The norm of the step's gradients, also of those that are used already."""
        return get_total_norm(gradients) if self.fused is None else self.fused.norm()

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for _, parameter in self.named]

    @contextmanager
    def exported_weights(self, averaged: bool = True) -> Iterator[None]:
        """The weights as they would be saved, for the length of a block: those the optimizer means, averaged."""
        with ExitStack() as stack:
            stack.enter_context(evaluation_weights(self.optimizer))
            if averaged and self.ema is not None:
                # the weights are kept once
                stack.enter_context(self.ema.swapped_in(keep=not trains_elsewhere(self.optimizer)))
            yield

    def identity(self) -> dict[str, str]:
        """Digests of base model, adapter scales and data, for a backup: a run cannot go on with others."""
        model = self.model
        base = [f"{name}={model.fingerprint(name)}" for name in (model.spec.denoiser, *model.text_encoders)]
        adapter = (
            {} if self.handle is None else {path: self.handle.scaling(path) for path in self.handle.layers}
        )
        return {
            "base": " ".join(base),
            "adapter": hashlib.blake2b(repr(adapter).encode(), digest_size=16).hexdigest(),
            "data": self.loader.data_digest(),
        }

    @property
    def pairs(self) -> bool:
        """Whether the run learns from pairs on disk."""
        return is_dpo(self.config)

    def facts(self, step: int) -> dict[str, object]:
        """What a saved model says about how it was made."""
        config = self.config
        facts: dict[str, object] = {"step": step, "seed": config.seed}
        if isinstance(self.loader, OnlineLoader):
            facts |= {"mode": config.rlhf_mode.value, "prompts": len(self.loader)}
            facts["reward"] = ", ".join(self.loader.judge.rewards.names)
        elif self.pairs:
            facts |= {"objective": config.rlhf_dpo_objective.value, "beta": config.rlhf_dpo_beta}
            # adapters of which it says the same learned from the same pairs
            facts |= {"pairs": len(self.loader), "pairs_hash": self.loader.pair_digest()}
            if self.reference is not None:
                facts["reference"] = self.reference.mode
        if self.best is not None and self.best.step is not None:
            facts["best_step"] = self.best.step
        return facts

    def rollout(self, progress: TrainProgress) -> tuple[dict[str, torch.Tensor], dict[str, Any]] | None:
        """The images of the epoch under way for a backup, of all processes, each of which calls this."""
        return self.loader.collect(progress) if isinstance(self.loader, OnlineLoader) else None

    def warnings(self) -> list[str]:
        """Findings since the last call."""
        found = self.step.warnings()
        if isinstance(self.loader, OnlineLoader):
            found += self.loader.warnings
            self.loader.warnings.clear()
        return found

    def ready(self) -> None:
        """After the weights are final (a backup taken up): accelerators go to work, and images are made with the
        weights they are meant to be made with.
        """
        self.acceleration.setup({self.model.spec.denoiser: self.model.denoiser})
        if isinstance(self.loader, OnlineLoader):
            self.loader.hooks = hooks_of(self.acceleration)
            self.loader.policy = self._policy

    @contextmanager
    def _policy(self, step: int) -> Iterator[None]:
        """The weights that make images at optimizer step ``step``."""
        config = self.config
        if self.old_policy is not None and step > config.rlhf_switch_ema_ref:
            with self.old_policy.active():
                yield
        elif self.ema is not None and config.rlhf_off_policy and not config.rlhf_mode.coupled:
            with self.exported_weights():
                yield
        else:
            yield

    def close(self) -> None:
        """Give threads and files back, and the denoiser its plain form."""
        if self.fused is not None:
            self.fused.close()
        self.acceleration.teardown()
        _close(self.loader, self.validation_loader)


def _close(*loaders: BaseDataLoader | OnlineLoader | None) -> None:
    for loader in loaders:
        if loader is not None:
            loader.close()


def check_settings(config: TrainConfig, world_size: int = 1) -> None:
    """What can be found wrong with the settings of the model, the adapter and the optimizer without loading anything.

    Raises:
        UserError: the first fault.
    """
    training.check_settings(config, create_model_setup(config.model_type).spec)
    online_settings.check_online(config, world_size)
    if config.optimizer.fused_back_pass and world_size > 1:
        raise UnsupportedError(
            "several processes add their gradients up before the step",
            field="optimizer.fused_back_pass",
            hint="switch it off, or train in one process",
        )
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    create_optimizer(config.optimizer, [("weight", config.learning_rate, [("weight", weight)])])


def check_model(config: TrainConfig) -> None:
    """What can be found wrong with the model, the adapter or the choice of layers while no weights are read.

    Raises:
        UserError: the model or the adapter is not there or of another family, or has no such layers.
    """
    # what is not on this machine yet is looked at when it is loaded
    with suppress(Unforeseen):
        hollow_model(create_model_setup(config.model_type), config, weights=True)


def assemble(
    config: TrainConfig, folder: Path, samples: Path, processes: Processes, tell: Tell
) -> Parts | None:
    """Load the model, encode the data, make everything that trains; ``None`` where filling the cache was all there
    was to do.

    Args:
        folder: of the run.
        samples: where sample images go.

    Raises:
        UserError: something in the config or the data does not fit; LoadingCancelled: ``tell`` said so.
    """
    config, said = settle_mode(config, processes.device)
    if said:
        tell(said, 1, 1)
    torch.manual_seed(config.seed)
    online = online_settings.is_online(config)
    prompts = collect_prompts(config) if online else []
    if online:
        # too few prompts are found before a model is loaded
        online_settings.create_sampler(config, len(prompts), processes.rank, processes.world_size)
    setup, model, handle = _load(config, processes, tell)
    sampler = _sampler(config, setup, model, samples)
    loader, validation_loader = _encoded(config, setup, model, processes, prompts, folder, tell)
    if fills_the_cache_alone(config):
        _close(loader, validation_loader)
        return None
    _place(config, model, processes)
    reference = _reference(config, handle)
    groups = _groups(config, setup, model)
    named = [pair for _, _, pairs in groups for pair in pairs]
    cached = reference is not None and not online and config.rlhf_dpo_reference_cache
    known = ReferenceScores(config, setup, model, reference, processes) if cached else None
    patience, best = _watchers(config, folder, named, reference, validation_loader, processes)
    acceleration = online_settings.acceleration_plan(config)
    old_policy = _old_policy(config, named, processes) if online else None
    return Parts(
        config=config,
        setup=setup,
        model=model,
        handle=handle,
        reference=reference,
        loader=loader,
        named=named,
        optimizer=(optimizer := create_optimizer(config.optimizer, groups)),
        schedule=LearningRateSchedule.from_config(config, loader.total_steps),
        scaler=LossScaler(config.train_dtype is DataType.FLOAT_16),
        ema=_average(config, named, processes),
        step=_step(config, loader, processes, reference, named, known, old_policy, acceleration),
        known=known,
        validation=_validation(config, setup, model, validation_loader, reference, processes),
        validation_loader=validation_loader,
        patience=patience,
        best=best,
        sampler=sampler,
        acceleration=acceleration,
        old_policy=old_policy,
        fused=FusedSteps(optimizer) if config.optimizer.fused_back_pass else None,
    )


def _reference(config: TrainConfig, handle: AdapterHandle | None) -> Reference | None:
    """What the policy is compared with, where it is compared with anything."""
    if not is_dpo(config) and not (
        online_settings.is_online(config) and online_settings.needs_reference(config)
    ):
        return None
    reference = create_reference(config.training_method, config.effective_dpo_ref_mode(), handle)
    reference.self_check()
    return reference


def _groups(config: TrainConfig, setup: BaseModelSetup, model: Model) -> list[Group]:
    """(name, learning rate, named parameters) of what is trained."""
    return [
        (name, config.learning_rate if rate is None else rate, named)
        for name, rate, named in setup.trainable_parameters(model, config)
    ]


def _encoded(
    config: TrainConfig,
    setup: BaseModelSetup,
    model: Model,
    processes: Processes,
    prompts: list[str],
    folder: Path,
    tell: Tell,
) -> tuple[BaseDataLoader | OnlineLoader, BaseDataLoader | None]:
    """The data of training and validation, with all encoded that is encoded ahead."""
    loader = _loader(config, setup, model, processes, prompts, folder / ROLLOUT_FOLDER, tell)
    validation_loader = _validation_loader(config, model, setup, loader, processes, tell)
    if processes.first and are_samples_due(config):
        keep_sample_texts(setup, model, config.load_samples(), tell)
    return loader, validation_loader


def _loader(
    config: TrainConfig,
    setup: BaseModelSetup,
    model: Model,
    processes: Processes,
    prompts: list[str],
    rollouts: Path,
    tell: Tell,
) -> BaseDataLoader | OnlineLoader:
    """Ready to deliver: images from disk, or those the model makes of ``prompts``."""
    made: BaseDataLoader | OnlineLoader
    if prompts:
        made = OnlineLoader(config, setup, model, processes, prompts, rollouts, tell)
    else:
        made = create_data_loader(
            config, model, setup, device=processes.device, progress=tell,
            rank=processes.rank, world_size=processes.world_size, barrier=processes.barrier,
        )  # fmt: skip
    made.prepare()
    return made


def _step(
    config: TrainConfig,
    loader: BaseDataLoader | OnlineLoader,
    processes: Processes,
    reference: Reference | None,
    named: list[tuple[str, torch.nn.Parameter]],
    known: ReferenceScores | None,
    old_policy: OldPolicy | None,
    acceleration: AccelerationPlan,
) -> TrainStep:
    parameters = [parameter for _, parameter in named]
    if isinstance(loader, OnlineLoader):
        return create_online_step(loader, reference, parameters, old_policy, acceleration.lossless)
    if reference is not None:
        return PreferenceStep(config, loader.setup, loader.model, processes, reference, parameters, known)
    return SupervisedStep(config, loader.setup, loader.model, processes)


def _watchers(
    config: TrainConfig,
    folder: Path,
    named: list[tuple[str, torch.nn.Parameter]],
    reference: Reference | None,
    validation_loader: BaseDataLoader | None,
    processes: Processes,
) -> tuple[Patience | None, BestKeeper | None]:
    """What stops early and what keeps the best weights; there only where validation on pairs asks for them."""
    if reference is None or validation_loader is None:
        return None, None
    patience = Patience(
        config.rlhf_dpo_patience_metrics, config.rlhf_dpo_patience_mode, config.rlhf_dpo_patience_value
    )
    best = BestKeeper(folder / BEST_FOLDER, named, processes.first)
    return (
        patience if config.rlhf_dpo_patience_enabled else None,
        best if config.rlhf_dpo_save_best else None,
    )


def _old_policy(
    config: TrainConfig, named: list[tuple[str, torch.nn.Parameter]], processes: Processes
) -> OldPolicy | None:
    if not online_settings.needs_old_policy(config):
        return None
    device = processes.device if config.rlhf_ema_ref_device is EMAMode.GPU else "cpu"
    return OldPolicy(named, config.rlhf_ema_ref_max_decay, config.rlhf_ema_ref_ramp_rate, device)


def _load(
    config: TrainConfig, processes: Processes, tell: Tell
) -> tuple[BaseModelSetup, Model, AdapterHandle | None]:
    setup = create_model_setup(config.model_type)
    tell("loading the model", 0, 1)
    model = setup.load_from_config(config)
    fingerprints = (model.spec.denoiser, *model.text_encoders)
    for name in fingerprints:
        # before anything trains them
        model.fingerprint(name)
    # what encodes computes there, alone; nothing stays yet
    model.place(processes.device, ())
    handle = setup.setup_training(model, config)
    tell("loading the model", 1, 1)
    return setup, model, handle


def _sampler(config: TrainConfig, setup: BaseModelSetup, model: Model, samples: Path) -> Sampler:
    """What makes the samples, which the model is known to be able to."""
    made = Sampler(setup, model, config.load_samples(), samples, config.sample_image_format)
    made.check()
    return made


def _place(config: TrainConfig, model: Model, processes: Processes) -> None:
    """Bring what computes in every step to the device; to be called when the data is encoded and nothing holds
    parameters yet, which moving layers of fewer bits may replace.
    """
    model.place(processes.device, parts_of_a_step(config, model))


def _average(
    config: TrainConfig, named: list[tuple[str, torch.nn.Parameter]], processes: Processes
) -> MovingAverage | None:
    if config.ema is EMAMode.OFF:
        return None
    device = processes.device if config.ema is EMAMode.GPU else "cpu"
    return MovingAverage(named, config.ema_decay, config.ema_update_step_interval, device)


def _validation_loader(
    config: TrainConfig,
    model: Model,
    setup: BaseModelSetup,
    loader: BaseDataLoader | OnlineLoader,
    processes: Processes,
    tell: Tell,
) -> BaseDataLoader | None:
    if isinstance(loader, OnlineLoader) or loader.source.validation is None:
        return None
    made = create_data_loader(
        config, model, setup, validation=True, device=processes.device, progress=tell, rank=processes.rank,
        world_size=processes.world_size, barrier=processes.barrier, share=loader,
    )  # fmt: skip
    made.prepare()
    return made


def _validation(
    config: TrainConfig,
    setup: BaseModelSetup,
    model: Model,
    loader: BaseDataLoader | None,
    reference: Reference | None,
    processes: Processes,
) -> Validation | None:
    if loader is None:
        return None
    if reference is not None:
        return PairValidation(config, setup, model, loader, reference, processes)
    return ImageValidation(config, setup, model, loader, processes)
