"""Sets up training on finished pairs. No Tk here."""

from __future__ import annotations

from pathlib import Path

from modules.ui.state.ConfigState import ConfigState
from modules.ui.state.ItemList import ItemList
from modules.ui.state.pair_reports import concepts_of_output, is_pair_side
from modules.ui.texts import files as words
from modules.util.config.ConceptConfig import ConceptConfig
from modules.util.enum.RLHFMode import RLHFMode


def train_on_pairs(state: ConfigState, folder: Path) -> None:
    """Set up preference training on the pairs of a folder, as one step of undo.

    Pair concepts already in the list are disabled. Everything else stays unchanged.

    Args:
        folder: the output folder of the pair tool, finalised.

    Raises:
        UserError: nothing was finalised there.
    """
    made = concepts_of_output(folder)
    paths = {concept.path for concept in made}
    kept = []
    before: ItemList[ConceptConfig] = ItemList(state, ConceptConfig, "concepts", "concept_file_name")
    for concept in before.items():
        if concept.path not in paths:
            kept.append(concept.copy_of())
            kept[-1].enabled = concept.enabled and not is_pair_side(concept)
    changes = {"concepts": [*kept, *made], "rlhf_enabled": True}
    if state.config.rlhf_mode.online:
        changes["rlhf_mode"] = RLHFMode("DPO")
    state.set_values(changes, words.PAIRS_OF.format(name=folder.name))
