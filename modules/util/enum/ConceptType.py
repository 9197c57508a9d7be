from modules.util.enum.BaseEnum import BaseEnum


class ConceptType(BaseEnum):
    """The purpose of a concept's images."""

    STANDARD = "STANDARD"
    VALIDATION = "VALIDATION"
    PRIOR_PREDICTION = "PRIOR_PREDICTION"
    DPO_CHOSEN = "DPO_CHOSEN"
    DPO_REJECTED = "DPO_REJECTED"
    DPO_CHOSEN_VAL = "DPO_CHOSEN_VAL"
    DPO_REJECTED_VAL = "DPO_REJECTED_VAL"
