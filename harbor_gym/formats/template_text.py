"""Text in which the parts written by this package may hold a chat format's marks."""

from collections.abc import Iterable


class TemplateText(str):
    """A message's text of which some parts belong to the chat format: their marks become control tokens.

    A codec that keeps marks in content apart (:class:`harbor_gym.codecs.marks.Marks`) reads :attr:`parts`; all other
    code sees a string. The results of a string's own methods are plain content.
    """

    parts: tuple[str, ...] = ()
    """The text in pieces: those of this class belong to the format, plain strings are content. Empty if the whole text
    belongs to the format."""

    @classmethod
    def join(cls, separator: str, parts: Iterable[str]) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]  # a constructor, where str has a method
        """Return the parts joined by the separator; a plain string if no part belongs to the format."""
        pieces: list[str] = []
        for number, part in enumerate(parts):
            pieces += [separator] if number and separator else []
            pieces += (isinstance(part, TemplateText) and part.parts) or [part]
        if not any(isinstance(piece, TemplateText) for piece in pieces):
            return "".join(pieces)
        joined = cls("".join(pieces))
        joined.parts = tuple(pieces)
        return joined
