from modules.spec.ModeSpec import ModeSpec
from modules.spec.registry import MODES, modes_with
from modules.util.enum.BaseEnum import BaseEnum


class RLHFMode(BaseEnum):
    """Ways of learning preferences: from fixed pairs (DPO), or from rewards of images made during training.

    The members are the keys of ``modules/spec/modes``, in that order. What a mode needs is read from its
    ``spec``, never derived from its name.
    """

    vars().update({key: key for key in MODES})

    @property
    def spec(self) -> ModeSpec:
        """The description of the mode."""
        return MODES[self.value]

    @property
    def label(self) -> str:
        """The displayed name of the mode."""
        return self.spec.label

    @property
    def online(self) -> bool:
        """True if images are made and scored during training."""
        return self.spec.online

    @property
    def coupled(self) -> bool:
        """True if the loss uses log-probabilities of the rollout."""
        return self.spec.coupled


def shown_for(rows: str, without: str = "") -> str:
    """A visibility rule for settings that act only in some modes.

    Args:
        rows: ``offline``, ``online``, ``coupled``, ``decoupled``, ``kl``, or a group named in ``ModeSpec.rows``.
        without: another of these, whose modes are left out.

    Raises:
        KeyError: no mode has such settings.
    """
    others = modes_with(without) if without else ()
    return f"rlhf_enabled,rlhf_mode={'|'.join(mode for mode in modes_with(rows) if mode not in others)}"
