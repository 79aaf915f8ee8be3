"""What a kernel says through the host: `tl.device_print`, failing assertions, AMD's own `printf`.

The buffer has the layout of AMD's device library (ROCm-Device-Libs, ockl); native/hostcall.c answers the
calls and keeps the pieces. A message is the control word, the format padded to 8 bytes, then the arguments: a
word each, a string its padded bytes. The text is what the C library's printf makes of it, as on hardware.
"""

from __future__ import annotations

import ctypes
import re
import struct
import sys
from collections import defaultdict
from typing import Any

from portable.backends.rocm.emulator import abi

_HEAD = struct.Struct("<6Q")  # headers, payloads, doorbell, free stack, ready stack, mask of an index
_HEADER_BYTES, _PAYLOAD_BYTES, _SIGNAL_BYTES = 24, 64 * 64, 64
_END = 2
_SAID_WORDS = 9
_CONVERSION = re.compile(rb"%[-+ #0]*(\*|\d+)?(?:\.(\*|\d+)?)?(?:hh|h|ll|l|L|q|j|z|t)?[diouxXfFeEgGaAcspn%]")


def nbytes(packets: int) -> int:
    """Bytes of a buffer for `packets`, a power of two, the most waves that may call at once."""
    return _HEAD.size + 16 + _SIGNAL_BYTES + packets * (_HEADER_BYTES + _PAYLOAD_BYTES)


def buffer(address: int, packets: int) -> bytes:
    """The buffer as the kernel finds it at `address`: every packet on the free stack."""
    signal = address + _HEAD.size + 16
    headers = signal + _SIGNAL_BYTES
    payloads = headers + packets * _HEADER_BYTES
    names = [packets, *range(1, packets)]  # of a packet: its index, and more above it, for 0 is the end
    head = _HEAD.pack(headers, payloads, signal, names[-1], 0, packets - 1)
    stack = b"".join(struct.pack("<QQII", each, 0, 0, 0) for each in [0, *names[:-1]])
    return head + bytes(16 + _SIGNAL_BYTES) + stack


def show(state: abi.Launch) -> None:
    """Print what a launch said, in the order in which its messages ended."""
    pieces: dict[int, list[bytes]] = defaultdict(list)
    words = ctypes.string_at(state.said, 8 * _SAID_WORDS * state.said_count) if state.said_count else b""
    texts: dict[Any, list[str]] = {sys.stdout: [], sys.stderr: []}
    for at in range(0, len(words), 8 * _SAID_WORDS):
        message, descriptor = struct.unpack_from("<2Q", words, at)
        pieces[message].append(words[at + 16 : at + 16 + 8 * (descriptor >> 5 & 7)])
        if descriptor & _END:
            whole = b"".join(pieces.pop(message))
            stream = sys.stderr if whole[:1] and whole[0] & 1 else sys.stdout
            texts[stream].append(formatted(whole[8:]).decode(errors="replace"))
    for stream, text in texts.items():
        if text:
            stream.write("".join(text))
            stream.flush()


def formatted(message: bytes) -> bytes:
    """The text of a message behind its control word."""
    form, at = _string(message, 0)
    text, end = b"", 0
    for found in _CONVERSION.finditer(form):
        text += form[end : found.start()]
        end = found.end()
        spec = found[0]
        if spec.endswith(b"%"):
            text += b"%"
            continue
        arguments: list[Any] = []
        for each in found.groups():
            if each == b"*":
                arguments.append(ctypes.c_int.from_buffer_copy(message[at : at + 8].ljust(8, b"\0")))
                at += 8
        if at >= len(message):
            return text
        if spec.endswith(b"s"):
            string, at = _string(message, at)
            arguments.append(string)
        else:
            word = message[at : at + 8].ljust(8, b"\0")
            at += 8
            if spec.endswith(b"n"):
                continue
            floating = spec[-1:] in b"fFeEgGaA"
            arguments.append((ctypes.c_double if floating else ctypes.c_uint64).from_buffer_copy(word))
        text += _printf(spec, arguments)
    return text + form[end:]


def _string(message: bytes, at: int) -> tuple[bytes, int]:
    """The string there, and where what follows it starts."""
    end = message.find(b"\0", at)
    end = len(message) if end < 0 else end
    return message[at:end], at + (end - at + 8) // 8 * 8


def _printf(spec: bytes, arguments: list[Any]) -> bytes:
    printf = ctypes.CDLL(None).snprintf
    size = printf(None, ctypes.c_size_t(0), spec, *arguments)
    made = ctypes.create_string_buffer(max(size, 0) + 1)
    printf(made, ctypes.c_size_t(len(made)), spec, *arguments)
    return made.value
