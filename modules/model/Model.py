"""A loaded model: its parts, their devices and their weights."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from modules.model.activations import keep_inputs_in_main_memory
from modules.model.batch import Conditioning
from modules.model.memory import give_back
from modules.model.noising.sampling import with_shift
from modules.model.noising.schedule import Schedule
from modules.model.offloaded import left_behind, staying
from modules.model.text.LearnedWords import LearnedWords
from modules.model.weight_files import WEIGHT_FILES
from modules.spec.FamilySpec import FamilySpec
from modules.util.errors import ConfigError
from modules.util.published_models import PublishedModel, cached_name, find_published

# what diffusers, transformers and older transformers call it
CHECKPOINTING = (
    "enable_gradient_checkpointing",
    "activation_checkpointing_enable",
    "gradient_checkpointing_enable",
)
ADAPTER_MARKS = ("lora_", "hada_", "lokr_", "oft_")

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass
class Model:
    """A model ready to be trained or sampled from.

    Args:
        spec: its family.
        source: folder, file or hub name it was loaded from.
        parts: name -> module, tokenizer or scheduler config (``dict``).
        schedule: noise schedule and parameterisation.
        compute_dtype: autocast type of the denoiser; float32 means none.
        latent_scale, latent_shift: latents for the denoiser are (z - shift) * scale of the VAE's z; numbers,
            or tensors (C, 1, 1) if channels differ.
        latent_factor: pixels per latent along each side.
        latent_channels: channels of a latent.
        denoiser_source: source of the denoiser, if it has a different one.
        weight_files: part -> the first of its files of weights, for parts that were read from folders.
        hub_name: hub name of ``source``, if it was requested by that name.
        shift: that of the noise levels of samples, if the scheduler config is not that of the denoiser; 0 otherwise.
        guidance: guidance scale in training, for models that embed it.
        prompt_weighting: whether brackets in prompts are emphasis.
        prompt_chunks: maximum number of chunks encoded of a prompt, if the family uses chunks.
        layer_skips: text encoder -> number of layers before the usual one from which states are taken; empty
            for none.
        prompt_length: number of tokens that the encoder of long texts reads; 0 for the usual number.
        masks_padding: whether padding after prompts is hidden from the denoiser; ``None`` for the default.
        trains_text: whether a text encoder or a word is trained, so that prompts are encoded in every pass.
        adapter: the handle of attached adapters, if any.
        words: words with vectors of their own, if there are any.
        training_adapter: adapter added to the denoiser's weights for training and removed in samples, if any.
        sample_denoiser: the other denoiser that samples are made with, if any.
        kept_texts: states of texts encoded in advance, on the CPU; empty if a text encoder is trained.
    """

    spec: FamilySpec
    source: str
    parts: dict[str, Any]
    schedule: Schedule
    compute_dtype: torch.dtype = torch.float32
    latent_scale: float | torch.Tensor = 1.0
    latent_shift: float | torch.Tensor = 0.0
    latent_factor: int = 8
    latent_channels: int = 4
    denoiser_source: str = ""
    weight_files: dict[str, Path] = field(default_factory=dict)
    hub_name: str = ""
    shift: float = 0.0
    guidance: float = 1.0
    prompt_weighting: bool = False
    prompt_chunks: int = 1
    layer_skips: dict[str, int] = field(default_factory=dict)
    prompt_length: int = 0
    masks_padding: bool | None = None
    trains_text: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    adapter: Any = None
    words: LearnedWords | None = None
    training_adapter: Any = None
    sample_denoiser: Any = None
    kept_texts: dict[tuple[str, ...], Conditioning] = field(default_factory=dict, repr=False)
    _fingerprints: dict[str, str] = field(default_factory=dict, repr=False)
    _mode: str | None = field(default=None, repr=False)
    _empty_prompt: Conditioning | None = field(default=None, repr=False)
    _blank: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for part in self.modules().values():
            part.eval().requires_grad_(False)

    def modules(self) -> dict[str, nn.Module]:
        """The loaded parts with weights, by name, denoiser first."""
        return {
            name: self.parts[name]
            for name in self.spec.weight_parts
            if isinstance(self.parts.get(name), nn.Module)
        }

    def module(self, name: str) -> nn.Module:
        """The part called ``name``. Raises ``RuntimeError`` if it was not loaded."""
        part = self.parts.get(name)
        if not isinstance(part, nn.Module):
            raise RuntimeError(f"the part {name!r} of {self.source} is not loaded")
        return part

    @property
    def denoiser(self) -> nn.Module:
        return self.module(self.spec.denoiser)

    @property
    def text_encoders(self) -> tuple[str, ...]:
        """Names of the loaded text encoders. Some models lack one of their family."""
        return tuple(name for name in self.spec.text_encoders if name in self.modules())

    @property
    def vae(self) -> nn.Module:
        return self.module(self.spec.vae)

    def to(self, part: str, device: torch.device | str) -> Model:
        """Move one part."""
        module = self.module(part)
        with left_behind(module):
            module.to(device)
        return self

    def place(self, device: torch.device | str, parts: tuple[str, ...] | None = None) -> Model:
        """Make ``device`` the compute device and move the named parts (all by default) there."""
        self.device = torch.device(device)
        for name in self.modules() if parts is None else parts:
            self.to(name, self.device)
        if self.words is not None:
            self.words.to(self.device)
        return self

    def release(self, *parts: str) -> None:
        """Drop parts that are no longer needed and release their memory."""
        for name in parts:
            self.parts.pop(name, None)

    def where(self, part: str) -> torch.device:
        """The device on which a part computes. Weights that stay in main memory do not count."""
        kept = {id(weight) for weight in staying(self.module(part))}
        return next(p.device for p in self.module(part).parameters() if id(p) not in kept)

    @contextmanager
    def borrowed(self, part: str) -> Iterator[nn.Module]:
        """Move a part to the compute device for the duration of a block, then back."""
        module, home = self.module(part), self.where(part)
        if home == self.device:
            yield module
            return
        try:
            # a part that does not fit is half moved when this fails
            self.to(part, self.device)
            yield module
        finally:
            self.to(part, home)
            give_back(self.device)

    @contextmanager
    def borrowed_encoders(self) -> Iterator[None]:
        """Move all text encoders to the compute device for the duration of a block, then back."""
        with ExitStack() as stack:
            for part in self.text_encoders:
                stack.enter_context(self.borrowed(part))
            yield

    def autocast(self) -> AbstractContextManager[object]:
        """The mixed-precision context of one forward pass. It is entered in each pass, so that no casts of
        swapped weights are cached.
        """
        if self.compute_dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype)

    def input_dtype(self) -> torch.dtype:
        """The type of the denoiser's inputs."""
        if self.compute_dtype != torch.float32:
            return torch.float32
        dtype = next(self.denoiser.parameters()).dtype
        # quantised weights do not tell the type of the input
        return dtype if dtype.is_floating_point and dtype.itemsize > 1 else torch.float32

    # -- training mode -------------------------------------------------------------------------------------

    @property
    def mode(self) -> str | None:
        """The mode that was set last; ``None`` if layers have changed since."""
        return self._mode

    def set_mode(self, mode: str) -> None:
        """``train`` (dropout on), ``no_dropout`` (gradients, no dropout) or ``eval``; cheap when already in
        it.

        ``no_dropout`` keeps the training flag on modules that need it for checkpointing, and disables every
        dropout.

        Raises:
            ValueError: the mode is unknown.
        """
        if mode == self._mode:
            return
        if mode not in ("train", "no_dropout", "eval"):
            raise ValueError(f"unknown mode {mode!r}")
        passed = self.encoders_of_trained_words()
        for name, part in self.modules().items():
            trained = mode != "eval" and any(p.requires_grad for p in part.parameters())
            # encoders checkpoint in training mode only
            passes = mode != "eval" and name in passed and getattr(part, "is_gradient_checkpointing", False)
            part.train(trained or passes)
            if (passes and not trained) or (trained and mode == "no_dropout"):
                _silence(part)
        self._mode = mode

    @contextmanager
    def in_mode(self, mode: str) -> Iterator[None]:
        """``set_mode`` for the duration of a block; afterwards the previous mode is restored."""
        before = self._mode
        self.set_mode(mode)
        try:
            yield
        finally:
            if before is not None:
                self.set_mode(before)

    def layers_changed(self) -> None:
        """Must be called after modules were added, or after ``train``/``eval`` was called from outside."""
        self._mode = None

    def encoders_of_trained_words(self) -> list[str]:
        """The text encoders through which gradients flow to trained words."""
        words = [] if self.words is None else self.words.words
        return list(
            dict.fromkeys(
                encoder for word in words for encoder, rows in word.vectors.items() if rows.requires_grad
            )
        )

    def set_gradient_checkpointing(self, part: str, enabled: bool, offloaded: bool = False) -> None:
        """Recompute a part's activations in the backward pass instead of keeping them.

        Args:
            offloaded: keep the inputs of the recomputed blocks in main memory meanwhile.

        Raises:
            ConfigError: the part's class does not support it.
        """
        module = self.module(part)
        name = next((n for n in CHECKPOINTING if hasattr(module, n)), None)
        if name is None:
            raise ConfigError(
                f"{type(module).__name__} has no gradient checkpointing",
                field=f"{part}.gradient_checkpointing",
            )
        getattr(module, name if enabled else name.replace("enable", "disable"))()
        if enabled and offloaded:
            keep_inputs_in_main_memory(module)
        self.layers_changed()

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Inside the block, the model is untrained: without the adapter, with the initial vectors of words.

        This is not possible for a model whose own weights are trained.
        """
        with ExitStack() as stack:
            if self.adapter is not None:
                stack.enter_context(self.adapter.disabled())
            if self.words is not None:
                stack.enter_context(self.words.as_at_the_start())
            yield

    def as_sampled(self) -> AbstractContextManager[object]:
        """Inside the block, the denoiser, its noise schedule and its source are those that samples are made with."""
        return nullcontext() if self.sample_denoiser is None else self.sample_denoiser.shown(self)

    @contextmanager
    def denoising_samples(self) -> Iterator[None]:
        """Inside this block, within ``as_sampled``, samples can be denoised: the denoiser is on the device, with what
        was trained and without the training adapter.
        """
        with ExitStack() as stack:
            if self.sample_denoiser is not None:
                stack.enter_context(self.borrowed(self.spec.denoiser))
                stack.enter_context(self.sample_denoiser.wearing(self))
            if self.training_adapter is not None:
                stack.enter_context(self.training_adapter.taken_back(self))
            yield

    # -- identity ------------------------------------------------------------------------------------------

    def fingerprint(self, part: str) -> str:
        """A digest of a part's config and base weights, for cache keys; adapters do not change it.

        For a tokenizer, it covers everything that determines the tokens of a text. It is computed once, so
        call this before full fine-tuning starts.
        """
        if part not in self._fingerprints:
            self._fingerprints[part] = _fingerprint(self.parts[part])
        return self._fingerprints[part]

    def fingerprints(self) -> dict[str, str]:
        """The digest of each loaded part, including those released later.

        Must be called before anything is trained or released, because it cannot be computed afterwards.
        """
        for name in self.parts:
            self.fingerprint(name)
        return {p.name: self._fingerprints[p.name] for p in self.spec.parts if p.name in self._fingerprints}

    @property
    def sample_config(self) -> dict[str, Any]:
        """The scheduler config that images are made with."""
        return with_shift(self.parts.get("scheduler") or {}, self.shift)

    @property
    def source_name(self) -> str:
        """The name of the model: its hub name, or the name of its folder or file without the path."""
        return self.hub_name or Path(self.source).name

    @property
    def published(self) -> PublishedModel | None:
        """The published model of its denoiser, if known."""
        own = self.denoiser_source not in ("", self.source)
        return find_published(self.spec.key, self.denoiser_source if own else self.hub_name or self.source)

    @property
    def hub_commits(self) -> str | None:
        """The commits of the downloaded files of the model and of a denoiser of its own; ``None`` for local files."""
        places = [Path(place) for place in (self.source, self.denoiser_source) if place]
        # the folders in the hub cache are named by commit
        found = [
            part
            for place in places
            for part, above in zip(place.parts[1:], place.parts, strict=False)
            if above == "snapshots" and _COMMIT.fullmatch(part)
        ]
        return " ".join(dict.fromkeys(found)) or None

    @property
    def short_name(self) -> str:
        """As ``source_name``, without owner and file extension."""
        return _short(self.source_name)

    @property
    def sampled_name(self) -> str:
        """The short name of the model that makes samples: ``short_name``, unless they have a denoiser of their own."""
        if self.sample_denoiser is None:
            return self.short_name
        with self.as_sampled():
            if self.denoiser_source in ("", self.source):
                return self.short_name
            # its denoiser alone: a file, or a folder, which may be in the hub cache
            path = Path(self.denoiser_source)
            return _short(path.name if path.suffix in WEIGHT_FILES else cached_name(path) or path.name)

    def source_hash(self) -> str:
        """SHA-256 of the denoiser's weights on disk; for a single-file model, of the whole file.

        Empty for a model that was not loaded from local files.
        """
        if "source" not in self._fingerprints:
            self._fingerprints["source"] = _source_hash(
                Path(self.denoiser_source or self.source), self.spec.denoiser
            )
        return self._fingerprints["source"]


def _silence(part: nn.Module) -> None:
    for module in part.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()


def base_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of a module's state before adapters were attached, sorted by name."""
    for name, tensor in sorted(module.state_dict().items()):
        if any(piece.startswith(ADAPTER_MARKS) for piece in name.split(".")):
            continue
        yield name.replace(".base_layer.", "."), tensor


def _short(name: str) -> str:
    """A name without owner and file extension."""
    name = name.rpartition("/")[2]
    return Path(name).stem if name.lower().endswith(WEIGHT_FILES) else name


def _fingerprint(part: Any) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    if isinstance(part, nn.Module):
        config = getattr(part, "config", None)
        values = dict(config) if isinstance(config, Mapping) else getattr(config, "to_dict", dict)()
        stable = {k: v for k, v in values.items() if not k.startswith("_") and k != "transformers_version"}
        hasher.update(json.dumps(stable, sort_keys=True, default=str).encode())
        # rounded when it is first moved, so the weights may not reveal it yet
        hasher.update(str(getattr(part, "stored_as", "")).encode())
        for name, tensor in sorted(base_tensors(part)):
            hasher.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
            raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            hasher.update(raw.numpy().data)
    elif hasattr(part, "get_vocab"):
        hasher.update(json.dumps(_rules_of(part), sort_keys=True).encode())
        hasher.update(str(part.model_max_length).encode())
        hasher.update(str(getattr(part, "chat_template", None) or "").encode())
    else:
        hasher.update(json.dumps(part, sort_keys=True, default=str).encode())
    return hasher.hexdigest()


def _rules_of(tokenizer: Any) -> Any:
    """Return the rules that turn a text into tokens, as plain data, without state left by earlier calls."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return tokenizer.get_vocab()
    rules: dict[str, Any] = json.loads(backend.to_str())
    return {name: value for name, value in rules.items() if name not in ("truncation", "padding")}


def _source_hash(source: Path, denoiser: str) -> str:
    if source.is_file():
        files = [source]
    elif (source / denoiser).is_dir():
        files = sorted((source / denoiser).glob("*.safetensors"))
    else:
        return ""
    hasher = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: hasher)
    return hasher.hexdigest()
