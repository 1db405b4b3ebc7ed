// Types, threads, run-time dispatch: what every kernel file shares.
#pragma once
#include <cstddef>
#include <cstdint>

#ifndef AUTOREP_X86  // -DAUTOREP_X86=0 builds what other processors get
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define AUTOREP_X86 1
#else
#define AUTOREP_X86 0
#endif
#endif

#if defined(__aarch64__) && defined(__linux__) && (defined(__GNUC__) || defined(__clang__))
#define AUTOREP_ARM 1
#else
#define AUTOREP_ARM 0
#endif

namespace autorep {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i64 = std::int64_t;

// Static: files built for different instruction sets must never share one compiled copy.
static inline u64 low_mask(int bits) { return bits >= 64 ? ~u64(0) : (u64(1) << bits) - 1; }
static inline i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

// A processor offers its best level and everything below it in its own family: portable, avx2, avx512; or portable, neon.
enum class Simd { portable, avx2, avx512, neon };
Simd simd_level();  // what kernels use now: the processor's best, unless a test lowered it
bool vector_aes();  // whether AVX2's kernels may use AES instructions for two blocks each

bool narrow_avx512();  // whether the processor runs AVX-512 in halves, as Zen 4 does: half as many products a cycle

int thread_count();

using RangeBody = void (*)(void* context, i64 begin, i64 end);
void run_ranges(i64 count, i64 grain, RangeBody body, void* context);

// Calls body(begin, end) on disjoint ranges that cover 0..count, on up to thread_count() threads; ranges
// shorter than `grain` are not split further, so small calls stay on the caller's thread.
template <class Body>
void parallel_ranges(i64 count, i64 grain, Body&& body) {
    run_ranges(count, grain, [](void* context, i64 begin, i64 end) { (*static_cast<Body*>(context))(begin, end); },
               &body);
}

}  // namespace autorep
