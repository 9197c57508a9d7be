"""Texts of runs on another computer: its page, its line on the Run page, its dialogs."""

from modules.ui.pages.PageSpec import PageSpec

PAGE = PageSpec(
    "remote",
    "Other computer",
    order=85,
    sections=("Remote",),
    module="RemotePage",
    about="Train on another computer over SSH",
    key_name="Alt+End",
)

# the page
COMPUTER = "Computer"
SAVED = "Saved computers"
SAVED_TIP = "Computers that have answered before. Select one to fill in the settings below. No password is stored."
FORGET, FORGET_TIP = "Forget", "Remove this computer from the list. Nothing changes on that computer"
CHECK, CHECK_TIP = "Check connection", "Log in and look for Python and free disk space"
START, START_TIP = "Start there", "Copy missing files and train with the current settings on that computer"
CANCEL = "Cancel"
USE_COMPUTER = "use {address}"
HOW = (
    "Enter host and user below and check the connection. \u201cStart there\u201d then copies the program, the settings "
    "and the images, and shows the run on the Run page."
)

# what is being done
CHECKING = "Connecting to {address}\u2026"
CHECKING_SETTINGS = "Checking settings and files before anything is copied"
CONNECTED = "{address} answers. Its disk has {free} GiB free. {environment}"
ENVIRONMENT_READY = "The environment is ready."
ENVIRONMENT_MISSING = "The first start sets up the environment there, which downloads several GB."
ENVIRONMENT_OWN = "Training uses {python} there."
STARTING = "Starting on {address}\u2026"
STARTED = "Training started on {address}"
RESUMING = "Resuming on {address}\u2026"
FETCHING = "Fetching files from {address}\u2026"
FETCHED = "{files} fetched, {same} unchanged, in {folder}"
CANCELLING = "Cancelling\u2026"
CANCELLED = "Cancelled"
TOO_LATE = "The start can no longer be cancelled. Stop the run once it is shown on the Run page"
MAY_TRAIN = "The run may have started there. Watch it from the Runs page to see whether it is training"
BUSY = "Wait until this is done, or cancel it: {what}"

# the line on the Run page
CONNECTING_TO = "On {address}: connecting\u2026"
ONLINE = "On {address}: connected"
OFFLINE = "On {address}: not connected. {why}"
NOTE = "On {address}: {why}"
ENDED_THERE = "On {address}: the run has ended"
UNKNOWN_RUN = "This run was started from another computer, or its record is missing"
DAMAGED_RECORDS = "Damaged records of remote runs were skipped. Remove or repair them: {files}"
CONNECT, CONNECT_TIP = "Connect", "Follow the run again"
FETCH = "Fetch files"
FETCH_TIP = (
    "Copy saved models and all other files to this computer, except backups. Samples and log arrive "
    "automatically"
)
WITH_BACKUPS = "with backups"
RESUME, RESUME_TIP = "Resume there", "Resume this run in its folder on the other computer, from its newest backup"
SENDING = "Sending the command to {address}\u2026"
THAT_COMPUTER = "the other computer"
NOT_DONE = "The command {kind} failed on {address}: {why}"
NOT_SENT = "The command was not sent, because {address} is not connected"
NOT_SENT_HINT = "Wait for the connection, or press Connect on the Run page."
DIED = "The run stopped unexpectedly"
LEFT_ALONE_TITLE = "Files that were not replaced"
LEFT_ALONE = "These files were changed here, or their paths point outside the folder. They were not replaced."

# the dialogs
PASSWORD_TITLE = "Password"
PASSWORD_NOTE = "The password is kept in memory until this window is closed, and never stored."
SHOW, OK = "Show", "OK"
TRUST_TITLE = "Unknown computer"
TRUST = (
    "{place} is unknown, and nothing was sent. Compare the fingerprint of its key with the one that its owner or "
    "provider shows. If it differs, somebody may be listening in."
)
FINGERPRINT = "Fingerprint"
TRUST_IT = "Trust this computer"
TRUSTED = "{place} is trusted now"

# closing the window
COPYING_TITLE, CHECK_TITLE, FETCH_TITLE = "Start not complete", "Check not complete", "Fetch not complete"
COPYING = "{what}\n\nClosing the window cancels it. The next start uses the files that were copied."
CHECK_CANCELLED = "{what}\n\nClosing the window cancels it."
FETCH_CANCELLED = "{what}\n\nClosing the window cancels it. Fetched files stay, and the next fetch continues."
STARTS_ANYWAY = (
    "{what}\n\nThe run starts there even if you close the window. Watch it later from the Runs page."
)
