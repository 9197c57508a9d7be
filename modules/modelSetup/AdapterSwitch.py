"""One loaded model that samples with one adapter after another, or with several at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from modules.adapter.AdapterFile import AdapterFile
from modules.adapter.AdapterOptions import AdapterOptions
from modules.adapter.formats import read_adapter
from modules.adapter.PeftAdapter import AdapterHandle, attach
from modules.model.Model import Model
from modules.modelSetup.combining import summed
from modules.modelSetup.learned_words import add_words_of, noting_known_words

Chosen = Sequence[tuple[Path, float]]


class AdapterSwitch:
    """Attaches adapters to a model and removes them again.

    Args:
        device: compute device; the denoiser stays there.
        tell: called with notes on an adapter, each only once.
        words: placeholders and files of embeddings that are used with and without adapters.
    """

    def __init__(
        self,
        model: Model,
        device: torch.device,
        tell: Callable[[str], None],
        words: Sequence[tuple[str, Path]] = (),
    ) -> None:
        self._model, self._device, self._tell, self._words = model, device, tell, tuple(words)
        self._files: tuple[Path, ...] | None = None
        self._factors: tuple[float, ...] = ()
        self._handle: AdapterHandle | None = None
        self._told: set[str] = set()

    def use(self, chosen: Chosen) -> None:
        """Sample with these adapters from now on. Those of strength 0 are skipped.

        Raises:
            UserError: a file is not an adapter of this model, or the adapters are of types that cannot be
                added.
        """
        wanted = [(path, strength) for path, strength in chosen if strength != 0.0]
        files, factors = tuple(path for path, _ in wanted), tuple(strength for _, strength in wanted)
        if files != self._files or (len(files) > 1 and factors != self._factors):
            self._put(files, factors)
        if len(files) == 1 and self._handle is not None and factors != self._factors:
            self._handle.set_strength(factors[0])
        self._files, self._factors = files, factors

    def _put(self, files: tuple[Path, ...], factors: tuple[float, ...]) -> None:
        model = self._model
        if self._handle is not None:
            self._handle.detach()
            self._handle = None
        self._factors = (1.0,)  # from an adapter that has just been attached
        read = [noting_known_words(read_adapter(path, model), model) for path in files]
        if read:
            one = read[0] if len(read) == 1 else _together(read, factors)
            # with its own options: nobody has chosen a rank that it could override
            self._handle = attach(model, one.adopt(AdapterOptions())[0], one)
            for note in (note for note in self._handle.notes if note not in self._told):
                self._told.add(note)
                self._tell(note)
        add_words_of(model, read, self._words, "--embedding")
        model.place(self._device, (model.spec.denoiser,))


def _together(files: Sequence[AdapterFile], factors: Sequence[float]) -> AdapterFile:
    notes = tuple(note for file in files for note in file.notes)
    source = " + ".join(file.source for file in files)
    layers = summed(list(zip(files, factors, strict=True)))
    return replace(files[0], source=source, layers=layers, metadata={}, notes=notes, embeddings={})
