"""Gymnasium's ``Text`` space over all characters of a terminal, which are too many to enumerate."""

import multiprocessing
from collections.abc import Iterator, Sequence, Set
from typing import Any, overload, override

import numpy as np
from gymnasium.spaces import Text
from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory
from numpy.typing import NDArray

_CODE_POINTS = 0x110000
_SURROGATES = range(0xD800, 0xE000)
_SAMPLE_LENGTH = 64
_LENGTH_BYTES = 8
"""A text in shared memory begins with its length in bytes."""

_SAMPLE_CHARACTERS = "".join(map(chr, range(0x20, 0x7F))) + "\n"


class TerminalText(Text):
    """All strings of at most ``max_length`` characters that can be encoded, without NUL.

    ``Text`` requires a list of its characters. Here there are 1 112 063, so membership is computed, and a character's
    index is its code point. Samples are short strings of a keyboard's characters; they are not empty, since empty
    keystrokes wait.

    Args:
        max_length: Longest string, in characters.
        sample_length: Longest sample, in characters.
        seed: Seed of the samples.
    """

    def __init__(
        self, max_length: int, *, sample_length: int = _SAMPLE_LENGTH, seed: int | np.random.Generator | None = None
    ) -> None:
        super().__init__(max_length, min_length=0, charset=_SAMPLE_CHARACTERS, seed=seed)
        self.sample_length = min(sample_length, max_length)

    @override
    def sample(
        self,
        mask: tuple[int | None, NDArray[np.int8] | None] | None = None,
        probability: tuple[int | None, NDArray[np.float64] | None] | None = None,
    ) -> str:
        """Return a short random string; of a mask only the length is used."""
        length = (mask or probability or (None, None))[0]
        if length is None:
            length = int(self.np_random.integers(1, self.sample_length + 1))
        return "".join(self.np_random.choice(list(_SAMPLE_CHARACTERS), size=length))

    @override
    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a string of this space."""
        return isinstance(x, str) and len(x) <= self.max_length and all(char in _CHARACTERS for char in set(x))

    @override
    def __eq__(self, other: object, /) -> bool:
        return isinstance(other, TerminalText) and self.max_length == other.max_length

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # as Text: spaces can be reseeded

    @override
    def __repr__(self) -> str:
        return f"TerminalText({self.max_length})"

    @property
    @override
    def character_set(self) -> Any:
        """All characters, as a set with computed membership."""
        return _CHARACTERS

    @property
    @override
    def character_list(self) -> Any:
        """All code points, as a sequence with computed items."""
        return _CODE_POINT_LIST

    @override
    def character_index(self, char: str) -> np.int32:
        """Return the character's code point."""
        return np.int32(ord(char))

    @property
    @override
    def characters(self) -> str:
        """The characters of samples."""
        return _SAMPLE_CHARACTERS


@create_shared_memory.register
def _create_shared_texts(space: TerminalText, n: int = 1, ctx: Any = multiprocessing) -> Any:
    return ctx.Array("B", n * _place_bytes(space))


@write_to_shared_memory.register
def _write_shared_text(space: TerminalText, index: int, value: str, shared_memory: Any) -> None:
    text = value[: space.max_length].encode()
    start = index * _place_bytes(space)
    buffer = memoryview(shared_memory.get_obj()).cast("B")
    buffer[start : start + _LENGTH_BYTES] = len(text).to_bytes(_LENGTH_BYTES)
    buffer[start + _LENGTH_BYTES : start + _LENGTH_BYTES + len(text)] = text


@read_from_shared_memory.register
def _read_shared_texts(space: TerminalText, shared_memory: Any, n: int = 1) -> Any:
    return _SharedTexts(space, shared_memory, n)


def _place_bytes(space: TerminalText) -> int:
    return _LENGTH_BYTES + 4 * space.max_length


class _SharedTexts(Sequence[str]):
    """One text per environment, read from shared memory at each access, since Gymnasium keeps this object for the run.

    Gymnasium returns a deep copy to its caller: a tuple of strings.
    """

    def __init__(self, space: TerminalText, shared_memory: Any, n: int) -> None:
        self._place_bytes = _place_bytes(space)
        self._buffer = memoryview(shared_memory.get_obj()).cast("B")
        self._n = n

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        places = range(self._n)[index]
        return self._read(places) if isinstance(places, int) else tuple(map(self._read, places))

    def __len__(self) -> int:
        return self._n

    def __deepcopy__(self, memo: dict[int, Any]) -> tuple[str, ...]:
        return tuple(self)

    def _read(self, place: int) -> str:
        start = place * self._place_bytes + _LENGTH_BYTES
        length = int.from_bytes(self._buffer[start - _LENGTH_BYTES : start])
        return bytes(self._buffer[start : start + length]).decode()


class _Characters(Set[str]):
    """The characters of a terminal's text. The length is that of the code space, so that every index is below it."""

    def __contains__(self, char: object) -> bool:
        return isinstance(char, str) and len(char) == 1 and char != "\0" and ord(char) not in _SURROGATES

    def __iter__(self) -> Iterator[str]:
        return (char for char in map(chr, range(_CODE_POINTS)) if char in self)

    def __len__(self) -> int:
        return _CODE_POINTS

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Characters)

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # a set, not a frozenset


class _CodePoints(Sequence[str]):
    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        points = range(_CODE_POINTS)[index]
        return chr(points) if isinstance(points, int) else [chr(point) for point in points]

    def __len__(self) -> int:
        return _CODE_POINTS


_CHARACTERS = _Characters()
_CODE_POINT_LIST = _CodePoints()
