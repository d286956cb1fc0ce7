// SPDX-License-Identifier: Apache-2.0
// Folding by carry-less multiply: 64 bytes are kept as four 128-bit remainders; each round
// multiplies them by x^512 mod P (two halves, two constants) and adds the next 64 bytes. At the end
// the four are folded into one by x^128, and its 16 bytes, which have the same CRC as all that went
// in, go through the tables. A processor that multiplies four pairs at once keeps 256 bytes as four
// vectors of four remainders, multiplies by x^2048, and ends with the 64 bytes of the former. In
// reflected bit order the constant for a shift of n bits is x^(n+64-1) or x^(n-1) mod P, which is
// computed here rather than copied from anywhere.
#include "format/zip/crc32.hpp"

#include <immintrin.h>

#include <array>
#include <cstring>

namespace penstock::format {

namespace {

constexpr std::uint32_t kPolynomial = 0xEDB88320;  // reflected

// a * b mod P, both reflected: bit 31 is x^0.
constexpr std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
    std::uint32_t product = 0;
    for (std::uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
        if ((a & bit) != 0) {
            product ^= b;
        }
        b = (b & 1) != 0 ? (b >> 1) ^ kPolynomial : b >> 1;
    }
    return product;
}

// x^n mod P, reflected.
constexpr std::uint32_t power_of_x(std::uint64_t n) {
    std::uint32_t result = 1U << 31;  // x^0
    std::uint32_t square = 1U << 30;  // x^1
    for (; n != 0; n >>= 1) {
        if ((n & 1) != 0) {
            result = multiply(result, square);
        }
        square = multiply(square, square);
    }
    return result;
}

constexpr auto make_tables() {
    std::array<std::array<std::uint32_t, 256>, 8> tables{};
    for (std::uint32_t i = 0; i < 256; ++i) {
        std::uint32_t crc = i;
        for (int bit = 0; bit < 8; ++bit) {
            crc = (crc & 1) != 0 ? (crc >> 1) ^ kPolynomial : crc >> 1;
        }
        tables[0][i] = crc;
    }
    for (std::size_t k = 1; k < 8; ++k) {
        for (std::size_t i = 0; i < 256; ++i) {
            const std::uint32_t before = tables[k - 1][i];
            tables[k][i] = tables[0][before & 0xFF] ^ (before >> 8);
        }
    }
    return tables;
}

constexpr auto kTables = make_tables();

// Takes and returns the raw state: neither is complemented.
std::uint32_t run_tables(const std::byte* data, std::size_t bytes, std::uint32_t crc) {
    for (; bytes >= 8; data += 8, bytes -= 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, data, 8);
        word ^= crc;
        crc = 0;
        for (std::size_t k = 0; k < 8; ++k) {
            crc ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
        }
    }
    for (; bytes > 0; ++data, --bytes) {
        crc = kTables[0][(crc ^ static_cast<std::uint32_t>(*data)) & 0xFF] ^ (crc >> 8);
    }
    return crc;
}

// Shifts the high half by `bits`: x^(bits - 1) mod P in the upper half of 64 bits. One less,
// for a reflected product of two 64-bit halves comes out one bit low in its 128. Computed by the
// compiler: at run time it takes longer than 16 KiB of data do.
constexpr std::int64_t high_of(std::uint64_t bits) {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(power_of_x(bits - 1)) << 32);
}
consteval std::int64_t high_constant(std::uint64_t bits) {
    return high_of(bits);
}
// The low half is the earlier one: it is shifted by 64 bits more.
consteval std::int64_t low_constant(std::uint64_t bits) {
    return high_of(bits + 64);
}

constexpr std::size_t kFoldBytes = 64;
// Prefetches this far ahead: data that a device has just written comes from memory, or from the
// caches of another core, and one stream of loads waits for it (11 GB/s without, 16 with).
constexpr std::size_t kPrefetchBytes = 4096;

#define PENSTOCK_CLMUL __attribute__((target("pclmul,sse4.1")))

PENSTOCK_CLMUL __m128i fold(__m128i x, __m128i constants) {
    const __m128i low = _mm_clmulepi64_si128(x, constants, 0x00);
    const __m128i high = _mm_clmulepi64_si128(x, constants, 0x11);
    return _mm_xor_si128(low, high);
}

PENSTOCK_CLMUL __m128i load(const std::byte* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

// Requires that `bytes` is a multiple of 64 and not 0.
PENSTOCK_CLMUL std::uint32_t run_folding(const std::byte* data, std::size_t bytes,
                                         std::uint32_t crc) {
    const __m128i by_512 = _mm_set_epi64x(high_constant(512), low_constant(512));
    const __m128i by_128 = _mm_set_epi64x(high_constant(128), low_constant(128));
    __m128i x[4] = {load(data), load(data + 16), load(data + 32), load(data + 48)};
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128(static_cast<int>(crc)));
    for (data += kFoldBytes, bytes -= kFoldBytes; bytes > 0;
         data += kFoldBytes, bytes -= kFoldBytes) {
        __builtin_prefetch(data + kPrefetchBytes);
        for (std::size_t k = 0; k < 4; ++k) {
            x[k] = _mm_xor_si128(fold(x[k], by_512), load(data + 16 * k));
        }
    }
    __m128i rest = x[0];
    for (std::size_t k = 1; k < 4; ++k) {
        rest = _mm_xor_si128(fold(rest, by_128), x[k]);
    }
    std::array<std::byte, 16> last{};
    _mm_storeu_si128(reinterpret_cast<__m128i*>(last.data()), rest);
    return run_tables(last.data(), last.size(), 0);
}

#define PENSTOCK_WIDE_CLMUL __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.1")))

constexpr std::size_t kWideFoldBytes = 256;

template <std::uint64_t kBits>
PENSTOCK_WIDE_CLMUL __m512i wide_constants() {
    // clang 14 takes no consteval call of a parameter of a template.
    constexpr std::int64_t kLow = high_of(kBits + 64);
    constexpr std::int64_t kHigh = high_of(kBits);
    return _mm512_set_epi64(kHigh, kLow, kHigh, kLow, kHigh, kLow, kHigh, kLow);
}

PENSTOCK_WIDE_CLMUL __m512i wide_fold(__m512i x, __m512i constants, __m512i next) {
    constexpr int kXorOfThree = 0x96;
    const __m512i low = _mm512_clmulepi64_epi128(x, constants, 0x00);
    const __m512i high = _mm512_clmulepi64_epi128(x, constants, 0x11);
    return _mm512_ternarylogic_epi64(low, high, next, kXorOfThree);
}

// Requires that `bytes` is a multiple of 256 and not 0.
PENSTOCK_WIDE_CLMUL std::uint32_t run_wide_folding(const std::byte* data, std::size_t bytes,
                                                   std::uint32_t crc) {
    const __m512i by_2048 = wide_constants<2048>();
    const __m512i by_512 = wide_constants<512>();
    __m512i x[4] = {_mm512_loadu_si512(data), _mm512_loadu_si512(data + 64),
                    _mm512_loadu_si512(data + 128), _mm512_loadu_si512(data + 192)};
    const __m128i before = _mm_cvtsi32_si128(static_cast<int>(crc));
    x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(before));
    for (data += kWideFoldBytes, bytes -= kWideFoldBytes; bytes > 0;
         data += kWideFoldBytes, bytes -= kWideFoldBytes) {
        for (std::size_t k = 0; k < 4; ++k) {
            __builtin_prefetch(data + kPrefetchBytes + 64 * k);
            x[k] = wide_fold(x[k], by_2048, _mm512_loadu_si512(data + 64 * k));
        }
    }
    __m512i rest = x[0];
    for (std::size_t k = 1; k < 4; ++k) {
        rest = wide_fold(rest, by_512, x[k]);
    }
    std::array<std::byte, kFoldBytes> last{};
    _mm512_storeu_si512(last.data(), rest);
    return run_folding(last.data(), last.size(), 0);
}

CrcWay find_best_way() {
    if (__builtin_cpu_supports("pclmul") == 0 || __builtin_cpu_supports("sse4.1") == 0) {
        return CrcWay::kTables;
    }
    const bool wide =
        __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("vpclmulqdq") != 0;
    return wide ? CrcWay::kWideFolding : CrcWay::kFolding;
}

}  // namespace

CrcWay best_crc_way() {
    static const CrcWay way = find_best_way();
    return way;
}

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before) {
    return crc32_by(best_crc_way(), bytes, before);
}

std::uint32_t crc32_by(CrcWay way, std::span<const std::byte> bytes, std::uint32_t before) {
    std::uint32_t crc = ~before;
    const std::byte* data = bytes.data();
    std::size_t count = bytes.size();
    if (count >= kWideFoldBytes && way == CrcWay::kWideFolding) {
        const std::size_t folded = count / kWideFoldBytes * kWideFoldBytes;
        crc = run_wide_folding(data, folded, crc);
        data += folded;
        count -= folded;
    }
    if (count >= kFoldBytes && way != CrcWay::kTables) {
        const std::size_t folded = count / kFoldBytes * kFoldBytes;
        crc = run_folding(data, folded, crc);
        data += folded;
        count -= folded;
    }
    return ~run_tables(data, count, crc);
}

std::uint32_t crc32_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes) {
    if (first == 0) {  // as before the first piece
        return second;
    }
    // Appends zeros to the first piece: its CRC times x^(8 n). Complements at both ends cancel out.
    const std::uint32_t x_n = power_of_x(second_bytes);
    const std::uint32_t x_2n = multiply(x_n, x_n);
    const std::uint32_t x_4n = multiply(x_2n, x_2n);
    const std::uint32_t shifted = multiply(first, multiply(x_4n, x_4n));
    return shifted ^ second;
}

}  // namespace penstock::format
