"""A CLIP model of a few thousand weights with a tokenizer of single letters, as a folder."""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizer


def save_tiny_clip(folder: Path, seed: int = 0, width: int = 24, positions: int = 16) -> Path:
    letters = list(string.ascii_lowercase)
    words = [*letters, *(one + "</w>" for one in letters), "<|startoftext|>", "<|endoftext|>"]
    folder.mkdir(parents=True)
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    start, end = len(words) - 2, len(words) - 1
    text = {
        "vocab_size": len(words),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": positions,
        "bos_token_id": start,
        "eos_token_id": end,
        "pad_token_id": end,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 8,
    }
    torch.manual_seed(seed)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=width))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.3)
        model.logit_scale.fill_(3.0)
    model.save_pretrained(folder)
    tokenizer = CLIPTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}).save_pretrained(
        folder
    )
    return folder
