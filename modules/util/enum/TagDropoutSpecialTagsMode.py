from modules.util.enum.BaseEnum import BaseEnum


class TagDropoutSpecialTagsMode(BaseEnum):
    """Which tags the list of special tags protects from dropout, if it does."""

    NONE = "NONE"
    WHITELIST = "WHITELIST"
    BLACKLIST = "BLACKLIST"
