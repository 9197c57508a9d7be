from modules.util.enum.BaseEnum import BaseEnum


class RLHFMode(BaseEnum):
    """How preferences are learned: from fixed pairs (DPO), or from rewards of images made while training."""

    DPO = "DPO"
    DGPO = "DGPO"
    GRPO = "GRPO"
    GSPO = "GSPO"
    ONLINE_DPO = "ONLINE_DPO"
    NFT = "NFT"

    @property
    def online(self) -> bool:
        """Whether images are made and scored while training."""
        return self is not RLHFMode.DPO

    @property
    def coupled(self) -> bool:
        """Whether the loss compares with log-probabilities of the rollout."""
        return self in (RLHFMode.GRPO, RLHFMode.GSPO)
