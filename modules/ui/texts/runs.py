"""Texts of the Runs page, which compares all runs on this computer."""

from modules.ui.pages.PageSpec import PageSpec

PAGE = PageSpec(
    "runs",
    "Runs",
    order=110,
    module="RunsPage",
    about="All runs of this computer. Select several to compare them.",
)

# the list
COLUMN_RUN, COLUMN_DATE, COLUMN_MODE, COLUMN_STEPS, COLUMN_STATE = (
    "Run",
    "Last change",
    "Mode",
    "Steps",
    "State",
)
STEPS_OF, DATE = "{steps:,} of {total:,}", "%Y-%m-%d %H:%M"
STATES = {"died": "stopped unexpectedly", "remote": "on another computer"}
NO_RUNS = "No run yet. Press Start to begin one"
LOADING = "Looking for runs\u2026"

# buttons
WATCH, WATCH_TIP = "Watch", "Show this run on the Run page"
FOLDER, FOLDER_TIP = "Folder", "Open the run's folder"
ADAPTER, ADAPTER_TIP = "Adapter", "Open the folder of the adapter that the run has written"
COPY, COPY_TIP = "Copy path", "Copy the path of the adapter, for other programs"
SETTINGS, SETTINGS_TIP = "Load settings", "Edit a copy of the run's settings. Ctrl+Z restores your own settings"
RESUME = "Resume"
RESUME_TIP = "Load the run's settings so that Start resumes it from its last backup"
RESUME_LOADED = "Start resumes {name} from its last backup"
OTHER, OTHER_TIP = "Other folder\u2026", "Watch a run that is not in the list"
ASK_RUN_FOLDER = "The folder of a run"
ARENA, ARENA_TIP = (
    "Compare in the arena",
    "Vote blindly on images of these adapters, with the prompts of the open project",
)
PROJECT_BUSY = "A step of the project is running. Wait until it has finished, or stop it on the Home page."
NO_PROJECT = "This uses the prompts of a project. Open one on the Home page first."
DELETE = "Delete"
DELETE_TIP = (
    "Move the folders of the selected runs to a trash next to them. The adapter file stays where it is"
)
UNDELETE, UNDELETE_TIP = "Undo delete", "Restore the runs that were deleted last"
EMPTY, EMPTY_TIP = "Empty trash\u2026", "Remove deleted runs for good, to free their space"
EMPTY_ASK = "{runs} in the trash will be removed for good. This cannot be undone."
EMPTY_YES, EMPTY_NOTHING, EMPTIED = "Remove", "The trash is empty", "{runs} removed for good"
REFRESH, REFRESH_TIP = "Refresh", "Look for runs again"
COPIED = "Copied: {path}"
SETTINGS_LOADED, SETTINGS_UNDO = "The settings of {name} were loaded", "settings of {name}"
DELETED = "{runs} moved to {folder}"
RESTORED = "{runs} restored"
ONE_RUN = "run"

# tabs
CURVES_TAB, SETTINGS_TAB, SAMPLES_TAB = "Curves", "Differences", "Samples"
CURVE = "{run}: {curve}"
SELECT_ONE, SELECT_TWO = "Select a run", "Select two runs or more"
SAME = "The selected runs have the same settings"
COLUMN_SETTING = "Setting"
NO_SAMPLES = "The selected runs have no samples"
# images at several strengths
STRENGTHS_TAB, STRENGTHS_TITLE = "Strengths", "Images at several strengths"
STRENGTHS = "Make images\u2026"
STRENGTHS_TIP = "The same prompts and seed at several strengths of the adapter. Strength 0 is the base model"
STRENGTHS_STOP, STRENGTHS_CANCEL, STRENGTHS_MAKE = "Stop", "Cancel", "Make images"
STRENGTHS_PROMPTS, STRENGTHS_WHICH = "Prompts, one per line", "Strengths, separated by commas"
STRENGTHS_NO_ADAPTER = "Choose at least one adapter"
STRENGTHS_NOTHING = "Select a run that has written an adapter, then press \u201cMake images\u201d"
SAMPLER = "the sampler"
STRENGTHS_BUSY = "Another run is using the device. Wait until it has ended, or stop it first."
STRENGTHS_AT, ONE_IMAGE = "{count} of {total} images", "image"
AT_STEP = "{run} step {step}"
