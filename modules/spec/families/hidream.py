"""HiDream-I1: two CLIP encoders, T5 and Llama 3.1 read at every depth; a flow transformer with experts."""

from __future__ import annotations

from modules.spec.FamilySpec import PartSpec, block_presets, flow_family
from modules.spec.parts import (
    clip_encoder,
    clip_tokenizer,
    kl_autoencoder,
    scheduler,
    t5_encoder,
    t5_tokenizer,
    transformer,
)

TOKENS = 128
MOST_TOKENS = 512
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
"""The repository of the fourth text encoder, because the repositories of HiDream-I1 lack it."""
# without the experts, because most tokens never reach any given one
_ATTENTION = ("attn1",)
_FEED_FORWARD = ("shared_experts", "ff_t")

HI_DREAM_FULL = flow_family(
    key="HI_DREAM_FULL",
    label="HiDream-I1",
    pipeline_class="HiDreamImagePipeline",
    parts=(
        transformer("transformer_hidream_image", "HiDreamImageTransformer2DModel"),
        clip_encoder("text_encoder", "lora_te1", "clip_l", projected=True),
        clip_encoder("text_encoder_2", "lora_te2", "clip_g", projected=True),
        t5_encoder("text_encoder_3", "lora_te3"),
        PartSpec(
            "text_encoder_4",
            "text_encoder",
            ("LlamaForCausalLM",),
            "transformers.models.llama.modeling_llama",
            kohya_prefix="lora_te4",
            comfy_name="llama",
            comfy_root="model",
            unread=("lm_head",),
            apart=LLAMA,
        ),
        kl_autoencoder(),
        clip_tokenizer(),
        clip_tokenizer("tokenizer_2", pad_token="!"),
        t5_tokenizer("tokenizer_3"),
        PartSpec(
            "tokenizer_4",
            "tokenizer",
            ("PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizerFast"),
            "transformers.tokenization_utils_tokenizers",
            apart=LLAMA,
        ),
        scheduler(),
    ),
    layer_presets=block_presets(
        _ATTENTION, _FEED_FORWARD, (*_ATTENTION, *_FEED_FORWARD, "block.adaLN_modulation")
    ),
    # which also train the experts
    onetrainer_presets={"attn-mlp": "attn1,ff_i", "blocks": "stream_block"},
    model_architecture="HiDream-I1",
    even_steps=False,
    prompt_tokens=TOKENS,
    length_of="text_encoder_4",
    most_tokens=MOST_TOKENS,
    padding="seen",
    default_cfg=5.0,
    default_sampler="UNIPC",
    order=97,
)
