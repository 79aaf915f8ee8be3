"""Real HIP and Triton kernels with one line changed, run on emulated GPUs."""

from __future__ import annotations

from .registry import Edit, source

ROWS = "_lib/rows/rows.h"
TILES = "matmul/gfx/tiles.h"
FRAGMENTS = "matmul/gfx/fragments.h"
PING_PONG = "matmul/gfx/ping_pong.h"
OUTPUT = "matmul/gfx/output.h"
STAGED = "matmul/gfx/staged.h"
SPLITK_REDUCE = "matmul/gfx/splitk_reduce.hip"
PART_DEPTH = "min(k_step, K - static_cast<int>(part) * k_step)"
DIRECT = "matmul/gfx/direct_to_lds.h"
WMMA = "matmul/gfx/wmma.hip"
DOUBLE_BUFFER = "matmul/gfx/double_buffer.h"
SOFTMAX = "softmax/softmax.cu"
TRITON_SOFTMAX = "softmax/triton_impl.py"
TRITON_MATMUL = "matmul/triton/plan.py"

HALF_WAVE = Edit(ROWS, "$all = $lanes < WARP ? $lanes : WARP;", "$all = $lanes < 32 ? $lanes : 32;")
TAKE = "take($part, $partials["
NO_BARRIER = Edit(ROWS, "barrier(); " + TAKE, TAKE)

source("softmax", "cpp", "gfx942", "reduction over 32 lanes of a wave of 64", HALF_WAVE)
source("rms_norm", "cpp", "gfx942", "reduction over 32 lanes of a wave of 64", HALF_WAVE)
source("softmax_backward", "cpp", "gfx942", "reduction over 32 lanes of a wave of 64", HALF_WAVE)
source("softmax", "cpp", "gfx942", "barrier missing between the waves' partial results", NO_BARRIER)
source("layer_norm", "cpp", "gfx942", "barrier missing between the waves' partial results", NO_BARRIER)
source("rms_norm", "cpp", "gfx1100", "barrier missing between the waves' partial results", NO_BARRIER)
source(
    *("softmax", "cpp", "gfx942", "LDS of the maximum used again for the sum, no barrier between"),
    Edit(SOFTMAX, "SHARED RowPartial<IN_PAIRS ? 2 : 1> partial;", "auto& partial = partial_max;"),
)
source(
    *("softmax", "cpp", "gfx942", "rows beyond the last are not masked"),
    Edit(SOFTMAX, "const int $count = $row < $rows ? $length : 0;", "const int $count = $length;", 2),
)
source(
    *("swiglu", "cpp", "gfx942", "one column past the row read"),
    Edit(ROWS, "if ($column + $i < $length) $held.insert", "if ($column + $i <= $length) $held.insert", 2),
)
source(
    *("swiglu", "cpp", "gfx942", "one column past the row written"),
    Edit(ROWS, "if ($column + $i < $length) $to[$i] =", "if ($column + $i <= $length) $to[$i] ="),
)
source(
    *("rms_norm", "cpp", "gfx942", "eps outside the root"),
    Edit("rms_norm/rms.h", "math_rsqrt(div_rn($sum, static_cast<float>($length)) + eps)",
         "1.0f / (1.0f / math_rsqrt(div_rn($sum, static_cast<float>($length))) + eps)"),
)  # fmt: skip
source(
    *("swiglu", "cpp", "gfx942", "gate and up swapped"),
    Edit("swiglu/swiglu.cu", "return $gate * sigmoid($gate).value * $up[$c][$i];",
         "return $gate * sigmoid($up[$c][$i]).value * $up[$c][$i];"),
)  # fmt: skip
source(
    *("matmul", "mfma", "gfx942", "accumulators written in another layout"),
    Edit(FRAGMENTS, "lines_to($j) + $part * 8;", "lines_to($j) + $part % 2 * 16 + $part / 2 * 8;"),
)
source(
    *("matmul", "mfma", "gfx942", "all quarters of the wave compute what the first does"),
    Edit(FRAGMENTS, "($line, thread_x() % WARP / FRAGMENT)", "($line, 0)"),
)
source(
    *("matmul", "mfma", "gfx942", "operands given to the instruction in the wrong order"),
    Edit(FRAGMENTS, "multiply<T>($b[$j], $a[$i], $acc[$i][$j])", "multiply<T>($a[$i], $b[$j], $acc[$i][$j])"),
)
source(
    *("matmul", "mfma", "gfx942", "tail of K not masked"),
    Edit(TILES, "if (k < $valid) {", "if (true) {"),
    Edit(TILES, "const bool $real = k_of($i) + $k < $left;", "const bool $real = true;"),
)
source(
    *("matmul", "mfma", "gfx942", "one row past the end written"),
    Edit(OUTPUT, "if ($m >= $M || $n >= $N) {", "if ($m > $M || $n >= $N) {", 2),
)
source(
    *("matmul", "mfma", "gfx942", "rows past the end read"),
    Edit(TILES, "= min(matrix_line<GATED_TILE>($at), $lines - 1);", "= matrix_line<GATED_TILE>($at);"),
)  # fmt: skip
source(
    *("matmul", "mfma", "gfx942", "LDS written with another permutation than it is read"),
    Edit(TILES, "::offset($row + $i * $STEP, $chunk)", "::offset($row + $i * $STEP, $chunk ^ 1)"),
)
source(
    *("matmul", "mfma", "gfx942", "barrier missing in the loop over K"),
    Edit(TILES, "$b(next + $Lds<$M>::BYTES); lds_barrier();", "$b(next + $Lds<$M>::BYTES);"),
)  # fmt: skip
source(
    *("matmul", "mfma", "gfx942", "one stage of LDS for both tiles"),
    Edit(TILES, "$stage ^= 1;", ""),
)
source(
    *("matmul", "mfma", "gfx942", "result truncated, not rounded"),
    Edit(OUTPUT, "= pack2<T>($values[$i], $values[$i + 1]);",
         "= __builtin_bit_cast(uint32_t, $values[$i]) >> 16 | "
         "(__builtin_bit_cast(uint32_t, $values[$i + 1]) & 0xffff0000u);"),
)  # fmt: skip
source(
    *("matmul", "mfma", "gfx942", "ping-pong: barrier missing after the last product of a step"),
    Edit(PING_PONG, "multiply_halves(1, 1); turn();", "multiply_halves(1, 1);"),
)
source(
    *("linear", "mfma", "gfx942", "ping-pong: the last step's k not ended"),
    Edit(STAGED, "if (K_MAJOR && k() >= $left) {", "if (false) {"),
)
source(
    *("matmul", "mfma", "gfx942", "ping-pong: transposed lines in one slot of LDS"),
    Edit(STAGED, "($to ^ $line % 4 * 16 ^", "($to ^"),
)
source(
    *("matmul", "mfma", "gfx942", "ping-pong: a line stored in its neighbour's place too"),
    Edit(STAGED, "$line % 2 == 0 ? $pair : $pair >> 16", "$pair"),
)
source(
    *("matmul", "mfma", "gfx942", "ping-pong: stores of b not waited for at the barrier"),
    Edit(PING_PONG, "$b.store(b_tile, 0); wait_lds();", "$b.store(b_tile, 0);"),
)
source(
    *("matmul", "mfma", "gfx942", "aligned: a tile stored while others read the one before"),
    Edit(STAGED, "$core.load(a_tile, b_tile); lds_barrier();", "$core.load(a_tile, b_tile);"),
)
source(
    *("matmul", "mfma", "gfx950", "direct loads: a wait for b0 that is none"),
    Edit(DIRECT, "(A_READS < 14 ? A_READS : 14)", "15"),
)
source(
    *("matmul", "mfma", "gfx950", "direct loads: four half tiles in flight, not three"),
    Edit(
        DIRECT,
        "wait_loads<2 * $B::$LOADS + $A::$LOADS>(); group_barrier(); wave.multiply_halves(1, 1);",
        "wait_loads<8>(); group_barrier(); wave.multiply_halves(1, 1);",
    ),
)
source(
    *("matmul", "mfma", "gfx950", "direct loads: fragments of a pair not exchanged"),
    Edit(FRAGMENTS, "A_ALTERNATING ? $line / 4 % 2 : 0", "0"),
)
source(
    *("matmul", "mfma", "gfx950", "direct loads: chunks in another order than they are read"),
    Edit(DIRECT, "$slot ^ row_key($row)", "$slot"),
)
source(
    *("matmul", "mfma_splitk", "gfx942", "split-K: the last part's sums lost"),
    Edit(SPLITK_REDUCE, "$part < $parts;", "$part + 1 < $parts;"),
)
source(
    *("matmul", "mfma_splitk", "gfx942", "split-K: the last part's sums added twice"),
    Edit(
        SPLITK_REDUCE,
        "$part < $parts; ++$part, $from += $apart",
        "$part <= $parts; ++$part, $from += $part < $parts ? $apart : 0",
    ),
)
source(
    *("matmul", "mfma_splitk", "gfx942", "split-K: the first part's sums for every part"),
    Edit(SPLITK_REDUCE, "++$part, $from += $apart", "++$part"),
)
source(
    *("matmul", "mfma_splitk", "gfx942", "split-K: a part ends one chunk of k early"),
    Edit(OUTPUT, PART_DEPTH, "min(k_step, K - static_cast<int>(part) * k_step) - 8"),
)
source(
    *("matmul", "mfma_splitk", "gfx942", "split-K: a shorter last part read as long as the others"),
    Edit(OUTPUT, PART_DEPTH, "k_step"),
)
source(
    *("linear", "mfma", "gfx942", "bias of a run's first column for all of it"),
    Edit(OUTPUT, "bias_at($bias, min($n + $i, $N - 1))", "bias_at($bias, min($n, $N - 1))"),
)
source(
    *("matmul", "simt", "gfx942", "barrier missing in the loop over K"),
    Edit("matmul/simt/simt.cu", "$now = BUFFER_B - $now; barrier();", "$now = BUFFER_B - $now;"),
)  # fmt: skip
source(
    *("matmul", "wmma", "gfx1100", "b's columns in their own order"),
    Edit(WMMA, "return row % 2 * 8 + row / 2;", "return row;"),
)
source(
    *("matmul", "wmma", "gfx1201", "half of the columns not exchanged"),
    Edit(WMMA, "(second, first, BY_8, 0xf, 0x3, false)", "(second, first, BY_8, 0xf, 0x0, false)"),
)
source(
    *("matmul", "wmma", "gfx1100", "k past the end not zero"),
    Edit(DOUBLE_BUFFER, "(memory + from[i]), left - k())", "(memory + from[i]), 8)"),
)
source(
    *("matmul", "wmma", "gfx1201", "k past the end not zero, transposed"),
    Edit(DOUBLE_BUFFER, "= $at < $left ? $bits : 0;", "= $bits;"),
)
source(
    *("matmul", "wmma", "gfx1100", "one row past the end written"),
    Edit(WMMA, "if ($row >= $M) {", "if ($row > $M) {"),
)
source(
    *("softmax", "triton", "gfx942", "masked lanes hold 0, not -inf"),
    Edit(TRITON_SOFTMAX, 'mask=mask, other=-float("inf")', "mask=mask, other=0.0"),
)
source(
    *("softmax", "triton", "gfx942", "rows beyond the last are not masked"),
    Edit(TRITON_SOFTMAX, "mask = ($row < $count)[:, None] & $in",
         "mask = ($row <= $count)[:, None] & $in", 2),
)  # fmt: skip
source(
    *("softmax", "triton", "gfx1100", "maximum not subtracted"),
    Edit(TRITON_SOFTMAX, "exp_nonpositive($x - tl.max($x, axis=1, keep_dims=True), WIDE)", "tl.exp($x)"),
)
source(
    *("matmul", "triton", "gfx942", "one k too many"),
    Edit(TRITON_MATMUL, "& ($offs_k < $K - $k)[", "& ($offs_k <= $K - $k)[", 3),
)
source(
    *("matmul", "triton", "gfx942", "accumulates in bfloat16"),
    Edit(TRITON_MATMUL, "$acc = tl.dot($a, $b, $acc, input_precision=PRECISION)",
         "$acc = tl.dot($a, $b, $acc, input_precision=PRECISION).to(tl.bfloat16).to(tl.float32)", 2),
)  # fmt: skip
source(
    *("log_softmax", "cpp", "gfx942", "log of 1 + the sum"),
    Edit(SOFTMAX, "log_sum = math_log(max_sum.value[1]);", "log_sum = math_log(max_sum.value[1] + 1.0f);"),
)
