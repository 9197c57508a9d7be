"""Texts of lists of concepts, samples, rewards and accelerators, and of the windows of their items."""

# buttons of every list
ADD = "Add\u2026"
EDIT, EDIT_TIP = "Edit", "Open the selected entry (Enter)"
DUPLICATE, DUPLICATE_TIP = "Duplicate", "Copy the selected entries to the end of the list (Ctrl+D)"
REMOVE, REMOVE_TIP = "Remove", "Remove the selected entries from the list (Delete). Their files stay"
UP_TIP, DOWN_TIP = "Move up (Alt+Up)", "Move down (Alt+Down)"
SWITCH, SWITCH_TIP = "On / off", "Switch the selected entries on or off (Space)"
READ, READ_TIP = "Read\u2026", "Replace this list with one from a file"
WRITE, WRITE_TIP = "Write\u2026", "Write this list to a separate file"

# below the list
READ_FROM = "Read from {name}. Once edited, the list becomes part of the config"
REMOVED = "Removed {entries}. Ctrl+Z undoes this"
ENTRY, ENTRIES = "entry", "entries"
READ_TITLE = "Read a list"

# the window of a named item
OTHER_NAME = "This name is not built into the program."
NO_PARAMETERS = "None: the defaults apply."
PARAMETERS_OF = "Parameters of {name}"
PARAMETERS_ABOUT = "Each parameter has a name and a value."

# steps of undo
UNDO_READ, UNDO_ADD, UNDO_EDIT = "read {name}", "add to {name}", "edit {name}"
UNDO_REMOVE, UNDO_ORDER = "remove from {name}", "order of {name}"

# kinds of parameters
NUMBER, WHOLE, SWITCH, TEXT, NOTHING = "number", "whole number", "on / off", "text", "nothing"
JSON = "list or table"
NO_NAME = "enter a name"
BAD_NAME = "use only letters, digits and _, and do not begin with a digit"
TWICE = "{name!r} is listed twice: rename one"
