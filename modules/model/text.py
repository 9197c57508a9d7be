"""Prompts to tokens and through text encoders, as several families do it. No prompt weighting: brackets are text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn


def tokenize(
    tokenizer: Any, prompts: Sequence[str], encoder: nn.Module, limit: int, side: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token numbers (B, L) and which of them are not padding (B, L, bool), on the encoder's device.

    Args:
        limit: the L everything is padded or cut to; a tokenizer that knows a smaller one decides.
        side: where the padding goes, ``left`` or ``right``; the tokenizer's own by default.
    """
    # a tokenizer without a limit of its own reports an astronomical one
    length = min(limit, tokenizer.model_max_length)
    tokens = tokenizer(
        list(prompts),
        padding="max_length",
        max_length=length,
        truncation=True,
        return_tensors="pt",
        padding_side=side or tokenizer.padding_side,
    )
    device = next(encoder.parameters()).device
    return tokens.input_ids.to(device), tokens.attention_mask.to(device).bool()


def clip_states(
    encoder: nn.Module, tokenizer: Any, prompts: Sequence[str], layer: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token states (B, L, E) and the pooled state (B, E) of a CLIP text encoder.

    Args:
        layer: which of the hidden states, counted from the end (-2 is the one before the last, without the final
            norm); ``None`` is the last one with the final norm.

    The pooled state is the projected one where the encoder has a projection.
    """
    ids_BL, _ = tokenize(tokenizer, prompts, encoder, encoder.config.max_position_embeddings)  # type: ignore[union-attr, arg-type]
    out = encoder(ids_BL, output_hidden_states=layer is not None)
    pooled = out.text_embeds if hasattr(out, "text_embeds") else out.pooler_output
    return (out.last_hidden_state if layer is None else out.hidden_states[layer]), pooled


def t5_states(
    encoder: nn.Module, tokenizer: Any, prompts: Sequence[str], limit: int, masked: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token states (B, L, E) of a T5 encoder and which tokens are not padding (B, L, bool).

    Args:
        masked: keep the encoder from looking at padding; Stable Diffusion 3 and FLUX.1 were trained without.
    """
    ids_BL, mask_BL = tokenize(tokenizer, prompts, encoder, limit)
    hidden_BLE = encoder(ids_BL, attention_mask=mask_BL if masked else None)[0]
    return hidden_BLE, mask_BL
