"""The plan of attention_fp8's HIP kernel, fwd.hip with codes of 8 bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from portable.kernels._lib.minifloat import format_type
from portable.kernels.attention.gfx.plan import (
    HEAD_UNIT,
    MAX_ROWS,
    ForwardTile,
    family,
    forward_tile,
    takes_buffers,
)
from portable.kernels.attention.params import AttentionParams
from portable.kernels.attention.planning import defines_of, native_kernel, planner, tiled, tiled_plan
from portable.plan import Call, Plan

_SOURCE = Path(__file__).resolve().parent / "fwd.hip"
NATIVE_FORMATS = {
    "gfx942": ("float8_e4m3fnuz", "float8_e4m3fn"),  # OCP's become fnuz
    "gfx950": ("float8_e4m3fn",),
    "gfx12": ("float8_e4m3fn",),
}
"""Whose codes the matrix instructions take, by arch or family."""
_NATIVE_UNIT = 64  # of q's and k's head size: an operand's 16 codes of a lane, four lanes a row
NATIVE_TILES = {  # by family: (tile, largest padded head size)
    "gfx9": ((ForwardTile(64, 4, 2), 128), (ForwardTile(64, 4, 1), 256)),
    "gfx12": ((ForwardTile(64, 8, 1), 128), (ForwardTile(64, 8, 1, q_in_lds=True, waves_e=2), 256)),
}
"""In order of preference: what registers hold without a spill (compiled, never timed; 2026-11-28)."""
_TINY = {"gfx9": ForwardTile(64, 1, 1), "gfx12": ForwardTile(32, 1, 1)}  # one step of one wave


@planner
def forward(call: Call, p: AttentionParams) -> Plan:
    """o and lse: a block per tile of queries of a head, of codes or of numbers made of them (codes.h)."""
    p.require(MAX_ROWS)
    own = family(call.device)
    native = p.codes in NATIVE_FORMATS.get(call.device.arch, NATIVE_FORMATS.get(own, ()))
    d, e = p.padded(HEAD_UNIT)
    tiny = p.M <= 16 and p.N <= 32
    if native:
        d = p.padded(_NATIVE_UNIT)[0]
        tile = _native_tile(own, d, e, tiny)
    else:
        tile = forward_tile(call.device, d, e, tiny=tiny)
    chunk = 16 if native else 8  # codes of k
    defines = {
        "FORMAT": format_type(p.codes), "NATIVE": native,
        "HEAD_D": d, "HEAD_E": e, "EVEN_D": d == p.D, "EVEN_E": e == p.E, **defines_of(tile),
        "SCALE_ONLY": p.softcap is None,
        "BUFFER_LOADS": p.D % chunk == 0 and takes_buffers(call.device, p, k=p.D, v=p.E),
        **p.flags("LEFT RIGHT SOFTCAP SINKS VARLEN"),
    }  # fmt: skip
    threads = tile.waves * call.device.warp_size
    kernel = native_kernel(call.device, p, _SOURCE, "attention_forward", threads, defines)
    walk = tiled(p, kernel, tile.m, "q k v o lse", "tiles")
    launch = replace(walk.launch, args=(*walk.launch.args, *p.scale_arguments))
    return tiled_plan(call.device, p, [walk._replace(launch=launch)])


def _native_tile(family: str, d: int, e: int, tiny: bool) -> ForwardTile:
    if tiny and max(d, e) <= 64:
        return _TINY[family]
    return next(tile for tile, most in NATIVE_TILES[family] if max(d, e) <= most)
