/* JSON, token by token. Each function takes a place in the text and returns the place after what it read, or NULL for
 * what is not strictly JSON.
 *
 * The last byte of the text must be a closing brace. No token but a string goes on over a brace, so only strings and
 * what follows a brace need to be checked against the end of the text. */
#ifndef RANKSCOPE_JSON_H
#define RANKSCOPE_JSON_H

#include "bytes.h"
#include "native.h"

#define MOST_DIGITS 19 /* of a number that fits into 64 bits */

typedef const uint8_t *Place;

/* How a value is written: whether DuckDB would write it differently, and whether a string has escapes. */
typedef struct {
    bool escaped;
    bool rewritten;
} Spelling;

/* Up to the next token or the end. Mostly there is no space, one, or the start of a line. */
static inline Place skip_space(Place p, Place end) {
    if (*p > ' ') return p;
    if (end - p >= CHUNK) {
        if (*p == ' ' && p[1] > ' ') return p + 1;
        size_t count = first_not_space(p);
        if (count < CHUNK) return p + count;
    }
    while (p < end && is_space(*p)) p++;
    return p;
}

static inline Place find_special(Place p, Place end) {
    while (end - p >= CHUNK) {
        size_t count = first_special(p);
        p += count;
        if (count < CHUNK) return p;
    }
    while (p < end && !is_special(*p)) p++;
    return p;
}

/* From a special byte inside a string to the closing quote. */
Place find_quote(Place p, Place end, Spelling *spelling);

/* From the first byte inside the quotes to the closing quote. */
static inline Place find_string_end(Place p, Place end, Spelling *spelling) {
    p = find_special(p, end);
    if (p == end) return NULL;
    return *p == '"' ? p : find_quote(p, end, spelling);
}

static inline bool is_digit(uint8_t byte) { return (uint8_t)(byte - '0') < 10; }

static inline Place skip_digits(Place p) {
    while (is_digit(*p)) p++;
    return p;
}

/* From the point or the exponent of a number. */
Place skip_fraction(Place p);

static inline Place skip_number(Place p, Spelling *spelling) {
    bool negative = *p == '-';
    if (negative) p++;
    if (*p == '0') {
        p++;
        if (negative) spelling->rewritten = true;
        if (is_digit(*p)) return NULL;
    } else {
        if (!is_digit(*p)) return NULL;
        p = skip_digits(p + 1);
    }
    if (*p != '.' && (*p | 0x20) != 'e') return p;
    spelling->rewritten = true;
    return skip_fraction(p);
}

static inline Place skip_word(Place p, Place end, const char *word, size_t length) {
    return (size_t)(end - p) >= length && memcmp(p, word, length) == 0 ? p + length : NULL;
}

static inline Place skip_null(Place p, Place end) { return skip_word(p, end, "null", 4); }

/* Any value but an object or an array. */
static inline Place skip_scalar(Place p, Place end, Spelling *spelling) {
    if (*p == '"') {
        p = find_string_end(p + 1, end, spelling);
        return p ? p + 1 : NULL;
    }
    if (*p <= '9') return skip_number(p, spelling);
    if (*p == 't') return skip_word(p, end, "true", 4);
    if (*p == 'f') return skip_word(p, end, "false", 5);
    return skip_null(p, end);
}

/* Decode the inside of a string that find_string_end accepted; never longer than it. NULL for a zero character. */
uint8_t *decode_string(Place p, Place end, uint8_t *out);

/* The length of the character at this place; minus the number of bytes that are none, but begin like one. */
int character_length(Place p, Place end);

/* Append a text as a JSON string, as json.dumps writes it, with U+FFFD for NUL and for bytes that are not UTF-8. The text
 * may end in any byte. */
void append_quoted(Array *out, Place p, Place end);

#endif
