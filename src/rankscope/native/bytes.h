/* Sixteen bytes of text at once: SSE2 on x86_64, NEON on aarch64, a loop elsewhere. Both are part of every processor of
 * their kind, so nothing is chosen at run time. */
#ifndef RANKSCOPE_BYTES_H
#define RANKSCOPE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CHUNK 16

static inline bool is_space(uint8_t byte) { return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t'; }

/* Bytes that are not copied as they are: the end of a string, an escape, a control character, the start of a
 * character of several bytes. */
static inline bool is_special(uint8_t byte) { return byte == '"' || byte == '\\' || byte < 0x20 || byte >= 0x80; }

#if defined(__SSE2__)
#include <emmintrin.h>

/* The place of the first special byte among the next CHUNK; CHUNK if there is none. */
static inline size_t first_special(const uint8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    __m128i low = _mm_cmplt_epi8(bytes, _mm_set1_epi8(0x20)); /* signed: also from 0x80 on */
    __m128i ends = _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('"')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\')));
    return (size_t)__builtin_ctz((unsigned)_mm_movemask_epi8(_mm_or_si128(low, ends)) | 1u << CHUNK);
}

/* The place of the first byte among the next CHUNK that is not space; CHUNK if there is none. */
static inline size_t first_not_space(const uint8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    __m128i one = _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(' ')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\n')));
    __m128i two = _mm_or_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('\r')), _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\t')));
    return (size_t)__builtin_ctz(~(unsigned)_mm_movemask_epi8(_mm_or_si128(one, two)));
}

static inline void copy_chunk(uint8_t *to, const uint8_t *from) {
    _mm_storeu_si128((__m128i *)to, _mm_loadu_si128((const __m128i *)from));
}

#elif defined(__aarch64__)
#include <arm_neon.h>

/* NEON has no mask of one bit a byte; this makes one of four bits a byte. */
static inline size_t first_set(uint8x16_t found) {
    uint64_t mask = vget_lane_u64(vreinterpret_u64_u8(vshrn_n_u16(vreinterpretq_u16_u8(found), 4)), 0);
    return mask ? (size_t)__builtin_ctzll(mask) / 4 : CHUNK;
}

static inline size_t first_special(const uint8_t *p) {
    uint8x16_t bytes = vld1q_u8(p);
    uint8x16_t low = vcltq_s8(vreinterpretq_s8_u8(bytes), vdupq_n_s8(0x20)); /* signed: also from 0x80 on */
    return first_set(vorrq_u8(low, vorrq_u8(vceqq_u8(bytes, vdupq_n_u8('"')), vceqq_u8(bytes, vdupq_n_u8('\\')))));
}

static inline size_t first_not_space(const uint8_t *p) {
    uint8x16_t bytes = vld1q_u8(p);
    uint8x16_t one = vorrq_u8(vceqq_u8(bytes, vdupq_n_u8(' ')), vceqq_u8(bytes, vdupq_n_u8('\n')));
    uint8x16_t two = vorrq_u8(vceqq_u8(bytes, vdupq_n_u8('\r')), vceqq_u8(bytes, vdupq_n_u8('\t')));
    return first_set(vmvnq_u8(vorrq_u8(one, two)));
}

static inline void copy_chunk(uint8_t *to, const uint8_t *from) { vst1q_u8(to, vld1q_u8(from)); }

#else

static inline size_t first_special(const uint8_t *p) {
    size_t at = 0;
    while (at < CHUNK && !is_special(p[at])) at++;
    return at;
}

static inline size_t first_not_space(const uint8_t *p) {
    size_t at = 0;
    while (at < CHUNK && is_space(p[at])) at++;
    return at;
}

static inline void copy_chunk(uint8_t *to, const uint8_t *from) { memcpy(to, from, CHUNK); }

#endif

static inline uint64_t load8(const uint8_t *p) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

static inline uint32_t load4(const uint8_t *p) {
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* Fewer than 8 bytes as a number; texts of different lengths may give the same. */
static inline uint64_t load_few(const uint8_t *p, size_t count) {
    if (count >= 4) return load4(p) | (uint64_t)load4(p + count - 4) << 32;
    return count ? p[0] | (uint64_t)p[count / 2] << 8 | (uint64_t)p[count - 1] << 16 : 0;
}

static inline bool same_bytes(const uint8_t *a, const uint8_t *b, size_t count) {
    if (count < 8) return load_few(a, count) == load_few(b, count);
    for (size_t at = 0; at + 8 < count; at += 8)
        if (load8(a + at) != load8(b + at)) return false;
    return load8(a + count - 8) == load8(b + count - 8);
}

#endif
