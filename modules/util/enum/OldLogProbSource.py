from modules.util.enum.BaseEnum import BaseEnum


class OldLogProbSource(BaseEnum):
    """Where the log-probabilities before the update come from."""

    ROLLOUT = "ROLLOUT"
    RECOMPUTE = "RECOMPUTE"
