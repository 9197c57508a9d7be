"""A tiny ERNIE-Image folder with random weights."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.tiny.flux_2 import build_patch_vae
from tests.tiny.pieces import write_folder
from tests.tiny.stable_diffusion import WORDS

TEXT_WIDTH = 16


def write_ministral_tokenizer(
    folder: Path, length: int = 2048, starts: bool = True, words: tuple[str, ...] = WORDS
) -> int:
    """Write a byte-level tokenizer as Mistral publishes them; returns the size of its vocabulary.

    Args:
        starts: whether it puts a start mark before every text.
        words: texts whose words have tokens of their own.
    """
    from tokenizers import Tokenizer
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.processors import TemplateProcessing
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(BPE())
    made.pre_tokenizer, made.decoder = ByteLevel(add_prefix_space=False), Decoder()
    marks = ["<unk>", "<s>", "</s>", "<pad>"]
    trainer = BpeTrainer(
        vocab_size=700, special_tokens=marks, initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator(list(words) * 4, trainer)
    if starts:
        made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=length,
    )
    tokenizer.save_pretrained(str(folder))
    return len(tokenizer)


def build_ministral(vocabulary_size: int, width: int = TEXT_WIDTH, layers: int = 3) -> torch.nn.Module:
    """Ministral 3 without a head, with the smallest tower for images it can have."""
    from transformers.models.mistral3.configuration_mistral3 import Mistral3Config
    from transformers.models.mistral3.modeling_mistral3 import Mistral3Model

    text = {
        "model_type": "mistral",
        "vocab_size": vocabulary_size,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 4096,
    }
    vision = {
        "model_type": "pixtral",
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 28,
        "patch_size": 14,
    }
    return Mistral3Model(Mistral3Config(text_config=text, vision_config=vision))


def build_transformer(channels: int = 8) -> torch.nn.Module:
    from diffusers.models.transformers.transformer_ernie_image import ErnieImageTransformer2DModel

    return ErnieImageTransformer2DModel(
        hidden_size=32,
        num_attention_heads=2,
        num_layers=2,
        ffn_hidden_size=48,
        in_channels=channels,
        out_channels=channels,
        text_in_dim=TEXT_WIDTH,
        rope_axes_dim=(4, 6, 6),
    )


def write(folder: Path, prediction: str, factor: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        size = write_ministral_tokenizer(folder / "tokenizer")
        modules = {
            "transformer": build_transformer(),
            # the last layer is not read; the more there are, the less it counts
            "text_encoder": build_ministral(size, layers=8),
            "vae": build_patch_vae(factor),
        }
        scheduler = {
            "_class_name": "FlowMatchEulerDiscreteScheduler",
            "num_train_timesteps": 1000,
            "shift": 4.0,
            "use_dynamic_shifting": False,
        }
        write_folder(folder, "ErnieImagePipeline", modules, {"tokenizer": "TokenizersBackend"}, scheduler)


FAMILIES = {"ERNIE": write}
