from modules.util.enum.BaseEnum import BaseEnum


class DPORefMode(BaseEnum):
    """References of the policy: the model without adapters, or the adapter that training started from."""

    NEW_ADAPTER = "NEW_ADAPTER"
    EXISTING_ADAPTER = "EXISTING_ADAPTER"
