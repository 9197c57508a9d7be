"""Texts of the main window: its bars, keys, search, problems and dialogs."""

from __future__ import annotations

from modules.util.display import counted

# keys: shown on the Tools page
KEYS = (
    ("Alt+Home", "the Home page"),
    ("Alt+End", "the page of the other computer"),
    ("Ctrl+1 \u2026 Ctrl+0", "the other pages"),
    ("Ctrl+Tab, Ctrl+Shift+Tab", "next and previous page"),
    ("Ctrl+F", "search all settings"),
    ("Ctrl+N, Ctrl+O, Ctrl+S, Ctrl+Shift+S", "new, open, save, save as"),
    ("Ctrl+I", "import from another trainer"),
    ("Ctrl+Z, Ctrl+Y", "undo, redo"),
    ("Ctrl+R", "reset the field to its default"),
    ("F4", "list of problems"),
    ("F5, Shift+F5", "start, stop"),
    ("F6, F7, F8", "pause or resume, backup, samples"),
    ("Ctrl+plus, Ctrl+minus, Ctrl+0 on the number pad", "larger, smaller, normal size"),
    ("Page up, Page down", "scroll the page"),
)

# the list of pages
ALL_SETTINGS = "All settings"

# the bar below the pages
START, START_TIP = "Start", "Start training (F5)"
STOP, STOP_TIP = "Stop", "Stop after this optimizer step and keep a backup (Shift+F5)"
PAUSE, RESUME, PAUSE_TIP = "Pause", "Resume", "Pause or resume training (F6)"
BACKUP, BACKUP_TIP = "Backup", "Make a backup now (F7)"
SAMPLE, SAMPLE_TIP = "Sample now", "Make the samples now (F8)"
RUN_BAR_TIP = "Progress of the whole run"
EPOCH_BAR_TIP = "Progress of this epoch, or of the current task"
PROBLEMS_TIP = "Errors and warnings of the settings (F4)"
NO_PROBLEMS = "No problems"
CHECKING_FILES = "Checking files\u2026"
FILES_NOT_CHECKED = "Files not checked"
WAITS = "Not started yet: this run {reason}"
READY = "Ready"

# the bar above the pages
PRESET_TIP = "Settings for a purpose. Your folders, concepts and samples stay as they are."
FILE = "File \u25be"
SAVE, SAVE_TIP = "Save", "Save the config (Ctrl+S)"
UNDO_TIP = "Undo (Ctrl+Z)"
REDO_TIP = "Redo (Ctrl+Y)"
VIEW, VIEW_TIP = "View\u2026", "Appearance and size (Ctrl+plus, Ctrl+minus, Ctrl+0 on the number pad)"
MENU_NEW = "New"
MENU_OPEN = "Open\u2026"
MENU_SAVE_AS = "Save as\u2026"
MENU_IMPORT = "Import from another trainer\u2026"
MENU_QUIT = "Quit"

# presets
NO_PRESET = "Choose a preset\u2026"
KEEP_PRESET = "Save these settings as a preset\u2026"
REMOVE_PRESET = "Remove one of your presets\u2026"
YOUR_PRESETS = "Yours"

# search
SEARCH_HINT = "Search all settings (Ctrl+F)"
SEARCH_HINT_SHORT = "Search (Ctrl+F)"
SEARCH_HINT_SHORTEST = "Ctrl+F"
NOT_SHOWN_NOW = "    (not shown now)"
NOTHING_FOUND = "Nothing found"

# view
VIEW_TITLE, APPEARANCE, SIZE = "View", "Appearance", "Size"
NOTICES = "Desktop notification when a run ends"
SIZE_NOW = "Size {percent} %"

# problems
SHOWN_WHEN = "{title} is shown when {rule}."
NO_ROW = "{path} has no field in the window"
CANNOT_START = "Training cannot start: {problem}"
AND_MORE, MORE_ERROR = ", and {errors}", "more error"

# what happened
OTHER_WINDOW = "Another window is open. This one keeps its own settings in {name}"
UNDO_RESET, UNDO_RESET_ALL = "reset {title}", "reset"
UNDONE, NOTHING_TO_UNDO = "Undone: {title}", "Nothing to undo"
REDONE, NOTHING_TO_REDO = "Redone: {title}", "Nothing to redo"
SETTINGS_NOT_SAVED = (
    "The settings cannot be saved in {folder}: {reason}. Everything else works. To keep your "
    "settings, use Save as."
)

# a row of a form
ALLOWED = "Allowed: {limits}"
DEFAULT_AND_NAME = "Default: {default}   Name: {name}"
CHANGED_TIP = "Changed. Click to reset it to {default}"
RESET_ROW = "Reset to default"
COPY_NAME = "Copy name: {name}"

# settings behind the most important ones
FEWER = "Fewer settings"
MORE_TIP = "The settings above are enough for a first run. The others have defaults that suit most runs."

# images in a window of their own
IMAGE_TITLE = "{name} \u2013 {number} of {count}"

# errors
USER_ERROR_TITLE = "Error"
PROGRAM_ERROR_TITLE = "Error in the program"

# closing
TRAINING_CONTINUES = "Training continues"
CLOSE_WHILE_TRAINING = (
    "The run in {folder} continues without this window. Open Tastemaker again to watch, pause or stop it."
)
CLOSE_WINDOW, KEEP_WINDOW = "Close the window", "Keep it open"

EMPTY = "automatic"
EMPTY_OF = {"bound": "none", "inherited": "as in the run"}
"""Meaning of an empty field, by the hint of its setting."""


def more_settings(hidden: int, changed: int) -> str:
    """``38 more settings (2 changed)``."""
    return counted(hidden, "more setting") + (f" ({changed:,} changed)" if changed else "")


def problem_counts(errors: int, warnings: int) -> str:
    """``2 errors, 1 warning``; zero counts are left out."""
    parts = [counted(errors, "error")] if errors else []
    parts += [counted(warnings, "warning")] if warnings else []
    return ", ".join(parts)
