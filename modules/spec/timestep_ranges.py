"""Valid weights and biases of the timestep distributions."""

from __future__ import annotations


def fault_of_distribution(name: str, weight: float, bias: float) -> tuple[str, str] | None:
    """The fault of a distribution's numbers: field and reason; ``None`` if they are valid.

    Args:
        name: a member of ``TimestepDistribution``.
        weight, bias: ``noising_weight`` and ``noising_bias``.
    """
    if name == "LOGIT_NORMAL" and weight <= -1.0:
        return "noising_weight", f"must be greater than -1 with LOGIT_NORMAL, not {weight:g}"
    if name == "HEAVY_TAIL" and not -1.0 <= weight <= 1.75:
        return "noising_weight", f"must be between -1 and 1.75 with HEAVY_TAIL, not {weight:g}"
    if name == "POWER" and weight < 1.0:
        return "noising_weight", f"must be at least 1 with POWER, not {weight:g}"
    if name == "BETA" and weight == 0.0 and bias == 0.0:
        return "noising_weight", "must not be 0 with BETA while noising_bias is 0"
    if name == "INVERTED_PARABOLA" and not _has_mass(weight, bias + 0.5):
        return (
            "noising_bias",
            f"leaves no timestep with INVERTED_PARABOLA: {bias:g} with a weight of {weight:g}",
        )
    return None


def _has_mass(weight: float, centre: float) -> bool:
    """Return whether 2 - weight (x - centre)^2 is above 0 somewhere between 0 and 1."""
    nearest = min(max(centre, 0.0), 1.0)
    farthest = 0.0 if centre > 0.5 else 1.0
    return any(2.0 - weight * (x - centre) ** 2 > 0.0 for x in (nearest, farthest))
