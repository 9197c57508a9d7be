"""The window of a sample."""

from __future__ import annotations

from modules.ui.items.ItemDialog import ItemDialog
from modules.util.config.SampleConfig import READING, reading_of
from modules.util.config.settings import Setting
from modules.util.enum.ModelType import ModelType


class SampleWindow(ItemDialog):
    """Edits a sample. Of how prompts are read, it shows what the model family of the run has."""

    def build(self) -> None:
        """One tab. What an earlier family left behind is shown too, so that it can be emptied."""
        acting = reading_of(ModelType(self.ui.state.value("model_type")).spec)

        def wanted(setting: Setting) -> bool:
            name = setting.path
            return name not in READING or name in acting or self.source.value(name) is not None

        self.add_form_tab("Settings", wanted)
