"""What can be named in a config but lives where torch is: rewards and accelerators, for forms and checks.

Others may be added by files in ``modules/reward`` and ``modules/accelerator``; a name that is not here is not wrong.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One thing with a name.

    Args:
        name: as configs have it.
        about: what it is, in a few words.
        params: the parameters it takes, needed ones first.
        needed: those that have no default.
        slot: of an accelerator, where it may stand.
    """

    name: str
    about: str
    params: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    slot: str = ""

    def help(self) -> str:
        """A sentence about it and its parameters."""
        if not self.params:
            return f"{self.about}. It has no parameters."
        names = ", ".join(f"{name} (needed)" if name in self.needed else name for name in self.params)
        return f"{self.about}. Parameters: {names}."


_CLIP = ("source", "processor", "dtype", "batch_size")
_REWARDS = (
    Entry("brightness", "Mean luma", ("target",)),
    Entry("contrast", "Deviation of luma", ("target",)),
    Entry("colourfulness", "How colourful an image is", ("target",)),
    Entry("sharpness", "Fine detail", ("target",)),
    Entry("symmetry_lr", "Likeness to the image mirrored left to right", ("target",)),
    Entry("entropy", "Variety of luma", ("target",)),
    Entry("clipped", "Few values at the ends of the scale", ("target",)),
    Entry("jpeg_incompressibility", "Busy images", ("target", "quality")),
    Entry("jpeg_compressibility", "Plain images", ("target", "quality")),
    Entry("target_colour", "Nearness to a colour", ("colour", "target"), ("colour",)),
    Entry("clip_score", "How well an image fits its prompt, by CLIP", (*_CLIP, "scaled")),
    Entry("pickscore", "How well people like an image of its prompt, by PickScore", _CLIP),
    Entry("aesthetic", "How pleasing an image is, by LAION's predictor", ("weights", *_CLIP)),
    Entry(
        "preference_head", "What a head trained on your picks says", ("weights", "source", "batch_size"), ("weights",)
    ),
    Entry("hpsv2", "HPS v2, by its package", ("version", "weights")),
    Entry("image_reward", "ImageReward, by its package", ("weights", "folder")),
    Entry(
        "remote",
        "What a reward server says",
        ("url", "kind", "timeout", "retries", "batch_size", "token_env", "allow_insecure"),
        ("url",),
    ),
)  # fmt: skip
REWARDS: Mapping[str, Entry] = {entry.name: entry for entry in _REWARDS}
"""The rewards that come with the program, cheap ones first."""

_ACCELERATORS = (
    Entry("torch_compile", "Compiles the denoiser with torch.compile",
          ("scope", "backend", "mode", "dynamic", "fullgraph", "options"), slot="shared"),
    Entry("attention_backend", "An attention kernel of diffusers", ("backend",), ("backend",), slot="shared"),
    Entry("diffusers_cache", "Takes over parts of earlier denoising steps; method FirstBlockCache and others",
          ("method",), slot="rollout"),
)  # fmt: skip
ACCELERATORS: Mapping[str, Entry] = {entry.name: entry for entry in _ACCELERATORS}
"""The accelerators that come with the program. Those of a cache method's own parameters are not listed."""


def unknown_name(name: str, known: Mapping[str, Entry]) -> str:
    """Why a name is odd, with the nearest known one; empty if it is known."""
    if name in known:
        return ""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"{name!r} does not come with the program" + (f"; did you mean {near[0]!r}?" if near else "")
