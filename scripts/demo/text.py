"""The demo's tokenizer (a small real byte-pair vocabulary) and text encoder."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.models.clip.configuration_clip import CLIPTextConfig
from transformers.models.clip.modeling_clip import CLIPTextModel
from transformers.models.clip.tokenization_clip import CLIPTokenizer

from modules.util.jsonio import write_json, write_text
from modules.util.rng import python_random
from scripts.demo.world import draw_wish

START, END = "<|startoftext|>", "<|endoftext|>"
VOCABULARY = 800
LENGTH = 13
"""Longest caption in tokens, including start and end; text is padded to this length, not to 77."""


def train_tokenizer(seed: int, folder: Path, captions: int = 20000) -> CLIPTokenizer:
    """Learn a byte-pair vocabulary from captions and write it as a CLIP tokenizer folder."""
    rng = python_random("demo-tokenizer", seed)
    texts = [draw_wish(rng, held_out=False).caption() for _ in range(captions)]
    learner = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token=END))
    learner.normalizer = normalizers.Lowercase()
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern=Regex(r"[a-z]+|[0-9]|[^\sa-z0-9]+"), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    learner.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learner.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            initial_alphabet=alphabet,
            end_of_word_suffix="</w>",
            special_tokens=[],
            show_progress=False,
        ),
    )
    merges = [tuple(m) for m in json.loads(learner.to_str())["model"]["merges"]]
    tokens = [*alphabet, *(f"{c}</w>" for c in alphabet), *("".join(m) for m in merges)]
    vocabulary = {token: i for i, token in enumerate([*dict.fromkeys(tokens), START, END])}
    tokenizer = CLIPTokenizer(
        vocab=vocabulary,
        merges=merges,  # type: ignore[arg-type]  # said to be texts, but pairs are meant
        unk_token=END,
        bos_token=START,
        eos_token=END,
        pad_token=END,
        model_max_length=LENGTH,
    )
    tokenizer.save_pretrained(folder)
    write_json(folder / "vocab.json", vocabulary, indent=None)
    write_text(folder / "merges.txt", "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    return tokenizer


def make_text_encoder(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    """Three layers, width 128."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=LENGTH,
            projection_dim=128,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        )
    )
