"""Builds everything a run consists of from its config: model, data, optimizer, validation and the rest."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.nn.utils import get_total_norm

from modules.accelerator.plan import AccelerationPlan
from modules.adapter.PeftAdapter import AdapterHandle
from modules.adapter.reference import Reference, create_reference
from modules.dataLoader.BaseDataLoader import BaseDataLoader
from modules.dataLoader.create import create_data_loader
from modules.dataLoader.Loader import Loader
from modules.dataLoader.source import certainties, class_counts
from modules.model.Model import Model
from modules.model.offloaded import staying_trained
from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import create_model_setup
from modules.modelSetup.SampleDenoiser import SampleDenoiser
from modules.objective.preference import get_preference_loss
from modules.objective.preference.kto import class_weights
from modules.trainer.distributed import Processes
from modules.trainer.evaluate.best import BestKeeper
from modules.trainer.evaluate.patience import Patience
from modules.trainer.evaluate.sample_painting import check_painting
from modules.trainer.evaluate.sample_sources import check_sample_sources
from modules.trainer.evaluate.sample_texts import are_samples_due, keep_sample_texts
from modules.trainer.evaluate.Sampler import Sampler
from modules.trainer.evaluate.validation import ImageValidation, PairValidation, Validation
from modules.trainer.memory.memory_advice import choose_execution_mode
from modules.trainer.memory.memory_plan import (
    MODES,
    check_main_memory,
    fills_the_cache_alone,
    parts_of_a_step,
)
from modules.trainer.memory.shape_only import ModelNotLocal, shape_only_model
from modules.trainer.online import settings as online_settings
from modules.trainer.online.EpochMaker import EpochMaker
from modules.trainer.online.judge import reward_device
from modules.trainer.online.OldPolicy import OldPolicy
from modules.trainer.online.OnlineLoader import OnlineLoader
from modules.trainer.online.prompts import OnlinePrompt, collect_prompts
from modules.trainer.online.StepCutter import StepCutter
from modules.trainer.online.steps.modes import step_of
from modules.trainer.online.VoteDesk import NOBODY, Asking, VoteDesk
from modules.trainer.optim.CustomSchedule import TRIED_STEPS, UNKNOWN_STEPS
from modules.trainer.optim.DeviceVisits import DeviceVisits
from modules.trainer.optim.ema import MovingAverage
from modules.trainer.optim.FusedSteps import FusedSteps
from modules.trainer.optim.LearningRateSchedule import LearningRateSchedule
from modules.trainer.optim.LossScaler import LossScaler
from modules.trainer.optim.muon import HIDDEN, MUON_LAYERS, hidden_layers
from modules.trainer.optim.optimizers import (
    check_layers,
    create_optimizer,
    evaluation_weights,
    trains_elsewhere,
)
from modules.trainer.optim.PartStops import PartStops
from modules.trainer.optim.StochasticRounding import StochasticRounding
from modules.trainer.reference.reference_cache import Progress as ScoreProgress
from modules.trainer.reference.ReferenceScores import ReferenceScores
from modules.trainer.steps import PairFacts, PreferenceStep, SupervisedStep, TrainStep
from modules.util.config.rules.sample_rules import check_reading
from modules.util.config.TrainConfig import TrainConfig
from modules.util.display import counted
from modules.util.enum.choices import DataType, DPOPatienceMetric, EMAMode, Scaler
from modules.util.enum.DPOExecutionMode import DPOExecutionMode
from modules.util.errors import ConfigError, UnsupportedError
from modules.util.files.output_place import check_output
from modules.util.rng import seed_torch
from modules.util.TrainProgress import TrainProgress

Named = list[tuple[str, torch.nn.Parameter]]
Group = tuple[str, float, Named]
Tell = Callable[[str, int, int], bool | None]
"""Called with (name of the work, done, total); returning ``False`` cancels."""

BEST_FOLDER, ROLLOUT_FOLDER = "best", "rollouts"


@dataclass
class Run:
    """The components of a run.

    Args:
        handle: the adapters of a LORA run.
        reference: the reference of a preference run.
        images: ``loader`` again, if it delivers images or pairs on disk.
        named: names and trained parameters, in the order of the optimizer.
        loss_factor: factor on every loss before its gradient is computed.
        best, patience: only if validation on pairs uses them.
    """

    config: TrainConfig
    setup: BaseModelSetup
    model: Model
    handle: AdapterHandle | None
    reference: Reference | None
    loader: Loader
    images: BaseDataLoader | None
    named: Named
    optimizer: torch.optim.Optimizer
    schedule: LearningRateSchedule
    loss_factor: int
    scaler: LossScaler
    ema: MovingAverage | None
    step: TrainStep
    reference_scores: ReferenceScores | None
    validation: Validation | None
    validation_loader: BaseDataLoader | None
    patience: Patience | None
    best: BestKeeper | None
    sampler: Sampler
    acceleration: AccelerationPlan
    stops: PartStops
    old_policy: OldPolicy | None = None
    fused: FusedSteps | None = None
    rounding: StochasticRounding | None = None
    said: list[str] = field(default_factory=list)

    def begin(self, progress: TrainProgress) -> None:
        """Called before the passes of an optimizer step."""
        self.stops.follow(progress)
        if self.rounding is not None:
            self.rounding.begin(progress.global_step)

    def update(self) -> None:
        """Take the optimizer's step with the current gradients."""
        if self.rounding is None:
            self.optimizer.step()
        else:
            self.rounding.step()
        if self.model.words is not None:
            self.model.words.keep_norms()

    def norm(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """The norm of the step's gradients, including those already used by a fused optimizer."""
        return get_total_norm(gradients) if self.fused is None else self.fused.norm()

    def partly_updated(self) -> str:
        """Say which weights a fused optimizer left out of the last step, if it has taken the step of others."""
        fused = self.fused
        if fused is None or not fused.dropped or not fused.taken:
            return ""
        first = next(name for name, parameter in self.named if parameter is fused.dropped[0])
        what = f"the gradient of {first} is"
        if len(fused.dropped) > 1:
            what = f"the gradients of {first} and {counted(len(fused.dropped) - 1, 'other weight')} are"
        return f"{what} NaN or infinite and not used, but the other weights have taken this step"

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The parameters that are trained now: all of them, until training of a part ends."""
        return [parameter for _, parameter in self.named if parameter.requires_grad]

    @contextmanager
    def exported_weights(self, averaged: bool | None = None) -> Iterator[None]:
        """Inside the block, the weights are those that would be saved: schedule-free weights, or their moving
        average.

        Args:
            averaged: use the moving average; by default once it has been updated, because until then it is what the
                run started from.
        """
        if averaged is None:
            averaged = self.ema is not None and self.ema.begun
        with ExitStack() as stack:
            stack.enter_context(evaluation_weights(self.optimizer))
            if averaged and self.ema is not None:
                # the weights are restored once
                stack.enter_context(self.ema.swapped_in(keep=not trains_elsewhere(self.optimizer)))
            averages = trains_elsewhere(self.optimizer) or (averaged and self.ema is not None)
            if averages and self.model.words is not None:
                # the average of vectors is shorter than the vectors
                self.model.words.keep_norms(ended=True)
            yield

    def identity(self) -> dict[str, str]:
        """Digests of base model, adapter scales and data, for a backup: a run cannot resume with others."""
        model = self.model
        trainable = (model.spec.denoiser, *model.text_encoders)
        base = [f"{name}={model.fingerprint(name)}" for name in trainable]
        rest = [f"{name}={digest}" for name, digest in model.fingerprints().items() if name not in trainable]
        adapter = (
            {} if self.handle is None else {path: self.handle.scaling(path) for path in self.handle.layers}
        )
        return {
            "base": " ".join(base),
            "rest": " ".join(rest),
            "adapter": hashlib.blake2b(repr(adapter).encode(), digest_size=16).hexdigest(),
            "data": self.loader.data_digest(),
            "tags": "" if self.images is None else self.images.tags_digest(),
            "embeddings": "" if model.words is None else model.words.start_digest(),
        }

    def facts(self, step: int) -> dict[str, object]:
        """Metadata of a saved model: how it was trained."""
        config = self.config
        facts: dict[str, object] = {"step": step, "seed": config.seed}
        if config.trains_online:
            facts["mode"] = config.rlhf_mode.value
        if config.trains_pairs:
            facts |= {"objective": config.rlhf_dpo_objective.value, "beta": config.rlhf_dpo_beta}
        if self.model.training_adapter is not None:
            facts["training_adapter_hash"] = self.model.training_adapter.digest
        facts |= self.loader.facts()
        if config.trains_pairs and self.reference is not None:
            facts["reference"] = self.reference.mode
        if self.best is not None and self.best.step is not None:
            facts["best_step"] = self.best.step
        return facts

    def score_pairs(self, progress: ScoreProgress, should_stop: Callable[[], bool]) -> bool:
        """Compute the reference scores missing from the cache, if there is one. Return ``False`` if stopped."""
        if self.reference_scores is None or self.images is None:
            return True
        return self.reference_scores.prepare(self.images, progress, should_stop)

    def warnings(self) -> list[str]:
        """Findings since the last call."""
        said, self.said = self.said, []
        return said + self.step.warnings() + self.loader.warnings()

    def ready(self) -> None:
        """Called once the weights are final (after a backup is restored). Sets up accelerators and the
        weights for rollouts.
        """
        self.acceleration.setup({self.model.spec.denoiser: self.model.denoiser})
        self.said += self.acceleration.warnings
        self.loader.ready(self._weights)

    @contextmanager
    def _weights(self, step: int) -> Iterator[None]:
        """Inside the block, the model has the weights for rollouts at optimizer step ``step``."""
        config = self.config
        if self.old_policy is not None and step > config.rlhf_switch_ema_ref:
            with self.old_policy.active():
                yield
        elif self.ema is not None and config.rlhf_off_policy and not config.rlhf_mode.coupled:
            with self.exported_weights(averaged=True):
                yield
        else:
            yield

    def close(self) -> None:
        """Release threads and files, and undo changes of the denoiser."""
        if self.fused is not None:
            self.fused.close()
        self.acceleration.teardown()
        _close(self.loader, self.validation_loader)


def _close(*loaders: Loader | None) -> None:
    for loader in loaders:
        if loader is not None:
            loader.close()


def check_settings(config: TrainConfig, world_size: int = 1) -> None:
    """Check the settings of the model, the adapter and the optimizer without loading anything.

    Raises:
        UserError: the first fault.
    """
    training.check_settings(config, create_model_setup(config.model_type).spec)
    check_output(config)
    online_settings.check_online(config, world_size)
    _check_sample_list(config)
    if config.optimizer.fused_back_pass and world_size > 1:
        raise UnsupportedError(
            "cannot be used by several processes, which add up their gradients before the step",
            field="optimizer.fused_back_pass",
            hint="switch it off, or train in one process",
        )
    if config.trains_in_main_memory() and world_size > 1:
        raise UnsupportedError(
            "weights that are trained in main memory belong to one process",
            field=f"{config.model_type.denoiser}.offload_fraction",
            hint="set it to 0, or train in one process",
        )
    if config.max_steps:
        LearningRateSchedule.from_config(config, config.max_steps)
    else:
        LearningRateSchedule.from_config(config, UNKNOWN_STEPS, TRIED_STEPS)
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    own = config.optimizer.model_copy()
    if own.optimizer.of_matrices:
        # its layer choice is checked separately; its other numbers are tried with layers that it accepts
        named = {name: own.params[name] for name in MUON_LAYERS if name in own.params}
        hidden_layers(str(named.get(MUON_LAYERS[0], HIDDEN)), named.get(MUON_LAYERS[1]) is True)
        own.params = {name: value for name, value in own.params.items() if name not in named}
    create_optimizer(own, [("weight", config.learning_rate, [("block", weight)])])


def _check_sample_list(config: TrainConfig) -> None:
    """Check that wanted samples are listed somewhere."""
    path = config.sample_definition_file_name
    if are_samples_due(config) and config.samples is None and not Path(path).is_file():
        raise ConfigError(
            f"the list of samples {path!r} does not exist, so no samples could be made",
            "sample_definition_file_name",
            "add samples, or set sample_after_unit to NEVER and sample_before_training to false",
        )
    if are_samples_due(config):
        samples = config.load_samples()
        check_sample_sources(config.model_type.spec, samples)
        check_painting(config.model_type.spec, samples)
        check_reading(config.model_type, samples)


def check_model(config: TrainConfig, before: Mapping[str, str] | None = None) -> None:
    """Check the model, the adapter, the choice of layers and the noise levels without reading weights.

    Args:
        before: the files of weights that a resumed run read when it began, see ``part_dtypes``.

    Raises:
        UserError: the model or the adapter is missing, of another family, or lacks these layers.
    """
    # files that are not on this machine yet are checked when they are loaded
    with suppress(ModelNotLocal):
        setup = create_model_setup(config.model_type)
        model = shape_only_model(setup, config, weights=True, before=before)
        online_settings.check_noise_levels(config, setup, model)
        check_main_memory(config, model)
        check_layers(config.optimizer, training.trainable_parameters(model, config))


@dataclass(frozen=True)
class _Basis:
    """The components from which the others are built.

    Args:
        handle: the adapters of a LORA run.
    """

    config: TrainConfig
    processes: Processes
    folder: Path
    tell: Tell
    asking: Asking
    setup: BaseModelSetup
    model: Model
    handle: AdapterHandle | None
    acceleration: AccelerationPlan


@dataclass(frozen=True)
class _Data:
    """The loaders of training and validation, ready to deliver.

    Args:
        loader: the training loader, one of the following two.
        online: the loader if images are made during training.
        images: the loader if images are on disk.
    """

    loader: Loader
    online: OnlineLoader | None
    images: BaseDataLoader | None
    validation: BaseDataLoader | None


def assemble(
    config: TrainConfig,
    folder: Path,
    samples: Path,
    processes: Processes,
    tell: Tell,
    asking: Asking = NOBODY,
    before: Mapping[str, str] | None = None,
) -> Run | None:
    """Load the model, encode the data and build the run. Return ``None`` if only the cache was to be filled.

    Args:
        samples: folder of sample images.
        asking: how to ask a person, if one is the reward.
        before: the files of weights that a resumed run read when it began, see ``part_dtypes``.

    Raises:
        UserError: something in the config or the data does not fit; LoadingCancelled: ``tell`` cancelled it.
    """
    config, said = _in_one_mode(config, processes)
    if said:
        tell(said, 1, 1)
    seed_torch(config.seed)
    if config.trains_in_main_memory():
        check_model(config, before)
    prompts = _prompts(config, processes)
    basis = _load(config, processes, folder, tell, asking, before)
    sampler = _sampler(basis, samples)
    data = _encoded(basis, prompts)
    if fills_the_cache_alone(config):
        _close(data.loader, data.validation)
        return None
    # once the data is encoded and before anything holds parameters, because moving quantised layers may replace them
    basis.model.place(processes.device, parts_of_a_step(config, basis.model))
    return _run(basis, data, sampler)


def _in_one_mode(config: TrainConfig, processes: Processes) -> tuple[TrainConfig, str]:
    """Choose the execution mode of AUTO for all processes. Returns the config and a sentence about it.

    Each process sees the free memory of its own card. Modes round differently, so all processes use the mode
    that needs the least memory among their choices, because it fits everywhere.
    """
    config, said = choose_execution_mode(config, processes.device)
    if not said:
        return config, said
    chosen = processes.gather((config.rlhf_dpo_execution_mode.value, said))
    mode, said = max(chosen, key=lambda one: MODES.index(one[0]))
    return config.model_copy(update={"rlhf_dpo_execution_mode": DPOExecutionMode(mode)}), said


def _run(basis: _Basis, data: _Data, sampler: Sampler) -> Run:
    config, processes = basis.config, basis.processes
    groups = _groups(basis)
    named = [pair for _, _, pairs in groups for pair in pairs]
    reference = _reference(basis)
    reference_scores = _reference_scores(basis, reference)
    patience, best = _watchers(basis, named, data.validation)
    old_policy = _old_policy(basis, named)
    optimizer = create_optimizer(config.optimizer, groups, _rate_scale(config, processes))
    rounds = config.optimizer.stochastic_rounding
    rounding = StochasticRounding(optimizer, named, config.seed) if rounds else None
    return Run(
        config=config,
        setup=basis.setup,
        model=basis.model,
        handle=basis.handle,
        reference=reference,
        loader=data.loader,
        images=data.images,
        named=named,
        optimizer=optimizer,
        schedule=LearningRateSchedule.from_config(
            config, data.loader.total_steps, epoch_steps=data.loader.steps_per_epoch
        ),
        loss_factor=_scaled(config.loss_scaler, config, processes),
        scaler=LossScaler(config.train_dtype is DataType.FLOAT_16),
        ema=_average(config, named, processes),
        step=_step(basis, data, reference, named, reference_scores, old_policy),
        reference_scores=reference_scores,
        validation=_validation(basis, data.validation, reference),
        validation_loader=data.validation,
        patience=patience,
        best=best,
        sampler=sampler,
        acceleration=basis.acceleration,
        stops=PartStops(config, basis.setup, basis.model, named, data.images, optimizer),
        old_policy=old_policy,
        rounding=rounding,
        fused=_fused(basis, optimizer, rounding),
    )


def _fused(
    basis: _Basis, optimizer: torch.optim.Optimizer, rounding: StochasticRounding | None
) -> FusedSteps | None:
    """Fused backward steps, if the run uses them."""
    config = basis.config
    if not config.optimizer.fused_back_pass:
        return None
    elsewhere = staying_trained(basis.model.denoiser)
    visits = DeviceVisits(optimizer, elsewhere, basis.processes.device) if elsewhere else None
    return FusedSteps(optimizer, config.clip_grad_norm or 0.0, rounding, visits)


# -- the model ------------------------------------------------------------------------------------------------


def _load(
    config: TrainConfig,
    processes: Processes,
    folder: Path,
    tell: Tell,
    asking: Asking,
    before: Mapping[str, str] | None,
) -> _Basis:
    setup = create_model_setup(config.model_type)
    tell("loading the model", 0, 1)
    model = training.load_model(setup, config, before=before)
    # before anything is trained
    model.fingerprints()
    # encoders alone use the device now; nothing stays yet
    model.place(processes.device, ())
    if config.sample_model_name.strip() and processes.first:
        model.sample_denoiser = SampleDenoiser.load(setup, model, config)
    handle = training.prepare(setup, model, config)
    # a model that was not on this machine is not checked before it is loaded
    check_layers(config.optimizer, training.trainable_parameters(model, config))
    tell("loading the model", 1, 1)
    online_settings.check_noise_levels(config, setup, model)
    acceleration = online_settings.acceleration_plan(config)
    return _Basis(config, processes, folder, tell, asking, setup, model, handle, acceleration)


def _sampler(basis: _Basis, samples: Path) -> Sampler:
    """Create the sampler. Sizes and samplers that the model cannot use are refused here."""
    config = basis.config
    made = Sampler(
        basis.setup, basis.model, config.load_samples(), samples, config.sample_image_format,
        config.source_resolution,
    )  # fmt: skip
    made.check()
    return made


def _groups(basis: _Basis) -> list[Group]:
    """(name, learning rate, named parameters) of each trained group."""
    config = basis.config
    scale = _rate_scale(config, basis.processes)
    return [
        (name, (config.learning_rate if rate is None else rate) * scale, named)
        for name, rate, named in training.trainable_parameters(basis.model, config)
    ]


def _rate_scale(config: TrainConfig, processes: Processes) -> float:
    """The factor on every learning rate of this run."""
    return math.sqrt(_scaled(config.learning_rate_scaler, config, processes))


def _scaled(scaler: Scaler, config: TrainConfig, processes: Processes) -> int:
    """The factor of a scaler in this run."""
    return scaler.factor(config.batch_size, config.gradient_accumulation_steps, processes.world_size)


def _reference(basis: _Basis) -> Reference | None:
    """The reference of the policy, if the run has one."""
    config = basis.config
    if not online_settings.needs_reference(config):
        return None
    reference = create_reference(config.training_method, config.effective_dpo_ref_mode(), basis.handle)
    reference.self_check()
    return reference


def _reference_scores(basis: _Basis, reference: Reference | None) -> ReferenceScores | None:
    config = basis.config
    if reference is None or not (config.trains_pairs and config.rlhf_dpo_reference_cache):
        return None
    return ReferenceScores(config, basis.setup, basis.model, reference, basis.processes)


def _old_policy(basis: _Basis, named: Named) -> OldPolicy | None:
    config = basis.config
    if not online_settings.needs_old_policy(config):
        return None
    device = basis.processes.device if config.rlhf_ema_ref_device is EMAMode.GPU else "cpu"
    return OldPolicy(named, config.rlhf_ema_ref_max_decay, config.rlhf_ema_ref_ramp_rate, device)


def _average(config: TrainConfig, named: Named, processes: Processes) -> MovingAverage | None:
    if config.ema is EMAMode.OFF:
        return None
    device = processes.device if config.ema is EMAMode.GPU else "cpu"
    return MovingAverage(named, config.ema_decay, config.ema_update_step_interval, device)


# -- the data -------------------------------------------------------------------------------------------------


def _prompts(config: TrainConfig, processes: Processes) -> list[OnlinePrompt]:
    """The prompts of an online run. Too few of them raise an error before the model is loaded, and so does a
    device for its rewards that is not here.
    """
    if not config.trains_online:
        return []
    reward_device(config, processes)
    prompts = collect_prompts(config)
    online_settings.create_sampler(config, len(prompts), processes.rank, processes.world_size)
    return prompts


def _encoded(basis: _Basis, prompts: list[OnlinePrompt]) -> _Data:
    """The training and validation data, after everything that is cached has been encoded."""
    data = _online(basis, prompts) if prompts else _images(basis)
    if basis.processes.first and are_samples_due(basis.config):
        samples, resolution = basis.config.load_samples(), basis.config.source_resolution
        keep_sample_texts(basis.setup, basis.model, samples, basis.tell, resolution)
    return data


def _online(basis: _Basis, prompts: list[OnlinePrompt]) -> _Data:
    """Data of images that the model makes of ``prompts`` during training."""
    maker = EpochMaker(
        basis.config, basis.setup, basis.model, basis.processes, prompts, basis.folder / ROLLOUT_FOLDER,
        basis.tell, basis.acceleration,
    )  # fmt: skip
    if online_settings.asks_person(basis.config):
        asking = basis.asking
        maker.ask_through(
            VoteDesk(basis.folder, asking.callback, asking.stop_wanted, basis.config.rlhf_person_timeout)
        )
    made = OnlineLoader(maker, StepCutter(basis.config, maker.sampler))
    made.prepare()
    return _Data(made, made, None, None)


def _images(basis: _Basis) -> _Data:
    """Data of images or pairs on disk."""
    trained = _data_loader(basis)
    held_back = None if trained.source.validation is None else _data_loader(basis, trained)
    return _Data(trained, None, trained, held_back)


def _data_loader(basis: _Basis, trained: BaseDataLoader | None = None) -> BaseDataLoader:
    """The training loader or, given the training one, the validation loader."""
    processes = basis.processes
    made = create_data_loader(
        basis.config, basis.model, basis.setup, validation=trained is not None, device=processes.device,
        progress=basis.tell, rank=processes.rank, world_size=processes.world_size, barrier=processes.barrier,
        share=trained,
    )  # fmt: skip
    made.prepare()
    return made


# -- the loop -------------------------------------------------------------------------------------------------


def _step(
    basis: _Basis,
    data: _Data,
    reference: Reference | None,
    named: Named,
    reference_scores: ReferenceScores | None,
    old_policy: OldPolicy | None,
) -> TrainStep:
    config, setup, model, processes = basis.config, basis.setup, basis.model, basis.processes
    parameters = [parameter for _, parameter in named]
    if data.online is not None:
        create = step_of(config.rlhf_mode.spec)
        return create(data.online, reference, parameters, old_policy, basis.acceleration.lossless)
    if config.trains_pairs:
        facts = None
        if data.images is not None:
            source = data.images.source
            facts = PairFacts(certainties(source), class_weights(*class_counts(source)))
        return PreferenceStep(config, setup, model, processes, reference, parameters, reference_scores, facts)
    return SupervisedStep(config, setup, model, processes)


def _watchers(
    basis: _Basis, named: Named, validation_loader: BaseDataLoader | None
) -> tuple[Patience | None, BestKeeper | None]:
    """Early stopping and the best weights; only with validation on pairs."""
    config = basis.config
    if not config.trains_pairs or validation_loader is None:
        return None, None
    by_accuracy = get_preference_loss(config.rlhf_dpo_objective).accuracy_tells
    metrics = config.rlhf_dpo_patience_metrics
    if not by_accuracy:
        instead = {DPOPatienceMetric.VAL_ACCURACY: DPOPatienceMetric.VAL_LOSS}
        metrics = list(dict.fromkeys(instead.get(one, one) for one in metrics))
    patience = Patience(metrics, config.rlhf_dpo_patience_mode, config.rlhf_dpo_patience_value)
    best = BestKeeper(basis.folder / BEST_FOLDER, named, basis.processes.first, by_accuracy)
    return (
        patience if config.rlhf_dpo_patience_enabled else None,
        best if config.rlhf_dpo_save_best else None,
    )


def _validation(
    basis: _Basis, loader: BaseDataLoader | None, reference: Reference | None
) -> Validation | None:
    if loader is None:
        return None
    config, setup, model, processes = basis.config, basis.setup, basis.model, basis.processes
    if config.trains_pairs:
        return PairValidation(config, setup, model, loader, reference, processes)
    return ImageValidation(config, setup, model, loader, processes)
