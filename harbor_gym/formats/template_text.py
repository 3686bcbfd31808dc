"""Text in which some parts may hold a chat format's marks, because this package wrote them."""

from collections.abc import Iterable


class TemplateText(str):
    """A message's text of which some parts belong to the chat format: their marks become control tokens.

    A codec that keeps marks in content apart (:class:`harbor_gym.codecs.marks.Marks`) reads :attr:`parts`; for everyone
    else it is a string. What is made from it by a string's own methods is plain content.
    """

    parts: tuple[str, ...] = ()
    """The text in pieces: those of this class belong to the format, plain ones are content. Empty where the whole text
    belongs to the format."""

    @classmethod
    def join(cls, separator: str, parts: Iterable[str]) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]  # a constructor, where str has a method
        """Return the parts with a separator between them; plain text where no part belongs to the format."""
        pieces: list[str] = []
        for number, part in enumerate(parts):
            pieces += [separator] if number and separator else []
            pieces += (isinstance(part, TemplateText) and part.parts) or [part]
        if not any(isinstance(piece, TemplateText) for piece in pieces):
            return "".join(pieces)
        joined = cls("".join(pieces))
        joined.parts = tuple(pieces)
        return joined
