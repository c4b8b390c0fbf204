/* JSON, token by token. Each function takes a place in the text and the text's end, and returns the place after what it
 * read, or NULL for what is not strictly JSON. Nothing at `end` or after it is read. */
#ifndef RANKSCOPE_JSON_H
#define RANKSCOPE_JSON_H

#include "bytes.h"

typedef const uint8_t *Place;

/* How a value is written: what DuckDB would write differently when it writes JSON, and whether a string has escapes. */
typedef struct {
    bool escaped;
    bool rewritten;
} Spelling;

static inline Place skip_space(Place p, Place end) {
    if (p < end && *p > ' ') return p;
    while (end - p >= CHUNK) {
        size_t count = first_not_space(p);
        p += count;
        if (count < CHUNK) return p;
    }
    while (p < end && is_space(*p)) p++;
    return p;
}

/* A character of several bytes: no overlong forms, no surrogates, nothing above U+10FFFF. */
static inline Place skip_character(Place p, Place end) {
    uint8_t first = p[0];
    size_t count = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || (size_t)(end - p) < count) return NULL;
    uint8_t least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    uint8_t most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (p[1] < least || p[1] > most) return NULL;
    for (size_t at = 2; at < count; at++)
        if (p[at] < 0x80 || p[at] > 0xBF) return NULL;
    return p + count;
}

/* The number that four hexadecimal digits write; -1 if they are none. */
static inline int32_t read_hex(Place p, Place end) {
    if (end - p < 4) return -1;
    int32_t value = 0;
    for (int at = 0; at < 4; at++) {
        uint8_t byte = p[at], letter = byte | 0x20;
        if (byte >= '0' && byte <= '9') value = value << 4 | (byte - '0');
        else if (letter >= 'a' && letter <= 'f') value = value << 4 | (letter - 'a' + 10);
        else return -1;
    }
    return value;
}

static inline bool is_high_surrogate(int32_t unit) { return (unit & 0xFC00) == 0xD800; }
static inline bool is_low_surrogate(int32_t unit) { return (unit & 0xFC00) == 0xDC00; }

/* From the backslash. */
static inline Place skip_escape(Place p, Place end, Spelling *spelling) {
    spelling->escaped = true;
    if (end - p < 2) return NULL;
    switch (p[1]) {
    case '/': spelling->rewritten = true; return p + 2;
    case '"': case '\\': case 'b': case 'f': case 'n': case 'r': case 't': return p + 2;
    case 'u': break;
    default: return NULL;
    }
    spelling->rewritten = true;
    int32_t unit = read_hex(p + 2, end);
    if (unit < 0 || is_low_surrogate(unit)) return NULL;
    p += 6;
    if (!is_high_surrogate(unit)) return p;
    if (end - p < 6 || p[0] != '\\' || p[1] != 'u' || !is_low_surrogate(read_hex(p + 2, end))) return NULL;
    return p + 6;
}

/* From the first byte inside the quotes to the closing quote. */
static inline Place find_string_end(Place p, Place end, Spelling *spelling) {
    for (;;) {
        while (end - p >= CHUNK) {
            size_t count = first_special(p);
            p += count;
            if (count < CHUNK) goto special;
        }
        while (p < end && !is_special(*p)) p++;
        if (p == end) return NULL;
    special:
        if (*p == '"') return p;
        if (*p < 0x20) return NULL;
        p = *p == '\\' ? skip_escape(p, end, spelling) : skip_character(p, end);
        if (!p) return NULL;
    }
}

static inline bool is_digit(uint8_t byte) { return (uint8_t)(byte - '0') < 10; }

static inline Place skip_digits(Place p, Place end) {
    while (p < end && is_digit(*p)) p++;
    return p;
}

static inline Place skip_number(Place p, Place end, Spelling *spelling) {
    Place begin = p;
    if (*p == '-') p++;
    if (p == end || !is_digit(*p)) return NULL;
    if (*p == '0') {
        p++;
        if (p < end && is_digit(*p)) return NULL;
        if (*begin == '-') spelling->rewritten = true;
    } else {
        p = skip_digits(p + 1, end);
    }
    if (p < end && *p == '.') {
        Place digits = p + 1;
        p = skip_digits(digits, end);
        if (p == digits) return NULL;
        spelling->rewritten = true;
    }
    if (p < end && (*p | 0x20) == 'e') {
        p++;
        if (p < end && (*p == '+' || *p == '-')) p++;
        Place digits = p;
        p = skip_digits(digits, end);
        if (p == digits) return NULL;
        spelling->rewritten = true;
    }
    return p;
}

static inline Place skip_word(Place p, Place end, const char *word, size_t length) {
    return (size_t)(end - p) >= length && memcmp(p, word, length) == 0 ? p + length : NULL;
}

/* Any value but an object or an array. */
static inline Place skip_scalar(Place p, Place end, Spelling *spelling) {
    switch (*p) {
    case '"': p = find_string_end(p + 1, end, spelling); return p ? p + 1 : NULL;
    case 't': return skip_word(p, end, "true", 4);
    case 'f': return skip_word(p, end, "false", 5);
    case 'n': return skip_word(p, end, "null", 4);
    default: return skip_number(p, end, spelling);
    }
}

static inline uint8_t *write_character(uint8_t *out, uint32_t code) {
    if (code < 0x80) {
        *out++ = (uint8_t)code;
    } else if (code < 0x800) {
        *out++ = (uint8_t)(0xC0 | code >> 6);
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *out++ = (uint8_t)(0xE0 | code >> 12);
        *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    } else {
        *out++ = (uint8_t)(0xF0 | code >> 18);
        *out++ = (uint8_t)(0x80 | (code >> 12 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    }
    return out;
}

/* Decode the inside of a string that find_string_end accepted; never longer than it. NULL for a zero character. */
static inline uint8_t *decode_string(Place p, Place end, uint8_t *out) {
    while (p < end) {
        if (*p != '\\') {
            *out++ = *p++;
            continue;
        }
        uint8_t kind = p[1];
        p += 2;
        switch (kind) {
        case 'b': *out++ = '\b'; break;
        case 'f': *out++ = '\f'; break;
        case 'n': *out++ = '\n'; break;
        case 'r': *out++ = '\r'; break;
        case 't': *out++ = '\t'; break;
        case 'u': {
            int32_t unit = read_hex(p, end);
            p += 4;
            uint32_t code = (uint32_t)unit;
            if (is_high_surrogate(unit)) {
                code = 0x10000 + ((code & 0x3FF) << 10 | ((uint32_t)read_hex(p + 2, end) & 0x3FF));
                p += 6;
            }
            if (!code) return NULL;
            out = write_character(out, code);
            break;
        }
        default: *out++ = kind;
        }
    }
    return out;
}

#endif
