"""Tokenizes prompts and runs text encoders, shared by several families."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from modules.model.text.emphasis import emphasised
from modules.model.text.LearnedWords import AddedRows


def tokenize(
    tokenizer: Any,
    prompts: Sequence[str],
    encoder: nn.Module,
    limit: int,
    side: str | None = None,
    fill: bool = True,
    special: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token numbers (B, L) and which of them are not padding (B, L, bool), on the encoder's device.

    Args:
        limit: the length L to pad or truncate to, or the tokenizer's own limit if that is smaller.
        side: side of the padding, ``left`` or ``right``; the tokenizer's own by default.
        fill: pad to the limit; otherwise only to the longest prompt, for encoders unaffected by padding.
        special: whether to include the start and end marks that the tokenizer adds.
    """
    # a tokenizer without a limit of its own reports a huge one
    length = min(limit, tokenizer.model_max_length)
    tokens = tokenizer(
        list(prompts),
        padding="max_length" if fill else "longest",
        max_length=length,
        truncation=True,
        return_tensors="pt",
        padding_side=side or tokenizer.padding_side,
        add_special_tokens=special,
    )
    device = next(encoder.parameters()).device
    return tokens.input_ids.to(device), tokens.attention_mask.to(device).bool()


def cut_prompts(tokenizers: Sequence[Any], texts: Sequence[str], limits: Sequence[int]) -> list[bool]:
    """Return which texts are too long for all of the tokenizers.

    Args:
        texts: the texts to encode, without their template.
        limits: maximum number of tokens of a text per tokenizer, or the tokenizer's own limit if that is
            smaller.
    """
    if not tokenizers or not texts:
        return [False] * len(texts)
    room = [min(known.model_max_length, limit) for known, limit in zip(tokenizers, limits, strict=True)]
    # of equals the last one, which in Anima determines the positions of the words
    widest = max(reversed(range(len(tokenizers))), key=room.__getitem__)
    ids = tokenizers[widest](list(texts), truncation=False, verbose=False).input_ids
    return [len(tokens) > room[widest] for tokens in ids]


def clip_states(
    encoder: nn.Module,
    tokenizer: Any,
    prompts: Sequence[str],
    layer: int | None = None,
    skip: int = 0,
    added: AddedRows | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token states (B, L, E) and the pooled state (B, E) of a CLIP text encoder.

    Args:
        layer: index of the hidden state, counted from the end (-2 is the one before the last, without the
            final norm); ``None`` is the last one with the final norm.
        skip: number of layers before that one from which states are taken; the pooled state is unaffected.
        added: rows added to the encoder's table.

    The pooled state is projected if the encoder has a projection.
    """
    ids_BL, _ = tokenize(tokenizer, prompts, encoder, encoder.config.max_position_embeddings)  # type: ignore[union-attr, arg-type]
    states_BLE, pooled_BE = clip_outputs(encoder, ids_BL, layer, skip, added)
    return emphasised(states_BLE, tokenizer, prompts), pooled_BE


def clip_outputs(
    encoder: nn.Module,
    ids_BL: torch.Tensor,
    layer: int | None,
    skip: int = 0,
    added: AddedRows | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``clip_states``, for token numbers.

    Args:
        added: rows added to the encoder's table.
    """
    with looked_up(encoder, ids_BL, added) as known_BL:
        out = encoder(known_BL, output_hidden_states=layer is not None or skip > 0)
    pooled_BE = out.text_embeds if hasattr(out, "text_embeds") else out.pooler_output
    if layer is not None:
        return out.hidden_states[layer - skip], pooled_BE
    if skip == 0:
        return out.last_hidden_state, pooled_BE
    return encoder.final_layer_norm(out.hidden_states[-1 - skip]), pooled_BE  # type: ignore[operator]


def looked_up(
    encoder: nn.Module, ids_BL: torch.Tensor, added: AddedRows | None
) -> AbstractContextManager[torch.Tensor]:
    """Inside the block, an encoder may get token numbers beyond its table. Yields the numbers to pass to it."""
    return nullcontext(ids_BL) if added is None else added.looked_up(encoder, ids_BL)


def t5_states(
    encoder: nn.Module,
    tokenizer: Any,
    prompts: Sequence[str],
    limit: int,
    masked: bool = False,
    added: AddedRows | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token states (B, L, E) of a T5 encoder and which tokens are not padding (B, L, bool).

    Args:
        masked: hide padding from the encoder; Stable Diffusion 3 and FLUX.1 were trained without this.
        added: rows added to the encoder's table.
    """
    ids_BL, mask_BL = tokenize(tokenizer, prompts, encoder, limit)
    with looked_up(encoder, ids_BL, added) as known_BL:
        hidden_BLE = encoder(known_BL, attention_mask=mask_BL if masked else None)[0]
    return emphasised(hidden_BLE, tokenizer, prompts), mask_BL


def chat_messages(tokenizer: Any, prompts: Sequence[str], **options: bool) -> list[str]:
    """Format prompts as user messages to a chat model that is about to answer, with the tokenizer's template.

    Args:
        options: options of the template, such as ``enable_thinking``.
    """
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True, **options
        )
        for prompt in prompts
    ]


def tokens_before(
    tokenizer: Any, texts: Sequence[str], encoder: nn.Module, limit: int, suffix: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``tokenize``, padded on the right to the longest, with further tokens directly after each text."""
    length = min(limit, tokenizer.model_max_length)
    last = tokenizer(suffix).input_ids
    rows = [
        torch.tensor([*row, *last])
        for row in tokenizer(list(texts), max_length=length, truncation=True).input_ids
    ]
    ids_BL = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)
    lengths_B1 = torch.tensor([[len(row)] for row in rows])
    mask_BL = torch.arange(ids_BL.shape[1])[None] < lengths_B1
    device = next(encoder.parameters()).device
    return ids_BL.to(device), mask_BL.to(device)


def causal_states(
    encoder: nn.Module,
    tokenizer: Any,
    texts: Sequence[str],
    limit: int,
    layers: Sequence[int],
    padded: bool = False,
    suffix: str = "",
    added: AddedRows | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states (B, L, E) of a language model and which tokens are not padding (B, L, bool). Padding
    follows the text, where a causal model does not see it, and its own states are zeros.

    Args:
        layers: indices of the hidden states, concatenated along E; -1 is the last one with the final norm.
        padded: always pad to the limit and include the states of the padding, for models trained to see them.
        suffix: appended to every text, even a truncated one.
        added: the rows added to the encoder's table.
    """
    if suffix:
        ids_BL, mask_BL = tokens_before(tokenizer, texts, encoder, limit, suffix)
    else:
        ids_BL, mask_BL = tokenize(tokenizer, texts, encoder, limit, side="right", fill=padded)
    with looked_up(encoder, ids_BL, added) as known_BL:
        states_BLE = states_of(encoder, known_BL, mask_BL, layers)
    return (states_BLE if padded else states_BLE.masked_fill(~mask_BL[..., None], 0.0)), mask_BL


def states_of(
    encoder: nn.Module, ids_BL: torch.Tensor, mask_BL: torch.Tensor, layers: Sequence[int]
) -> torch.Tensor:
    """Hidden states (B, L, E) of a language model, with those of several layers concatenated along E."""
    out = encoder(input_ids=ids_BL, attention_mask=mask_BL.long(), output_hidden_states=True, use_cache=False)
    return torch.cat([out.hidden_states[layer] for layer in layers], dim=-1)


@contextmanager
def unnormed(encoder: Any) -> Iterator[None]:
    """Inside the block, the last states of a language model are without its norm."""
    handle = encoder.norm.register_forward_hook(lambda _module, given, _made: given[0])
    try:
        yield
    finally:
        handle.remove()
