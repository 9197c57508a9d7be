"""Texts of the review of finished pairs."""

# actions
BACK, NEXT, REMOVE, SWAP, EDIT = "Back", "Next", "Remove pair", "Swap sides", "Edit caption"
FIX, FIX_ALL, ONLY_FAULTS, UNDO = "Fix", "Fix all", "Only faults", "Undo"
EMPTY_TRASH, DONE = "Empty trash", "Done"

READING = "Reading\u2026"
NOTHING_TO_UNDO = "There is nothing to undo."
NO_FAULTY_PAIR = "No pair has a fault."
NO_PAIRS = "There are no pairs here."
PLACE = "Pair {place} of {count} \u00b7 {split} \u00b7 {name}"
FAULT, NO_FAULTS = "fault", "no faults"
CHECKED = "{faults}, {checked} of {count} checked"
CHOSEN, REJECTED, SOURCE = "Chosen", "Rejected", "Source"
FIRST_SOURCE = "Source 1 of {count}"
EDITING = "Enter saves, Esc cancels"

# the trash
REMOVED_PAIR = "removed pair"
TRASH_IS_EMPTY = "The trash is empty."
EMPTY_TITLE, DELETE = "Empty the trash", "Delete permanently"
EMPTY_QUESTION = "{pairs} ({size}) will be deleted permanently. Earlier changes can then no longer be undone."
DELETED = "{pairs} deleted, {size} freed"
