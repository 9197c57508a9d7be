from modules.util.enum.BaseEnum import BaseEnum


class GspoWeighting(BaseEnum):
    """What an image counts for by its number of trained steps."""

    LENGTH = "LENGTH"
    DOCUMENT = "DOCUMENT"
