"""ERNIE-Image: Ministral 3 text encoder, a one-stream flow transformer, FLUX.2's autoencoder."""

from __future__ import annotations

from modules.spec.FamilySpec import FamilySpec, PartSpec, block_presets
from modules.spec.parts import autoencoder, language_encoder, scheduler, transformer

TOKENS = 512
MOST_TOKENS = 2048
"""Maximum length in the published tokenizer."""

ERNIE = FamilySpec(
    key="ERNIE",
    label="ERNIE-Image",
    pipeline_class="ErnieImagePipeline",
    prediction="flow",
    parts=(
        transformer("transformer_ernie_image", "ErnieImageTransformer2DModel"),
        language_encoder(
            "ministral3_3b",
            "mistral3",
            "Mistral3Model",
            unread=("vision_tower.", "multi_modal_projector."),
        ),
        autoencoder("autoencoder_kl_flux2", "AutoencoderKLFlux2"),
        PartSpec(
            "tokenizer",
            "tokenizer",
            ("TokenizersBackend", "PreTrainedTokenizerFast"),
            "transformers.tokenization_utils_tokenizers",
        ),
        scheduler(),
    ),
    layer_presets=block_presets(("self_attention",), ("mlp",), ("layers.",)),
    model_architecture="Ernie",
    default_resolution=1024,
    size_multiple=16,
    even_steps=True,
    prompt_tokens=TOKENS,
    length_of="text_encoder",
    most_tokens=MOST_TOKENS,
    default_steps=50,
    default_cfg=4.0,
    default_sampler="EULER",
    order=105,
)
