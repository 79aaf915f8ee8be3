"""`portable emulate program.hip`: whole HIP programs, host code included, over our own libamdhip64."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from portable.backends.rocm.emulator.hip import api, build
from portable.commands import cli

HEAD = """
#include <hip/hip_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#define NAME(call) hipGetErrorName(call)
void check(hipError_t error, const char *call) {
    if (error) printf("%s: %s\\n", call, NAME(error)), exit(90);
}
#define CHECK(call) check(call, #call)
"""


@pytest.fixture
def emulate(tmp_path, monkeypatch, capfd):
    """Run `portable emulate` on a HIP program after HEAD; (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(program: str, *options: str, gpu: str = "gfx942", arguments: tuple[str, ...] = ()):
        (tmp_path / "program.hip").write_text(HEAD + program)
        capfd.readouterr()
        code = cli.main(["emulate", "--gpu", gpu, *options, "program.hip", *arguments])
        said = capfd.readouterr()
        return code, said.out, said.err

    return run


SAXPY = r"""
__global__ void saxpy(float a, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < LIMIT) y[i] = a * x[i] + y[i];
}
int main(int argc, char **argv) {
    const int n = 1000;
    static float x[n], y[n];
    for (int i = 0; i < n; i++) x[i] = i, y[i] = 1;
    float *dx, *dy;
    CHECK(hipMalloc(&dx, sizeof x));
    CHECK(hipMalloc(&dy, sizeof y));
    CHECK(hipMemcpy(dx, x, sizeof x, hipMemcpyHostToDevice));
    CHECK(hipMemcpy(dy, y, sizeof y, hipMemcpyHostToDevice));
    saxpy<<<4, 256>>>(2.0f, dx, dy, n);
    hipError_t launched = hipGetLastError();
    hipError_t copied = hipMemcpy(y, dy, sizeof y, hipMemcpyDeviceToHost);
    int wrong = 0;
    for (int i = 0; i < n; i++) wrong += y[i] != 2.0f * i + 1;
    printf("%s, %s; %d wrong; %s\n", hipGetErrorName(launched), hipGetErrorString(copied), wrong, argv[1]);
    return argc + 1;
}
"""


def test_a_program_with_its_host_code(emulate):
    code, out, err = emulate(SAXPY, "-D", "LIMIT=n", arguments=("--gpu",))
    assert out == "hipSuccess, no error; 0 wrong; --gpu\n" and code == 3
    assert "portable: emulated gfx942" in err and "portable: 1 launch of 1 kernel" in err
    assert "finding" not in err


def test_a_fault_is_a_finding_at_its_source_line(emulate, tmp_path):
    code, out, err = emulate(SAXPY, "-DLIMIT=n + 1", "--sarif", "found.sarif", arguments=("x",))
    line = 1 + next(i for i, text in enumerate((HEAD + SAXPY).splitlines()) if "i < LIMIT" in text)
    assert "read of 4 bytes at offset 4000 of argument 2, which has 4000 bytes" in err
    assert "finding: saxpy(float, float const*, float*, int): out-of-bounds" in err
    assert f"program.hip:{line}" in err and "if (i < LIMIT) y[i] = a * x[i] + y[i];" in err
    assert out.startswith("hipErrorLaunchFailure, unspecified launch failure; 999 wrong")
    assert code == 3
    (result,) = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["region"]["startLine"] == line and place["artifactLocation"]["uri"] == "program.hip"


ILL = r"""
__global__ void fill(int *to) { to[threadIdx.x] = 1; }
int main() {
    int *small, host[64] = {};
    CHECK(hipMalloc(&small, 128));
    HERE;
    return 0;
}
"""


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("fill<<<1, 64>>>(host)", "fill(int*): out-of-bounds: write of 4 bytes"),
        ("hipFree(small), fill<<<1, 8>>>(small)", "fill(int*): out-of-bounds: write of 4 bytes"),
        (
            "hipMemcpy(small, host, 129, hipMemcpyHostToDevice)",
            "hipMemcpy: out-of-bounds: writes 129 bytes at offset 0 of the 128 bytes of hipMalloc 1",
        ),
        ("hipMemset(small + 1, 0, 128)", "hipMemset: out-of-bounds: writes 128 bytes at offset 4"),
    ],
)
def test_memory_that_is_not_the_gpu_s(emulate, what, says):
    code, _, err = emulate(ILL, f"-DHERE={what}")
    assert code == 1 and f"finding: {says}" in err


def test_memory_symbols_streams_and_events(emulate):
    code, out, err = emulate(r"""
        __device__ int counters[4] = {10, 20, 30, 40};
        static __device__ int hidden = 5;
        __constant__ float factors[3];
        __global__ void use(float *out, int *seen) {
            out[threadIdx.x] = factors[threadIdx.x] * hidden;
            atomicAdd(&counters[threadIdx.x], (int)threadIdx.x);
            seen[threadIdx.x] = counters[3];
        }
        int main() {
            float values[3] = {0.5f, 1.5f, 2.5f}, *out;
            int *seen, back[4];
            size_t bytes;
            CHECK(hipMemcpyToSymbol(factors, values, sizeof values));
            CHECK(hipMemcpyToSymbol(HIP_SYMBOL(counters), &back[0], 0));
            CHECK(hipGetSymbolSize(&bytes, HIP_SYMBOL(counters)));
            CHECK(hipMallocManaged(&out, sizeof values));
            CHECK(hipHostMalloc(&seen, 3 * sizeof(int), hipHostMallocMapped));
            hipStream_t stream;
            hipEvent_t start, stop;
            CHECK(hipStreamCreate(&stream));
            CHECK(hipEventCreate(&start));
            CHECK(hipEventCreate(&stop));
            CHECK(hipEventRecord(start, stream));
            use<<<1, 3, 0, stream>>>(out, seen);
            CHECK(hipEventRecord(stop, stream));
            CHECK(hipStreamSynchronize(stream));
            float ms = 1;
            CHECK(hipEventElapsedTime(&ms, start, stop));
            CHECK(hipMemcpyFromSymbol(back, HIP_SYMBOL(counters), sizeof back));
            printf("%g %g %g, %d %d %d %d", out[0], out[1], out[2], back[0], back[1], back[2], back[3]);
            printf(", %d, %zu, %d\n", seen[1], bytes, ms != ms);
            CHECK(hipStreamDestroy(stream));
            printf("%s ", NAME(hipStreamDestroy(stream)));
            printf("%s", NAME(hipMemcpy(back, values, 4, hipMemcpyHostToDevice)));
            CHECK(hipMemset(out, 0, sizeof values));
            CHECK(hipMemsetD32((hipDeviceptr_t)seen, 7, 3));
            hipPointerAttribute_t what;
            CHECK(hipPointerGetAttributes(&what, seen));
            printf("\n%g %d %d %s", out[2], seen[2], what.type, NAME(hipPointerGetAttributes(&what, back)));
            CHECK(hipFree(out));
            printf(" %s", NAME(hipFree(out)));
            return 0;
        }
    """)
    assert out.splitlines() == [
        "2.5 7.5 12.5, 10 21 32 40, 40, 16, 1",
        "hipErrorInvalidHandle hipErrorInvalidValue",
        "0 7 1 hipErrorInvalidValue hipErrorInvalidValue",
    ]
    assert code == 0, err
    assert "hipEventElapsedTime, 1 times: NaN" in err


def test_kernels_print(emulate):
    code, out, err = emulate(r"""
        __global__ void speak(float x, long many) {
            if (threadIdx.x < 2)
                printf("%d%% of %5.2f, %s %c %lx %u|%-4d|\n", threadIdx.x - 1, x, "text", 'c', many, ~0u, 7);
        }
        int main() {
            printf("before\n");
            speak<<<1, 64>>>(1.25f, 0x123456789abcl);
            printf("after\n");
        }
    """)
    said = "% of  1.25, text c 123456789abc 4294967295|7   |"
    assert out.splitlines() == ["before", f"-1{said}", f"0{said}", "after"]
    assert code == 0, err


@pytest.mark.parametrize(
    ("ending", "status", "says"),
    [
        ("exit(7);", 7, ""),
        ("_Exit(300);", 44, ""),
        ("abort();", 134, "SIGABRT"),
        ("*(volatile int *)nullptr = 1;", 139, "SIGSEGV"),
    ],
)
def test_how_a_program_ends(emulate, ending, status, says):
    code, out, err = emulate("void end() { " + ending + ' }\nint main() { puts("here"); end(); }')
    assert (code, out) == (status, "here\n")
    assert says in err and "portable: 0 launches" in err


def test_a_program_that_does_not_compile(emulate):
    code, _, err = emulate("int main() { return hipGraphNothing(); }")
    assert code == 2 and "program.hip" in err and "hipGraphNothing" in err


@pytest.mark.parametrize(("gpu", "wave"), [("gfx942", 64), ("gfx1100", 32)])
def test_lds_and_what_threads_say_to_each_other(emulate, gpu, wave):
    """Against sums on the host: dynamic LDS, a barrier, shuffles, votes, atomics in LDS, math."""
    code, out, err = emulate(r"""
        extern __shared__ int lds[];
        __global__ void sums(const int *x, int *out, float *roots) {
            __shared__ int total;
            const int at = threadIdx.x;
            if (at == 0) total = 0;
            lds[at] = x[at];
            __syncthreads();
            int sum = lds[blockDim.x - 1 - at];
            for (int step = warpSize / 2; step; step /= 2) sum += __shfl_xor(sum, step);
            if (at % warpSize == 0) atomicAdd(&total, sum);
            __syncthreads();
            out[at] = total + __popcll(__ballot(x[at] % 2)) * 1000000;
            roots[at] = sqrtf(x[at]) + powf(2.0f, max(at, 3) % 4);
        }
        int main() {
            int host[128], *x, *out, sum = 0, odd = 0, wrong = 0;
            float *roots;
            for (int i = 0; i < 128; i++) sum += host[i] = i * i;
            for (int i = 0; i < WAVE; i++) odd += i % 2;
            CHECK(hipMalloc(&x, sizeof host));
            CHECK(hipMallocManaged(&out, sizeof host));
            CHECK(hipMallocManaged(&roots, sizeof host));
            CHECK(hipMemcpy(x, host, sizeof host, hipMemcpyDefault));
            hipLaunchKernelGGL(sums, dim3(1), dim3(128), sizeof host, 0, x, out, roots);
            CHECK(hipDeviceSynchronize());
            for (int i = 0; i < 128; i++)
                wrong += (out[i] != sum + odd * 1000000) + (roots[i] != i + (1 << (i < 3 ? 3 : i % 4)));
            printf("%d wrong", wrong);
        }
    """, f"-DWAVE={wave}", gpu=gpu)  # fmt: skip
    assert (code, out) == (0, "0 wrong"), err


def test_questions_about_the_gpu_and_a_kernel(emulate):
    code, out, err = emulate(r"""
        __global__ void __launch_bounds__(256) busy(int *x) {
            __shared__ int all[8192];
            all[threadIdx.x] = x[threadIdx.x];
            __syncthreads();
            x[threadIdx.x] = all[255 - threadIdx.x];
        }
        int main() {
            hipDeviceProp_t gpu;
            CHECK(hipGetDeviceProperties(&gpu, 0));
            int blocks, grid, block, count, lds;
            CHECK(hipGetDeviceCount(&count));
            CHECK(hipDeviceGetAttribute(&lds, hipDeviceAttributeMaxSharedMemoryPerBlock, 0));
            CHECK(hipOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, busy, 256, 0));
            CHECK(hipOccupancyMaxPotentialBlockSize(&grid, &block, busy, 0, 0));
            hipFuncAttributes of;
            CHECK(hipFuncGetAttributes(&of, busy));
            printf("%s %s %d ", gpu.name, gpu.gcnArchName, gpu.warpSize);
            printf("%d %d\n", gpu.multiProcessorCount, gpu.clockRate);
            printf("%d %d %d, %d %d\n", blocks, grid, block, (int)of.sharedSizeBytes, of.maxThreadsPerBlock);
            busy<<<1, 512>>>(nullptr);
            printf("%d %d %s %s", count, lds, NAME(hipGetLastError()), NAME(hipSetDevice(1)));
        }
    """)
    assert out.splitlines() == [
        "emulated gfx942 gfx942 64 304 0",
        "2 608 256, 32768 256",
        "1 65536 hipErrorInvalidConfiguration hipErrorInvalidDevice",
    ]
    assert code == 0 and "at most 256 threads per block" in err


def test_code_compiled_by_the_program(emulate):
    """hiprtc, and modules with their functions and variables."""
    code, out, err = emulate(r"""
        #include <hip/hiprtc.h>
        const char *text = "extern \"C\" __device__ int bias = 3;"
                           "extern \"C\" __global__ void add(int *x, int n) {"
                           "    int i = threadIdx.x; if (i < n) x[i] += bias; }";
        int main() {
            hiprtcProgram wrong, right;
            hiprtcCreateProgram(&wrong, "int f() { return nowhere; }", "wrong.hip", 0, nullptr, nullptr);
            size_t size;
            char log[10000];
            int result = hiprtcCompileProgram(wrong, 0, nullptr);
            hiprtcGetProgramLog(wrong, log);
            printf("%s: %.50s\n", hiprtcGetErrorString((hiprtcResult)result), log);
            hiprtcCreateProgram(&right, text, "right.hip", 0, nullptr, nullptr);
            printf("%d ", hiprtcCompileProgram(right, 0, nullptr));
            hiprtcGetCodeSize(right, &size);
            char *code = (char *)malloc(size);
            hiprtcGetCode(right, code);
            hipModule_t module;
            hipFunction_t add, none;
            CHECK(hipModuleLoadData(&module, code));
            CHECK(hipModuleGetFunction(&add, module, "add"));
            printf("%s ", NAME(hipModuleGetFunction(&none, module, "sub")));
            hipDeviceptr_t bias;
            CHECK(hipModuleGetGlobal(&bias, &size, module, "bias"));
            CHECK(hipMemsetD32(bias, 5, 1));
            int *x, n = 64;
            CHECK(hipMallocManaged(&x, n * sizeof *x));
            CHECK(hipMemset(x, 0, n * sizeof *x));
            void *arguments[] = {&x, &n};
            CHECK(hipModuleLaunchKernel(add, 1, 1, 1, 64, 1, 1, 0, nullptr, arguments, nullptr));
            struct { int *x; int n; } packed = {x, 10};
            size = sizeof packed;
            void *extra[] = {HIP_LAUNCH_PARAM_BUFFER_POINTER, &packed, HIP_LAUNCH_PARAM_BUFFER_SIZE, &size,
                             HIP_LAUNCH_PARAM_END};
            CHECK(hipModuleLaunchKernel(add, 1, 1, 1, 64, 1, 1, 0, nullptr, nullptr, extra));
            CHECK(hipModuleUnload(module));
            printf("%zu %d %d", size, x[9], x[10]);
        }
    """)
    assert out.splitlines() == [
        "HIPRTC_ERROR_COMPILATION: wrong.hip:1:18: error: use of undeclared identifie",
        "0 hipErrorNotFound 16 10 5",
    ]
    assert code == 0 and "2 launches of 1 kernel" in err


def test_blocks_that_wait_for_one_another(emulate):
    """A cooperative launch: each block reads what its neighbour wrote before the grid's barrier. Each had a
    thread of the CPU, and 256 were the most."""
    code, out, err = emulate(r"""
        #include <hip/hip_cooperative_groups.h>
        __global__ void rotate(int *x, int rounds) {
            auto grid = cooperative_groups::this_grid();
            for (int i = 0; i < rounds; i++) {
                int next = x[(grid.thread_rank() + blockDim.x) % grid.size()];
                grid.sync();
                x[grid.thread_rank()] = next + 1;
                grid.sync();
            }
        }
        int main() {
            const int n = 300 * 96;
            int *x, rounds = 3, wrong = 0;
            CHECK(hipMallocManaged(&x, n * sizeof *x));
            for (int i = 0; i < n; i++) x[i] = i;
            void *arguments[] = {&x, &rounds};
            CHECK(hipLaunchCooperativeKernel(rotate, dim3(300), dim3(96), arguments, 0, nullptr));
            for (int i = 0; i < n; i++) wrong += x[i] != (i + 3 * 96) % n + 3;
            printf("%d wrong %s", wrong,
                   NAME(hipLaunchCooperativeKernel(rotate, dim3(10000), dim3(96), arguments, 0, nullptr)));
        }
    """)
    assert (code, out) == (0, "0 wrong hipErrorCooperativeLaunchTooLarge"), err
    assert "a cooperative launch of 10000 blocks; 4864 can be held at once" in err


def test_floats_of_16_bits(emulate):
    code, out, err = emulate(r"""
        #include <hip/hip_fp16.h>
        #include <hip/hip_bf16.h>
        __global__ void halves(__half *x, __hip_bfloat16 *y) {
            const int at = threadIdx.x;
            x[at] = __hfma(x[at], __float2half(2.0f), x[at] / __half(4));
            y[at] = __hip_bfloat16(__bfloat162float(y[at]) + 1.0f) * y[at];
        }
        int main() {
            __half *x;
            __hip_bfloat16 *y;
            CHECK(hipMallocManaged(&x, 128));
            CHECK(hipMallocManaged(&y, 128));
            for (int i = 0; i < 64; i++) x[i] = __float2half(i), y[i] = __float2bfloat16(i);
            halves<<<1, 64>>>(x, y);
            CHECK(hipDeviceSynchronize());
            printf("%g %g %g", __half2float(x[63]), __bfloat162float(y[8]), __bfloat162float(y[40]));
        }
    """)
    assert (code, out) == (0, "141.75 72 1640"), err  # 41 * 40 is a bfloat16


def test_a_failed_assertion(emulate):
    code, out, err = emulate(r"""
        #include <assert.h>
        __device__ void check(int i) { assert(i < 63); }  // fails
        __global__ void careful() { check(threadIdx.x); }
        int main() {
            careful<<<1, 64>>>();
            return hipDeviceSynchronize() != hipErrorLaunchFailure;
        }
    """)
    assert code == 1 and "Device-side assertion `i < 63' failed" in out
    assert "careful(): trap" in err and "assert(i < 63); }  // fails" in err


def test_every_declared_function_is_there():
    """In libamdhip64, and an answer of Python's for every call that it hands on."""
    symbols: Any = ELFFile(io.BytesIO(build.runtime_image())).get_section_by_name(".dynsym")
    there = {each.name for each in symbols.iter_symbols() if each["st_shndx"] != "SHN_UNDEF"}
    headers = "".join(
        (build.INCLUDE / "hip" / name).read_text() for name in ("hip_runtime_api.h", "hiprtc.h")
    )
    declared = set(
        re.findall(r"^(?:hipError_t|hiprtcResult|const char \*|void \*?\*?) ?(\w+)\(", headers, re.M)
    )
    assert len(declared) > 100 and declared <= there
    sources = "".join(path.read_text() for path in (build.HERE / "native").glob("*.cpp"))
    calls = re.findall(r"^API\((\w+)", sources, re.M) + re.findall(r'hip_call\("(\w+)"', sources)
    answers = {*dir(api.Api), *dir(api.rtc.Compiler)}
    assert set(calls) <= answers


def test_code_that_is_not_emulated(emulate):
    code, out, err = emulate(r"""
        __global__ void odd() { asm volatile("s_sethalt 1"); }
        int main() {
            hipModule_t module;
            printf("%s ", NAME(hipModuleLoadData(&module, "no code object, but a text")));
            odd<<<1, 1>>>();
            printf("%s", NAME(hipGetLastError()));
        }
    """)
    assert (code, out) == (1, "hipErrorInvalidImage hipErrorLaunchFailure")
    assert "neither an ELF file nor clang's offload bundle" in err
    assert "finding: odd(): trap: the kernel halted itself" in err and 's_sethalt 1"); }' in err


@pytest.mark.slow
def test_two_gpus(emulate):
    code, out, err = emulate(SAXPY, "-DLIMIT=n", gpu="gfx90a,gfx1201", arguments=("x",))
    assert code == 3 and out == 2 * "hipSuccess, no error; 0 wrong; x\n"
    assert "portable: emulated gfx90a" in err and "portable: emulated gfx1201" in err


@pytest.mark.slow
def test_the_page_runs_as_written(tmp_path, monkeypatch, capfd):
    page = (build.HERE.parents[3] / "docs/emulate.md").read_text()
    (program,) = re.findall(r"```cpp\n(.*?)```", page, re.DOTALL)
    (tmp_path / "scale.hip").write_text(program)
    monkeypatch.chdir(tmp_path)
    code = cli.main(["emulate", "--gpu", "gfx942", "scale.hip"])
    said = capfd.readouterr()
    (shown,) = re.findall(r"with status 1:\n\n```text\n(.*?)```", page, re.DOTALL)
    lines = shown.splitlines()
    wanted = [*lines[:2], lines[3], lines[4].split(",")[0], lines[6]]  # without addresses and registers
    assert code == 1 and all(line in said.out + said.err for line in wanted), said


def functions(number: int) -> list[str]:
    """The names of C's functions of so many arguments that the header for devices has."""
    text = (build.INCLUDE / "hip/portable_math.h").read_text()
    (listed,) = re.findall(rf"#define PORTABLE_HIP_MATH{number}\(X\)((?:.*\\\n)*.*)", text)
    return re.findall(r"X\((\w+)\)", listed)


@pytest.mark.slow
def test_mathematics_are_those_of_the_host(emulate):
    """Every function in float, by both its names, and in double against the host's in double: within 4 ulp
    of float (16 for the gammas), and 1e-13."""
    rows = []
    for name, arguments in [(f, "x") for f in functions(1)] + [(f, "x, y") for f in functions(2)]:
        floats = arguments.replace("x", "(float)x").replace("y", "(float)y")
        rows.append((f"{name}f({floats})", f"std::{name}({floats})", f"{name}({arguments})"))
    device = "".join(f"*out++ = {a}; *out++ = {b}; *out++ = {c};" for a, b, c in rows)
    host = "".join(f"*out++ = {c};" for _, _, c in rows)
    code, out, err = emulate(
        f"__global__ void device(double *out, double x, double y) {{ {device} }}"
        f"void host(double *out, double x, double y) {{ {host} }}"
        f"enum {{ ROWS = {len(rows)} }};"
        r"""
        int main() {
            double *out, expected[ROWS];
            CHECK(hipMallocManaged(&out, 3 * ROWS * sizeof(double)));
            const float points[][2] = {{0.37f, 0.81f}, {0.9f, -1.7f}, {2.5f, 3.25f}, {11.125f, 0.5f}};
            for (auto &p : points) {
                device<<<1, 1>>>(out, p[0], p[1]);
                CHECK(hipDeviceSynchronize());
                host(expected, p[0], p[1]);
                for (int i = 0; i < ROWS; i++) {
                    double *row = out + 3 * i;
                    for (int k = 0; k < 3; k++) printf("%d %d %.17g %.17g\n", i, k, row[k], expected[i]);
                }
            }
        }
        """
    )
    assert code == 0, err
    wrong = []
    for line in out.splitlines():
        row, kind, found, expected = line.split()
        ulps = 16 if "gamma" in rows[int(row)][0] else 4
        near = 1e-13 if kind == "2" else ulps * 2**-23
        if "nan" in expected:
            right = "nan" in found
        else:
            right = abs(float(found) - float(expected)) <= near * max(abs(float(expected)), 2**-120)
        if not right:
            wrong.append((rows[int(row)][int(kind)], found, expected))
    assert len(rows) > 40 and not wrong


@pytest.mark.slow
def test_a_program_of_cplusplus(emulate):
    """Exceptions, threads that launch, an object that frees memory after main; one that nobody catches."""
    code, out, err = emulate(r"""
        #include <iostream>
        #include <stdexcept>
        #include <thread>
        #include <vector>
        template <int N, class T> requires(N > 0) __global__ void add(T *x) {
            x[threadIdx.x + blockIdx.x * blockDim.x] += N;
        }
        struct Memory {
            int *at = nullptr;
            ~Memory() { std::cout << hipGetErrorString(hipFree(at)) << std::endl; }
        } memory;
        int main() {
            CHECK(hipMalloc(&memory.at, 4096));
            CHECK(hipMemset(memory.at, 0, 4096));
            std::vector<std::thread> threads;
            for (int i = 0; i < 4; i++)
                threads.emplace_back([] {
                    for (int k = 0; k < 10; k++) add<2><<<4, 256>>>(memory.at);
                    for (int k = 0; k < 10; k++) hipLaunchKernelGGL(add<2>, 4, 256, 0, 0, memory.at);
                });
            for (auto &thread : threads) thread.join();
            int found[1024], wrong = 0;
            CHECK(hipMemcpy(found, memory.at, 4096, hipMemcpyDeviceToHost));
            for (int each : found) wrong += each != 160;
            try {
                throw std::runtime_error("caught");
            } catch (const std::exception &error) {
                std::cout << wrong << " wrong, " << error.what() << std::endl;
            }
        }
    """, "-std=c++20")  # fmt: skip
    assert (code, out) == (0, "0 wrong, caught\nno error\n") and "80 launches of 1 kernel" in err
    program = "#include <vector>\nint main() { std::vector<int>().at(3) = 1; }"
    code, _, err = emulate(program)
    assert code == 134 and "std::out_of_range" in err and "ended by SIGABRT" in err


GRID = r"""
#include <hip/hip_cooperative_groups.h>
__global__ void turn(int *x, int rounds) {
    const int next = (blockIdx.x + 1) % gridDim.x * blockDim.x + threadIdx.x;
    const int own = blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = 0; i < rounds; i++) {
        const int taken = x[next];
        if (ORDERED) cooperative_groups::this_grid().sync();
        x[own] = taken + 1;
        if (threadIdx.x == 0) printf("block %d\n", blockIdx.x);
        cooperative_groups::this_grid().sync();
    }
}
int main() {
    int *x, rounds = 2;
    CHECK(hipMalloc(&x, 5 * 128 * sizeof(int)));
    CHECK(hipMemset(x, 0, 5 * 128 * sizeof(int)));
    void *arguments[] = {&x, &rounds};
    hipLaunchCooperativeKernel((void *)turn, dim3(5), dim3(128), arguments, 0, 0);
    return hipDeviceSynchronize() != hipSuccess;
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("ordered", [1, 0])
def test_races_of_workgroups(emulate, arch, ordered):
    code, out, err = emulate(GRID, "--races", "-D", f"ORDERED={ordered}", gpu=arch)
    assert code == 1 - ordered, err
    assert ("global-race" in err and "program.hip:" in err) == (not ordered), err
    assert not ordered or sorted(out.splitlines()) == sorted(f"block {i % 5}" for i in range(10))
