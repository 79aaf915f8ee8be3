// The state of one wave of an emulated AMD GPU, and what the handler of an instruction sees of it.
//
// Python decodes each instruction once into an `Inst`. `run.c` steps a wave through the array of `Inst`s; the `step` of
// each works on all lanes at once. Vector instructions share one step: it fetches the
// sources of all lanes, calls the instruction's own `lane` function, and commits the result under EXEC.
//
// Beside every register lies its definedness: which bits (scalar) or which halves of which lanes (vector)
// were ever written. It follows the data, and is an error where it reaches memory or control flow.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LANES 64
#define ABI 7  // version of the structs that abi.py mirrors; a mismatch is refused

typedef uint64_t mask64;

enum Arch { GFX90A, GFX942, GFX950, GFX1100, GFX1201 };
#define IS_GFX9(arch) ((arch) <= GFX950)
#define HAS_GFX940(arch) ((arch) == GFX942 || (arch) == GFX950)

// Scalar registers by number, the same on every architecture (isa/ translates gfx9's).
enum { VCC = 106, TTMP = 108, NULLREG = 124, M0 = 125, EXEC = 126, SCALARS = 128 };
enum { AGPR = 256, VECTORS = 512 };

typedef union Vec {  // one value of every lane
    uint32_t u[LANES];
    int32_t i[LANES];
    float f[LANES];
    uint64_t q[LANES];
    int64_t l[LANES];
    double d[LANES];
} Vec;

enum OperandKind { NONE, VGPR, SGPR, CONSTANT, NOTHING /* reads 0, writes vanish */, SCC_BIT, VCCZ_BIT, EXECZ_BIT };
enum OperandMods {
    NEG = 1,       // packed: of the low half
    ABS = 2,
    UPPER = 4,     // op_sel: the upper half (packed: for the low result; the upper word for packed f32)
    NEG_HI = 8,    // packed: negate for the high result
    UPPER_HI = 16, // op_sel_hi: the upper half (word) for the high result
    SEXT = 32,     // SDWA
};

typedef struct Operand {
    uint8_t kind, mods;
    uint8_t sel;     // SDWA: 0..3 byte, 4..5 word, 6 dword; without SDWA always 6
    uint8_t type;    // the letter of the op's signature
    uint16_t index;  // first register: 0..511 vector, 0..127 scalar
    uint16_t pad;
    uint64_t value;  // CONSTANT: the bits at the operand's own type (32-bit types: low word; 16-bit: low half)
} Operand;

enum InstFlags {
    CLAMP = 1,
    SDWA = 2,
    DPP = 4,          // DPP16: aux[0] = dpp_ctrl | row_mask << 16 | bank_mask << 20 | bound_ctrl << 24 | fi << 25
    DPP8 = 8,         // aux[0] = 8 selectors of 3 bits
    DUAL = 16,        // the first half of a VOPD pair; the second is the next Inst
    DST_UPPER = 32,   // a 16-bit result goes to the upper half
    DST_ZERO = 64,    // a 16-bit result clears the other half (gfx9's older 16-bit instructions)
    OFFEN = 128,
    IDXEN = 256,
    TO_LDS = 512,
    RETURNS = 1024,   // atomics: glc / sc0
    WRITES_EXEC = 2048, // v_cmpx
    SHARED = 4096,    // goes past the caches of a compute unit: sc1, glc, a scope of the device
};

struct Wave;
struct Inst;
struct LaneOp;
struct ScalarOp;
typedef int (*Step)(struct Wave *w, const struct Inst *in);  // GO, or STOP after a fault or at the end
typedef void (*LaneFn)(struct LaneOp *x);
typedef void (*ScalarFn)(struct ScalarOp *x);
enum { GO = 0, STOP = 1, YIELD = 2 };

// What a memory instruction waits in, flight.h. The flat ones are of gfx9.
enum Queue { Q_NONE, Q_VECTOR, Q_LDS, Q_SCALAR, Q_FLAT_VECTOR, Q_FLAT_LDS, QUEUES };
enum Half { WHOLE, LOWER_HALF, UPPER_HALF };
enum { FLIGHT_WORDS = (VECTORS + SCALARS) / 64, MOST_LOADS = 64, MOST_LDS_ACCESSES = 64, MOST_LATE = 1024, MANY_LATE = 0xffff };

typedef struct Flight {
    uint64_t names[FLIGHT_WORDS];  // a bit for each register that is read or written: vector, then scalar
    uint16_t first, count;         // the registers of them that a load writes when it lands; count 0 for others
    uint8_t queue[2];              // enum Queue
    uint8_t to_lds;
    uint8_t half;                  // enum Half: of the register of its data, of a 16-bit access on gfx11 and gfx12
} Flight;

typedef struct Inst {
    Step step;
    union { LaneFn lane; ScalarFn scalar; void *any; } fn;
    uint64_t address;   // virtual, in the code object
    uint32_t flags;
    int32_t imm;        // simm16, a memory offset, or the index of a branch's target
    uint32_t aux[4];    // [0] DPP control, or a first offset (DS, in elements), or cbsz | abid << 8 | blgp << 16 of MFMA
                        // [1] SDWA's dst_sel | dst_unused << 8, or a second offset
                        // [2] op_sel as encoded, or the truth table of v_bitop3
                        // [3] omod
    uint16_t op;        // index into the table of all ops
    uint8_t sources, results;
    uint8_t length;     // bytes of machine code
    uint8_t queued;     // filled in by emulator_link: whether it goes through a queue of `flight`
    uint8_t named;      // and bit k where flight.names[k] or [k + 8] is not 0
    uint8_t pad;
    Operand dst[2];
    Operand src[5];
    Flight flight;
} Inst;

// Types in signatures "results=sources": what a handler gets in x->s[k] and leaves in x->d.
//   b 32 bits   f float32   q 64 bits   d float64      (u/i, f, q/l, d of Vec)
//   h float16   w 16 bits   the selected half, zero-extended in u[]
//   P packed float16/bfloat16, I packed 16-bit integers: u[] with op_sel/op_sel_hi and neg/neg_hi applied (I: no neg)
//   F packed float32, q[]: low word for the low result, op_sel and neg applied
//   m a lane mask in scalar registers: x->m[k]; as a result x->dm
//   r raw: a block of registers that the handler reads and writes itself through w->v (in->src[k].index)
//   s (result) one 32-bit scalar: x->d.u[0]; (source) a uniform 32-bit scalar: x->s[k]->u[0]
// Modifiers (neg, abs, op_sel, SDWA, DPP), denormal flushing of inputs and results (f h d P), clamp of f h d P F
// and omod are applied by the shared step, never by a lane function; integer clamp is the lane function's.
typedef struct LaneOp {
    const Inst *in;
    struct Wave *w;
    mask64 exec;            // the lanes that will be written: EXEC, less what DPP drops
    const Vec *s[5];
    mask64 m[5];
    mask64 lo[5], hi[5];    // lanes whose lower / upper half of source k is defined (q, d: both halves of both words;
                            // F: lo is the low word, hi the high one; m: the bit itself, in lo)
    Vec d;
    mask64 dm;
    mask64 dlo, dhi, dmdef; // definedness of the result; preset to "all sources defined" (P, I, F: half by half)
    Vec space[5];           // where fetched sources lie when they are not read in place
} LaneOp;

// Scalar instructions: s[k] holds 32 or 64 bits; sdef[k] has a 1 for each defined bit. `d` and `scc` are preset to 0
// and their definedness to "all bits of all sources and, for ops that read it, SCC defined".
typedef struct ScalarOp {
    const Inst *in;
    struct Wave *w;
    uint64_t s[3], sdef[3];
    uint64_t d, ddef;
    bool scc, sccdef;       // in: the current SCC; out: the new one (signature letter c among the results)
} ScalarOp;

enum OpClass { C_SALU, C_VALU, C_TRANSCENDENTAL, C_MATRIX, C_GLOBAL, C_LDS, C_SCRATCH, C_SMEM, C_BRANCH, C_BARRIER, C_WAIT, C_OTHER };

typedef struct OpInfo {
    const char *name;
    const char *signature;
    Step step;
    void *fn;
    int cls;
    uint32_t work;          // matrix ops: floating-point operations per instruction
} OpInfo;

int step_lane(struct Wave *w, const Inst *in);
int step_scalar(struct Wave *w, const Inst *in);
int step_nop(struct Wave *w, const Inst *in);
// Gives an instruction a shorter step than step_lane where that does.
void plan_plain(Inst *in);

// Each file's table ends with a row whose name is NULL.
#define LANE_OP(op, signature) {#op, signature, step_lane, (void *)op, C_VALU, 0}
#define TRANS_OP(op, signature) {#op, signature, step_lane, (void *)op, C_TRANSCENDENTAL, 0}
#define SCALAR_OP(op, signature) {#op, signature, step_scalar, (void *)op, C_SALU, 0}
#define STEP_OP(op, signature, cls) {#op, signature, op, NULL, cls, 0}  // `op` is itself a Step
#define MATRIX_OP(op, signature, flops) {#op, signature, step_lane, (void *)op, C_MATRIX, flops}
#define OPS_END {NULL, NULL, NULL, NULL, 0, 0}

enum FaultKind { F_NONE, F_BOUNDS, F_MISALIGNED, F_UNINITIALISED, F_RACE, F_BARRIER, F_BUDGET, F_INACTIVE, F_UNSUPPORTED, F_TRAP, F_UNWAITED, F_ROUNDING, F_GLOBAL_RACE, F_BENIGN };

typedef struct Range {  // one live tensor, or the kernel's arguments, or its code
    uint64_t base, size;
    uint32_t writable, name;  // name: index into Python's list
} Range;

typedef struct Fault {
    int32_t kind, lane, wave;        // lane, wave -1 where none
    uint32_t group[3];
    uint64_t address, pc;            // address ~0 where none
    int32_t inst;                    // index into the program
    char detail[400];
} Fault;

enum LdsAccess { LDS_READ, LDS_WRITE, LDS_ATOMIC, LDS_EXCHANGE, LDS_ACCESSES };
typedef struct LdsCount { uint64_t lanes, bytes, conflicts, cycles; } LdsCount;
typedef struct MemCount {  // of one instruction
    uint64_t lanes, bytes, cache_lines, fewest_cache_lines, sectors, fewest_sectors;  // global memory and scratch
    LdsCount lds[LDS_ACCESSES];
} MemCount;

// A recorded workgroup: what its waves executed, in the order of the emulation, for timing.c.
typedef struct Event {
    uint32_t inst;                   // index into the program
    uint16_t wave;
    uint16_t lds;                    // cycles that LDS is busy with it
    uint16_t lines;                  // cache lines that a load touches; sectors that a store does
    uint16_t misses;                 // of the lines: those that the workgroup has not in a first-level cache of its own
} Event;

typedef struct Recording {
    Event *events;                   // of malloc
    uint64_t count, capacity;
    uint32_t cache_lines;            // of the first-level cache, at most MOST_LINES
    uint32_t full;                   // memory ran out: the recording is not whole
    void *cache;
} Recording;

typedef struct Launch {
    uint32_t abi, arch, wave_size, instructions;
    Inst *program;
    Range *ranges;
    uint32_t range_count, entry;     // entry: index of the first instruction
    uint32_t grid[3], block[3];
    uint32_t lds_bytes, scratch_bytes, float_mode, ids;   // ids: 1..3 work-item ids in v0
    uint32_t dx10_clamp, ieee, ids_in_ttmp, system_count;
    uint32_t system[8];              // 0,1,2 workgroup id x y z; 3 workgroup info; 4 scratch wave offset
    uint32_t user_count, user_known;  // user_known bit i: user[i] means something
    uint32_t user[32];               // values of the user SGPRs
    uint64_t code_base;              // host address of virtual address 0 of the code object
    uint64_t text_start, text_end;   // virtual
    uint32_t *index_of;              // instruction index by (virtual address - text_start) / 4, ~0 where none starts
    uint64_t budget;                 // instructions per wave
    uint64_t *executed;              // per instruction; NULL unless counting
    MemCount *memory;                // per instruction; NULL unless counting
    Recording *recording;            // of the one workgroup that is run; NULL unless recording
    volatile uint32_t next_group;    // taken by the threads one by one
    uint32_t end_group;              // the first that is not run
    uint32_t resident;               // how many a thread holds at once and runs in turn; above 1 they may wait for another
    volatile uint32_t stop;
    volatile uint32_t fault_taken;
    uint32_t drops_waits;            // accesses behind a missing wait (lds_flight.c) are counted, and are no fault
    uint64_t unordered;              // so many
    volatile uint32_t warning_taken;
    uint32_t aside;                  // a workgroup is run once more: nothing in global memory is changed (lds_race.h)
    uint64_t suspect;                // aside: what is looked at are loads of this word of global memory, 0 none,
    int32_t suspect_inst;            // or those by this instruction, -1 none
    struct Races *races;             // global_race.c; NULL where these are not looked for
    uint32_t watched;                // races are looked for, or `aside`
    void *hostcall;                  // hostcall.c; NULL where the kernel does not call the host
    uint64_t *said;                  // of malloc: nine words for each piece of a message, the first its number
    uint64_t said_count, said_capacity, messages;
    volatile char answering;
    Fault fault, warning;
} Launch;

struct Group;
struct Races;
struct Clock;

typedef struct Wave {
    Vec v32[VECTORS / 2];            // v[r] is 64 words; two registers share a Vec's 512 bytes: use VREG
    mask64 lo[VECTORS], hi[VECTORS];
    uint32_t s[SCALARS], sdef[SCALARS];
    bool scc, sccdef;
    uint32_t mode;                   // MODE: round f32 1:0, f16/f64 3:2, denorm f32 5:4, f16/f64 7:6
    uint32_t pc;                     // index of the next instruction
    uint32_t number, lanes;          // within the workgroup; 32 or 64
    mask64 full;                     // all lanes of the wave size
    mask64 launched;                 // lanes that exist: the last wave of a block may be partial
    uint64_t executed, budget;
    Event *event;                    // of the instruction being executed; NULL unless recording
    int state;                       // RUNNING, WAITING at a barrier, ENDED
    int barrier_pending;             // gfx12: signalled, not yet waited
    struct Group *group;
    Launch *launch;
    const Inst *program;
    Range *last;                     // the range of the latest access
    uint8_t *scratch;                // lanes x scratch_bytes, lane after lane
    uint8_t *scratch_def;
    uint32_t issued[QUEUES], done[QUEUES], arrived[QUEUES];  // arrived: `done` at the latest barrier
    uint64_t flying[FLIGHT_WORDS];   // registers whose load is in flight
    uint8_t flying_words;            // as Inst.named
    Inst indexed;                    // the instruction being executed, where it is an indexed one (gpr_index.c)
    int loads, lds_first, lds_accesses;  // lds_access[lds_first] to [lds_accesses - 1]
    struct Load { const Inst *in; uint32_t number[2]; } load[MOST_LOADS];
    struct LdsAccessInFlight {
        const Inst *in;
        uint32_t number;
        uint8_t queue, access, bytes;
        mask64 lanes;
        uint32_t at[LANES];
    } lds_access[MOST_LDS_ACCESSES];
    // The latest read of something never written, for the message when it reaches memory.
    struct Origin {
        int kind;
        int32_t inst, lane;
        uint64_t address;
        uint32_t wave, mark;         // of a race: the reading wave, and who wrote
        int32_t other;               // the instruction that wrote, -1 where that is not known
    } origin;
} Wave;
enum { RUNNING, WAITING, ENDED };
#define VREG(w, r) ((uint32_t *)(w)->v32 + (size_t)(r) * LANES)

enum { LDS_READ_WORDS = 1 << 16 };

typedef struct Group {
    Launch *launch;
    uint32_t id[3];
    uint32_t waves;
    uint8_t *lds, *lds_def;          // lds_def: 1 where a byte was written
    uint8_t *lds_writer, *lds_reader;// wave + 1 since the last barrier, 0 none, 255 several
    uint32_t lds_size;
    uint32_t race_low, race_high;    // the part of the two arrays that is not 0
    uint32_t write_low, write_high;  // what was written since the barrier lies within
    uint32_t whole_low, whole_high;  // a part of LDS that is wholly defined (lds_marks.h)
    struct {
        uint32_t used, low, high;    // low to high: what the reads touch lies within
        uint32_t words[LDS_READ_WORDS];
    } reads;                         // since the barrier, which are not among the marks yet (lds_marks.h)
    bool judged;                     // run aside: nothing comes of its racing reads
    uint32_t number;                 // x first
    const struct Clock *known, *pending;  // global_race.c: what happened before, and what an acquire would add
    struct Area *area;               // of the latest access
    uint32_t epoch, released_epoch;
    bool stored;                     // since the latest release
    struct Origin stored_origin;     // of the latest undefined value that was written to LDS
    struct Origin unused;            // a read that races, of which nothing has come so far
    uint16_t *lds_late;              // lds_flight.c
    uint32_t late_low, late_high, lates;
    struct Late { const Inst *in; uint32_t access, wave; } late[MOST_LATE];
    Wave *wave;                      // `waves` of them
    void *waves_memory;              // where they lie, of calloc
} Group;

static inline uint64_t scalar64(const Wave *w, int r) { return w->s[r] | (uint64_t)w->s[r + 1] << 32; }
static inline mask64 exec_of(const Wave *w) { return scalar64(w, EXEC) & w->full; }
static inline float as_float(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static inline uint32_t as_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static inline double as_double(uint64_t u) { double f; memcpy(&f, &u, 8); return f; }
static inline uint64_t as_bits64(double f) { uint64_t u; memcpy(&u, &f, 8); return u; }
#define EACH for (int i = 0; i < LANES; i++)
#define EACH_ACTIVE(mask, i) for (mask64 left_ = (mask); left_; left_ &= left_ - 1) for (int i = __builtin_ctzll(left_), once_ = 1; once_; once_ = 0)

// Report the first fault of a launch; always returns STOP. lane -1 and address ~0ull mean none.
int fault(Wave *w, const Inst *in, int kind, int lane, uint64_t address, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
// Report the first thing of a launch that is no fault but should be known; the launch goes on.
void warn(Wave *w, const Inst *in, int kind, int lane, uint64_t address, const char *format, ...)
    __attribute__((format(printf, 6, 7)));
// Fault F_UNINITIALISED (or F_INACTIVE, when the latest undefined read was of an inactive lane) saying that `what`
// ("the stored value", "an address", "a branch condition") depends on something never written.
int undefined(Wave *w, const Inst *in, int lane, uint64_t address, const char *what);
// Note where an undefined value came from: kind F_UNINITIALISED or F_INACTIVE.
void note_origin(Wave *w, const Inst *in, int kind, int lane, uint64_t address);
// The same of a read that races, F_RACE or F_GLOBAL_RACE.
void note_race(Wave *w, const Inst *in, int kind, int lane, uint64_t address, uint32_t mark, int32_t other);
// A compare-and-swap with what such a read got has made sure of it: that is how compilers expand other atomics.
void compared(Wave *w);
// At a workgroup's end: warn of its racing reads.
void warn_unused(Group *g);
// Report a fault that a workgroup had when it was run aside.
int fault_again(Wave *w, const Fault *found);
// The waves behind a mark of LDS (lds_race.h).
const char *marked_waves(uint32_t mark, char text[24]);

// Host pointer for [address, address + size) of one lane, or NULL after reporting the fault.
void *global_at(Wave *w, const Inst *in, int lane, uint64_t address, uint32_t size, bool write);

// Reading a scalar operand: its value (32 or 64 bits by its type) and, through `def`, its defined bits.
uint64_t read_scalar(const Wave *w, const Operand *o, int bits, uint64_t *def);
// Writing 32 or 64 bits to scalar registers; checks EXEC's definedness. GO or STOP.
int write_scalar(Wave *w, const Inst *in, int index, int bits, uint64_t value, uint64_t def);
// Source k of a vector instruction as 64 words (uniform ones are spread out), without modifiers. `words` from `first`.
const uint32_t *read_words(Wave *w, const Operand *o, int first, uint32_t *space, mask64 *lo, mask64 *hi);
// Write one 32-bit register of the lanes in `mask`.
void write_words(Wave *w, int reg, const uint32_t *value, mask64 mask, mask64 lo, mask64 hi);

// Answers what a kernel has asked the host; hostcall.c.
void answer_calls(Launch *launch);

// What DPP does to the lanes of an instruction, by its control word and EXEC; dpp.c. Valid until the thread's next call.
typedef struct DppLanes {
    uint32_t source[LANES];  // the lane that feeds lane i
    mask64 fed;              // lanes that have one
    mask64 written;
    mask64 zero;             // lanes that read 0 because their source lane is out of range or inactive
    mask64 inactive;         // those of them whose source lane exists but is inactive
} DppLanes;
const DppLanes *dpp_lanes(const Wave *w, uint32_t control, bool dpp8);

#define SHARED_APERTURE 0x0001000000000000ull   // flat addresses of LDS and of scratch: beyond any host address
#define PRIVATE_APERTURE 0x0002000000000000ull

extern const OpInfo ops_salu[], ops_salu_float[], ops_control[], ops_valu_int[], ops_valu_float[], ops_valu_math[],
    ops_valu_half[], ops_valu_compare[], ops_valu_convert[], ops_valu_scale[], ops_valu_packed[], ops_valu_lanes[],
    ops_dot[], ops_mfma[], ops_mfma_scaled[], ops_smfmac[], ops_wmma[], ops_global[], ops_buffer[], ops_lds[],
    ops_atomics[], ops_smem[], ops_scratch[], ops_gpr_index[];
// The index-th of all ops; NULL behind the last.
__attribute__((visibility("default"))) const OpInfo *emulator_op(uint32_t index);
