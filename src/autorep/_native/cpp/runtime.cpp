// Settings of the process: number of threads, instruction set, what happens to freed memory.
#include <algorithm>
#include <atomic>
#include <iterator>
#include <stdexcept>
#include <string>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "bindings.h"
#include "common.h"

#if AUTOREP_X86
#include <cpuid.h>
#elif AUTOREP_ARM
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace autorep {
namespace {

Simd detect() {
#if AUTOREP_X86
    __builtin_cpu_init();
    const bool aes = __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
    const bool avx2 = aes && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
                      __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512ifma") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("vaes"))
        return Simd::avx512;
    if (avx2) return Simd::avx2;
#elif AUTOREP_ARM
    if (getauxval(AT_HWCAP) & HWCAP_AES) return Simd::neon;
#endif
    return Simd::portable;
}

bool detect_vector_aes() {
#if AUTOREP_X86
    return __builtin_cpu_supports("vaes") && __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

bool detect_narrow() {
#if AUTOREP_X86
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(0, &a, &b, &c, &d) || b != 0x68747541) return false;  // "Auth", the start of AMD's name
    return __get_cpuid(1, &a, &b, &c, &d) && (a >> 8 & 0xF) == 0xF && (a >> 20 & 0xFF) == 0xA;  // family 25
#else
    return false;
#endif
}

std::atomic<int> threads{1};
std::atomic<Simd> level{detect()};
std::atomic<bool> pairs_of_blocks{detect_vector_aes()};

constexpr const char* kNames[] = {"portable", "avx2", "avx512", "neon"};  // in the order of Simd
constexpr const char* kSingleBlocks = "avx2-aesni";  // AVX2 as on processors without vector AES

const char* name_of(Simd value) { return kNames[static_cast<int>(value)]; }

bool offers(Simd best, Simd wanted) {
    return wanted == Simd::portable || wanted == best || (wanted == Simd::avx2 && best == Simd::avx512);
}

void set_simd(const std::string& name) {
    const Simd best = detect();
    const auto* found = std::find(std::begin(kNames), std::end(kNames), name == kSingleBlocks ? "avx2" : name);
    if (found == std::end(kNames) && name != "auto")
        throw std::invalid_argument("set_simd(\"" + name + "\"): valid are auto, avx512, avx2, avx2-aesni, neon, portable");
    const Simd wanted = name == "auto" ? best : static_cast<Simd>(found - std::begin(kNames));
    if (!offers(best, wanted))
        throw std::invalid_argument("set_simd(\"" + name + "\"): this processor offers " + name_of(best) + " at most");
    level = wanted;
    pairs_of_blocks = name != kSingleBlocks && detect_vector_aes();
}

bool keep_freed_memory() {
#if defined(__GLIBC__)
    return mallopt(M_MMAP_THRESHOLD, 32 << 20) == 1 && mallopt(M_TRIM_THRESHOLD, 1 << 30) == 1;
#else
    return false;
#endif
}

}  // namespace

Simd simd_level() { return level.load(std::memory_order_relaxed); }

bool vector_aes() { return pairs_of_blocks.load(std::memory_order_relaxed); }
bool narrow_avx512() {
    static const bool narrow = detect_narrow();
    return narrow;
}
int thread_count() { return threads.load(std::memory_order_relaxed); }

void register_runtime(nb::module_& m) {
    m.def("set_threads", [](int n) {
        if (n < 1) throw std::invalid_argument("set_threads(" + std::to_string(n) + "): at least 1");
        threads = n;
    });
    m.def("get_threads", &thread_count);
    m.def("keep_freed_memory", &keep_freed_memory);
    m.def("set_simd", &set_simd);
    m.def("simd", [] { return name_of(simd_level()); });
}

}  // namespace autorep
