"""Words with vectors of their own in the text encoders (textual inversion, Gal et al. 2022, arXiv
2208.01618).

In a prompt, a word is replaced by one letter per vector, which the tokenizer treats as a token of its own.
The token numbers follow the vocabulary, and the vectors replace the rows of the encoder's table. The table,
the model's own tokenizer and prompts without such a word are unchanged, bit for bit.

A word may have output vectors instead. The encoder then reads ``*`` in its place, and the vectors replace the
encoder's output there. The states of a prompt say where. The vectors are inserted for each prediction, so prompts
stay cached while the word is trained.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from modules.model.text.emphasis import WeightedPrompt

FILL = "*"
"""Read by the encoder in place of output vectors; also the padding of initial texts."""
OUTPUT = "_out"
"""Suffix of the names of vectors that replace a text encoder's output."""
PLACES = "placed_BL"
"""The entry in a prompt's states with the places of output vectors: their numbers from 1, 0 elsewhere. Each further
group of text encoders (``FamilySpec.output_groups``) continues the numbers.
"""
PREFIX = "embedding/"
"""Prefix of the vectors among the parameters of a run."""
_FIRST_LETTER = 0xF0000
"""In a Unicode plane that no text uses."""


@dataclass
class LearnedWord:
    """One word.

    Args:
        placeholder: how it is written in prompts, ignoring case.
        vectors: text encoder -> its vectors (tokens, E); those that are trained require a gradient.
        outputs: text encoder -> the vectors that take the place of its output, for words without others.
    """

    placeholder: str
    vectors: dict[str, nn.Parameter]
    outputs: dict[str, nn.Parameter] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Number of tokens in a prompt."""
        return next(iter((self.vectors or self.outputs).values())).shape[0]

    @property
    def trained(self) -> bool:
        return any(vectors.requires_grad for _, vectors in self.named())

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """The vectors by their names among the parameters of a run."""
        own = {**self.vectors, **{f"{encoder}{OUTPUT}": rows for encoder, rows in self.outputs.items()}}
        return [(f"{PREFIX}{self.placeholder}.{name}", rows) for name, rows in own.items()]


@dataclass(frozen=True)
class AddedRows:
    """Rows added to one text encoder's table.

    Args:
        first: the number of the first added token.
        rows: vectors of the words, (tokens, E) each, in the order of the numbers.
        reads: for each added token, the number that is read instead where it has an output vector, else -1.
    """

    first: int
    rows: tuple[torch.Tensor, ...]
    reads: tuple[int, ...]

    @contextmanager
    def looked_up(self, encoder: nn.Module, ids_BL: torch.Tensor) -> Iterator[torch.Tensor]:
        """Inside the block, the encoder finds the added rows. Yields the token numbers to pass to it, which
        contain none that its table lacks.
        """
        added_BL = ids_BL >= self.first
        if not bool(added_BL.any()):
            yield ids_BL
            return
        index_BL = (ids_BL - self.first).clamp(min=0)
        read_BL = self._looked_up(self.reads, index_BL)
        put_out_BL = added_BL & (read_BL >= 0)
        ids_BL, added_BL = torch.where(put_out_BL, read_BL, ids_BL), added_BL & ~put_out_BL
        if not self.rows:
            yield ids_BL
            return
        # elsewhere there may be no row of this number
        index_BL = self._looked_up(_counted(number < 0 for number in self.reads), index_BL).where(added_BL, 0)

        def replaced(_module: nn.Module, _args: Any, out_BLE: torch.Tensor) -> torch.Tensor:
            rows_NE = torch.cat([rows.to(out_BLE.device, out_BLE.dtype) for rows in self.rows])
            return torch.where(added_BL[..., None], rows_NE[index_BL], out_BLE)

        handles = [table.register_forward_hook(replaced) for table in _tables(encoder)]
        try:
            # some encoders take their pooled state from the position of the highest token number
            yield ids_BL.masked_fill(added_BL, 0)
        finally:
            for handle in handles:
                handle.remove()

    def placed(self, ids_BL: torch.Tensor, group: int = 0) -> torch.Tensor:
        """``PLACES`` of token numbers.

        Args:
            group: that of the encoder that reads them, see ``FamilySpec.output_groups``.
        """
        first = group * sum(number >= 0 for number in self.reads)
        outputs = _counted(number >= 0 for number in self.reads)
        numbers = tuple(
            first + place + 1 if read >= 0 else 0 for place, read in zip(outputs, self.reads, strict=True)
        )
        made_BL = self._looked_up(numbers, (ids_BL - self.first).clamp(min=0))
        return made_BL.masked_fill(ids_BL < self.first, 0)

    @property
    def puts_out(self) -> bool:
        """True if any token has an output vector."""
        return any(number >= 0 for number in self.reads)

    @staticmethod
    def _looked_up(numbers: Sequence[int], index_BL: torch.Tensor) -> torch.Tensor:
        known = torch.tensor(numbers, device=index_BL.device)
        return known[index_BL.clamp(max=len(numbers) - 1)]


def _counted(of_kind: Iterable[bool]) -> tuple[int, ...]:
    """The place of each thing among those of a kind; the others have any."""
    made, count = [], 0
    for one in of_kind:
        made.append(count)
        count += one
    return tuple(made)


def _tables(encoder: nn.Module) -> list[nn.Module]:
    """The modules that look up vectors in an encoder's table. T5 has two that share it, and uses the inner one."""
    named: nn.Module = encoder.get_input_embeddings()  # type: ignore[operator]
    alike: list[nn.Module] = [
        m for m in encoder.modules() if isinstance(m, nn.Embedding) and m.weight is named.weight
    ]
    return alike or [named]


@dataclass
class LearnedWords:
    """The words of a model.

    Args:
        words: the words in token order; placeholders must differ in more than case.
        tokenizers: text encoder -> its original tokenizer.
        start: names and initial values of all vectors; by default the current ones.
        norms: text encoder -> the norm that trained vectors keep, if any.
        reads: text encoder -> the tokens read in place of output vectors; by default ``FILL``.
    """

    words: list[LearnedWord]
    tokenizers: Mapping[str, Any]
    start: dict[str, torch.Tensor] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    reads: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start = self.start or {name: rows.detach().clone() for name, rows in self.named()}
        self._ever_trained = {name for name, rows in self.named() if rows.requires_grad}
        self._letters: list[str] = []
        count = 0
        for word in self.words:
            letters = "".join(chr(_FIRST_LETTER + count + place) for place in range(word.tokens))
            self._letters.append(letters)
            count += word.tokens
        self._pattern = _pattern([word.placeholder for word in self.words])
        self._extended = {name: self._extend(known) for name, known in self.tokenizers.items()}

    def _extend(self, tokenizer: Any) -> tuple[Any, int]:
        """A copy of a tokenizer that knows the letters, and the number of the first one."""
        from tokenizers import AddedToken

        made, first = copy.deepcopy(tokenizer), len(tokenizer)
        letters = "".join(self._letters)
        made.add_tokens([AddedToken(letter, normalized=False, special=False) for letter in letters])
        numbers = [made.convert_tokens_to_ids(letter) for letter in letters]
        if numbers != list(range(first, first + len(letters))):
            raise RuntimeError(f"the tokenizer {type(tokenizer).__name__} does not take further tokens")
        return made, first

    def tokenizer(self, encoder: str) -> Any:
        """The tokenizer of an encoder that knows the words, for ``expanded`` prompts."""
        return self._extended[encoder][0]

    def rows(self, encoder: str) -> AddedRows:
        """The rows added to an encoder's table."""
        rows = tuple(word.vectors[encoder] for word in self.words if word.vectors)
        reads: list[int] = []
        for word in self.words:
            reads += [-1] * word.tokens if word.vectors else self._read_instead(encoder, word.tokens)
        return AddedRows(self._extended[encoder][1], rows, tuple(reads))

    def _read_instead(self, encoder: str, count: int) -> list[int]:
        """The numbers of the tokens that an encoder reads at the places of ``count`` output vectors."""
        if encoder in self.reads:
            return self.reads[encoder]
        fill = self.tokenizers[encoder](FILL, add_special_tokens=False).input_ids
        return [fill[-1] if fill else 0] * count

    @property
    def puts_out(self) -> bool:
        """True if any word has output vectors."""
        return any(word.outputs for word in self.words)

    def put_in(
        self, states_BLE: torch.Tensor, places_BL: torch.Tensor, groups: Sequence[Sequence[str]]
    ) -> torch.Tensor:
        """States of prompts with the output vectors of words at their places.

        Args:
            places_BL: ``PLACES``.
            groups: the text encoders in the arrangement of their states, see ``FamilySpec.output_groups``. The
                vectors of a group are padded with zeros to the width of the states.
        """
        words = [word.outputs for word in self.words if word.outputs]
        made: list[torch.Tensor] = []
        for group in groups:
            own = [encoder for encoder in group if encoder in words[0]]
            if own:
                made += [torch.cat([rows[encoder] for encoder in own], dim=-1) for rows in words]
        width = states_BLE.shape[-1]
        filled = [nn.functional.pad(one, (0, width - one.shape[-1])) for one in made]
        rows_NE = torch.cat([one.to(states_BLE.device, states_BLE.dtype) for one in filled])
        return torch.where((places_BL > 0)[..., None], rows_NE[(places_BL - 1).clamp(min=0)], states_BLE)

    def places_digest(self) -> str:
        """Of which words have output vectors, and how many, in hex."""
        told = repr([(word.placeholder.casefold(), word.tokens) for word in self.words if word.outputs])
        return hashlib.blake2b(told.encode(errors="surrogatepass"), digest_size=16).hexdigest()

    # -- prompts -------------------------------------------------------------------------------------------

    def found_in(self, prompt: str) -> bool:
        """Return whether a prompt contains any of the words."""
        return self._pattern.search(prompt) is not None

    def names_in(self, prompt: str) -> set[str]:
        """The placeholders that occur in a prompt."""
        return {self.words[_place(match)].placeholder for match in self._pattern.finditer(prompt)}

    def expanded(self, prompt: str) -> str:
        """Replace words in a prompt by their letters. Emphasis of a word applies to each of its letters."""
        if not self.found_in(prompt):
            return prompt
        text: list[str] = []
        weights: list[float] = []
        known = prompt.weights if isinstance(prompt, WeightedPrompt) else None
        end = 0
        for match in self._pattern.finditer(prompt):
            letters = self._letters[_place(match)]
            text += [str(prompt)[end : match.start()], letters]
            if known is not None:
                weights += [*known[end : match.start()], *[known[match.start()]] * len(letters)]
            end = match.end()
        text.append(str(prompt)[end:])
        if known is None:
            return "".join(text)
        return WeightedPrompt("".join(text), [*weights, *known[end:]])

    # -- vectors -------------------------------------------------------------------------------------------

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """All vectors by name."""
        return [pair for word in self.words for pair in word.named()]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """All vectors by name, detached. Clone them to keep them."""
        return {name: rows.detach() for name, rows in self.named()}

    @property
    def trained(self) -> bool:
        """True if any vector is trained."""
        return any(word.trained for word in self.words)

    def to(self, device: torch.device | str) -> None:
        """Move the vectors, which stay the same parameters."""
        for _, rows in self.named():
            rows.data = rows.data.to(device)

    @contextmanager
    def as_at_the_start(self) -> Iterator[None]:
        """Inside the block, the vectors have their initial values; afterwards the current ones."""
        live = {name: rows.data for name, rows in self.named()}
        try:
            for name, rows in self.named():
                rows.data = self.start[name] = self.start[name].to(rows.device, rows.dtype)
            yield
        finally:
            for name, rows in self.named():
                rows.data = live[name]

    @torch.no_grad()
    def keep_norms(self, ended: bool = False) -> None:
        """Scale trained vectors to the norm they keep, if any. A vector of norm 0 is unchanged.

        Args:
            ended: include those whose training has ended. Vectors that already have their norm, up to
                rounding, are then unchanged, bit for bit.
        """
        for word in self.words:
            for encoder, rows in word.vectors.items():
                name = f"{PREFIX}{word.placeholder}.{encoder}"
                trained = rows.requires_grad or (ended and name in self._ever_trained)
                if not trained or encoder not in self.norms:
                    continue
                wide, norm = rows.float(), self.norms[encoder]
                length = wide.norm(dim=-1, keepdim=True)
                # the length itself is computed with 32 bits
                rounding = max(torch.finfo(rows.dtype).eps, 4 * torch.finfo(torch.float32).eps)
                near = rounding * norm if ended else -1.0
                change = (length > 0) & ((length - norm).abs() > near)
                rows.copy_(torch.where(change, wide * (norm / length), wide))

    def start_digest(self) -> str:
        """Digest of the words and their initial vectors, in hex."""
        return _digest(self.start)

    def digest(self) -> str:
        """Digest of the words and their current vectors, in hex, without output vectors, which no encoder reads."""
        own = [pair for word in self.words if word.vectors for pair in word.named()]
        return _digest({name: rows.detach() for name, rows in own})


def _pattern(placeholders: Sequence[str]) -> re.Pattern[str]:
    """A pattern for placeholders that are not part of a longer word, longest first, each in a group of its own."""
    made = []
    for place, text in sorted(enumerate(placeholders), key=lambda one: len(one[1]), reverse=True):
        before = r"(?<!\w)" if re.match(r"\w", text) else ""
        after = r"(?!\w)" if re.search(r"\w\Z", text) else ""
        made.append(f"(?P<word{place}>{before}{re.escape(text)}{after})")
    return re.compile("|".join(made) or r"(?!)", re.IGNORECASE)


def _place(match: re.Match[str]) -> int:
    """Index of the matched word, because letters that are equal ignoring case may be written in several ways."""
    assert match.lastgroup is not None
    return int(match.lastgroup.removeprefix("word"))


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    hasher = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors.items():
        hasher.update(f"{name}\0{tensor.dtype}{tuple(tensor.shape)}".encode())
        if tensor.device.type != "meta":
            hasher.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return hasher.hexdigest()
