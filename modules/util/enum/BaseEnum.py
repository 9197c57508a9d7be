from __future__ import annotations

from enum import StrEnum

_WORDS = (
    "Adam", "AdamW", "AdEMAMix", "AdaBelief", "ADOPT", "CAME", "CPU", "DDIM", "DPO", "DGPO", "EMA",
    "GPU", "GRPO", "GSPO", "IPO", "JPG", "Karras", "Kohya", "LAMB", "LoHa", "LoKr", "LoRA", "OFT",
    "BFloat", "CPS", "GDPO", "NFloat", "NFT", "PNG", "RMSprop", "SDE", "SGD", "SNR", "UniPC", "P2", "REX", "KL"
)  # fmt: skip
_SPELLED = {word.upper(): word for word in _WORDS} | {"DPMPP": "DPM++"}
"""Words that are not written in lower case."""


class BaseEnum(StrEnum):
    """A choice in a config, stored by name: every value equals its member's name.

    (Where a value names something outside, such as a logged metric, it is that name in lower case.)
    """

    @property
    def label(self) -> str:
        """The displayed name: ``FULL_CONCURRENT`` is "Full concurrent", ``DPO`` stays "DPO"."""
        words = [_SPELLED.get(word, word.lower()) for word in self.value.split("_")]
        text = " ".join(words)
        return text[:1].upper() + text[1:]
