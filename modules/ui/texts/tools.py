"""Texts of the page of tools, and of the window of the Hugging Face account."""

from modules.ui.pages.PageSpec import PageSpec

PAGE = PageSpec(
    "tools",
    "Tools",
    order=90,
    module="ToolsPage",
    about="Everything except training: pairs, images, accounts, help.",
)

PAIRS = "Preference pairs"
DEMO, DEMO_ABOUT = "Demo project\u2026", "From generated images to a trained adapter, step by step."
PAIR_TOOL = "Pair tool"
PAIR_TOOL_ABOUT = "Turn a folder of generated images into pairs of a chosen and a rejected image."
IMAGES, CAPTIONS, MASKS, MODELS = "Folders of images", "Captions", "Masks", "Models and LoRAs"
EDITOR, EDITOR_ABOUT = (
    "Caption editor\u2026",
    "Write and find the captions of images, and change many at once.",
)
EDITOR_FOLDER = "Folder of images"
ELLIPSIS = "{title}\u2026"
OTHER_PROGRAMS = "Files of other programs"
IMPORT, IMPORT_ABOUT = (
    "Import\u2026",
    "A config, concept list or sample list of OneTrainer, kohya or ai-toolkit.",
)
ACCOUNTS = "Accounts"
HUGGING_FACE, HUGGING_FACE_ABOUT = "Hugging Face\u2026", "The token for models that need an account."
HELP = "Help"
ALL_SETTINGS, ALL_SETTINGS_ABOUT = "All settings", "Every setting with its range and default."
SETTINGS_FOLDER = "Settings folder"
SETTINGS_FOLDER_ABOUT = "The folder of this program's own settings and of its log."
KEYS = "Keys"

# the account
ACCOUNT_TITLE = "Hugging Face account"
ACCOUNT_ABOUT = (
    "Some models on huggingface.co need an account. A token lets training download them. You can create "
    "one there under Settings, Access Tokens; read permission is enough. It is kept in a file that only "
    "you can read, never in a config or a log."
)
TOKEN_STORED = "A token is stored. A new one replaces it."
NO_TOKEN = "No token is stored."
BROKEN_FILE = "{error}. Saving a new token overwrites this file."
SHOW, SAVE, CANCEL, REMOVE = "Show", "Save", "Cancel", "Remove"
NOT_A_TOKEN = "This is not a token. Tokens have letters, digits, _ and -, such as hf_AbC123\u2026"
CANNOT_SAVE = "The token cannot be saved in {folder}: {reason}"
TOKEN_SAVED, TOKEN_REMOVED = "The token is stored", "The token was removed"

# the window of a tool
START, PREVIEW, UNDO, STOP, CLOSE, BROWSE = "Start", "Preview", "Undo", "Stop", "Close", "Browse\u2026"
MISSING = "Fill in: {fields}"
WORKING = "Working\u2026"
PROGRESS = "{done} of {total}: {at}"
STOPPED, DONE = "Stopped", "Done"
