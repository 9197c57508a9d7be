"""ERNIE-Image: Ministral 3 text encoder, a one-stream flow transformer, FLUX.2's autoencoder."""

from __future__ import annotations

from modules.spec.FamilySpec import PartSpec, block_presets, flow_family
from modules.spec.parts import autoencoder, language_encoder, scheduler, transformer

TOKENS = 512
MOST_TOKENS = 2048
"""Maximum length in the published tokenizer."""

ERNIE = flow_family(
    key="ERNIE",
    label="ERNIE-Image",
    pipeline_class="ErnieImagePipeline",
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
    prompt_tokens=TOKENS,
    most_tokens=MOST_TOKENS,
    default_cfg=4.0,
    order=105,
)
