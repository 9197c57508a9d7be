"""Qwen-Image 2.1: Qwen3-VL read before its last norm. Text and images form one sequence, causal except for
the images.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from modules.model.batch import Conditioning, Sources
from modules.model.Model import Model
from modules.model.noising.sampling import dynamic_shift
from modules.model.text.encoding import causal_states, tokens_before, unnormed
from modules.model.text.vision import PICTURE, PatchRules, Pictures, countable
from modules.modelSetup.QwenAutoencoder import QwenAutoencoder
from modules.modelSetup.registry import model_setup
from modules.spec.registry import FAMILIES
from modules.util.errors import UserError
from modules.util.published_models import sample_levels

SYSTEM = "<|im_start|>system\nComprehend and analyze the provided prompt.<|im_end|>\n"
BEFORE = f"{SYSTEM}<|im_start|>user\n"
BEFORE_TOKENS = 3
"""Tokens between the system message and a prompt."""
AFTER = "<|im_end|>\n<|im_start|>assistant\n"
AFTER_TOKENS = 5
SLOT = 4
"""Image tokens per entry of its mask, and per token of the text encoder."""
SLOTS = "slots_BL"
"""For each text token: the number of image slots after which it is the first token."""
GREY = (0.5, 0.5, 0.5)
"""Mean and standard deviation of the colours shown to Qwen3-VL."""
RGB = 3


@model_setup
class Qwen21Setup(QwenAutoencoder):
    """Made to be sampled without guidance; true guidance is possible. It also edits images, which its text
    encoder sees.
    """

    spec = FAMILIES["QWEN_21"]

    def _encode(self, model: Model, prompts: Sequence[str]) -> Conditioning:
        tokenizer = model.parts["processor"]
        # without the vision tower and the language model head
        whole: Any = model.module("text_encoder")
        encoder = whole.model.language_model
        dropped = len(tokenizer(SYSTEM).input_ids)
        with unnormed(encoder):
            states_BLE, mask_BL = causal_states(
                encoder,
                tokenizer,
                # the model has no state for an empty text
                [f"{BEFORE}{prompt or ' '}" for prompt in prompts],
                dropped + self.prompt_length(model) - AFTER_TOKENS,
                layers=(-1,),
                suffix=AFTER,
            )
        return Conditioning({"hidden_BLE": states_BLE[:, dropped:], "mask_BL": mask_BL[:, dropped:]})

    def _encode_seeing(self, model: Model, prompts: Sequence[str], seen: Sources) -> Conditioning:
        if not seen:
            return self._encode(model, prompts)
        tokenizer = model.parts["processor"]
        # without the language model head
        whole: Any = model.module("text_encoder")
        pictures = Pictures.of(seen, _patch_rules(whole.config.vision_config, model.latent_factor))
        named = " ".join(f"<image{number}>{PICTURE}" for number in range(1, len(seen) + 1))
        before = f"{BEFORE}{pictures.named_in(named)}"
        first, dropped = tokenizer(before).input_ids, len(tokenizer(SYSTEM).input_ids)
        ids_BL, mask_BL = tokens_before(
            tokenizer,
            # the model has no state for an empty text
            [f"{before}{prompt or ' '}" for prompt in prompts],
            whole,
            len(first) + self.prompt_length(model) - BEFORE_TOKENS - AFTER_TOKENS,
            AFTER,
        )
        # padding follows the text, where nothing attends to its positions
        every_BL = torch.ones(ids_BL.shape, dtype=torch.bool, device="cpu")
        shown = pictures.inputs(whole.model, tokenizer, first, every_BL)
        with unnormed(whole.model.language_model), countable(ids_BL, whole.model):
            out = whole.model(
                input_ids=ids_BL,
                attention_mask=mask_BL.long(),
                output_hidden_states=True,
                use_cache=False,
                **shown,
            )
        states_BLE = out.hidden_states[-1].masked_fill(~mask_BL[..., None], 0.0)
        # the denoiser has the latents of an image in place of its states
        at, slots = _words_and_slots(first[dropped:], whole.config.image_token_id, ids_BL.shape[1] - dropped)
        kept = torch.tensor(at, device=ids_BL.device)
        slots_BL = torch.tensor(slots, device=ids_BL.device).expand(len(ids_BL), -1)
        return Conditioning(
            {
                "hidden_BLE": states_BLE[:, dropped:][:, kept],
                "mask_BL": mask_BL[:, dropped:][:, kept],
                SLOTS: slots_BL.clone(),
            }
        )

    def denoise(
        self, model: Model, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning, size: tuple[int, int]
    ) -> torch.Tensor:
        """Denoise prompts of different lengths separately, because the position of an image in the sequence
        depends on the length.
        """
        lengths = cond.tokens()
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        made = []
        for length, rows in groupby(order, key=lengths.__getitem__):
            picked = torch.tensor(list(rows), device=x_BChw.device)
            own = Conditioning({name: one[picked, :length] for name, one in cond.tensors.items()})
            sources = Sources(one[picked].to(x_BChw.dtype) for one in cond.sources)
            made.append(_denoised(model.denoiser, x_BChw[picked], t_B[picked], own.editing(sources)))
        back = torch.tensor(order, device=x_BChw.device).argsort()
        return torch.cat(made)[back]

    def _encode_image(self, model: Model, rgb_BCHW: torch.Tensor) -> torch.Tensor:
        """Encode opaque images; the autoencoder also supports transparent ones."""
        config: Any = model.vae.config
        opaque_BCHW = torch.ones_like(rgb_BCHW[:, :1]).expand(-1, int(config.in_channels) - RGB, -1, -1)
        return super()._encode_image(model, torch.cat([rgb_BCHW, opaque_BCHW], dim=1))

    def _decode(self, model: Model, z_BChw: torch.Tensor) -> torch.Tensor:
        return super()._decode(model, z_BChw)[:, :RGB]

    def make_sampler(self, model: Model, name: object, steps: int, size: tuple[int, int]) -> Any:
        """Make a sampler with the published noise levels, if there are as many as ``steps``."""
        sampler = super().make_sampler(model, name, steps, size)
        levels = sample_levels(model.source)
        if len(levels) == steps and hasattr(sampler, "set_begin_index"):
            mu = dynamic_shift(self.image_tokens(model, size), model.parts.get("scheduler") or {})
            sampler.set_timesteps(steps, sigmas=levels, mu=mu)
        return sampler

    def image_tokens(self, model: Model, size: tuple[int, int]) -> int:
        """One token per latent."""
        return (size[0] // model.latent_factor) * (size[1] // model.latent_factor)


def _denoised(denoiser: Any, x_BChw: torch.Tensor, t_B: torch.Tensor, cond: Conditioning) -> torch.Tensor:
    """The prediction for latents whose prompts have the same length. Source images precede them."""
    images = [*cond.sources, x_BChw]
    shapes = [(1, *image_BChw.shape[-2:]) for image_BChw in images]
    height, width = x_BChw.shape[-2:]
    out_BLE: torch.Tensor = denoiser(
        hidden_states=torch.cat([image_BChw.flatten(2).transpose(1, 2) for image_BChw in images], dim=1),
        encoder_hidden_states=_with_places(cond, x_BChw.dtype),
        timestep=(t_B / 1000.0).to(x_BChw.dtype),
        img_shapes=[shapes] * len(x_BChw),
        img_mask=_image_slots(cond, height * width).expand(len(x_BChw), -1),
        return_dict=False,
    )[0]
    # its output for the sources is ignored
    x_BCn = out_BLE[:, -height * width :].transpose(1, 2)
    return x_BCn.unflatten(2, (height, width))  # type: ignore[no-any-return]


def _slots(cond: Conditioning) -> list[int]:
    """Number of image slots before each text token. Samples of one batch have the same."""
    hidden_BLE = cond["hidden_BLE"]
    if not cond.sources:
        return [0] * hidden_BLE.shape[1]
    if hidden_BLE.is_meta:
        # the positions of images depend on contents, which a forecast lacks, but do not affect its memory
        count = sum(one.shape[-2] * one.shape[-1] // SLOT for one in cond.sources)
        return [count, *[0] * (hidden_BLE.shape[1] - 1)]
    return [int(count) for count in cond[SLOTS][0].tolist()]


def _image_slots(cond: Conditioning, tokens: int) -> torch.Tensor:
    """(L,) bool, which positions of the sequence belong to images: sources between the texts, and the
    generated image at the end.

    Args:
        tokens: number of tokens of the generated image.
    """
    before = [place for count in _slots(cond) for place in (*[True] * count, False)]
    # the denoiser asks for the numbers of its mask, which plans without tensors must have too
    device = "cpu" if cond["hidden_BLE"].is_meta else cond["hidden_BLE"].device
    return torch.tensor([*before, *[True] * (tokens // SLOT)], device=device)


def _with_places(cond: Conditioning, dtype: torch.dtype) -> torch.Tensor:
    """(B, L, E) states of the texts, with zeros at image positions."""
    hidden_BLE = cond["hidden_BLE"].to(dtype)
    pieces, done = [], 0
    for at, count in enumerate(_slots(cond)):
        if count:
            blank_BLE = hidden_BLE.new_zeros(len(hidden_BLE), count, hidden_BLE.shape[2])
            pieces += [hidden_BLE[:, done:at], blank_BLE]
            done = at
    return torch.cat([*pieces, hidden_BLE[:, done:]], dim=1)


def _words_and_slots(first: Sequence[int], place: int, length: int) -> tuple[list[int], list[int]]:
    """Positions of the text tokens, and the number of image tokens directly before each.

    Args:
        first: the tokens with which all texts begin, including all images.
        place: the image token.
        length: number of tokens of the longest text.
    """
    at: list[int] = []
    slots: list[int] = []
    run = 0
    for index in range(length):
        if index < len(first) and first[index] == place:
            run += 1
        else:
            at.append(index)
            slots.append(run)
            run = 0
    return at, slots


def _patch_rules(vision: Any, factor: int) -> PatchRules:
    """Return the rules by which images are split into patches, whose tokens are the slots of the denoiser.
    Images are never rescaled.

    Args:
        vision: config of the text encoder's vision tower.
        factor: pixels per latent in each direction.

    Raises:
        UserError: images would be rescaled.
    """
    patch, merge = int(vision.patch_size), int(vision.spatial_merge_size)
    if (patch * merge) ** 2 != SLOT * factor**2:
        raise UserError(
            f"the text encoder makes a token of {patch * merge} pixels, and the denoiser one of {2 * factor}",
            field="text_encoder.model_name",
            hint="use the text encoder and the autoencoder that the model was published with",
        )
    return PatchRules(patch, merge, int(vision.temporal_patch_size), 1, sys.maxsize, GREY, GREY)
