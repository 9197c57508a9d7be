from modules.util.enum.BaseEnum import BaseEnum


class CurationMode(BaseEnum):
    """How the person is asked which image of a group is best."""

    SMART = "SMART"
    ELO = "ELO"
    FOUR_UP = "FOUR_UP"
    SELECT = "SELECT"
    TRIAGE = "TRIAGE"
