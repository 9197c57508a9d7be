from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from modules.dataLoader.source import UnitSet
from modules.model.batch import NO_SOURCES, Conditioning, Sources
from modules.model.text import LearnedWords, chunks
from modules.modelSetup import ChunkedPrompts
from modules.pipeline.cache.CompleteSets import loaded_code
from modules.pipeline.cache.ContentCache import ContentCache
from modules.pipeline.cache.FileIndex import FileIndex
from modules.pipeline.cache.PromptIndex import PromptIndex
from modules.pipeline.Item import Item
from modules.pipeline.nodes import CachedTensors as naming
from modules.pipeline.nodes.CachedTensors import CACHE_FORMAT, CachedTensors, content_key
from modules.pipeline.nodes.sources import SourcePlan, load_source
from modules.pipeline.Rules import Rules

if TYPE_CHECKING:
    from modules.model.Model import Model
    from modules.modelSetup.BaseModelSetup import BaseModelSetup
    from modules.util.config.TrainConfig import TrainConfig

PROMPT_INDEX = "prompts.sqlite"
PROMPTS_EDITION = "1"
"""Increased whenever the division of prompts into chunks changes."""
_CODE = loaded_code([sys.modules[__name__], naming, LearnedWords, chunks, ChunkedPrompts])
"""Digest of the code that names the entries of prompts."""


@dataclass(frozen=True)
class TextTask:
    """One prompt to encode, with the images shown to its encoder."""

    prompt: str
    plans: tuple[SourcePlan, ...] = ()


class DataLoaderTextsMixin:
    """Prompts: the modules, the cache keys, the states of a batch. Uses the attributes of ``BaseDataLoader``."""

    model: Model
    setup: BaseModelSetup
    units: UnitSet
    rules: list[Rules]
    files: FileIndex
    texts: ContentCache | None
    trains_text: bool
    dataset: Any
    config: TrainConfig
    texts_of: str

    @property
    def sides(self) -> tuple[str, ...]:
        """Prefixes of the fields of a unit: two images of a pair, or a single one."""
        return ("chosen_", "rejected_") if self.units.dpo else ("",)

    @property
    def _drops_captions(self) -> bool:
        """True if the empty prompt of each image is needed, because it differs between images."""
        return (
            self.setup.spec.sees_sources
            and not self.trains_text
            and not self.units.dpo
            and self.config.text_encoder.dropout_probability > 0.0
        )

    @property
    def encodes_shown(self) -> bool:
        """True if the pixels of source images are needed in every step, because a text encoder sees them."""
        return self.setup.spec.sees_sources and self.texts is None

    # -- pipeline ------------------------------------------------------------------------------------------

    def text_modules(self, side: str) -> list[Any]:
        """The modules that look up the states of prompts."""
        if self.texts is None:
            return []
        names = (f"{side}text_key", f"{side}cond")
        shown = [f"{side}sources"] if self.setup.spec.sees_sources else []
        made: list[Any] = [CachedTensors([f"{side}prompt", *shown], self.text_key, self.texts, *names)]
        if self._drops_captions:
            blank = partial(self.text_key, "")
            made.append(CachedTensors(shown, blank, self.texts, f"{side}blank_key", f"{side}blank"))
        return made

    def text_outputs(self) -> list[str]:
        """The prompt fields of a dataset item."""
        kept = [] if self.texts is None else ["cond", *(["blank"] if self._drops_captions else [])]
        return ["prompt", *kept]

    # -- cache ---------------------------------------------------------------------------------------------

    def text_identity(self) -> str:
        """Everything that text states depend on besides the text: encoders, tokenizers, and the family's
        template, number of tokens and layers. Families with the same encoders use them differently.
        """
        kinds = ("text_encoder", "tokenizer", "processor")
        parts = [part.name for part in self.setup.spec.parts if part.kind in kinds]
        present = [name for name in parts if name in self.model.parts]
        rules = [f"prompts of {self.setup.spec.key}"]
        rules += ["emphasis, second edition"] if self.model.prompt_weighting else []
        rules += [f"{name} skips {count}" for name, count in sorted(self.model.layer_skips.items())]
        rules += [f"{self.model.prompt_length} tokens"] if self.model.prompt_length else []
        rules += [] if self.model.masks_padding is None else [f"masks padding: {self.model.masks_padding}"]
        return content_key("text", *rules, *(f"{name}={self.model.fingerprint(name)}" for name in present))

    def text_key(self, prompt: str, plans: Sequence[SourcePlan] = ()) -> str:
        """Digest of a prompt and its encoders. Entries have 16 bits if their encoder gives no more; float32
        ones of earlier versions hold the same numbers, and so do those of prompts that fit into one chunk.

        Args:
            plans: the images shown to the encoder. Their contents, transforms and order are part of the key.
        """
        chunks = 0
        if self.setup.spec.chunks_prompts:
            chunks = self.prompts.chunks(prompt, partial(self.setup.chunk_count, self.model))
        rules = [f"{chunks} chunks"] if chunks else []
        rules += self._word_rules(prompt)
        rules += [content_key("shown", self.files.content(plan.path), plan.transform.text()) for plan in plans]
        return content_key(CACHE_FORMAT, "cond", "float32", self.texts_of, prompt, *rules)

    def _word_rules(self, prompt: str) -> list[str]:
        words = self.model.words
        if words is None:
            return []
        used = words.names_in(prompt)
        read = any(word.vectors for word in words.words if word.placeholder in used)
        rules = [f"embeddings {self._words_digest}"] if read else []
        return [*rules, f"places {words.places_digest()}"] if words.puts_out else rules

    @cached_property
    def _reader(self) -> str:
        """Digest of all that decides how a prompt is read."""
        words = [] if self.model.words is None else self.model.words.words
        lengths = [f"{word.placeholder}: {word.tokens}" for word in words]
        return content_key(
            "reading prompts", PROMPTS_EDITION, self.setup.spec.key, self.text_identity(),
            f"{self.model.prompt_chunks} chunks", *lengths,
        )  # fmt: skip

    @cached_property
    def prompts(self) -> PromptIndex:
        """Facts about reading the prompts; stored between starts if anything is cached."""
        path = Path(self.config.cache_dir) / PROMPT_INDEX if self.config.latent_caching else None
        return PromptIndex(path, self._reader)

    def cut_prompts(self, prompts: Sequence[str]) -> list[str]:
        """The prompts whose end no text encoder reads."""
        return self.prompts.cut(prompts, partial(self.setup.cut_prompts, self.model))

    @cached_property
    def _words_digest(self) -> str:
        """Digest of the embeddings, which do not change as long as texts are cached."""
        return "" if self.model.words is None else self.model.words.digest()

    def text_tasks(self, prompts: Iterable[str], known: Container[str]) -> dict[str, TextTask]:
        """Everything cached of prompts, by key.

        Args:
            prompts: all prompts of the units.
            known: keys that need no task.
        """
        if not self.setup.spec.sees_sources:
            keys = ((self.text_key(prompt), prompt) for prompt in prompts)
            return {key: TextTask(prompt) for key, prompt in keys if key not in known}
        made: dict[str, TextTask] = {}
        for unit, entry in enumerate(self.units.entries):
            for side in self.sides:
                item: Item = getattr(entry, side[:-1]) if side else entry
                rules = self.rules[item.concept]
                for visit in range(math.lcm(rules.variations, rules.prompt_count(item.prompts))):
                    get = partial(self.dataset.pipeline.get, variation=visit, index=unit)
                    plans = get(f"{side}sources")
                    made.setdefault(get(f"{side}text_key"), TextTask(get(f"{side}prompt"), plans))
                    if self._drops_captions:
                        made.setdefault(get(f"{side}blank_key"), TextTask("", plans))
        return made

    def text_set(self, prompts: Iterable[str]) -> str | None:
        """Digest of all that decides which entries prompts need; ``None`` where images decide too, or where the
        sources of this program are not there.
        """
        if self.setup.spec.sees_sources or _CODE is None:
            return None
        words = "" if self.model.words is None else self._words_digest
        made = hashlib.blake2b(
            content_key(_CODE, self.texts_of, self._reader, words).encode(), digest_size=16
        )
        for prompt in prompts:
            raw = prompt.encode("utf-8", "surrogatepass")
            made.update(b"%d:%b" % (len(raw), raw))
        return made.hexdigest()

    def all_prompts(self) -> Iterator[str]:
        """Every prompt the units can have, without duplicates."""
        seen: set[str] = set()
        for entry in self.units.entries:
            # both sides of a pair have the same prompts
            item: Item = entry.chosen if self.units.dpo else entry
            rules = self.rules[item.concept]
            for visit in range(rules.prompt_count(item.prompts)):
                prompt = rules.prompt(item.prompts, entry.id, visit, cached=True)
                if prompt not in seen:
                    seen.add(prompt)
                    yield prompt

    def encode_task(self, task: TextTask) -> dict[str, torch.Tensor]:
        """Encode a prompt in the form in which it is cached."""
        return self.text_row(task.prompt, [load_source(plan, self.files) for plan in task.plans])

    def text_row(self, prompt: str, shown: Sequence[np.ndarray[Any, Any]] = ()) -> dict[str, torch.Tensor]:
        """Encode one prompt in the form in which it is cached. It is encoded separately, because in a batch
        its last digits would depend on the other prompts.

        Args:
            shown: (H, W, 3) pixels of the images shown to the encoder, 0 to 255.
        """
        (row,) = self._states(prompt, shown).unbind()
        return {name: _kept_exactly(tensor) for name, tensor in row.items()}

    def _states(self, prompt: str, shown: Sequence[np.ndarray[Any, Any]]) -> Conditioning:
        if not shown:
            return self.setup.text_states(self.model, [prompt])
        return self.setup.text_states(self.model, [prompt], Sources(_pixels([one]) for one in shown))

    @contextmanager
    def on_device(self, *parts: str) -> Iterator[None]:
        """Move the needed parts to the compute device while something is encoded."""
        with ExitStack() as stack:
            for name in parts:
                if name in self.model.parts:
                    stack.enter_context(self.model.borrowed(name))
            yield

    # -- batches -------------------------------------------------------------------------------------------

    def conditioning(
        self, items: Sequence[dict[str, Any]], side: str, encode: Callable[..., dict[str, torch.Tensor]]
    ) -> Conditioning | None:
        """The conditioning of prompts, cached or encoded now; ``None`` if a text encoder is trained."""
        if self.texts is not None:
            return Conditioning.stack([_in_float32(item[f"{side}cond"]) for item in items])
        if self.trains_text:
            return None
        with self.on_device(*self.model.text_encoders):
            if self.encodes_shown:
                rows = [encode(item[f"{side}prompt"], item[f"{side}source_pixels"]) for item in items]
            else:
                rows = [encode(item[f"{side}prompt"]) for item in items]
            return Conditioning.stack([_in_float32(row) for row in rows])

    def blank(self, items: Sequence[dict[str, Any]], side: str) -> Conditioning | None:
        """The conditioning of the empty prompt, if captions are dropped and it differs between images."""
        if not self._drops_captions:
            return None
        if self.texts is not None:
            return Conditioning.stack([_in_float32(item[f"{side}blank"]) for item in items])
        with self.on_device(*self.model.text_encoders):
            rows = [self.text_row("", item[f"{side}source_pixels"]) for item in items]
            return Conditioning.stack([_in_float32(row) for row in rows])

    def seen(self, items: Sequence[dict[str, Any]], side: str) -> Sources:
        """The images shown to a trained text encoder."""
        if not self.trains_text or not self.encodes_shown:
            return NO_SOURCES
        rows = [item[f"{side}source_pixels"] for item in items]
        return Sources(_pixels(place) for place in zip(*rows, strict=True))

    def prompt_encoder(self) -> Callable[..., dict[str, torch.Tensor]]:
        """``text_row`` for one batch, cached because both sides of a pair mostly have the same prompts and
        sources.
        """
        made: dict[object, dict[str, torch.Tensor]] = {}

        def encode(prompt: str, shown: Sequence[np.ndarray[Any, Any]] = ()) -> dict[str, torch.Tensor]:
            key = (prompt, *((one.shape, one.tobytes()) for one in shown))
            if key not in made:
                made[key] = self.text_row(prompt, shown)
            return made[key]

        return encode


def _pixels(images: Sequence[np.ndarray[Any, Any]]) -> torch.Tensor:
    """Convert (H, W, 3) images of one size to (B, 3, H, W) uint8."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


def _kept_exactly(tensor: torch.Tensor) -> torch.Tensor:
    """A text state in its cached form: 16-bit types are kept, all other floating-point types become float32."""
    whole = not tensor.is_floating_point() or tensor.dtype in (torch.bfloat16, torch.float16)
    return tensor if whole else tensor.float()


def _in_float32(row: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Cached text states in float32, as returned by ``encode_text``."""
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in row.items()}
