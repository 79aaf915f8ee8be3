"""Instructions that look across lanes: DPP, DPP8, SDWA, lane reads and writes, permutes, swizzles."""

from __future__ import annotations

import pytest
from expect_float import F32, rule_add, rule_fma, rule_mul
from expect_int import COMPARISONS, s, u
from instructions import ARCHS, GFX9, GFX11, SKIP, Probe, Suite, check, check_all
from vectors import operand_rows

SUITE = Suite("lanes")


def add(name, ins, outs, rule, asm, archs=ARCHS, count=192, whole=True, **more):
    if "dpp" in name + asm or "ds_" in name or "permlane" in name:
        # The emulator reports a stored value that came from a lane that is off, so none is read here: rows
        # are off as a whole where the instruction stays within a row, and no lane is off where it does not.
        across = any(word in asm for word in ("wave_", "row_bcast", "ds_bperm", "permlane", "ds_swizzle"))
        more.setdefault("masked", False if across else "rows" if "dpp" in name else True)
    ins, outs = tuple(ins.split()), tuple(outs.split())
    key = name + more.get("tag", "")
    SUITE.add(Probe(name, asm, ins, outs, rule, operand_rows(key, ins, count), archs, whole=whole, **more))


# Tables laid out by hand: a probe takes one to three lines; one argument per line would hide them.
# fmt: off
# DPP: where lane i reads from; None: nowhere. (ISA guides, "DPP"; LLVM AMDGPU usage, dpp_ctrl.)
def quad(*select):
    return lambda i, n: i & ~3 | select[i & 3]


def shift(by):
    return lambda i, n: i + by if (i + by) >> 4 == i >> 4 else None


CONTROLS = {"quad_perm:[1,0,3,2]": quad(1, 0, 3, 2), "quad_perm:[2,3,0,1]": quad(2, 3, 0, 1),
    "quad_perm:[0,0,0,3]": quad(0, 0, 0, 3), "row_shl:1": shift(1), "row_shl:15": shift(15),
    "row_shl:4": shift(4), "row_shr:1": shift(-1), "row_shr:2": shift(-2), "row_shr:4": shift(-4),
    "row_shr:8": shift(-8), "row_shr:15": shift(-15), "row_ror:1": lambda i, n: i & ~15 | (i - 1) & 15,
    "row_ror:4": lambda i, n: i & ~15 | (i - 4) & 15, "row_ror:15": lambda i, n: i & ~15 | (i - 15) & 15,
    "row_mirror": lambda i, n: i ^ 15, "row_half_mirror": lambda i, n: i ^ 7}
CONTROLS9 = {
    "wave_shl:1": lambda i, n: i + 1 if i + 1 < n else None,
    "wave_shr:1": lambda i, n: i - 1 if i else None,
    "wave_rol:1": lambda i, n: (i + 1) % n,
    "wave_ror:1": lambda i, n: (i - 1) % n,
    # Lane 15 of each row goes to the next row; lane 31 to rows 2 and 3.
    "row_bcast:15": lambda i, n: (i & ~15) - 1 if i > 15 else None,
    "row_bcast:31": lambda i, n: 31 if i > 31 else None,
    "row_newbcast:0": lambda i, n: i & ~15,
    "row_newbcast:9": lambda i, n: i & ~15 | 9,
}
CONTROLS11 = {"row_share:0": lambda i, n: i & ~15, "row_share:11": lambda i, n: i & ~15 | 11,
    "row_xmask:1": lambda i, n: i ^ 1, "row_xmask:10": lambda i, n: i ^ 10,
    "row_xmask:15": lambda i, n: i ^ 15}
MASKS = ((15, 15), (10, 15), (12, 15), (15, 5), (1, 8))


def moved(where, combine, rows=15, banks=15, zero=False, inactive=False):
    """The rule of a DPP instruction whose first source comes from another lane. A source lane that is off
    counts as invalid unless inactive lanes are fetched; gfx9's guides do not say so: skipped there."""

    def rule(context, lanes):
        found = []
        for i, own in enumerate(lanes):
            if not (rows >> (i >> 4) & 1 and banks >> (i >> 2 & 3) & 1):
                found.append(None)
                continue
            j = where(i, context.wave)
            if j is not None and not context.active(j) and not inactive:
                if context.arch in GFX9:
                    found.append((SKIP,))
                    continue
                j = None
            if j is None:
                found.append((combine(0, *own[1:]),) if zero else None)
            else:
                found.append((combine(lanes[j][0], *own[1:]),))
        return found

    return rule


def lane_name(control):
    return "".join(c if c.isalnum() else "_" for c in control)


for archs, controls in ((ARCHS, CONTROLS), (GFX9, CONTROLS9), (GFX11, CONTROLS11)):
    for control, where in controls.items():
        for rows, banks in (
            MASKS if control in ("row_shr:1", "row_bcast:15", "row_bcast:31", "row_ror:4") else MASKS[:1]
        ):
            for zero in (False, True):
                tag = f"{lane_name(control)}_{rows:x}{banks:x}{'z' if zero else ''}"
                ctrl = f"{control} row_mask:0x{rows:x} bank_mask:0x{banks:x}" + (
                    " bound_ctrl:1" if zero else ""
                )
                add("v_mov_b32_dpp", "u32", "u32", moved(where, lambda a: a, rows, banks, zero),
                    f"v_mov_b32_dpp {{d}}, {{a}} {ctrl}", archs, tag=tag, covers=("v_mov_b32",))
                # The destination is the source: every lane is read before any is written.
                add("v_mov_b32_dpp", "u32", "=a:u32", moved(where, lambda a: a, rows, banks, zero),
                    f"v_mov_b32_dpp {{a}}, {{a}} {ctrl}", archs, tag="same_" + tag, covers=("v_mov_b32",))
                if (rows, banks) == (15, 15):
                    add("v_add_f32_dpp", "f32 f32", "f32", moved(where, rule_add(F32), rows, banks, zero),
                        f"v_add_f32_dpp {{d}}, {{a}}, {{b}} {ctrl}", archs, tag=tag, covers=("v_add_f32",))
                    add("v_add_u32_dpp", "u32 u32", "=a:u32",
                        moved(where, lambda a, b: u(a + b), rows, banks, zero),
                        f"v_add_u32_dpp {{a}}, {{a}}, {{b}} {ctrl}".replace("v_add_u32_dpp", "v_add_u32_dpp"),
                        GFX9 if archs is not GFX11 else (), tag=tag, covers=("v_add_u32",))
                    add("v_add_nc_u32_dpp", "u32 u32", "=a:u32",
                        moved(where, lambda a, b: u(a + b), rows, banks, zero),
                        f"v_add_nc_u32_dpp {{a}}, {{a}}, {{b}} {ctrl}", GFX11 if archs is not GFX9 else (),
                        tag=tag, covers=("v_add_nc_u32",))
SUITE.probes = [probe for probe in SUITE.probes if probe.archs]
for control in ("row_shr:1", "row_mirror", "row_xmask:3"):
    where = {**CONTROLS, "row_xmask:3": lambda i, n: i ^ 3}[control]
    add("v_mov_b32_dpp", "u32", "u32", moved(where, lambda a: a, inactive=True),
        f"v_mov_b32_dpp {{d}}, {{a}} {control} row_mask:0xf bank_mask:0xf fi:1", GFX11,
        tag=f"fi_{lane_name(control)}", covers=("v_mov_b32",))
add("v_fma_f32_e64_dpp", "f32 f32 f32", "f32",
    moved(CONTROLS["row_ror:4"], lambda a, b, c: rule_fma(F32)(a, b ^ 1 << 31, c)),
    "v_fma_f32_e64_dpp {d}, {a}, -{b}, {c} row_ror:4 row_mask:0xf bank_mask:0xf", GFX11,
    covers=("v_fma_f32",))
add("v_mul_f32_dpp", "f32 f32", "f32",
    moved(CONTROLS["row_mirror"], lambda a, b: rule_mul(F32)(a ^ 1 << 31, b & 0x7FFFFFFF)),
    "v_mul_f32_dpp {d}, -{a}, |{b}| row_mirror row_mask:0xf bank_mask:0xf", covers=("v_mul_f32",))
add("v_cndmask_b32_dpp", "u32 u32 u32", "u32",
    moved(CONTROLS["quad_perm:[1,0,3,2]"], lambda a, b, c: b if s(c) < 0 else a),
    "v_cndmask_b32_dpp {d}, {a}, {b}, {vcc} quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf",
    setup="v_cmp_gt_i32 {vcc}, 0, {c}\n", covers=("v_cndmask_b32",))
add("v_mov_b64_dpp", "u64", "u64", moved(CONTROLS9["row_newbcast:9"], lambda a: a),
    "v_mov_b64_dpp {d}, {a} row_newbcast:9 row_mask:0xf bank_mask:0xf", ("gfx942", "gfx950"),
    covers=("v_mov_b64",))


def eights(select):
    return lambda i, n: i & ~7 | select[i & 7]


for select in ((7, 6, 5, 4, 3, 2, 1, 0), (0, 0, 3, 1, 7, 2, 5, 5)):
    word = "".join(map(str, select))
    ctrl = f"dpp8:[{','.join(map(str, select))}]"
    for fi in (False, True):
        # DPP8 has no bound control: a lane that is off reads as zero where inactive ones are not fetched.
        rule = moved(eights(select), lambda a: a, zero=True, inactive=fi)
        end = " fi:1" if fi else ""
        add("v_mov_b32_dpp", "u32", "u32", rule, f"v_mov_b32_dpp {{d}}, {{a}} {ctrl}{end}", GFX11,
            tag=f"dpp8_{word}_{int(fi)}", covers=("v_mov_b32",))
        add("v_mov_b32_dpp", "u32", "=a:u32", rule, f"v_mov_b32_dpp {{a}}, {{a}} {ctrl}{end}", GFX11,
            tag=f"dpp8_same_{word}_{int(fi)}", covers=("v_mov_b32",))

# SDWA of gfx9: parts of registers in and out.
SELECTS = {"BYTE_0": (0, 8), "BYTE_1": (8, 8), "BYTE_2": (16, 8), "BYTE_3": (24, 8), "WORD_0": (0, 16),
    "WORD_1": (16, 16), "DWORD": (0, 32)}


def part(value, select, signed=False):
    at, width = SELECTS[select]
    value = u(value >> at, width)
    return u(s(value, width)) if signed else value


def placed(value, old, select, unused):
    at, width = SELECTS[select]
    value = u(value, width)
    if unused == "UNUSED_PAD":
        return value << at
    if unused == "UNUSED_SEXT":
        return u(s(value, width) << at)
    return old & ~u(((1 << width) - 1) << at) | value << at


for unused in ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"):
    for target in SELECTS:
        source = list(SELECTS)[(list(SELECTS).index(target) + 2) % 7]
        if target == "DWORD" and unused != "UNUSED_PAD":
            continue
        for signed in (False, True):
            tag = f"{target}_{unused}_{source}{'_sext' if signed else ''}".lower()
            a = "sext({a})" if signed else "{a}"
            add("v_mov_b32_sdwa", "u32 u32", "=b:u32",
                lambda a, b, t=target, n=unused, f=source, g=signed: placed(part(a, f, g), b, t, n),
                f"v_mov_b32_sdwa {{b}}, {a} dst_sel:{target} dst_unused:{unused} src0_sel:{source}", GFX9,
                whole=False, tag=tag, covers=("v_mov_b32",), count=64)
            add("v_add_u32_sdwa", "u32 u32 u32", "=c:u32",
                lambda a, b, c, t=target, n=unused, f=source, g=signed: placed(
                    part(a, f, g) + part(b, "WORD_1"), c, t, n
                ),
                f"v_add_u32_sdwa {{c}}, {a}, "
                f"{{b}} dst_sel:{target} dst_unused:{unused} src0_sel:{source} src1_sel:WORD_1", GFX9,
                whole=False, tag=tag, covers=("v_add_u32",), count=64)
add("v_lshlrev_b32_sdwa", "u32 u32", "u32", lambda a, b: u(part(b, "BYTE_2") << (part(a, "BYTE_1") & 31)),
    "v_lshlrev_b32_sdwa {d}, {a}, {b} dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 src1_sel:BYTE_2",
    GFX9, whole=False, covers=("v_lshlrev_b32",))
add("v_or_b32_sdwa", "u32 u32", "u32", lambda a, b: part(a, "WORD_1") | b,
    "v_or_b32_sdwa {d}, {a}, {b} dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 src1_sel:DWORD", GFX9,
    whole=False, covers=("v_or_b32",))
for word in ("eq", "lt", "ge"):
    add(f"v_cmp_{word}_u16_sdwa", "u32 u32", "mask",
        lambda a, b, t=COMPARISONS[word]: int(t(part(a, "BYTE_3"), part(b, "WORD_1"))),
        f"v_cmp_{word}_u16_sdwa {{m}}, {{a}}, {{b}} src0_sel:BYTE_3 src1_sel:WORD_1", GFX9, whole=False,
        covers=(f"v_cmp_{word}_u16",))
    add(f"v_cmp_{word}_i32_sdwa", "u32 u32", "mask",
        lambda a, b, t=COMPARISONS[word]: int(t(s(part(a, "BYTE_0", True)), s(part(b, "WORD_1", True)))),
        f"v_cmp_{word}_i32_sdwa {{m}}, sext({{a}}), sext({{b}}) src0_sel:BYTE_0 src1_sel:WORD_1", GFX9,
        whole=False, covers=(f"v_cmp_{word}_i32",))
add("v_add_f32_sdwa", "f32 f32", "f32", lambda a, b: rule_add(F32)(a ^ 1 << 31, b & 0x7FFFFFFF),
    "v_add_f32_sdwa {d}, -{a}, |{b}| dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD", GFX9,
    whole=False, covers=("v_add_f32",))
add("v_cvt_f32_ubyte0_sdwa", "u32", "u32", lambda a: rule_byte(a >> 16 & 255),
    "v_cvt_f32_ubyte0_sdwa {d}, {a} dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_2", GFX9, whole=False,
    covers=("v_cvt_f32_ubyte0",))


def rule_byte(value):
    from expect_float import integer, pack

    return pack(integer(value), F32)


# Lanes by number.
def broadcast(which):
    def rule(context, lanes):
        j = which(context, lanes)
        return [(lanes[j][0],)] * context.wave

    return rule


def first_active(context, lanes):
    return next((i for i in range(context.wave) if context.active(i)), 0)


FULL = "s_mov_{w} {exec}, -1;"
for lane in (0, 1, 31):
    add("v_readlane_b32", "u32", "s32", broadcast(lambda c, _, lane=lane: lane),
        f"v_readlane_b32 {{s}}, {{a}}, {lane}", tag=str(lane))
add("v_readlane_b32", "u32", "s32", broadcast(lambda c, _: 64 % c.wave + 5), "v_readlane_b32 {s}, {a}, s44",
    setup="s_movk_i32 s44, 0x45\n", tag="wraps")
add("v_readlane_b32", "u32", "s32", broadcast(lambda c, _: 63), "v_readlane_b32 {s}, {a}, 63", GFX9, tag="63")
add("v_readfirstlane_b32", "u32", "s32", broadcast(first_active), "v_readfirstlane_b32 {s}, {a}")
add("v_readfirstlane_b32", "u32", "s32", broadcast(lambda c, _: 0),
    "s_mov_{w} {exec}, 0;v_readfirstlane_b32 {s}, {a}", tag="none")


def write_lane(context, lanes):
    """Lane 17 gets the scalar even where it is off; the others keep theirs."""
    return [(0x1234,) if i == 17 else (own[0],) for i, own in enumerate(lanes)]


add("v_writelane_b32", "u32", "=a:u32", write_lane, "v_writelane_b32 {a}, s44, 17",
    setup="s_movk_i32 s44, 0x1234\n", masked=False)
add("v_writelane_b32", "u32", "=a:u32", write_lane, "s_mov_{w} {exec}, 0;v_writelane_b32 {a}, s44, m0",
    setup="s_movk_i32 s44, 0x1234\ns_movk_i32 m0, 0x11\n", masked=False, tag="off")


def below(low, high):
    def rule(context, lanes):
        found = []
        for i, own in enumerate(lanes):
            under = (1 << i) - 1
            mask = (under & 0xFFFFFFFF if low else 0) | (under >> 32 << 32 if high else 0)
            both = own[0] | own[0] << 32
            found.append((u((both & mask).bit_count() + own[1]),))
        return found

    return rule


add("v_mbcnt_lo_u32_b32", "u32 u32", "u32", below(True, False), "v_mbcnt_lo_u32_b32 {d}, {a}, {b}")
add("v_mbcnt_hi_u32_b32", "u32 u32", "u32", below(False, True), "v_mbcnt_hi_u32_b32 {d}, {a}, {b}")

# gfx10's row permutes; the selectors are two scalars of eight nibbles.
LOW, HIGH = 0x76543210 ^ 0x13572460, 0x01FEDC98
SELECT = [(LOW | HIGH << 32) >> 4 * i & 15 for i in range(16)]
SETUP = f"s_mov_b32 s44, 0x{LOW:x}\ns_mov_b32 s45, 0x{HIGH:x}\n"


def by_rows(cross, select=None):
    def rule(context, lanes):
        found = []
        for i, own in enumerate(lanes):
            row = (i & ~15) ^ (16 if cross else 0)
            found.append((lanes[row | (SELECT[i & 15] if select is None else own[1] & 15)][0],))
        return found

    return rule


for cross in (False, True):
    name = f"v_permlane{'x' if cross else ''}16"
    add(f"{name}_b32", "u32", "u32", by_rows(cross), f"{name}_b32 {{d}}, {{a}}, s44, s45", GFX11, setup=SETUP,
        masked=False)
    add(f"{name}_b32", "u32", "=a:u32", by_rows(cross), f"{name}_b32 {{a}}, {{a}}, s44, s45", GFX11,
        setup=SETUP, masked=False, tag="same")
    add(f"{name}_b32", "u32", "u32", by_rows(cross), f"{name}_b32 {{d}}, {{a}}, s44, s45 op_sel:[1,0]", GFX11,
        setup=SETUP, tag="fi")
    add(f"{name}_var_b32", "u32 u32", "u32", by_rows(cross, "own"), f"{name}_var_b32 {{d}}, {{a}}, {{b}}",
        ("gfx1201",), masked=False)
add("v_permlane64_b32", "u32", "u32", lambda c, lanes: [(lanes[i ^ 32][0],) for i in range(64)],
    "v_permlane64_b32 {d}, {a}", GFX11, wide=True)


def swap(step):
    """The odd rows (or the upper half) of the first register change with the even ones of the second."""

    def rule(context, lanes):
        found = []
        for i, (a, b) in enumerate(lanes):
            found.append((lanes[i - step][1] if i & step else a, lanes[i + step][0] if not i & step else b))
        return found

    return rule


add("v_permlane16_swap_b32", "u32 u32", "=a:u32 =b:u32", swap(16), "v_permlane16_swap_b32 {a}, {b}",
    ("gfx950",), masked=False)
add("v_permlane32_swap_b32", "u32 u32", "=a:u32 =b:u32", swap(32), "v_permlane32_swap_b32 {a}, {b}",
    ("gfx950",), masked=False)


# Through the LDS crossbar; it touches no LDS.
def pull(offset=0, inactive=False):
    def rule(context, lanes):
        found = []
        for own in lanes:
            j = (own[0] + offset) // 4 % context.wave
            found.append((lanes[j][1] if inactive or context.active(j) else 0,))
        return found

    return rule


def push(offset=0):
    def rule(context, lanes):
        out = [0] * context.wave
        for i, own in enumerate(lanes):
            if context.active(i):
                out[(own[0] + offset) // 4 % context.wave] = own[1]
        return [(x,) for x in out]

    return rule


for offset in (0, 4, 68):
    end = f" offset:{offset}" if offset else ""
    add("ds_bpermute_b32", "u32 u32", "u32", pull(offset), f"ds_bpermute_b32 {{d}}, {{a}}, {{b}}{end}",
        tag=str(offset))
    add("ds_permute_b32", "u32 u32", "u32", push(offset), f"ds_permute_b32 {{d}}, {{a}}, {{b}}{end}",
        tag=str(offset))
add("ds_bpermute_fi_b32", "u32 u32", "u32", pull(inactive=True), "ds_bpermute_fi_b32 {d}, {a}, {b}",
    ("gfx1201",))


def swizzled(where):
    def rule(context, lanes):
        return [(lanes[where(i)][0] if context.active(where(i)) else 0,) for i in range(context.wave)]

    return rule


def by_bits(keep, fill, flip):
    return lambda i: i & ~31 | ((i & 31 & keep) | fill) ^ flip


def rotated(by, mask):
    return lambda i: i & ~31 | (i & mask) | ((i + by) & 31 & ~mask)


for keep, fill, flip in ((31, 0, 1), (31, 0, 16), (0x1C, 2, 0), (0x18, 5, 3), (0, 0, 0), (31, 0, 31)):
    add("ds_swizzle_b32", "u32", "u32", swizzled(by_bits(keep, fill, flip)),
        f"ds_swizzle_b32 {{d}}, {{a}} offset:0x{flip << 10 | fill << 5 | keep:x}",
        tag=f"bits_{keep}_{fill}_{flip}")
for select in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 1, 0, 2)):
    code = 0x8000 | sum(x << 2 * i for i, x in enumerate(select))
    add("ds_swizzle_b32", "u32", "u32", swizzled(lambda i, q=select: i & ~3 | q[i & 3]),
        f"ds_swizzle_b32 {{d}}, {{a}} offset:0x{code:x}", tag=f"quad_{code:x}")
for by, mask in ((1, 0), (5, 0), (8, 7)):
    for back in (0, 1):
        code = 0xC000 | back << 10 | by << 5 | mask
        add("ds_swizzle_b32", "u32", "u32", swizzled(rotated(-by if back else by, mask)),
            f"ds_swizzle_b32 {{d}}, {{a}} offset:0x{code:x}", tag=f"rotate_{code:x}")
# fmt: on


@pytest.mark.parametrize("probes", SUITE.mnemonics())
def test_instruction(probes):
    check_all(probes, lambda arch, probe: check(SUITE, probe, arch))
