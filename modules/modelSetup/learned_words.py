"""Turns the embeddings of a config into words of a model, and writes them to files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from modules.adapter.AdapterFile import AdapterFile
from modules.adapter.embedding_files import checked, output_width, read_embedding, save_embedding, table
from modules.model.dtypes import torch_dtype
from modules.model.Model import Model
from modules.model.text.LearnedWords import FILL, OUTPUT, PLACES, LearnedWord, LearnedWords
from modules.modelSetup.registry import create_model_setup
from modules.util.config.embedding.EmbeddingConfig import MOST_TOKENS, EmbeddingConfig
from modules.util.config.TrainConfig import TrainConfig
from modules.util.errors import ConfigError
from modules.util.files.output_place import word_files, words_folder
from modules.util.owned_files import Owned

Named = list[tuple[str, nn.Parameter]]
Vectors = Mapping[str, torch.Tensor]


def add_words(model: Model, config: TrainConfig, source: AdapterFile | None = None) -> None:
    """Add the embeddings of a config to a model, and those that come with an adapter.

    Embeddings of the config without a file start with the adapter's vectors, if it has them.

    Raises:
        UserError: a placeholder is in the vocabulary, or a file does not fit.
    """
    embedded = {} if source is None else dict(source.embeddings)
    own = config.places_of_embeddings()
    if not own and not embedded:
        return
    words: list[LearnedWord] = []
    kept = {name.casefold(): tensors for name, tensors in embedded.items()}
    for place, one in own.items():
        _check_placeholder(model, one.placeholder, f"{place}.placeholder")
        in_adapter = kept.pop(one.placeholder.casefold(), None)
        if one.model_name.strip():
            output = one.is_output_embedding
            vectors: Vectors = read_embedding(one.model_name, model, f"{place}.model_name", output)
        elif in_adapter is not None and source is not None:
            vectors = checked(in_adapter, model, source.source, "lora_model_name")
            _check_kind(vectors, one, place)
        else:
            vectors = _outputs_of_text(model, one, place) if one.is_output_embedding else _of_text(model, one)
        words.append(_word(model, one.placeholder, vectors, config, one.train))
    words += _of_adapter(model, source, kept)
    model.words = LearnedWords(words, _tokenizers(model))
    if config.preserve_embedding_norm:
        model.words.norms = {encoder: _median_norm(model, encoder) for encoder in model.text_encoders}


def add_words_of(
    model: Model, sources: Sequence[AdapterFile], own: Sequence[tuple[str, Path]] = (), field: str = ""
) -> None:
    """Set a model's embeddings for sampling to those of adapters and files.

    Args:
        own: placeholders and files.
        field: the field to correct if one of them does not fit.

    Raises:
        UserError: a placeholder is in the vocabulary or listed twice, or a file does not fit.
    """
    words = [word for source in sources for word in _of_adapter(model, source, source.embeddings)]
    for placeholder, path in own:
        _check_placeholder(model, placeholder, field)
        vectors = read_embedding(path, model, field, output=None)
        words.append(_sampled_word(placeholder, vectors))
    names = [word.placeholder.casefold() for word in words]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two embeddings are called {twice!r}", field, "leave one of them out")
    model.words = LearnedWords(words, _tokenizers(model)) if words else None


def _sampled_word(placeholder: str, vectors: Vectors) -> LearnedWord:
    return _named_word(
        placeholder, {name: nn.Parameter(rows, requires_grad=False) for name, rows in vectors.items()}
    )


def _named_word(placeholder: str, vectors: Mapping[str, nn.Parameter]) -> LearnedWord:
    """A word of vectors by text encoder, those of outputs by its name with ``OUTPUT``."""
    outputs = {name: rows for name, rows in vectors.items() if name.endswith(OUTPUT)}
    read = {name: rows for name, rows in vectors.items() if name not in outputs}
    return LearnedWord(placeholder, read, {name.removesuffix(OUTPUT): rows for name, rows in outputs.items()})


def _check_kind(vectors: Vectors, own: EmbeddingConfig, place: str) -> None:
    """Refuse to train vectors of another kind than the adapter holds for the same word."""
    there = any(name.endswith(OUTPUT) for name in vectors)
    if there is not own.is_output_embedding:
        raise ConfigError(
            f"the adapter holds {own.placeholder!r} {'as' if there else 'without'} output vectors",
            f"{place}.is_output_embedding",
            f"set it to {str(there).lower()}, or choose another placeholder",
        )


def _of_adapter(
    model: Model, source: AdapterFile | None, embedded: Mapping[str, Vectors]
) -> list[LearnedWord]:
    made = []
    for placeholder, tensors in embedded.items() if source is not None else ():
        vectors = checked(tensors, model, source.source if source else "", "lora_model_name")
        made.append(_sampled_word(placeholder, vectors))
    return made


def noting_known_words(file: AdapterFile, model: Model) -> AdapterFile:
    """An adapter file with a note on embeddings whose placeholder already has a meaning in the model.

    Prompts that use such a word in its ordinary sense also get the vectors of the file.
    """
    known = [name for name in file.embeddings or () if _encoder_that_knows(model, name)]
    if not known:
        return file
    note = (
        f"{file.source}: these words of the model mean the embeddings of this file wherever a prompt uses them: "
        f"{', '.join(known[:5])}"
    )
    return replace(file, notes=(*file.notes, note))


def _tokenizers(model: Model) -> dict[str, Any]:
    return {name: _tokenizer(model, name) for name in model.text_encoders}


def _tokenizer(model: Model, encoder: str) -> Any:
    return model.parts[encoder.replace("text_encoder", "tokenizer")]


def _numbers(tokenizer: Any, text: str) -> list[int]:
    numbers: list[int] = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False).input_ids
    return numbers


def _check_placeholder(model: Model, placeholder: str, field: str) -> None:
    encoder = _encoder_that_knows(model, placeholder)
    if encoder:
        raise ConfigError(
            f"{placeholder!r} is one token of the vocabulary of {encoder} and already has a meaning",
            field,
            "choose another word, such as <my-cat>",
        )


def _encoder_that_knows(model: Model, placeholder: str) -> str:
    """The first text encoder in whose vocabulary a word is a single token; empty if there is none."""
    for encoder in model.text_encoders:
        tokenizer = _tokenizer(model, encoder)
        unknown = tokenizer.unk_token_id
        number = tokenizer.convert_tokens_to_ids(placeholder)
        if len(_numbers(tokenizer, placeholder)) == 1 or number not in (None, unknown):
            return encoder
    return ""


def _of_text(model: Model, config: EmbeddingConfig) -> dict[str, torch.Tensor]:
    """The vectors of the initial text, (tokens, E) by encoder."""
    numbers = {
        name: _numbers(_tokenizer(model, name), config.initial_embedding_text) for name in model.text_encoders
    }
    count = config.token_count or min(MOST_TOKENS, max([1, *map(len, numbers.values())]))
    made = {}
    for encoder, own in numbers.items():
        fill = _numbers(_tokenizer(model, encoder), FILL)[:1]
        rows = table(model, encoder)
        made[encoder] = rows.detach()[torch.tensor((own + fill * count)[:count], device=rows.device)].float()
    return made


def _outputs_of_text(model: Model, config: EmbeddingConfig, place: str) -> dict[str, torch.Tensor]:
    """Return the outputs of the text encoders where they read the initial text in place of the word, (tokens, E)
    each.
    """
    encoders = [name for name in model.spec.output_encoders if name in model.text_encoders]
    own = {name: _numbers(_tokenizer(model, name), config.initial_embedding_text) for name in encoders}
    count = config.token_count or min(MOST_TOKENS, max(1, *map(len, own.values())))
    device = table(model, encoders[0]).device
    blank = {name: torch.zeros(count, output_width(model, name), device=device) for name in encoders}
    if device.type == "meta":
        return {f"{name}{OUTPUT}": rows for name, rows in blank.items()}
    probe = _sampled_word(config.placeholder, {f"{name}{OUTPUT}": rows for name, rows in blank.items()})
    fill = {name: _numbers(_tokenizer(model, name), FILL)[-1:] for name in encoders}
    reads = {name: (own[name] + fill[name] * count)[:count] for name in encoders}
    setup, before = create_model_setup(model.spec.key), model.words
    model.words = LearnedWords([probe], _tokenizers(model), reads=reads)
    try:
        with model.borrowed_encoders():
            cond = setup.text_states(model, [config.placeholder])
    finally:
        model.words = before
    made: dict[str, torch.Tensor] = {}
    hidden_LE, places_L = cond["hidden_BLE"][0], cond[PLACES][0]
    for number, group in enumerate(model.spec.output_groups):
        rows_NE = hidden_LE[(places_L > number * count) & (places_L <= (number + 1) * count)]
        for name in group if group[0] in blank else ():
            if len(rows_NE) < count:
                raise ConfigError(
                    f"{count} tokens are more than a prompt has room for",
                    f"{place}.token_count",
                    "set a smaller number",
                )
            width = blank[name].shape[1]
            made[f"{name}{OUTPUT}"] = rows_NE[:, :width].float().cpu()
            rows_NE = rows_NE[:, width:]
    return made


def _word(model: Model, placeholder: str, vectors: Vectors, config: TrainConfig, train: bool) -> LearnedWord:
    dtype = torch_dtype(config.embedding_weight_dtype, "embedding_weight_dtype")
    made = {}
    for encoder, rows in vectors.items():
        trained = train and getattr(config, encoder.removesuffix(OUTPUT)).train_embedding
        made[encoder] = nn.Parameter(rows.detach().to(dtype=dtype, copy=True), requires_grad=trained)
    return _named_word(placeholder, made)


def _median_norm(model: Model, encoder: str) -> float:
    """The median norm of the vectors in a text encoder's vocabulary."""
    rows = table(model, encoder).detach()
    return 0.0 if rows.device.type == "meta" else float(rows.float().norm(dim=1).median())


def save_words(
    model: Model,
    words: Sequence[LearnedWord],
    saved: Path,
    dtype: torch.dtype | None,
    facts: Mapping[str, str],
) -> None:
    """Write embeddings as files to a folder next to the output, ``NAME_embeddings``."""
    if not words:
        return
    folder = words_folder(saved)
    owned = Owned(folder.parent, local=True)
    owned.folder(folder.name)
    names = word_files([word.placeholder for word in words])
    for word, name in zip(words, names, strict=True):
        save_embedding(word, model, owned.path(f"{folder.name}/{name}"), dtype, facts)
