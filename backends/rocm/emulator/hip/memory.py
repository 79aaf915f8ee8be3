"""The memory of a HIP program's emulated GPU: host memory, in pieces that are known by address and extent."""

from __future__ import annotations

import bisect
import ctypes
import os
import struct
import threading
from dataclasses import dataclass
from typing import Any

HOST, DEVICE, MANAGED = 1, 2, 3
"""Kinds of memory, as hipMemoryType has them."""

_ALIGNMENT = 256
_GAP = 4096  # bytes on both sides that belong to nobody, so that a small overrun meets no other piece
_POISON = 0xFF  # NaN as float, -1 as integer: what a fresh piece holds until it is written

_libc = ctypes.CDLL(None)
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
_libc.free.argtypes = (ctypes.c_void_p,)


def store(address: int, form: str, *values: Any) -> None:
    """Write values at an address of the program, as `struct` has them."""
    data = struct.pack(form, *values)
    ctypes.memmove(address, data, len(data))


def load(address: int) -> int:
    """The word of 8 bytes at an address of the program."""
    return struct.unpack("<Q", ctypes.string_at(address, 8))[0]


@dataclass(frozen=True)
class Piece:
    """`nbytes` at `address`, of a kind; `name` says where it is from. `start` is what libc gave, None if it
    is the program's own memory."""

    name: str
    address: int
    nbytes: int
    kind: int
    start: int | None
    writable: bool = True


class Memory:
    """The pieces, by address. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._addresses: list[int] = []
        self._pieces: dict[int, Piece] = {}
        self._count = 0
        self.total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    @property
    def pieces(self) -> list[Piece]:
        with self._lock:
            return [self._pieces[address] for address in self._addresses]

    @property
    def used(self) -> int:
        return sum(piece.nbytes for piece in self.pieces if piece.kind != HOST)

    def allocate(self, function: str, nbytes: int, kind: int) -> int | None:
        """The address of a fresh piece, filled with 0xFF; None if there is no memory. 0 bytes are at 0."""
        if nbytes == 0:
            return 0
        size = nbytes + 2 * _GAP
        size += -size % _ALIGNMENT
        start = _libc.aligned_alloc(_ALIGNMENT, size) if nbytes <= self.total - self.used else None
        if not start:
            return None
        self._count += 1
        ctypes.memset(start + _GAP, _POISON, nbytes)
        self.add(Piece(f"the {nbytes} bytes of {function} {self._count}", start + _GAP, nbytes, kind, start))
        return start + _GAP

    def add(self, piece: Piece) -> None:
        with self._lock:
            if piece.address not in self._pieces:
                bisect.insort(self._addresses, piece.address)
            self._pieces[piece.address] = piece

    def remove(self, address: int) -> bool:
        """Forget the piece that starts at `address`; False if there is none."""
        with self._lock:
            piece = self._pieces.pop(address, None)
            if piece is None:
                return False
            self._addresses.remove(address)
        if piece.start is not None:
            _libc.free(piece.start)
        return True

    def at(self, address: int) -> Piece | None:
        """The piece that `address` lies in."""
        with self._lock:
            place = bisect.bisect_right(self._addresses, address)
            piece = self._pieces[self._addresses[place - 1]] if place else None
        return piece if piece and address < piece.address + piece.nbytes else None
