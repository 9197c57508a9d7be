"""Everything a run consists of, put together from its config: model, data, optimizer, and what watches over them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from modules.adapter.PeftAdapter import AdapterHandle
from modules.adapter.reference import Reference, create_reference
from modules.dataLoader.BaseDataLoader import BaseDataLoader
from modules.dataLoader.create import create_data_loader
from modules.dataLoader.source import is_dpo
from modules.model.Model import Model
from modules.modelSetup import training
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.modelSetup.registry import create_model_setup
from modules.trainer.best import BestKeeper
from modules.trainer.distributed import Processes
from modules.trainer.ema import MovingAverage
from modules.trainer.loss_scaler import LossScaler
from modules.trainer.optimizers import create_optimizer, evaluation_weights
from modules.trainer.patience import Patience
from modules.trainer.reference_scores import ReferenceScores
from modules.trainer.sampling import Sampler
from modules.trainer.schedulers import LearningRateSchedule
from modules.trainer.steps import PreferenceStep, SupervisedStep, TrainStep
from modules.trainer.validation import ImageValidation, PairValidation, Validation
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.DataType import DataType
from modules.util.enum.EMAMode import EMAMode

Tell = Callable[[str, int, int], bool | None]
"""Told (what, done, of how many); ``False`` cancels."""

BEST_FOLDER = "best"


@dataclass
class Parts:
    """What a run works with.

    Args:
        handle: the adapters of a LORA run.
        reference: what a preference run compares with.
        named: names and trained parameters, in the optimizer's order.
        best, patience: only where validation on pairs asks for them.
    """

    setup: BaseModelSetup
    model: Model
    handle: AdapterHandle | None
    reference: Reference | None
    loader: BaseDataLoader
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

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return [parameter for _, parameter in self.named]

    @contextmanager
    def exported_weights(self, averaged: bool = True) -> Iterator[None]:
        """The weights as they would be saved, for the length of a block: those the optimizer means, averaged."""
        with ExitStack() as stack:
            stack.enter_context(evaluation_weights(self.optimizer))
            if averaged and self.ema is not None:
                stack.enter_context(self.ema.swapped_in())
            yield

    def identity(self) -> dict[str, str]:
        """Digests of base model, adapter scales and data, for a backup: a run cannot go on with others."""
        model = self.model
        base = [
            f"{name}={model.fingerprint(name)}" for name in (model.spec.denoiser, *model.text_encoders)
        ]
        adapter = (
            {} if self.handle is None else {path: self.handle.scaling(path) for path in self.handle.layers}
        )
        data = hashlib.blake2b(digest_size=16)
        for rules, count in self.loader.units.groups:
            data.update(f"{rules.name}:{count}\n".encode())
        for item in self.loader.units.items():
            line = [item.id, self.loader.files.digest(item.path), *item.prompts]
            data.update(("\0".join(line) + "\n").encode(errors="surrogatepass"))
        return {
            "base": " ".join(base),
            "adapter": hashlib.blake2b(repr(adapter).encode(), digest_size=16).hexdigest(),
            "data": data.hexdigest(),
        }

    def close(self) -> None:
        """Give threads and files back."""
        self.loader.close()
        if self.validation_loader is not None:
            self.validation_loader.close()


def check_settings(config: TrainConfig) -> None:
    """What can be found wrong with the settings of the model, the adapter and the optimizer without loading anything.

    Raises:
        UserError: the first fault.
    """
    training.check_settings(config, create_model_setup(config.model_type).spec)
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    create_optimizer(config.optimizer, [("weight", config.learning_rate, [("weight", weight)])])


def assemble(config: TrainConfig, folder: Path, samples: Path, processes: Processes, tell: Tell) -> Parts:
    """Load the model, encode the data, make everything that trains.

    Args:
        folder: of the run.
        samples: where sample images go.

    Raises:
        UserError: something in the config or the data does not fit; LoadingCancelled: ``tell`` said so.
    """
    torch.manual_seed(config.seed)
    setup, model, handle = _load(config, processes, tell)
    sampler = Sampler(setup, model, config.load_samples(), samples, config.sample_image_format)
    sampler.check()
    reference = None
    if is_dpo(config):
        reference = create_reference(config.training_method, config.effective_dpo_ref_mode(), handle)
        reference.self_check()
    loader = create_data_loader(
        config, model, setup, device=processes.device, progress=tell,
        rank=processes.rank, world_size=processes.world_size, barrier=processes.barrier,
    )  # fmt: skip
    loader.prepare()
    validation_loader = _validation_loader(config, model, setup, loader, processes, tell)
    groups = [
        (name, config.learning_rate if rate is None else rate, named)
        for name, rate, named in setup.trainable_parameters(model, config)
    ]
    named = [pair for _, _, pairs in groups for pair in pairs]
    known = None
    if reference is not None and config.rlhf_dpo_reference_cache:
        known = ReferenceScores(config, setup, model, reference, processes)
    validated = reference is not None and validation_loader is not None
    return Parts(
        setup=setup,
        model=model,
        handle=handle,
        reference=reference,
        loader=loader,
        named=named,
        optimizer=create_optimizer(config.optimizer, groups),
        schedule=LearningRateSchedule.from_config(config, loader.total_steps),
        scaler=LossScaler(config.train_dtype is DataType.FLOAT_16),
        ema=_average(config, named, processes),
        step=SupervisedStep(config, setup, model, processes)
        if reference is None
        else PreferenceStep(config, setup, model, processes, reference, [p for _, p in named], known),
        known=known,
        validation=_validation(config, setup, model, validation_loader, reference, processes),
        validation_loader=validation_loader,
        patience=Patience(
            config.rlhf_dpo_patience_metrics, config.rlhf_dpo_patience_mode, config.rlhf_dpo_patience_value
        )
        if validated and config.rlhf_dpo_patience_enabled
        else None,
        best=BestKeeper(folder / BEST_FOLDER, named, processes.first)
        if validated and config.rlhf_dpo_save_best
        else None,
        sampler=sampler,
    )


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
    handle = setup.setup_training(model, config)
    on_device = (model.spec.denoiser, *(model.text_encoders if model.trains_text else ()))
    model.place(processes.device, on_device)
    tell("loading the model", 1, 1)
    return setup, model, handle


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
    loader: BaseDataLoader,
    processes: Processes,
    tell: Tell,
) -> BaseDataLoader | None:
    if loader.source.validation is None:
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
