"""Texts about files: opening, saving, importing, presets, choosing and dropping."""

# new settings
NEW_TITLE = "New settings"
NEW_QUESTION = "Your changes are not saved in a file. Save them before starting with new settings?"
SAVE, DISCARD, CANCEL = "Save", "Discard", "Cancel"
NEW = "New settings"
NEW_AFTER_CHANGES = "New settings. Ctrl+Z restores the previous ones"

# replacing unsaved changes
OPEN_QUESTION = "Your changes are not saved in a file. Save them before opening {name}?"
IMPORT_CONFIG = "Import a config"
IMPORT_QUESTION = "Your changes are not saved in a file. Save them before importing {name}?"
PRESET_TITLE = "Use a preset"
PRESET_QUESTION = "Your changes are not saved in a file. Save them before using the preset {name}?"

# saving
CHANGED_TITLE = "Changed by another program"
CHANGED_QUESTION = "{path} was changed since it was opened. Replace it with the settings of this window?"

# windows that ask
OPEN_CONFIG = "Open a config"
SAVE_CONFIG = "Save the config"
IMPORT_FILE = "Import a config, concepts or samples of another trainer"
WRITE_LIST = "Write the {what}"
ALL_FILES, JSON_FILES, FOREIGN_FILES = "All files", "JSON files", "Settings of other trainers"
FOREIGN_NAMES = "*.json *.toml *.yaml *.yml"

# steps of undo
UNDO_NEW = "new config"
UNDO_OPEN = "open {name}"
UNDO_IMPORT = "import {name}"
UNDO_PRESET = "preset {name}"

# what happened
OPENED = "Opened {path}"
SAVED = "Saved {path}"
SAVED_WITH_UNREADABLE = (
    "Saved {path}. These fields are invalid, so the file has their last valid values: {fields}"
)
IMPORTED = "Imported {path}"
WROTE = "Wrote {path}"

# while an import reads its files
READING_TITLE = "Import"
READING = "Reading {name} and the captions of its images"

# what an import left behind
LEFT_BEHIND_TITLE = "Imported, with omissions"
LEFT_BEHIND = "{settings} of {name} could not be imported:"

# presets
PRESET_APPLIED = "Preset {name}. Ctrl+Z restores the previous settings"
KEEP_TITLE, KEEP_QUESTION = "Save as a preset", "Name of the preset"
REPLACE_QUESTION, REPLACE = "You already have a preset {name}. Replace it?", "Replace"
KEPT = "Preset saved as {path}"
NO_OWN_PRESETS = "You have no presets of your own"
REMOVE_TITLE, REMOVE_QUESTION = "Remove a preset", "Which preset?"
REMOVED = "Removed {path}"

# dropped files
AND_MORE = "{names} and {count} more"
NOT_A_FOLDER, NOT_A_FILE = "{path} is not a folder", "{path} is not a file"
EXISTS = "{path} already exists"
PAIRS_OF = "pairs of {name}"

# a session that cannot be read
STAYS = "{error}\n\nThe file stays where it is ({reason}). The window starts with the defaults."
KEPT_ASIDE = "{error}\n\nThe file was kept as {path}. The window starts with the defaults."
