"""Texts about the run: its page, curves, samples, queue, and the answers to its commands."""

from modules.ui.pages.PageSpec import PageSpec

PAGE = PageSpec("run", "Run", order=100, module="RunPage", about="Curves, samples and log of the run.")

# the page
ALL_RUNS, ALL_RUNS_TIP = "All runs", "Pick a run to watch or to resume, and compare runs"
FOLDER, FOLDER_TIP = "Folder", "Open the run's folder"
TENSORBOARD, TENSORBOARD_TIP = "TensorBoard", "Show all curves in the browser"
END_NOW = "End now"
END_NOW_TIP = "Kill a trainer that does not respond. Start then offers to resume the run from its last backup"
SMOOTH = "Smooth"
SAMPLES_TAB, LOG_TAB, EVENTS_TAB, QUEUE_TAB = "Samples", "Log", "Events", "Queue"
NO_RUN_YET = "Press Start, or choose a run under All runs"
STATE_AND_FOLDER = "{state}  \u2013  {folder}"

# TensorBoard
NO_RUN = "There is no run yet"
TENSORBOARD_STARTS = "Starting TensorBoard\u2026"
TENSORBOARD_OPEN = "TensorBoard: {address}"
TENSORBOARD_FAILED = "TensorBoard is not open"

# ending by force
END_TITLE = "End the trainer"
END_QUESTION = "All steps since the last backup are lost. To keep them, use Stop instead."
ENDED = "The trainer was ended"

# starting in the folder of a run that has steps left
UNFINISHED_TITLE = "Unfinished run"
UNFINISHED = (
    "The run in this folder ended before its last step. It can be resumed after step {step} of {total}. A new run "
    "begins at step 0 and keeps the backups of this one in another folder."
)
RESUME_RUN, NEW_RUN, CANCEL = "Resume", "New run", "Cancel"

# the desktop notification
PROGRAM = "Tastemaker"
NOTICE_TITLE = "Run ended: {name}"

# curves
NO_CURVE = "Nothing yet"
AT_STEP = "step {step:g}"

# samples
STEP, NEWEST = "Step", "Newest"
NO_PROMPT = "(no prompt)"
BEFORE_AND_AFTER = "Left: before training. Right: with the adapter."
SAMPLE_CAPTION = "{prompt}\nstep {step}"
SAMPLE_TITLE = "{prompt}  \u2013  step {step}"
NO_SAMPLES = "No samples yet. Add prompts on the Sampling page, then press Start: a running run keeps its prompts."
SAMPLES_DUE = (
    "No samples yet. Training makes them when they are due. \u201cSample now\u201d makes them immediately."
)
SAMPLES_COMING = "The first samples are on the way. {progress}"

# the queue
ADD = "Add these settings"
UP, DOWN, AGAIN, REMOVE = "Up", "Down", "Queue again", "Remove"
CLEAR_ENDED = "Clear ended"
START_QUEUE, STOP_AFTER_THIS = "Start queue", "Stop after this run"
COLUMN_RUN, COLUMN_STATE, COLUMN_FOLDER, COLUMN_NOTE = "Run", "State", "Folder", "Note"
ADDED = "{folder} was added to the queue at {time}"
ONE_OF = "{message} (1 of {count})"
FIX_FIRST = "Fix the errors first (F4)"

# commands
COMMANDED = {
    "stop": "Stopping after this optimizer step",
    "backup": "A backup will be made after this optimizer step",
    "sample": "Samples will be made after this optimizer step",
    "pause": "Pausing after this optimizer step",
    "resume": "Resuming",
    "save": "The model will be saved after this optimizer step",
}
NOTHING_TO_SAMPLE = (
    "This run has no prompts. Stop it, add prompts on the Sampling page, then press Start to resume it"
)
CHECKING_AGAIN = "Checking the files again"
STARTING = "Starting training in {folder}"
START_CANCELLED = "The start was cancelled"
NOTHING_LIVE = "No run is active"
LOG_IS = "The log file is {path}"
LOG_UNREADABLE = "The log file {path} cannot be read: {reason}"
NOT_CHECKED = "The files could not be checked: {reason}"

# progress
STARTING_UP = "Starting\u2026"
STATES = {
    "paused": "Paused",
    "finished": "Finished",
    "stopped": "Stopped",
    "failed": "Failed",
    "died": "Stopped unexpectedly",
    "running": "Running",
    "remote": "On another computer",
}
PHASE = "{name} {done} of {total}"
EPOCH_OF, EPOCH = "Epoch {epoch} of {epochs}", "Epoch {epoch}"
STEP_OF = "step {step} of {total}"
LOSS, ACCURACY, MEMORY = "loss {value:.4g}", "accuracy {value:.0%}", "{value:.3g} GB"
LEFT = "{time} left"

# events
STARTED, RESUMED = "Training started on {device}", "Training resumed on {device}"
THIS_COMPUTER = "this computer"
VALIDATED = "Validation at step {step}: {metrics}"
BACKED_UP, SAVED = "Backup at step {step}: {path}", "Saved at step {step}: {path}"
ENDED_AS = "Training {status}"

# diagrams: title, and the name of each curve in the legend
DIAGRAMS = {
    "Loss": {
        "loss/train_step": "training",
        "loss/validation": "validation",
        "dpo/val_loss": "validation",
        "loss/supervised": "supervised",
    },
    "Preference loss": {"dpo/raw_loss": "training", "dpo/val_loss": "validation"},
    "Accuracy": {"dpo/accuracy": "training", "dpo/val_accuracy": "validation"},
    "Margin": {"dpo/reward_margin": "margin"},
    "Rewards": {"dpo/chosen_reward": "chosen", "dpo/rejected_reward": "rejected"},
    "Reward": {"rl/reward_mean": "mean of an epoch"},
    "Reward spread": {"rl/reward_std": "standard deviation"},
    "Policy loss": {
        "rl/policy_loss": "policy",
        "rl/dgpo_loss": "group",
        "rl/dsm_loss": "denoising",
        "rl/kl_loss": "KL",
    },
    "KL": {"rl/kl": "to the reference", "rl/kl_div": "to the reference", "rl/approx_kl": "to the old policy"},
    "Probability ratio": {"rl/ratio_mean": "mean", "rl/ratio_max": "maximum"},
    "Clipped": {
        "rl/clipfrac": "share",
        "rl/clipfrac_low": "below",
        "rl/clipfrac_high": "above",
        "rl/clip_ratio": "share",
        "rl/advantage_clipped": "advantages",
    },
    "Validation rewards": {"dpo/val_chosen_reward": "chosen", "dpo/val_rejected_reward": "rejected"},
}
DIAGRAMS_BY_PREFIX = {
    "lr": "Learning rate",
    "learning_rate": "Learning rate",
    "memory": "Memory",
    "dpo/margin_by_t": "Margin by timestep",
    "rl": "Online training",
}
REWARD_DIAGRAMS = {
    "mean": "Mean of each reward",
    "std": "Spread of each reward",
    "zero_std_ratio": "Prompts with equal scores",
    "scale": "Reward scale",
}

# before the first run
NO_IMAGES = "You have no images yet"
NO_IMAGES_HINT = "Add a folder on the Data & concepts page, or try the demo project on the Tools page"
SAID_NOTHING = "there was no output"
