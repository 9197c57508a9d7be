"""Parts of the model and embeddings whose training ends before the run does."""

from __future__ import annotations

import hashlib

import torch

from modules.dataLoader.BaseDataLoader import BaseDataLoader
from modules.dataLoader.source import asks_for_untrained_texts
from modules.model.Model import Model
from modules.model.text.LearnedWords import PREFIX
from modules.modelSetup.BaseModelSetup import BaseModelSetup
from modules.trainer.optim.ema import Named
from modules.trainer.optim.optimizers import settle
from modules.util.config.TrainConfig import TrainConfig
from modules.util.enum.choices import StopUnit
from modules.util.tensors.tensor_files import tensor_hash
from modules.util.TrainProgress import TrainProgress


class PartStops:
    """Freezes each part at the position set in the config. From then on it has no gradient, so that its
    weights and optimizer state no longer change, not even by decay. Schedule-free optimizers give it the
    weights that are saved, so that the other parts learn with what they will be used with.

    Everything depends only on the position, so that a resumed run equals an uninterrupted one.

    Args:
        named: names and trained parameters; a name begins with its part, or with its embedding.
        images: delivers images on disk, if the run has any.
    """

    def __init__(
        self,
        config: TrainConfig,
        setup: BaseModelSetup,
        model: Model,
        named: Named,
        images: BaseDataLoader | None,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._optimizer = optimizer
        self._config, self._setup, self._model, self._images = config, setup, model, images
        self._parameters: dict[str, list[torch.nn.Parameter]] = {}
        for name, parameter in named:
            self._parameters.setdefault(_owner(name), []).append(parameter)
        self._own = {f"{PREFIX}{one.placeholder}": one for one in config.embeddings()}
        self._texts_change = model.trains_text

    def _ended(self, part: str, epoch: int, step: int) -> bool:
        own = self._own[part] if part in self._own else getattr(self._config, part)
        unit = own.stop_training_after_unit
        if unit is StopUnit.NEVER:
            return False
        return bool((epoch if unit is StopUnit.EPOCH else step) >= own.stop_training_after)

    def follow(self, progress: TrainProgress) -> None:
        """Freeze the parts whose training has ended before the step at this position."""
        for part, parameters in self._parameters.items():
            if parameters[0].requires_grad and self._ended(part, progress.epoch, progress.global_step):
                for parameter in parameters:
                    parameter.requires_grad_(False)
                    parameter.grad = None
                settle(self._optimizer, parameters, self._keep_norms)
                self._model.layers_changed()

    def _keep_norms(self) -> None:
        if self._model.words is not None:
            self._model.words.keep_norms(ended=True)

    def all_ended(self, epoch: int, global_step: int) -> bool:
        """Return whether nothing is left to train at this position."""
        return all(self._ended(part, epoch, global_step) for part in self._parameters)

    # -- prompts -------------------------------------------------------------------------------------------

    def texts_settle(self, progress: TrainProgress) -> bool:
        """Return whether prompts are to be cached from this position on: the text encoders were frozen when its
        epoch began, and no step needs their earlier outputs.
        """
        if not self._texts_change or self._images is None or not self._config.latent_caching:
            return False
        if asks_for_untrained_texts(self._config, self._images.rules):
            return False
        begun_at = progress.global_step - progress.epoch_step
        return all(self._ended(part, progress.epoch, begun_at) for part in self._trained_encoders())

    def keep_texts(self, progress: TrainProgress) -> None:
        """Cache the prompts, if ``texts_settle`` says so.

        Raises:
            LoadingCancelled: the run is to stop.
        """
        if not self.texts_settle(progress) or self._images is None:
            return
        self.follow(progress)
        with self._model.in_mode("eval"):
            self._images.keep_texts(self._digest())
            self._texts_change = self._model.trains_text = False
            self._setup.empty_prompt(self._model)

    def _trained_encoders(self) -> list[str]:
        """The text encoders and words whose training changes the encoding of prompts."""
        return [part for part in self._parameters if part in self._model.text_encoders or part in self._own]

    def _digest(self) -> str:
        """Digest of the trained text encoders and words."""
        hasher = hashlib.blake2b(digest_size=16)
        handle = self._model.adapter
        for part in self._trained_encoders():
            if part in self._own:
                words = self._model.words
                hasher.update(b"" if words is None else words.digest().encode())
                continue
            if handle is None:
                tensors = dict(self._model.module(part).state_dict())
            else:
                tensors = {n: t for n, t in handle.state_dict().items() if n.startswith(f"{part}.")}
                factors = {
                    path: handle.scaling(path) for path in handle.layers if path.startswith(f"{part}.")
                }
                hasher.update(repr((handle.options.kind, factors)).encode())
            hasher.update(f"{part} {sorted(tensors)} {tensor_hash(tensors)}".encode())
        return hasher.hexdigest()


def _owner(name: str) -> str:
    """The part or the embedding that a parameter belongs to."""
    return name.rpartition(".")[0] if name.startswith(PREFIX) else name.partition(".")[0]
