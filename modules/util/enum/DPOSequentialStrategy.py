from modules.util.enum.BaseEnum import BaseEnum


class DPOSequentialStrategy(BaseEnum):
    """How the sequential execution mode gets the exact gradient."""

    AUTO = "AUTO"
    THREE_FORWARD = "THREE_FORWARD"
    GRAD_STASH = "GRAD_STASH"
