"""The page where pairs are picked: question, actions, prompt, progress."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from functools import partial
from tkinter import ttk

from modules.curation.choosing.base import Layout, WayOfChoosing
from modules.curation.group_state import Phase
from modules.curation.intake.scan import edits_without_source
from modules.ui.curation.ChoiceView import (
    MOST_SHOWN,
    Action,
    ChoiceView,
    Comparing,
    ViewContext,
    action_button,
    key_name,
)
from modules.ui.curation.GridViews import RankedView, SelectView
from modules.ui.curation.ImagesView import ContinueView, QuestionView
from modules.ui.curation.PairController import PairController, Question, Snapshot
from modules.ui.curation.SheetView import SheetView
from modules.ui.curation.TasteGauge import TasteGauge
from modules.ui.texts import choosing as words
from modules.ui.widgets.FlowFrame import FlowFrame
from modules.ui.widgets.ImagePrefetcher import ImagePrefetcher, Key
from modules.ui.widgets.KeysWindow import show_keys
from modules.ui.widgets.theme import Theme, style_text
from modules.ui.widgets.ThinBar import ThinBar
from modules.ui.widgets.tk_support import IDLE, Timer, elide_middle, set_text, show_in_grid
from modules.util.display import counted
from modules.util.dpo_curation_util import UNCONDITIONAL

FLICKER_RELEASE_MS = 60
"""A held key arrives as alternating releases and presses. A release that lasts this long is a real one."""


class ChoosingPage(ttk.Frame):
    """Shows one session.

    Args:
        leave: called for the export page.
    """

    def __init__(
        self,
        parent: tk.Misc,
        theme: Theme,
        controller: PairController,
        prefetcher: ImagePrefetcher,
        leave: Callable[[], None],
        blind: bool = False,
    ) -> None:
        super().__init__(parent, style="Back.TFrame")
        self.theme = theme
        self.controller = controller
        self._release = Timer(self, FLICKER_RELEASE_MS, self._let_go)
        self._prefetching = Timer(self, IDLE, self._prefetch)
        self.context = ViewContext(
            theme, controller, prefetcher, blind=blind, want=self._prefetching.start
        )
        self.shot: Snapshot | None = None
        self.view: ChoiceView | None = None
        self.ranking = False
        self.leave = leave
        self._views: dict[tuple[str, int, int], ChoiceView] = {}
        self._actions: list[Action] = []
        self._shown_actions: tuple[tuple[str, str], ...] = ()
        self._question: Question | None = None
        self._held = ""
        self.saving = [
            Action(words.PAIR_NOW, ("p",), controller.pick_now),
            Action(words.RANK, ("r",), lambda: self.show_ranking(True)),
        ]
        self.next = Action(words.NEXT_PROMPT, ("n",), controller.next_group)
        self.undo = Action(words.UNDO, ("Control-z", "BackSpace"), controller.undo)
        self.switches = [
            Action("1:1", ("z",), self.context.zoom.toggle_actual_size),
            Action(words.BLIND, ("h",), self.toggle_blind),
            Action(words.PROMPT, ("t",), self.toggle_prompt),
            Action(words.KEYS, ("F1",), self.show_keys),
            Action(words.EXPORT, ("e",), leave),
        ]
        self.columnconfigure(0, weight=1)
        self.rowconfigure(3, weight=1)
        self._build_top()
        self._build_bottom()
        self._say(words.LOOKING)
        self.gauge = TasteGauge(controller, self._measured)
        theme.on_change(self._restyle, self)

    def _build_top(self) -> None:
        px = self.theme.px
        top = ttk.Frame(self)
        top.grid(row=0, column=0, sticky="ew")
        top.columnconfigure(1, weight=1)
        self.place_label = ttk.Label(top, text="", style="Bold.TLabel")
        self.place_label.grid(row=0, column=0, sticky="w", padx=px(10), pady=px(3))
        self.count_label = ttk.Label(top, text="", style="Muted.TLabel", width=1)
        self.count_label.grid(row=0, column=1, sticky="ew")
        self.switch_buttons = []
        for column, action in enumerate(self.switches, 2):
            text = f"{key_name(action.keys[0])}  {action.label}"
            run = partial(self.run, action)
            button = ttk.Button(top, text=text, style="Flat.TButton", takefocus=0, command=run)
            button.grid(row=0, column=column, padx=(0, px(6)))
            self.switch_buttons.append(button)
        self.bind("<Configure>", lambda _event: self._fit_top())
        self.progress = ThinBar(self, self.theme)
        self.progress.grid(row=1, column=0, sticky="ew")
        self.prompt_box = tk.Text(self, height=2, wrap="word", takefocus=0, state="disabled", cursor="arrow")
        style_text(self.theme, self.prompt_box)
        self.prompt_box.grid(row=2, column=0, sticky="ew")
        self.middle = ttk.Frame(self, style="Back.TFrame")
        self.middle.grid(row=3, column=0, sticky="nsew")
        self.middle.columnconfigure(0, weight=1)
        self.middle.rowconfigure(0, weight=1)
        self.message = ttk.Label(self.middle, text="", justify="center", style="Back.TLabel")

    def _build_bottom(self) -> None:
        px = self.theme.px
        bottom = ttk.Frame(self)
        bottom.grid(row=4, column=0, sticky="ew")
        bottom.columnconfigure(0, weight=1)
        self.hint_label = ttk.Label(bottom, text="", style="Bold.TLabel", width=1)
        self.hint_label.grid(row=0, column=0, sticky="ew", padx=px(10), pady=px(3))
        self.certainty_label = ttk.Label(bottom, text="", style="Muted.TLabel")
        self.certainty_label.grid(row=0, column=1, padx=px(8))
        self.certainty_bar = ThinBar(bottom, self.theme, px(110))
        self.certainty_bar.grid(row=0, column=2, padx=(0, px(10)))
        self.action_row = FlowFrame(bottom, self.theme.px(6))
        self.action_row.grid(row=1, column=0, columnspan=3, sticky="ew", padx=px(10), pady=(0, px(6)))

    def _fit_top(self) -> None:
        """If the window is too narrow, hide buttons in favour of the counts. Their keys still work."""
        px, font = self.theme.px, self.theme.fonts["text"]
        taken = font.measure(str(self.count_label.cget("text"))) + self.place_label.winfo_reqwidth() + px(40)
        room = self.winfo_width() - taken
        for button in reversed(self.switch_buttons):
            room -= button.winfo_reqwidth() + px(6)
            show_in_grid(button, room >= 0)

    def _restyle(self) -> None:
        self.message.configure(wraplength=self.theme.px(520))
        self._shown_actions = ()
        if self.view is not None:
            self._draw_actions(self._actions)
            self.view.draw()

    # --- showing ------------------------------------------------------------------------------------------------

    def show_snapshot(self, shot: Snapshot) -> None:
        """Draw a snapshot."""
        self.shot = shot
        self._draw_counts(shot)
        if shot.group is None or shot.state is None:
            self._show_nothing(shot)
            return
        question = shot.question
        same = question == self._question
        if question is not None and not same:
            same_prompt = self._question is not None and question[0] == self._question[0]
            self.ranking = self.ranking and same_prompt and shot.state.phase is Phase.QUESTION
            self.context.zoom.set(None)
        self._question = question
        view = self._view_for(shot)
        if not same or view is not self.view:
            self._put_up(view)
            view.show_images()
            view.show(shot)
            self._draw_prompt(*view.prompt())
            offered = view.offered()
            self._draw_actions(offered + self._common_actions(shot.state.phase, offered))
        self._draw_hint()
        self._draw_certainty(shot)
        self._prefetching.start()

    @property
    def way(self) -> WayOfChoosing:
        """The way of choosing."""
        return self.controller.options.session.mode.way

    def _common_actions(self, phase: Phase, taken: Sequence[Action]) -> list[Action]:
        """Actions shown next to those of the view. A key that the view uses keeps the view's meaning."""
        if self.ranking:
            return [self.undo]
        keys = {key for action in taken for key in action.keys}
        common = [self.undo]
        if phase is Phase.QUESTION:
            common = [*(self.saving if self.way.compares else ()), self.next, self.undo]
        return [action for action in common if not keys.intersection(action.keys)]

    def _view_for(self, shot: Snapshot) -> ChoiceView:
        assert shot.state is not None
        name, places = "question", len(shot.state.question)
        if shot.state.phase is Phase.CONTINUE and not self.ranking:
            name, places = "continue", 0
        elif self.ranking:
            name, places = "ranking", 0
        elif self.way.layout is Layout.GRID:
            name, places = "grid", 0
        elif self.way.layout is Layout.SHEET:
            name, places = "sheet", 0
        sources = 0 if shot.group is None else min(MOST_SHOWN, len(shot.group.sources))
        key = (name, places, sources if name in ("question", "continue") else 0)
        if key not in self._views:
            self._views[key] = view = self._make_view(*key)
            view.bind("<<HintChanged>>", lambda _event: self._draw_hint())
        return self._views[key]

    def _make_view(self, name: str, places: int, sources: int) -> ChoiceView:
        if name == "ranking":
            return RankedView(self.middle, self.context, lambda: self.show_ranking(False))
        if name == "continue":
            return ContinueView(self.middle, self.context, sources)
        if name == "grid":
            return SelectView(self.middle, self.context)
        if name == "sheet":
            sheet = SheetView(self.middle, self.context)
            sheet.bind("<<PromptChanged>>", lambda _event: self._draw_prompt(*sheet.prompt()))
            return sheet
        return QuestionView(self.middle, self.context, places, sources)

    def _put_up(self, view: ChoiceView) -> None:
        if view is self.view:
            return
        if self.view is not None:
            self._let_go()
            self.view.grid_forget()
        self.message.grid_forget()
        self.view = view
        view.grid(row=0, column=0, sticky="nsew")
        self.update_idletasks()

    def _show_nothing(self, shot: Snapshot) -> None:
        if self.view is not None:
            self.view.grid_forget()
        self.view, self._question = None, None
        self._draw_prompt("")
        self.certainty_label.configure(text="")
        self.certainty_bar.grid_remove()
        if shot.search.searching:
            self._say(words.LOOKING)
            return
        if shot.search.groups == 0:
            folder = elide_middle(str(self.controller.options.source), 60)
            files = counted(shot.search.faults, words.FILE)
            text = words.NOTHING_TO_COMPARE.format(folder=folder, files=files)
            missing = sum(edits_without_source(self.controller.faults()).values())
            if missing:
                text += words.EDITS_WITHOUT_SOURCE.format(edits=counted(missing, words.EDIT))
            self._say(text)
            self._draw_actions([Action(words.BACK, ("Return",), self.leave)])
        else:
            prompts, pairs = counted(shot.search.groups, "prompt"), counted(shot.counts.paired, words.PAIR)
            text = words.ALL_DONE.format(prompts=prompts, pairs=pairs)
            if shot.counts.passed:
                text += words.SOME_WITHOUT.format(prompts=counted(shot.counts.passed, "prompt"))
            self._say(text)
            self._draw_actions([Action(words.EXPORT, ("Return", "KP_Enter"), self.leave), self.undo])

    def _say(self, text: str) -> None:
        self.message.configure(text=text)
        self.message.grid(row=0, column=0)
        self.hint_label.configure(text="")
        self._draw_actions([])

    def _draw_prompt(self, prompt: str, aspect: str = "", again: str = "") -> None:
        note = words.NO_PROMPT if prompt == UNCONDITIONAL else ""
        if again:
            note += words.SHOWN_AGAIN.format(reason=again)
        text = words.PROMPT_AND_SHAPE.format(prompt=prompt, shape=aspect, note=note) if prompt else ""
        set_text(self.prompt_box, text)

    def _draw_counts(self, shot: Snapshot) -> None:
        found = shot.search.groups
        place = min(found, shot.finished + (shot.group is not None))
        searching = "" if shot.search.counted else "\u2026"
        last = place + len(shot.strips) - 1
        words_of_place = words.PLACE if last <= place else words.PLACES
        text = words_of_place.format(place=place, last=last, count=max(found, last), searching=searching)
        self.place_label.configure(text=text)
        counts = shot.counts
        words_of_counts = words.COUNTS_OF_MARKS if self.way.layout is Layout.SHEET else words.COUNTS
        text = words_of_counts.format(**vars(counts))
        if counts.passed:
            text += words.WITHOUT_PAIR.format(count=counts.passed)
        if shot.seconds_left is not None:
            text += words.TIME_LEFT.format(time=time_left(shot.seconds_left))
        self.count_label.configure(text=shot.note or text)
        self._fit_top()
        self.progress.show(shot.finished / found if found else 0)

    def _draw_hint(self) -> None:
        if self.view is not None:
            difference = self.view.comparing is Comparing.DIFFERENCE
            self.hint_label.configure(text=words.DIFFERENCE_HINT if difference else self.view.hint)

    def _draw_certainty(self, shot: Snapshot) -> None:
        assert shot.state is not None
        options = self.controller.options.session
        hidden = self.ranking or shot.state.phase is not Phase.QUESTION
        if self.way.layout is Layout.SHEET and not hidden:
            self._draw_taste(shot)
            return
        if hidden or not self.way.compares:
            self.certainty_label.configure(text="")
            self.certainty_bar.grid_remove()
            return
        text = words.SURE.format(share=shot.state.certainty)
        # the order is certain, but not yet that these two are the best and the worst
        more = words.SAVED_AT if shot.state.certainty < options.threshold else words.LOOKING_FOR_CLEARER
        long = more.format(sure=text, share=options.threshold) if self.way.stops_when_certain else text
        bold, font = self.theme.fonts["bold"], self.theme.fonts["text"]
        room = self.winfo_width() - bold.measure(str(self.hint_label.cget("text"))) - self.theme.px(160)
        self.certainty_label.configure(text=next((t for t in (long, text) if font.measure(t) <= room), ""))
        self.certainty_bar.grid()
        self.certainty_bar.show(2 * shot.state.certainty - 1)

    def _draw_taste(self, shot: Snapshot) -> None:
        """Show how well the taste is known, as far as measured, and what to do next."""
        self.gauge.look(shot.counts.liked, shot.counts.disliked, shot.counts.looked_at)
        self.certainty_label.configure(text=self.gauge.text)
        self.certainty_bar.grid()
        self.certainty_bar.show(self.gauge.share)

    def _measured(self) -> None:
        if self.winfo_exists() and self.shot is not None and self.shot.state is not None:
            self._draw_certainty(self.shot)

    def _draw_actions(self, actions: list[Action]) -> None:
        shown = tuple((action.label, action.keys[0]) for action in actions)
        self._actions = actions
        if shown == self._shown_actions:
            return
        self._shown_actions = shown
        self.action_row.clear()
        for action in actions:
            row = self.action_row
            row.add(action_button(row, self.theme, action, partial(self.run, action)))

    # --- decoding ahead -----------------------------------------------------------------------------------------

    def _prefetch(self) -> None:
        """Decode images ahead, now that they have their places."""
        if self.view is not None and self.view.shot is not None and self.view.winfo_width() > 1:
            self.context.prefetcher.want(self.view.wanted())

    def destroy(self) -> None:
        self.gauge.close()
        super().destroy()

    def arrived(self, key: Key) -> None:
        """Handle a decoded image; called by the pump."""
        if self.view is not None and self.winfo_exists():
            self.view.arrived(key[0])

    # --- input --------------------------------------------------------------------------------------------------

    def run(self, action: Action) -> None:
        """Run an action, unless the screen is out of date."""
        if (self.controller.waiting and not action.queues) or (
            action.judges and self.view is not None and not self.view.shows_images()
        ):
            return
        action.run()

    def on_key(self, key: str, control: bool = False, shift: bool = False) -> bool:
        """Handle a key press. Return ``True`` if the key is used here."""
        name = key.lower() if len(key) == 1 else key
        if control:
            name = f"Control-{name}"
        for action in [*self._actions, *self.switches]:
            if name in action.keys and not (
                shift and self.ranking and name in ("Left", "Right", "Up", "Down")
            ):
                self.run(action)
                return True
        if self.view is not None and (name == "f" or (name == "s" and self.view.has_sources)):
            self._hold(name)
            return True
        if self.view is not None and not control and self.view.on_key(key, shift):
            return True
        if (
            key in ("plus", "minus", "equal", "KP_Add", "KP_Subtract")
            and self.view is not None
            and not control
        ):
            self.view.zoom_by(-1 if key in ("minus", "KP_Subtract") else 1)
            return True
        if key == "Escape":
            self.context.zoom.set(None)
            return True
        return False

    def on_release(self, key: str) -> None:
        """Handle a key release."""
        if self._held and key.lower() == self._held:
            self._release.start()

    def _hold(self, name: str) -> None:
        self._release.stop()
        if name != self._held:
            self._let_go()
        self._held = name
        if self.view is not None:
            (self.view.flicker if name == "f" else self.view.flip)(True)

    def _let_go(self) -> None:
        """Reset the state of held keys."""
        self._release.stop()
        self._held = ""
        if self.view is not None:
            self.view.flicker(False)
            self.view.flip(False)

    def toggle_prompt(self) -> None:
        """Collapse or expand the prompt."""
        show_in_grid(self.prompt_box, not self.prompt_box.winfo_ismapped())

    def toggle_blind(self) -> None:
        """Hide or show names and ratings."""
        self.context.blind = not self.context.blind
        if self.view is not None:
            self.view.draw()

    def show_keys(self) -> None:
        """List all keys of the current view."""
        shown = [*self._actions, *self.switches]
        keys = [(", ".join(key_name(key) for key in a.keys if "KP_" not in key), a.label) for a in shown]
        edits = words.SOURCE_KEYS if self.view is not None and self.view.has_sources else ()
        show_keys(self, self.theme, [*keys, *edits, *words.LOOKING_KEYS])

    def show_ranking(self, on: bool) -> None:
        """Show all images from best to worst, or return to the questions."""
        self.ranking = on
        if self.shot is not None:
            self.show_snapshot(self.shot)


def time_left(seconds: float) -> str:
    """``45 s``, ``12 min`` or ``3 h 20 min``."""
    if seconds < 90:
        return words.SECONDS.format(seconds=round(seconds))
    minutes = round(seconds / 60)
    if minutes < 90:
        return words.MINUTES.format(minutes=minutes)
    return words.HOURS.format(hours=minutes // 60, minutes=minutes % 60)
