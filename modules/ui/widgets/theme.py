"""Colours, fonts and widget styles of the main window, for any appearance and scale.

Forms have dozens of rows, so they are made of ttk widgets drawn with small images: a page is built in a
tenth of the time canvas-drawn widgets need, and the keyboard works in every one of them.
"""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from tkinter import font as tkfont
from tkinter import ttk
from typing import Any

import customtkinter as ctk
from PIL import Image, ImageDraw, ImageTk

APPEARANCES = ("System", "Dark", "Light")
SCALES = (75, 90, 100, 110, 125, 150, 175, 200)
"""Sizes to choose from, in percent."""
_OVERSAMPLE = 4
_Layout = list[tuple[str, Any]]
"""Layout of a widget in ttk's format: elements and, each in a table, their options and children."""
_Box = tuple[str, str, str, int, int, int, int, tuple[int, int]]
"""The arguments of ``_drawn_box``."""


@dataclass(frozen=True)
class Palette:
    """Colours by purpose."""

    back: str
    panel: str
    field: str
    border: str
    hover: str
    text: str
    muted: str
    accent: str
    on_accent: str
    selected: str
    error: str
    warning: str
    good: str
    curves: tuple[str, ...]


DARK = Palette(
    back="#191b1f",
    panel="#22252a",
    field="#2b2f36",
    border="#454b55",
    hover="#363b43",
    text="#e8eaed",
    muted="#a3abb6",
    accent="#5b96ff",
    on_accent="#0d1420",
    selected="#2f3f5c",
    error="#ff7d70",
    warning="#ecbb5a",
    good="#58c28a",
    curves=("#5b96ff", "#ecbb5a", "#58c28a", "#ff7d70", "#c58af9", "#4fc6d6"),
)
LIGHT = Palette(
    back="#eef0f3",
    panel="#ffffff",
    field="#fbfcfd",
    border="#b6bdc7",
    hover="#e6e9ee",
    text="#1b1e23",
    muted="#59626e",
    accent="#2463d1",
    on_accent="#ffffff",
    selected="#dbe6fb",
    error="#b9271a",
    warning="#8a5a00",
    good="#17794a",
    curves=("#2463d1", "#b26a00", "#17794a", "#b9271a", "#7d3fc2", "#0f7f8f"),
)


def is_dark(appearance: str) -> bool:
    """Return whether an appearance is dark. ``System`` asks the desktop, which is slow."""
    ctk.set_appearance_mode(appearance)
    return bool(ctk.get_appearance_mode() == "Dark")


class Theme:
    """The appearance of a window. Change it with ``apply``."""

    def __init__(self, root: tk.Tk) -> None:
        self.root = root
        self.scale = 1.0
        self.palette = DARK
        self.style = ttk.Style(root)
        family = str(tkfont.nametofont("TkDefaultFont", root).actual("family"))
        mono = str(tkfont.nametofont("TkFixedFont", root).actual("family"))
        self.fonts = {
            "text": tkfont.Font(root, family=family),
            "small": tkfont.Font(root, family=family),
            "bold": tkfont.Font(root, family=family, weight="bold"),
            "title": tkfont.Font(root, family=family, weight="bold"),
            "mono": tkfont.Font(root, family=mono),
        }
        self._images: dict[str, list[ImageTk.PhotoImage]] = {}
        self._listeners: list[Callable[[], object]] = []

    def px(self, size: float) -> int:
        """Convert a length at 100 % to pixels at the current scale."""
        return max(1, round(size * self.scale))

    def on_change(self, call: Callable[[], object], widget: tk.Misc | None = None) -> None:
        """Call ``call`` now and after every change as long as ``widget`` exists."""
        self._listeners.append(call)
        if widget is not None:
            widget.bind("<Destroy>", lambda event: self._forget(call, event, widget), add="+")
        call()

    def _forget(self, call: Callable[[], object], event: tk.Event[tk.Misc], widget: tk.Misc) -> None:
        if event.widget is widget and call in self._listeners:
            self._listeners.remove(call)

    def apply(self, appearance: str, percent: int) -> None:
        """Switch to an appearance (``APPEARANCES``) and a scale in percent."""
        dark = is_dark(appearance)
        ctk.set_appearance_mode("Dark" if dark else "Light")
        self.palette = DARK if dark else LIGHT
        self.scale = percent / 100
        sizes = {"text": 13, "small": 12, "bold": 13, "title": 19, "mono": 12}
        for name, size in sizes.items():
            self.fonts[name].configure(size=-self.px(size))
        name = f"tastemaker-{'dark' if dark else 'light'}-{percent}"
        if name not in self.style.theme_names():
            self.style.theme_create(name, parent="clam")
            self.style.theme_use(name)
            self._images[name] = _StyleMaker(self).make()
        self.style.theme_use(name)
        self.root.configure(background=self.palette.back)
        self.root.option_add("*Menu.font", self.fonts["text"])
        for call in list(self._listeners):
            call()


class _StyleMaker:
    """Fills a new ttk theme."""

    def __init__(self, theme: Theme) -> None:
        self.theme, self.style, self.palette, self.px = theme, theme.style, theme.palette, theme.px
        self.images: list[ImageTk.PhotoImage] = []
        self._boxes: dict[_Box, ImageTk.PhotoImage] = {}

    def make(self) -> list[ImageTk.PhotoImage]:
        p, fonts = self.palette, self.theme.fonts
        self.style.configure(".", background=p.panel, foreground=p.text, font=fonts["text"], borderwidth=0)
        self.style.configure("TFrame", background=p.panel)
        self.style.configure("Back.TFrame", background=p.back)
        for name, colour in (("TLabel", p.text), ("Muted.TLabel", p.muted), ("Error.TLabel", p.error)):
            self.style.configure(name, foreground=colour)
        self.style.configure("Warning.TLabel", foreground=p.warning)
        self.style.configure("Good.TLabel", foreground=p.good)
        self.style.configure("Mark.TLabel", foreground=p.accent, font=fonts["small"])
        self.style.configure("Small.TLabel", foreground=p.muted, font=fonts["small"])
        self.style.configure("Bold.TLabel", font=fonts["bold"])
        self.style.configure("Title.TLabel", font=fonts["title"], background=p.back)
        self.style.configure("Back.TLabel", background=p.back, foreground=p.muted)
        self._fields()
        self._switch()
        self._buttons()
        self._bars()
        self._tree()
        return self.images

    # -- drawing ---------------------------------------------------------------------------------------------

    def _box(
        self, fill: str, edge: str, under: str, width: float = 1, radius: float = 5
    ) -> ImageTk.PhotoImage:
        """A rounded box, stretched between its corners. Equal boxes share one image."""
        px = self.px
        look = (fill, edge, under, px(width), px(radius), px(18), px(7), (px(320), px(48)))
        if look not in self._boxes:
            self._boxes[look] = self._image(_drawn_box(*look))
        return self._boxes[look]

    def _image(self, image: Image.Image) -> ImageTk.PhotoImage:
        made = ImageTk.PhotoImage(image, master=self.theme.root)
        self.images.append(made)
        return made

    def _keep(self, image: Image.Image, size: tuple[int, int]) -> ImageTk.PhotoImage:
        return self._image(image.resize(size, Image.Resampling.LANCZOS))

    def _element(
        self, name: str, first: ImageTk.PhotoImage, *states: tuple[object, ...], **options: object
    ) -> None:
        self.style.element_create(name, "image", first, *states, **options)  # type: ignore[call-overload]

    def _stretch(self) -> dict[str, object]:
        return {"border": self.px(7), "width": self.px(16), "height": self.px(16), "sticky": "nsew"}

    # -- styles ----------------------------------------------------------------------------------------------

    def _fields(self) -> None:
        p, px = self.palette, self.px
        plain = self._box(p.field, p.border, p.panel)
        focus = self._box(p.field, p.accent, p.panel, 2)
        wrong = self._box(p.field, p.error, p.panel, 2)
        hover = self._box(p.field, p.muted, p.panel)
        off = self._box(p.panel, p.border, p.panel)
        states = (("disabled", off), ("invalid", wrong), ("focus", focus), ("active", hover))
        self._element("Box.field", plain, *states, **self._stretch())
        self._element("Down.arrow", self._arrow(), sticky="")
        pad = (px(7), px(4))
        entry: _Layout = [("Box.field", {"sticky": "nsew", "children": [
            ("Entry.padding", {"sticky": "nsew", "children": [("Entry.textarea", {"sticky": "nsew"})]})]})]  # fmt: skip
        combo: _Layout = [("Box.field", {"sticky": "nsew", "children": [
            ("Down.arrow", {"side": "right", "sticky": ""}),
            ("Combobox.padding", {"expand": "1", "sticky": "nsew", "children": [
                ("Combobox.textarea", {"sticky": "nsew"})]})]})]  # fmt: skip
        for name, layout in (("TEntry", entry), ("TCombobox", combo)):
            self.style.layout(name, layout)
            self.style.configure(
                name, foreground=p.text, insertcolor=p.text, insertwidth=px(1.5), padding=pad
            )
            self.style.map(
                name,
                foreground=[("disabled", p.muted)],
                selectbackground=[("!focus", p.field), ("focus", p.selected)],
                selectforeground=[("focus", p.text), ("!focus", p.text)],
            )

    def _arrow(self) -> ImageTk.PhotoImage:
        side, many = self.px(20), _OVERSAMPLE
        image = Image.new("RGBA", (side * many, side * many), (0, 0, 0, 0))
        unit = side * many / 20
        points = [(unit * 5, unit * 8), (unit * 10, unit * 13), (unit * 15, unit * 8)]
        ImageDraw.Draw(image).line(points, self.palette.muted, round(unit * 1.8), joint="curve")
        return self._keep(image, (side, side))

    def _switch(self) -> None:
        p, px = self.palette, self.px
        states = (
            ("selected focus", self._toggle(p.accent, p.on_accent, True, p.text)),
            ("selected disabled", self._toggle(p.border, p.muted, True, p.border)),
            ("selected", self._toggle(p.accent, p.on_accent, True, p.accent)),
            ("focus", self._toggle(p.field, p.text, False, p.accent)),
            ("disabled", self._toggle(p.panel, p.border, False, p.border)),
        )
        off = self._toggle(p.field, p.muted, False, p.border)
        self._element(
            "Toggle.indicator", off, *[(*names.split(), image) for names, image in states], sticky="w"
        )
        layout: _Layout = [("Checkbutton.padding", {"sticky": "nsew", "children": [
            ("Toggle.indicator", {"side": "left", "sticky": ""}),
            ("Checkbutton.label", {"side": "left", "sticky": ""})]})]  # fmt: skip
        self.style.layout("TCheckbutton", layout)
        self.style.configure(
            "TCheckbutton", background=p.panel, foreground=p.text, padding=(0, px(4), px(6), px(4))
        )
        self.style.map("TCheckbutton", background=[("active", p.panel)], foreground=[("disabled", p.muted)])
        self.style.configure("Back.TCheckbutton", background=p.back)
        self.style.map("Back.TCheckbutton", background=[("active", p.back)])

    def _toggle(self, fill: str, knob: str, on: bool, edge: str) -> ImageTk.PhotoImage:
        width, height, many = self.px(40), self.px(20), _OVERSAMPLE
        image = Image.new("RGBA", (width * many, height * many), (0, 0, 0, 0))
        unit = height * many / 20
        draw = ImageDraw.Draw(image)
        box = (0, 0, unit * 36 - 1, height * many - 1)
        draw.rounded_rectangle(box, unit * 10, fill, edge, round(unit * 2))
        left = unit * (20 if on else 5)
        draw.ellipse((left, unit * 5, left + unit * 10, unit * 15), knob)
        return self._keep(image, (width, height))

    def _buttons(self) -> None:
        p = self.palette
        self._button("TButton", p.field, p.border, p.text, p.panel)
        self._button("Back.TButton", p.panel, p.border, p.text, p.back)
        self._button("Accent.TButton", p.accent, p.accent, p.on_accent, p.panel)
        self._button("Flat.TButton", p.panel, p.panel, p.muted, p.panel)
        self._button("Side.TButton", p.panel, p.panel, p.text, p.panel, anchor="w")
        self._button("SideOn.TButton", p.selected, p.selected, p.text, p.panel, anchor="w")
        self._button("TMenubutton", p.field, p.border, p.text, p.panel)
        self.style.configure("SideOn.TButton", font=self.theme.fonts["bold"])
        self.style.configure("Flat.TButton", padding=(self.px(4), self.px(2)))
        self.style.configure("Small.TButton", padding=(self.px(8), self.px(1)))

    def _button(self, name: str, fill: str, edge: str, text: str, under: str, anchor: str = "center") -> None:
        p, px = self.palette, self.px
        accent = name.startswith("Accent")
        hover = fill if accent else (p.hover if fill != p.selected else p.selected)
        images = (
            ("disabled", self._box(under, p.border if edge != fill or accent else under, under)),
            ("pressed", self._box(p.selected if not accent else fill, p.accent, under)),
            ("focus", self._box(fill, p.text if accent else p.accent, under, 2)),
            ("active", self._box(hover, p.text if accent else edge, under)),
        )
        element = f"{name}.box"
        self._element(element, self._box(fill, edge, under), *images, **self._stretch())
        layout: _Layout = [(element, {"sticky": "nsew", "children": [
            ("Button.padding", {"sticky": "nsew", "children": [("Button.label", {"sticky": "nsew"})]})]})]  # fmt: skip
        self.style.layout(name, layout)
        self.style.configure(name, padding=(px(10), px(4)), foreground=text, background=fill, anchor=anchor)
        self.style.map(
            name,
            foreground=[("disabled", p.muted)],
            background=[
                ("disabled", under),
                ("pressed", p.selected if not accent else fill),
                ("active", hover),
            ],
        )

    def _bars(self) -> None:
        p, px = self.palette, self.px
        for way in ("Vertical", "Horizontal"):
            name = f"{way}.TScrollbar"
            side = "ns" if way == "Vertical" else "ew"
            trough: tuple[str, Any] = (f"{way}.Scrollbar.trough", {"sticky": side, "children": [
                (f"{way}.Scrollbar.thumb", {"expand": "1", "sticky": "nswe"})]})  # fmt: skip
            self.style.layout(name, [trough])
            self.style.configure(
                name, background=p.border, troughcolor=p.panel, bordercolor=p.panel, lightcolor=p.border,
                darkcolor=p.border, arrowsize=px(11), width=px(11), gripcount=0, relief="flat",
            )  # fmt: skip
            off = [("disabled", p.panel)]
            self.style.map(
                name, background=[*off, ("active", p.muted)], bordercolor=off, lightcolor=off, darkcolor=off
            )
        self.style.configure(
            "Horizontal.TProgressbar", background=p.accent, troughcolor=p.border, bordercolor=p.border,
            lightcolor=p.accent, darkcolor=p.accent, thickness=px(8),
        )  # fmt: skip
        self.style.configure(
            "Horizontal.TScale", background=p.accent, troughcolor=p.border, bordercolor=p.border,
            lightcolor=p.accent, darkcolor=p.accent, gripcount=0, sliderlength=px(14), relief="flat",
        )  # fmt: skip
        self.style.map("Horizontal.TScale", background=[("active", p.accent)])
        self.style.configure(
            "TRadiobutton", background=p.panel, foreground=p.text, padding=(0, px(4), px(6), px(4)),
            indicatorbackground=p.field, indicatorforeground=p.accent, upperbordercolor=p.border,
            lowerbordercolor=p.border, indicatormargin=px(3),
        )  # fmt: skip
        self.style.map(
            "TRadiobutton", background=[("active", p.panel)], indicatorbackground=[("selected", p.panel)]
        )
        self.style.configure("TPanedwindow", background=p.back)
        self.style.configure("Sash", sashthickness=px(6), gripcount=0, background=p.back)
        self.style.configure(
            "TNotebook", background=p.back, bordercolor=p.back, lightcolor=p.back, darkcolor=p.back
        )
        self.style.configure(
            "TNotebook.Tab", background=p.back, foreground=p.muted, padding=(px(12), px(6)), bordercolor=p.back,
            lightcolor=p.back, focuscolor=p.accent,
        )  # fmt: skip
        self.style.map(
            "TNotebook.Tab", background=[("selected", p.panel)], foreground=[("selected", p.text)],
            lightcolor=[("selected", p.panel)], bordercolor=[("selected", p.panel)],
        )  # fmt: skip

    def _tree(self) -> None:
        p, px, fonts = self.palette, self.px, self.theme.fonts
        self.style.configure(
            "Treeview", background=p.panel, fieldbackground=p.panel, foreground=p.text, rowheight=px(28),
            bordercolor=p.panel, lightcolor=p.panel, darkcolor=p.panel, borderwidth=0,
        )  # fmt: skip
        self.style.map("Treeview", background=[("selected", p.selected)], foreground=[("selected", p.text)])
        self.style.configure(
            "Treeview.Heading", background=p.panel, foreground=p.muted, font=fonts["small"], relief="flat",
            bordercolor=p.panel, lightcolor=p.panel, darkcolor=p.panel, padding=(px(6), px(4)),
        )  # fmt: skip
        self.style.map("Treeview.Heading", background=[("active", p.hover)])


@lru_cache(maxsize=128)
def _drawn_box(
    fill: str, edge: str, under: str, width: int, radius: int, side: int, corner: int, size: tuple[int, int]
) -> Image.Image:
    """A rounded box on a colour, with edges of ``width`` pixels, drawn with a side of ``side`` pixels and stretched
    to ``size`` between corners of ``corner`` pixels.
    """
    many = _OVERSAMPLE
    image = Image.new("RGB", (side * many, side * many), under)
    place = (0, 0, side * many - 1, side * many - 1)
    ImageDraw.Draw(image).rounded_rectangle(place, radius * many, fill, edge, width * many)
    small = image.resize((side, side), Image.Resampling.LANCZOS)
    # Tk fills a widget by tiling the middle, so a wide middle means a few copies instead of hundreds.
    return _stretched(small, corner, size)


def _stretched(image: Image.Image, edge: int, size: tuple[int, int]) -> Image.Image:
    """Enlarge ``image`` by stretching its middle. Corners of ``edge`` pixels stay unchanged."""
    side, (width, height) = image.width, size
    made = Image.new("RGB", size)
    source = (0, edge, side - edge, side)
    across, down = (0, edge, width - edge, width), (0, edge, height - edge, height)
    for row in range(3):
        for column in range(3):
            part = image.crop((source[column], source[row], source[column + 1], source[row + 1]))
            place = (across[column], down[row])
            made.paste(part.resize((across[column + 1] - place[0], down[row + 1] - place[1])), place)
    return made


def style_text(theme: Theme, widget: tk.Text | tk.Listbox, mono: bool = False) -> None:
    """Apply the theme to a plain Tk text or list, now and after every change."""

    def apply() -> None:
        p = theme.palette
        widget.configure(
            background=p.field,
            foreground=p.text,
            selectbackground=p.selected,
            selectforeground=p.text,
            font=theme.fonts["mono" if mono else "text"],
            highlightthickness=theme.px(1),
            highlightbackground=p.border,
            highlightcolor=p.accent,
            borderwidth=0,
            relief="flat",
        )
        if isinstance(widget, tk.Text):
            widget.configure(insertbackground=p.text, padx=theme.px(6), pady=theme.px(4))

    theme.on_change(apply, widget)


def style_menu(theme: Theme, menu: tk.Menu) -> None:
    """Apply the current theme to a menu. Menus are rebuilt when they open."""
    p = theme.palette
    menu.configure(
        background=p.field, foreground=p.text, activebackground=p.selected, activeforeground=p.text,
        font=theme.fonts["text"], borderwidth=1, activeborderwidth=0, relief="flat",
    )  # fmt: skip
