from modules.util.enum.BaseEnum import BaseEnum


class BalancingStrategy(BaseEnum):
    """Whether a concept's balancing number counts repeats of it or samples from it."""

    REPEATS = "REPEATS"
    SAMPLES = "SAMPLES"
