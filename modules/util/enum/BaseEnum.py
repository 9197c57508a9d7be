from __future__ import annotations

from enum import StrEnum

_WORDS = (
    "AdaBelief", "Adam", "AdaMuon", "AdamW", "Adan", "AdEMAMix", "ADOPT", "AIDA", "BFloat", "CAME", "CPS", "CPU",
    "DAdapt", "DDIM", "DGPO", "DPO", "EMA", "GDPO", "GPU", "GRPO", "GSPO", "IPO", "JPG", "Karras", "KL", "Kohya", "KTO",
    "LAMB", "LARS", "Lion", "LoHa", "LoKr", "LoRA", "MAPO", "NFloat", "NFT", "OFT", "P2", "PNG", "REX", "RMSprop",
    "SDE", "SGD", "SignSGD", "SNR", "UniPC",
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
