"""The Triton and HIP kernels of attention with a line changed, run on emulated GPUs."""

from __future__ import annotations

from .registry import Edit, source

FORWARD = "attention/triton/fwd.py"
TILES = "attention/triton/tiles.py"
BACKWARD = "attention/triton/bwd.py"
DECODE = "attention/triton/decode.py"

DELTA = "delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)"
DELTA_OF_32 = DELTA.replace("o.to(tl.float32), 1", "tl.where(tl.arange(0, BLOCK_E)[None, :] < 32, o, 0.0), 1")
CLAMPED = "return tl.minimum(tl.maximum(page, 0), pages - 1).to(tl.int64)"

source(
    *("attention", "triton", "gfx942", "sum of weights over half the lanes"),
    Edit(FORWARD, "row_sum = row_sum * rescale + tl.sum(p, 1)",
         "row_sum = row_sum * rescale + tl.sum(tl.where(cols < BLOCK_N // 2, p, 0.0), 1)"),
)  # fmt: skip
source(
    *("attention", "triton", "gfx1100", "o not rescaled when the maximum grows"),
    Edit(FORWARD, "acc_o = acc_o * rescale[:, None]\n        values", "values"),
)
source(
    *("attention", "triton", "gfx942", "float32 weights rounded to bfloat16"),
    Edit(FORWARD, "tl.dot(p.to(values.dtype), values", "tl.dot(p.to(tl.bfloat16).to(values.dtype), values"),
)
source(
    *("attention", "triton", "gfx942", "one key too many"),
    Edit(TILES, "if HIGH else j < N", "if HIGH else j <= N"),
)
source("attention_backward", "triton", "gfx942", "delta over 32 columns", Edit(BACKWARD, DELTA, DELTA_OF_32))
source(
    *("attention_backward", "triton", "gfx942", "dk and dv of the first head of a group alone"),
    Edit(BACKWARD, "for member in range(qheads_per_kvhead):", "for member in range(1):"),
)
source(
    *("attention_varlen_backward", "triton", "gfx942", "delta over 32 columns"),
    Edit(BACKWARD, DELTA, DELTA_OF_32),
)
source(
    *("attention_varlen_backward", "triton", "gfx942", "a sequence's first tile of keys left out"),
    Edit(TILES, "tl.store(entry, tile, mask=inside)", "tl.store(entry, tl.maximum(tile, 1), mask=inside)"),
)
source(
    *("attention_varlen", "triton", "gfx942", "a sequence's last tile of keys not masked"),
    Edit(FORWARD, "full_stop = full_stop // BLOCK_N * BLOCK_N",
         "full_stop = tl.cdiv(full_stop, BLOCK_N) * BLOCK_N"),
)  # fmt: skip
source(
    *("attention_varlen", "triton", "gfx942", "tokens of no sequence as one"),
    Edit(TILES, "N = tl.where(outside, -1, N)", "N = tl.where(outside, N, N)"),
)
source(
    *("attention_varlen", "triton", "gfx942", "a sink for tokens of no sequence"),
    Edit(FORWARD, 'sink = tl.where(N < 0, float("-inf"), sink)', "sink = sink"),
)
source(
    *("attention_paged", "triton", "gfx942", "sum of weights over 32 lanes of a wave of 64"),
    Edit(DECODE, "l = l * rescale + tl.sum(p, 1)",
         "l = l * rescale + tl.sum(tl.where(tl.arange(0, BLOCK_N)[None, :] < 32, p, 0.0), 1)"),
)  # fmt: skip
source(
    *("attention_paged", "triton", "gfx942", "last page read whole"),
    Edit(DECODE, "inside = n < end\n", "inside = n < tl.cdiv(end, PAGE) * PAGE\n"),
)
source(
    *("attention_paged", "triton", "gfx942", "pages looked up beyond the length, as they stand"),
    Edit(DECODE, "mask=n < end, other=0)", "mask=n < end + PAGE, other=0)"),
    Edit(DECODE, CLAMPED, "return page.to(tl.int64)"),
    Edit(DECODE, "n = start + tl.arange(0, BLOCK_N)\n        inside = n < end",
         "n = start + tl.arange(0, BLOCK_N)\n        inside = n < end + PAGE"),
    Edit(DECODE, "seen = inside[None, :]", "seen = (n < end)[None, :]"),
)  # fmt: skip
source(
    *("attention_paged", "triton", "gfx942", "lse in base 2"),
    Edit(DECODE, "(m + tl.log2(l)) * 0.69314718055994530942", "(m + tl.log2(l))", 2),
)
source(
    *("attention_paged", "triton", "gfx942", "a chunk's sums not rescaled to the sink"),
    Edit(DECODE, "acc += part * rescale[:, None]", "acc += part"),
)

GFX_TILES = "attention/gfx/tiles.h"
WAVE_SUM = "return LANES_PER_COLUMN == 4 ? x + shuffle_xor(x, 32) : x;"

source(
    *("attention", "mfma", "gfx942", "sum of weights over 32 lanes of a wave of 64"),
    Edit(GFX_TILES, WAVE_SUM, "return x;"),
)
source(
    *("attention_paged", "mfma", "gfx942", "sum of weights over 32 lanes of a wave of 64, in HIP"),
    Edit(GFX_TILES, WAVE_SUM, "return x;"),
)
source(
    *("attention", "wmma", "gfx1100", "o not rescaled when the maximum grows, in HIP"),
    Edit(
        "attention/device/softmax.h",
        "- P_SCALE_LOG2;\n        return factor;",
        "- P_SCALE_LOG2;\n        return 1.0f;",
    ),
    Edit("attention/device/softmax.h", "RESCALE_THRESHOLD = 8.0f", "RESCALE_THRESHOLD = 0.0f"),
)
source(
    *("attention", "mfma", "gfx942", "a key after the query's own"),
    Edit("attention/gfx/fwd.hip", "min(problem.key_end - 1, row + problem.high) - own_key",
         "min(problem.key_end - 1, row + problem.high + 1) - own_key"),
)  # fmt: skip
source(
    *("attention_varlen", "mfma", "gfx942", "a sequence's first tile lost"),
    Edit("attention/device/varlen_tiles.cu", "- begins[rank] - 1 - number : number;",
         "- begins[rank] - number : number + 1;"),
)  # fmt: skip

GFX_BACKWARD = "attention/gfx/bwd.hip"
STREAMS = "attention/gfx/bwd_streams.h"
GFX_DECODE = "attention/gfx/decode.hip"
HEADS_OF_GROUP = (
    "int64_t $head = $own * $p.qheads_per_kvhead; $head < ($own + 1) * $p.qheads_per_kvhead; ++$head"
)

source(
    *("attention_backward", "mfma", "gfx942", "rows stored while others read those before"),
    Edit(GFX_BACKWARD, "lds_barrier(); $rows.store(); lds_barrier();", "$rows.store(); lds_barrier();"),
)
source(
    *("attention_backward", "mfma", "gfx942", "rows read while others store them"),
    Edit(GFX_BACKWARD, "lds_barrier(); $rows.store(); lds_barrier();", "lds_barrier(); $rows.store();"),
)
source(
    *("attention_backward", "mfma", "gfx950", "a wave's own stores of rows not waited for at the barrier"),
    Edit(
        GFX_BACKWARD,
        "lds_barrier(); $rows.store(); lds_barrier();",
        "lds_barrier(); $rows.store(); __builtin_amdgcn_s_barrier();",
    ),
)
source(
    *("attention_backward", "mfma", "gfx942", "ds not scaled in dk"),
    Edit(GFX_BACKWARD, "-$p.scale, $dk, $p.dk_row", "-1.0f, $dk, $p.dk_row"),
)
source(
    *("attention_backward", "mfma", "gfx942", "ds keeps the weights' scale"),
    Edit(GFX_BACKWARD, "$ds[$j] *= P_UNSCALE;", ""),
)
source(
    *("attention_backward", "mfma", "gfx942", "causal: one tile of rows too many without masks"),
    Edit(
        GFX_BACKWARD,
        "$start >= $seen.begin && $start + STREAM_ROWS <= $seen.stop;",
        "$start + STREAM_ROWS >= $seen.begin && $start + STREAM_ROWS <= $seen.stop;",
    ),
)
source(
    *("attention_backward", "mfma", "gfx942", "causal: one tile of rows too many without masks, at the end"),
    Edit(
        GFX_BACKWARD,
        "$start >= $seen.begin && $start + STREAM_ROWS <= $seen.stop;",
        "$start >= $seen.begin && $start <= $seen.stop;",
    ),
)
source(
    *("attention_backward", "mfma", "gfx942", "causal: a tile of rows with the edge in it left out"),
    Edit(
        GFX_BACKWARD,
        "max($mask.first($first) - $rows.begin, 0) / STREAM_ROWS",
        "(max($mask.first($first) - $rows.begin, 0) + STREAM_ROWS - 1) / STREAM_ROWS",
    ),
)
source(
    *("attention_backward", "mfma", "gfx942", "dk and dv of shared heads by h % G"),
    Edit(GFX_BACKWARD, HEADS_OF_GROUP, "int64_t $head = $own; $head < $p.heads; $head += $p.kv_heads"),
)
source(
    *("attention_backward", "mfma", "gfx942", "dk and dv of the first head of a group alone, in HIP"),
    Edit(GFX_BACKWARD, HEADS_OF_GROUP,
         "int64_t $head = $own * $p.qheads_per_kvhead; $head < $own * $p.qheads_per_kvhead + 1; ++$head"),
)  # fmt: skip
source(
    *("attention_backward", "mfma", "gfx942", "do stays at its first rows"),
    Edit(STREAMS, "e.advance(STREAM_ROWS);", ""),
)
source(
    *("attention_backward", "mfma", "gfx942", "streamed columns in another order than they are read"),
    Edit(STREAMS, "TransposedTile::offset($c, 0);", "TransposedTile::offset($c ^ 1, 0);"),
)
source(
    *("attention_backward", "mfma", "gfx950", "columns left as the transposing loads bring them"),
    Edit(STREAMS, "{ ::in_column_order($acc); }", "{}"),
)
source(
    *("attention_paged", "mfma", "gfx942", "pages of the keys before"),
    Edit(GFX_DECODE, "= $cache.look_up($n + WAVES * MMA_M);", "= $cache.look_up($n);"),
)
source(
    *("attention_paged", "mfma", "gfx942", "the page after the key's"),
    Edit(GFX_DECODE, "= $table[clamped($key) / PAGE_KEYS];", "= $table[clamped($key) / PAGE_KEYS + 1];"),
)
source(
    *("attention_paged", "mfma", "gfx942", "the last page not masked"),
    Edit(GFX_DECODE, ": $end - 1};", ": ($end + PAGE_KEYS - 1) / PAGE_KEYS * PAGE_KEYS - 1};"),
)
source(
    *("attention_paged", "mfma", "gfx942", "waves' sums not rescaled to the block's maximum"),
    Edit(GFX_DECODE, "exp2_ftz($softmax.row_max - $base) * Softmax::UNSCALE", "Softmax::UNSCALE"),
)
source(
    *("attention_paged", "mfma", "gfx942", "combine: o not rescaled when the maximum grows"),
    Edit(GFX_DECODE, "acc_o = acc_o * $own + ", "acc_o = acc_o + "),
)
source(
    *("attention", "decode_mfma", "gfx942", "combine: sums not rescaled when the maximum grows"),
    Edit(GFX_DECODE, "row_sum = row_sum * $own + ", "row_sum = row_sum + "),
)
source(
    *("attention", "decode_mfma", "gfx942", "combine: lines beyond the first left out"),
    Edit(GFX_DECODE, "$i = 1; $i < COMBINE_LINES;", "$i = COMBINE_LINES; $i < COMBINE_LINES;"),
)
