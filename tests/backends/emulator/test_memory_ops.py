"""Loads, stores and atomics: global, flat, buffer, LDS, scalar, scratch; all memory is compared."""

from __future__ import annotations

import pytest
import transposing_cases  # noqa: F401
from expect_float import BF16, F16, F32, F64, compare, of, pack, unpack
from expect_float import add as plus
from expect_int import s, u
from instructions import ARCHS, GFX9, GFX11, GFX94, Text, check_all, seed, wave
from memory_cases import CASES, DATA, SIZE, SUITE, case, compare_case, word

MARKED = "".join(f"v_mov_b32 v{40 + i}, 0xaaaabbbb\n" for i in range(4))
# A full 64-bit address in v[4:5] and a byte offset in v3: lane * STEP + START, not aligned.
STEP, START = 21, 3
ADDRESS = f"v_mul_u32_u24 v3, {STEP}, v0\nv_add_u32 v3, {START}, v3\n"
WIDE = (
    "v_mov_b32 v5, s5\nv_add_co_u32 v4, vcc, s4, v3\nv_addc_co_u32 v5, vcc, 0, v5, vcc\n",
    "v_add_co_u32 v4, vcc_lo, s4, v3\nv_add_co_ci_u32 v5, null, s5, 0, vcc_lo\n",
)


def wide(arch):
    return WIDE[0] if arch in GFX9 else WIDE[1]


LOADS = {
    "ubyte": (1, False),
    "sbyte": (1, True),
    "ushort": (2, False),
    "sshort": (2, True),
    "dword": (4, False),
    "dwordx2": (8, False),
    "dwordx3": (12, False),
    "dwordx4": (16, False),
}
D16 = {
    "ubyte_d16": (1, False, 0),
    "ubyte_d16_hi": (1, False, 1),
    "sbyte_d16": (1, True, 0),
    "sbyte_d16_hi": (1, True, 1),
    "short_d16": (2, False, 0),
    "short_d16_hi": (2, False, 1),
}


def loaded(data, at, size, signed):
    value = word(data, at, size)
    if size < 4:
        return [u(s(value, 8 * size)) if signed else value]
    return [word(data, at + i) for i in range(0, size, 4)]


def half_loaded(data, at, size, signed, high):
    value = word(data, at, size)
    value = u(s(value, 8 * size), 16) if signed else value
    return [0xBBBB | value << 16 if high else 0xAAAA0000 | value]


def target(size, base=40):
    count = max(size // 4, 1)
    return f"v{base}" if count == 1 else f"v[{base}:{base + count - 1}]"


# Tables laid out by hand: a probe takes one to three lines; one argument per line would hide them.
# fmt: off
for kind, (size, signed) in LOADS.items():
    for offset in (0, 17, -3):
        case(f"global_load_{kind}_{offset & 255}", ARCHS,
            MARKED + ADDRESS + f"global_load_{kind} {target(size)}, v3, s[4:5] offset:{offset}\n",
            max(size // 4, 1),
            lambda data, lane, z=size, g=signed, o=offset: loaded(data, START + STEP * lane + o, z, g),
            (f"global_load_{kind}",))
    case(f"global_load_{kind}_off", ARCHS,
        lambda arch, k=kind, z=size: (
            MARKED + ADDRESS + wide(arch) + f"global_load_{k} {target(z)}, v[4:5], off offset:5\n"
        ), max(size // 4, 1), lambda d, lane, z=size, g=signed: loaded(d, START + STEP * lane + 5, z, g),
        (f"global_load_{kind}",))
    case(f"flat_load_{kind}", ARCHS,
        lambda arch, k=kind, z=size: (
            MARKED + ADDRESS + wide(arch) + f"flat_load_{k} {target(z)}, v[4:5] offset:9\n"
        ), max(size // 4, 1), lambda d, lane, z=size, g=signed: loaded(d, START + STEP * lane + 9, z, g),
        (f"flat_load_{kind}",))
for kind, (size, signed, high) in D16.items():
    case(f"global_load_{kind}", ARCHS, MARKED + ADDRESS + f"global_load_{kind} v40, v3, s[4:5]\n", 1,
        lambda data, lane, z=size, g=signed, h=high: half_loaded(data, START + STEP * lane, z, g, h),
        (f"global_load_{kind}",))
    case(f"flat_load_{kind}", ARCHS,
        lambda arch, k=kind: MARKED + ADDRESS + wide(arch) + f"flat_load_{k} v40, v[4:5]\n", 1,
        lambda data, lane, z=size, g=signed, h=high: half_loaded(data, START + STEP * lane, z, g, h),
        (f"flat_load_{kind}",))

STORES = {"byte": 1, "short": 2, "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}
VALUES = "".join(
    f"v_mul_u32_u24 v{40 + i}, 0x{7919 * (i + 3):x}, v0\nv_xor_b32 v{40 + i}, 0x8badf00d, v{40 + i}\n"
    for i in range(4)
)


def values(lane):
    return [u(7919 * (i + 3) * lane) ^ 0x8BADF00D for i in range(4)]


def stored(data, at, size, lane, high=0):
    raw = b"".join(x.to_bytes(4, "little") for x in values(lane))[2 * high :]
    data[at : at + size] = raw[:size]
    return values(lane)[:1]


for kind, size in STORES.items():
    for offset in (0, 13):
        case(f"global_store_{kind}_{offset}", ARCHS,
            VALUES + ADDRESS + f"global_store_{kind} v3, {target(size)}, s[4:5] offset:{offset}\n", 1,
            lambda data, lane, z=size, o=offset: stored(data, START + STEP * lane + o, z, lane),
            (f"global_store_{kind}",))
    case(f"flat_store_{kind}", ARCHS,
        lambda arch, k=kind, z=size: (
            VALUES + ADDRESS + wide(arch) + f"flat_store_{k} v[4:5], {target(z)} offset:2\n"
        ), 1, lambda data, lane, z=size: stored(data, START + STEP * lane + 2, z, lane),
        (f"flat_store_{kind}",))
for kind, size in (("byte_d16_hi", 1), ("short_d16_hi", 2)):
    case(f"global_store_{kind}", ARCHS, VALUES + ADDRESS + f"global_store_{kind} v3, v40, s[4:5]\n", 1,
        lambda data, lane, z=size: stored(data, START + STEP * lane, z, lane, 1), (f"global_store_{kind}",))


# Atomics, 32 and 64 bits: old value, operand, comparand.
def float_add(fmt):
    return lambda old, x, c=0: pack(plus(unpack(old, fmt), unpack(x, fmt)), fmt)


def pair_add(fmt):
    one = float_add(fmt)
    return lambda old, x, c=0: one(old & 0xFFFF, x & 0xFFFF) | one(old >> 16, x >> 16) << 16


def float_pick(fmt, larger):
    return lambda old, x, c=0: (
        x if compare(unpack(x, fmt), unpack(old, fmt)) == (1 if larger else -1) else old
    )


def integers(n):
    return {"add": lambda old, x, c: u(old + x, n), "sub": lambda old, x, c: u(old - x, n),
        "smin": lambda old, x, c: u(min(s(old, n), s(x, n)), n), "umin": lambda old, x, c: min(old, x),
        "smax": lambda old, x, c: u(max(s(old, n), s(x, n)), n), "umax": lambda old, x, c: max(old, x),
        "and": lambda old, x, c: old & x, "or": lambda old, x, c: old | x, "xor": lambda old, x, c: old ^ x,
        "swap": lambda old, x, c: x, "cmpswap": lambda old, x, c: x if old == c else old,
        "inc": lambda old, x, c: 0 if old >= x else old + 1,
        "dec": lambda old, x, c: x if old == 0 or old > x else old - 1}


GLOBAL11 = {"add": "add_u", "sub": "sub_u", "smin": "min_i", "umin": "min_u", "smax": "max_i",
    "umax": "max_u", "and": "and_b", "or": "or_b", "xor": "xor_b", "swap": "swap_b", "cmpswap": "cmpswap_b",
    "inc": "inc_u", "dec": "dec_u"}
DS9 = {"add": "add_u", "sub": "sub_u", "smin": "min_i", "umin": "min_u", "smax": "max_i", "umax": "max_u",
    "and": "and_b", "or": "or_b", "xor": "xor_b", "swap": "wrxchg", "cmpswap": "cmpst", "inc": "inc_u",
    "dec": "dec_u"}


def global_name(op, n, arch):
    return f"{op}{'_x2' if n == 64 else ''}" if arch in GFX9 else f"{GLOBAL11[op]}{n}"


def returning(arch):
    return {"gfx90a": "glc", "gfx1100": "glc", "gfx1201": "th:TH_ATOMIC_RETURN"}.get(arch, "sc0")


SLOTS = "v_mul_u32_u24 v3, 24, v0\n"  # 24 bytes a lane


def operands(n):
    """The data in v40.. and the comparand after it come from the record: 0 old, 8 operand, 16 comparand."""
    if n == 64:
        one = "global_load_dwordx2 v[8:9], v3, s[4:5] offset:8\n"
        return one + "global_load_dwordx2 v[10:11], v3, s[4:5] offset:16\nWAIT"
    return "global_load_dword v8, v3, s[4:5] offset:8\nglobal_load_dword v9, v3, s[4:5] offset:16\nWAIT"


def atomic_rule(function, n, returns):
    def rule(data, lane):
        at, size = 24 * lane, n // 8
        old = word(data, at, size)
        new = function(old, word(data, at + 8, size), word(data, at + 16, size))
        data[at : at + size] = new.to_bytes(size, "little")
        return [old & 0xFFFFFFFF] + ([old >> 32] if n == 64 else []) if returns else [0xAAAABBBB] * (n // 32)

    return rule


def regs(n, first=8, count=1):
    last = first + count * n // 32 - 1
    return f"v{first}" if last == first else f"v[{first}:{last}]"


for n in (32, 64):
    for op, function in integers(n).items():
        for arch in ARCHS:
            name = global_name(op, n, arch)
            value = regs(n, 8, 2 if op == "cmpswap" else 1)
            case(f"global_atomic_{op}_{n}", (arch,),
                MARKED + SLOTS + operands(n) + f"global_atomic_{name} v3, {value}, s[4:5]\nWAIT", n // 32,
                atomic_rule(function, n, False), (f"global_atomic_{name}",))
            case(f"global_atomic_{op}_{n}_rtn", (arch,),
                MARKED
                + SLOTS
                + operands(n)
                + f"global_atomic_{name} {regs(n, 40)}, v3, {value}, s[4:5] {returning(arch)}\nWAIT", n // 32,
                atomic_rule(function, n, True), (f"global_atomic_{name}",))
            if op in ("add", "cmpswap"):
                case(f"flat_atomic_{op}_{n}", (arch,),
                    MARKED
                    + SLOTS
                    + operands(n)
                    + wide(arch)
                    + f"flat_atomic_{name} {regs(n, 40)}, v[4:5], {value} {returning(arch)}\nWAIT", n // 32,
                    atomic_rule(function, n, True), (f"flat_atomic_{name}",))
            # LDS: copy the record's old value in, work on it, copy it out.
            base = DS9[op]
            if arch not in GFX9:
                base = {"wrxchg": "storexchg", "cmpst": "cmpstore"}.get(base, base)
            both = (
                regs(n, 8)
                if op != "cmpswap"
                else (
                    f"{regs(n, 10 if n == 64 else 9)}, {regs(n, 8)}"
                    if arch in GFX9
                    else f"{regs(n, 8)}, {regs(n, 10 if n == 64 else 9)}"
                )
            )
            width, wide_name = ("b64", "dwordx2") if n == 64 else ("b32", "dword")
            for rtn in (False, True):
                if op == "swap" and not rtn:
                    continue
                suffix = f"{base}{'_rtn' if rtn else ''}_b{n}"
                if base[-2:] in ("_u", "_i", "_b"):
                    suffix = f"{base[:-2]}{'_rtn' if rtn else ''}{base[-2:]}{n}"
                ds = f"ds_{suffix} " + (f"{regs(n, 40)}, " if rtn else "") + f"v12, {both} offset:16\n"
                case(f"ds_{op}_{n}{'_rtn' if rtn else ''}", (arch,),
                    MARKED
                    + SLOTS
                    + operands(n)
                    + f"v_lshlrev_b32 v12, 3, v0\nglobal_load_{wide_name} {regs(n, 14)}, v3, s[4:5]\nWAIT"
                    + f"ds_write_{width} v12, {regs(n, 14)} offset:16\n{ds}WAIT"
                    + f"ds_read_{width} {regs(n, 14)}, v12 offset:16\nWAIT"
                    + f"global_store_{wide_name} v3, {regs(n, 14)}, s[4:5]\n", n // 32,
                    atomic_rule(function, n, rtn), (f"ds_{suffix}",), lds=1024)


def tidy(fmt, size):
    """The data block for float atomics: no NaN, which the comparison of whole memory could not allow for."""
    out = bytearray()
    chosen = seed(f"tidy {fmt.name}")
    step = (fmt.man + fmt.exp + 1) // 8
    while len(out) < size:
        out += of(
            chosen.choice((0.5, -3.25, 1e3, 0.1, -7.0, 65.5, 1e-3)) * chosen.randint(1, 9), fmt
        ).to_bytes(step, "little")
    return bytes(out[:size])


FLOATS = {
    # name on gfx9, on gfx11+, format, bits, rule, global archs, LDS name, LDS archs
    "add_f32": (F32, 32, float_add(F32), ARCHS, "add{r}_f32", ARCHS),
    "add_f64": (F64, 64, float_add(F64), GFX9, "add{r}_f64", GFX9),
    "min_f64": (F64, 64, float_pick(F64, False), GFX9, "min{r}_f64", GFX9),
    "max_f64": (F64, 64, float_pick(F64, True), GFX9, "max{r}_f64", GFX9),
    "pk_add_f16": (F16, 32, pair_add(F16), (*GFX9, "gfx1201"), "pk_add{r}_f16", (*GFX94, "gfx1201")),
    "pk_add_bf16": (BF16, 32, pair_add(BF16), (*GFX94, "gfx1201"), "pk_add{r}_bf16", (*GFX94, "gfx1201")),
}
BLOCKS: dict[str, bytes] = {}
for name, (fmt, n, function, archs, ds_name, ds_archs) in FLOATS.items():
    for rtn in (False, True):
        end = "_rtn" if rtn else ""
        for arch in archs:
            dst = f"{regs(n, 40)}, " if rtn else ""
            how = returning(arch) if rtn else ""
            case(f"global_atomic_{name}{end}", (arch,),
                MARKED + SLOTS + operands(n) + f"global_atomic_{name} {dst}v3, {regs(n)}, s[4:5] {how}\nWAIT",
                n // 32, atomic_rule(function, n, rtn), (f"global_atomic_{name}",))
        BLOCKS[f"global_atomic_{name}{end}"] = BLOCKS[f"ds_{name}{end}"] = tidy(fmt, SIZE)
        op = f"ds_{ds_name.format(r=end)}"
        width, wide_name = ("b64", "dwordx2") if n == 64 else ("b32", "dword")
        for arch in ds_archs:
            dst = f"{regs(n, 40)}, " if rtn else ""
            case(f"ds_{name}{end}", (arch,),
                MARKED
                + SLOTS
                + operands(n)
                + f"v_lshlrev_b32 v12, 3, v0\nglobal_load_{wide_name} {regs(n, 14)}, v3, s[4:5]\nWAIT"
                + f"ds_write_{width} v12, {regs(n, 14)}\n{op} {dst}v12, {regs(n)}\nWAIT"
                + f"ds_read_{width} {regs(n, 14)}, v12\nWAIT"
                + f"global_store_{wide_name} v3, {regs(n, 14)}, s[4:5]\n", n // 32,
                atomic_rule(function, n, rtn), (op,), lds=1024)


def collide(data, lane):
    """All lanes add to one word."""
    data[0:4] = u(word(data, 0) + lane + 1).to_bytes(4, "little")
    return [lane]


for arch in ARCHS:
    name = global_name("add", 32, arch)
    case("global_atomic_add_collide", (arch,),
        f"v_mov_b32 v3, 0\nv_add_u32 v8, 1, v0\nglobal_atomic_{name} v3, v8, s[4:5]\nv_mov_b32 v40, v0\n", 1,
        collide, ())

# LDS: every lane first fills its 32 bytes from the data block.
FILL = (
    "v_lshlrev_b32 v12, 5, v0\nglobal_load_dwordx4 v[16:19], v12, s[4:5]\n"
    "global_load_dwordx4 v[20:23], v12, s[4:5] offset:16\nWAIT"
    "ds_write_b128 v12, v[16:19]\nds_write_b128 v12, v[20:23] offset:16\nWAIT"
)
LDS_READS = {"u8": (1, False), "i8": (1, True), "u16": (2, False), "i16": (2, True), "b32": (4, False),
    "b64": (8, False), "b96": (12, False), "b128": (16, False)}
for kind, (size, signed) in LDS_READS.items():
    step = max(size & -size, 1) if size != 12 else 16
    case(f"ds_read_{kind}", ARCHS,
        MARKED + FILL + f"ds_read_{kind} {target(size)}, v12 offset:{16 if size > 8 else step}\n",
        max(size // 4, 1),
        lambda data, lane, z=size, g=signed, o=16 if size > 8 else step: loaded(data, 32 * lane + o, z, g),
        (f"ds_read_{kind}", "ds_write_b128"), lds=4096)
for kind, (size, signed, high) in {"u8_d16": (1, False, 0), "u8_d16_hi": (1, False, 1),
    "i8_d16": (1, True, 0), "i8_d16_hi": (1, True, 1), "u16_d16": (2, False, 0),
    "u16_d16_hi": (2, False, 1)}.items():
    case(f"ds_read_{kind}", ARCHS, MARKED + FILL + f"ds_read_{kind} v40, v12 offset:6\n", 1,
        lambda data, lane, z=size, g=signed, h=high: half_loaded(data, 32 * lane + 6, z, g, h),
        (f"ds_read_{kind}",), lds=4096)
for n in (32, 64):
    b, unit = f"b{n}", n // 8
    dst, count = regs(n, 40, 2), 2 * n // 32
    for far, scale in (("", 1), ("st64", 64)):
        # st64 steps by 64 elements, beyond a lane's own part: lanes read what others wrote.
        one, two = (1, 3) if not far else (0, 1)
        case(f"ds_read2{far}_{b}", ARCHS,
            MARKED
            + FILL
            + f"v_and_b32 v12, 0x1ff, v12\nds_read2{far}_{b} {dst}, v12 offset0:{one} offset1:{two}\n", count,
            lambda data, lane, o=one, t=two, c=scale, z=unit: [
                word(data, ((32 * lane) & 0x1FF) + k * c * z + i) for k in (o, t) for i in range(0, z, 4)
            ], (f"ds_read2{far}_{b}",), lds=4096)
        if far:
            continue

        def write2(data, lane, z=unit):
            held = [word(data, 32 * lane + i) for i in range(0, 32, 4)]
            raw = b"".join(x.to_bytes(4, "little") for x in held[: 2 * z // 4])
            out = bytearray(b"".join(x.to_bytes(4, "little") for x in held))
            out[z : 2 * z], out[2 * z : 3 * z] = raw[:z], raw[z : 2 * z]
            return [word(out, i) for i in range(0, 16, 4)]

        case(f"ds_write2_{b}", ARCHS,
            FILL + f"ds_write2_{b} v12, {regs(n, 16)}, {regs(n, 16 + n // 32)} offset0:1 offset1:2\nWAIT"
            "ds_read_b128 v[40:43], v12\n", 4, write2, (f"ds_write2_{b}",), lds=4096)
    swap = f"{regs(n, 16)}, {regs(n, 16 + n // 32)}"
    case(f"ds_write2st64_{b}", ARCHS,
        f"v_lshlrev_b32 v12, {n // 32 + 1}, v0\nglobal_load_dwordx4 v[16:19], v12, s[4:5]\n"
        f"WAITds_write2st64_{b} v12, {swap} offset0:2 offset1:5\n"
        + f"WAITds_read2st64_{b} {dst}, v12 offset0:5 offset1:2\n", count,
        lambda data, lane, z=unit: [word(data, lane * z + k + i) for k in (z, 0) for i in range(0, z, 4)],
        (f"ds_write2st64_{b}",), lds=4096)
for kind, size in {"b8": 1, "b16": 2, "b32": 4, "b64": 8, "b96": 12, "b128": 16, "b8_d16_hi": 1,
    "b16_d16_hi": 2}.items():

    def wrote(data, lane, z=size, h=2 if "hi" in kind else 0):
        out = bytearray(data[32 * lane : 32 * lane + 32])
        raw = b"".join(x.to_bytes(4, "little") for x in values(lane))
        out[16 : 16 + z] = raw[h : h + z]
        return [word(out, i) for i in range(16, 32, 4)]

    case(f"ds_write_{kind}", ARCHS,
        VALUES + FILL
        + f"ds_write_{kind} v12, {target(size)} offset:16\nWAITds_read_b128 v[44:47], v12 offset:16\n", 4,
        wrote, (f"ds_write_{kind}",), lds=4096, result=44)


# gfx950: LDS straight from memory. The transposing reads are in transposing_cases.py.
def to_lds(data, lane):
    return [word(data, (4 * lane * 3) & 0xFFF)]


case("global_load_lds_dword", GFX94,
    "v_mul_u32_u24 v3, 12, v0\ns_mov_b32 m0, 0x80\nglobal_load_lds_dword v3, s[4:5]\n"
    "WAITds_read_b32 v40, v1 offset:128\n", 1, to_lds, ("global_load_lds_dword",), lds=4096)
case("global_load_lds_dwordx4", ("gfx950",),
    "v_mul_u32_u24 v3, 48, v0\ns_mov_b32 m0, 0x100\nglobal_load_lds_dwordx4 v3, s[4:5]\n"
    "WAITv_lshlrev_b32 v12, 4, v0\nds_read_b128 v[40:43], v12 offset:256\n", 4,
    lambda data, lane: [word(data, 48 * lane + i) for i in range(0, 16, 4)], ("global_load_lds_dwordx4",),
    lds=4096)

# Buffers: base in s[4:5], 0x300 bytes long, no stride; what lies outside reads as zero and is not written.
RECORDS = 0x300
FORMAT = {"gfx90a": 0x27000, "gfx942": 0x27000, "gfx950": 0x27000, "gfx1100": 0x31027000,
    "gfx1201": 0x31027000}


def resource(arch):
    base = "s_mov_b32 s12, s4\ns_and_b32 s13, s5, 0xffff\n"
    return base + f"s_mov_b32 s14, 0x{RECORDS:x}\ns_mov_b32 s15, 0x{FORMAT[arch]:x}\n"


SPREAD = {64: 16, 32: 32}  # bytes from lane to lane: the last quarter of the wave is outside


def buffer_offset(arch, lane, size):
    return lane * SPREAD[wave(arch)]


for kind, (size, signed) in LOADS.items():
    for arch in ARCHS:
        step = SPREAD[wave(arch)]
        case(f"buffer_load_{kind}", (arch,),
            MARKED
            + resource(arch)
            + f"v_mul_u32_u24 v3, {step}, v0\nbuffer_load_{kind} {target(size)}, v3, s[12:15], 0 offen\n",
            max(size // 4, 1),
            lambda data, lane, z=size, g=signed, t=step: (
                loaded(data, lane * t, z, g) if lane * t < RECORDS else [0] * max(z // 4, 1)
            ), (f"buffer_load_{kind}",))
        case(f"buffer_load_{kind}_soffset", (arch,),
            MARKED + resource(arch) + "s_movk_i32 s20, 0x40\nv_lshlrev_b32 v3, 3, v0\n"
            f"buffer_load_{kind} {target(size)}, v3, s[12:15], s20 offen offset:16\n", max(size // 4, 1),
            lambda data, lane, z=size, g=signed: loaded(data, 8 * lane + 80, z, g), (f"buffer_load_{kind}",))
for kind, (size, signed, high) in D16.items():
    for arch in ARCHS:
        case(f"buffer_load_{kind}", (arch,),
            MARKED
            + resource(arch)
            + f"v_mul_u32_u24 v3, 6, v0\nbuffer_load_{kind} v40, v3, s[12:15], 0 offen\n", 1,
            lambda data, lane, z=size, g=signed, h=high: half_loaded(data, 6 * lane, z, g, h),
            (f"buffer_load_{kind}",))


def buffer_store(data, lane, size, step):
    if lane * step < RECORDS:
        stored(data, lane * step, size, lane)
    return values(lane)[:1]


for kind, size in STORES.items():
    for arch in ARCHS:
        step = SPREAD[wave(arch)]
        case(f"buffer_store_{kind}", (arch,),
            VALUES
            + resource(arch)
            + f"v_mul_u32_u24 v3, {step}, v0\nbuffer_store_{kind} {target(size)}, v3, s[12:15], 0 offen\n", 1,
            lambda data, lane, z=size, t=step: buffer_store(data, lane, z, t), (f"buffer_store_{kind}",))
for arch in GFX9:
    # Stride 512, cache swizzle, swizzle enable and index stride 8 without an index: HipKittens' descriptors.
    case("buffer_swizzled_without_index", (arch,),
        MARKED + resource(arch) + "s_or_b32 s13, s13, 0xc2000000\ns_mov_b32 s15, 0x110000\n"
        "buffer_load_dword v40, v1, s[12:15], 0 offen\n", 1,
        lambda data, lane: [word(data, 4 * lane)], ())
for arch in ARCHS:
    # An offset of 2^31 is how masked lanes are sent outside.
    case("buffer_masked", (arch,),
        MARKED + resource(arch) + "v_and_b32 v4, 1, v0\nv_lshlrev_b32 v4, 31, v4\nv_or_b32 v3, v1, v4\n"
        "buffer_load_dword v40, v3, s[12:15], 0 offen\n", 1,
        lambda data, lane: [0 if lane & 1 else word(data, 4 * lane)], ())
    name = global_name("add", 32, arch)
    case("buffer_atomic_add", (arch,),
        MARKED + SLOTS + operands(32) + resource(arch).replace(f"0x{RECORDS:x}", "0x1000")
        + f"v_mov_b32 v40, v8\nbuffer_atomic_{name} v40, v3, s[12:15], 0 offen {returning(arch)}\nWAIT", 1,
        atomic_rule(integers(32)["add"], 32, True), (f"buffer_atomic_{name}",))

# Scalar loads: results moved to vector registers, the same in every lane.
for kind, count in (("dword", 1), ("dwordx2", 2), ("dwordx4", 4), ("dwordx8", 8), ("dwordx16", 16)):
    dst = "s20" if count == 1 else f"s[20:{19 + count}]"
    moves = "".join(f"v_mov_b32 v{40 + i}, s{20 + i}\n" for i in range(count))
    case(f"s_load_{kind}", ARCHS, f"s_load_{kind} {dst}, s[4:5], 0x74\nWAIT" + moves, count,
        lambda data, lane, c=count: [word(data, 0x74 + 4 * i) for i in range(c)], (f"s_load_{kind}",))
    for arch in ARCHS:
        how = "s18 offset:0x8" if arch not in GFX9 else "s18"
        case(f"s_load_{kind}_soffset", (arch,),
            f"s_movk_i32 s18, 0x40\ns_load_{kind} {dst}, s[4:5], {how}\nWAIT" + moves, count,
            lambda data, lane, c=count, o=0x48 if arch not in GFX9 else 0x40: [
                word(data, o + 4 * i) for i in range(c)
            ], (f"s_load_{kind}",))
        case(f"s_buffer_load_{kind}", (arch,),
            resource(arch) + f"s_buffer_load_{kind} {dst}, s[12:15], 0x20\nWAIT" + moves, count,
            lambda data, lane, c=count: [word(data, 0x20 + 4 * i) for i in range(c)],
            (f"s_buffer_load_{kind}",))
case("s_load_b96", ("gfx1201",),
    "s_load_b96 s[20:22], s[4:5], 0x74\nWAIT"
    + "".join(f"v_mov_b32 v{40 + i}, s{20 + i}\n" for i in range(3)), 3,
    lambda data, lane: [word(data, 0x74 + 4 * i) for i in range(3)], ("s_load_b96",))
for kind, (size, signed) in {"u8": (1, False), "i8": (1, True), "u16": (2, False), "i16": (2, True)}.items():
    case(f"s_load_{kind}", ("gfx1201",), f"s_load_{kind} s20, s[4:5], 0x76\nWAITv_mov_b32 v40, s20\n", 1,
        lambda data, lane, z=size, g=signed: loaded(data, 0x76, z, g), (f"s_load_{kind}",))

# Scratch: each lane has its own.
WITH_SCRATCH = (*GFX94, *GFX11)
for kind, size in STORES.items():
    back = {1: "ubyte", 2: "ushort"}.get(size, kind)

    def own(data, lane, z=size):
        raw = b"".join(x.to_bytes(4, "little") for x in values(lane))[:z].ljust(4, b"\0")
        return [word(raw, i) for i in range(0, len(raw), 4)]

    case(f"scratch_{kind}", WITH_SCRATCH,
        VALUES + f"scratch_store_{kind} off, {target(size)}, off offset:16\nWAIT"
        f"scratch_load_{back} {target(size, 48)}, off, off offset:16\n", max(size // 4, 1), own,
        (f"scratch_store_{kind}", f"scratch_load_{back}"), scratch=256, result=48)
    case(f"scratch_{kind}_addressed", WITH_SCRATCH,
        VALUES + f"v_and_b32 v3, 3, v0\nv_lshlrev_b32 v3, 4, v3\ns_movk_i32 s20, 0x40\n"
        f"scratch_store_{kind} v3, {target(size)}, off offset:64\n"
        f"WAITv_mov_b32 v4, v3\nscratch_load_{back} {target(size, 48)}, v4, off offset:64\n",
        max(size // 4, 1), own, (), scratch=256, result=48)


# Four waves exchange through LDS; then what only waits or hints, between two moves.
BARRIER = {"gfx1201": "s_barrier_signal -1\ns_barrier_wait -1\n"}
for arch in ARCHS:
    names = ("s_barrier_signal", "s_barrier_wait") if arch == "gfx1201" else ("s_barrier",)
    size = 4 * wave(arch)
    case("barrier", (arch,),
        "global_load_dword v8, v1, s[4:5]\nWAITds_write_b32 v1, v8\nWAIT" + BARRIER.get(arch, "s_barrier\n")
        + f"v_add_u32 v3, 0x{size:x}, v1\nv_and_b32 v3, 0x{4 * size - 1:x}, v3\nds_read_b32 v40, v3\n", 1,
        lambda data, lane, z=size: [word(data, (4 * lane + z) & (4 * z - 1))], names, lds=4096, waves=4)
HINTS = {
    "gfx90a": (
        "s_nop 3",
        "s_setprio 1",
        "s_sleep 1",
        "s_waitcnt vmcnt(1) lgkmcnt(1)",
        "s_waitcnt expcnt(0)",
        "buffer_wbl2",
        "buffer_invl2",
        "buffer_wbinvl1_vol",
        "s_icache_inv",
        "s_dcache_wb",
    ),
    "gfx942": (
        "s_nop 3",
        "s_setprio 1",
        "s_sleep 1",
        "s_waitcnt vmcnt(1) lgkmcnt(1)",
        "buffer_wbl2 sc1",
        "buffer_inv sc1",
    ),
    "gfx950": (
        "s_nop 3",
        "s_setprio 1",
        "s_sleep 1",
        "s_waitcnt vmcnt(1) lgkmcnt(1)",
        "buffer_wbl2 sc1",
        "buffer_inv sc1",
    ),
    "gfx1100": (
        "s_nop 3",
        "s_clause 0x0",
        "s_delay_alu instid0(VALU_DEP_1)",
        "s_waitcnt_depctr 0xfffe",
        "buffer_gl0_inv",
        "buffer_gl1_inv",
        "s_set_inst_prefetch_distance 0x1",
        "s_waitcnt_vscnt null, 0x0",
        "s_waitcnt vmcnt(1)",
    ),
    "gfx1201": (
        "s_nop 3",
        "s_clause 0x0",
        "s_delay_alu instid0(VALU_DEP_1)",
        "s_wait_alu 0xfffe",
        "global_inv scope:SCOPE_DEV",
        "global_wb scope:SCOPE_DEV",
        "s_wait_loadcnt_dscnt 0x0",
        "s_wait_storecnt_dscnt 0x0",
        "s_wait_storecnt 0x0",
        "s_wait_kmcnt 0x0",
        "s_wait_dscnt 0x1",
        "s_wait_loadcnt 0x1",
    )}
for arch, lines in HINTS.items():
    last = "s_nop 0\ns_sendmsg sendmsg(MSG_DEALLOC_VGPRS)\n" if arch in GFX11 else ""
    body = "v_mov_b32 v40, v0\n" + "".join(f"{line}\nv_add_u32 v40, 1, v40\n" for line in lines)
    names = [line.split()[0] for line in lines] + ["s_endpgm"] + (["s_sendmsg"] if last else ["s_waitcnt"])
    case("hints", (arch,), body, 1, lambda data, lane, lines=lines: [lane + len(lines)], names)
    if last:
        case("dealloc", (arch,), "v_mov_b32 v40, v0\n", 1, lambda data, lane: [lane], ("s_sendmsg",))
        SUITE.texts[arch][-1] = Text("dealloc", SUITE.texts[arch][-1].body + last, 32)
# fmt: on


@pytest.mark.parametrize("cases", SUITE.grouped((case.name, (case,)) for case in CASES))
def test_memory(cases):
    check_all(cases, lambda case: compare_case(case, BLOCKS.get(case.name, DATA)))
