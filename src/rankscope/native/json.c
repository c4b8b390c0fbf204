#include "json.h"

#include <stdio.h>

int character_length(Place p, Place end) {
    uint8_t first = *p;
    if (first < 0x80) return 1;
    int length = first < 0xC2 || first > 0xF4 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    /* No overlong forms, no surrogates, nothing above U+10FFFF. */
    uint8_t least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    uint8_t most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    int at = 1;
    for (; at < length && at < end - p && p[at] >= least && p[at] <= most; at++) least = 0x80, most = 0xBF;
    return length > 1 && at == length ? length : -at;
}

void append_quoted(Array *out, Place p, Place end) {
    static const char short_escapes[] = "btn_fr"; /* from 0x08 on; 0x0b has none */
    Place copied = p;
    array_append(out, "\"", 1);
    while ((p = find_special(p, end)) < end) {
        int length = character_length(p, end);
        if (length > 1) {
            p += length;
            continue;
        }
        array_append(out, copied, (size_t)(p - copied));
        char escape[8];
        if (length < 0 || !*p) snprintf(escape, sizeof escape, "\xef\xbf\xbd");
        else if (*p >= 0x20) snprintf(escape, sizeof escape, "\\%c", *p);
        else if (*p >= 8 && *p <= 13 && *p != 11) snprintf(escape, sizeof escape, "\\%c", short_escapes[*p - 8]);
        else snprintf(escape, sizeof escape, "\\u%04x", *p);
        array_append(out, escape, strlen(escape));
        p += length < 0 ? -length : 1;
        copied = p;
    }
    array_append(out, copied, (size_t)(p - copied));
    array_append(out, "\"", 1);
}

/* The number that four hexadecimal digits write; -1 if they are none. */
static int32_t read_hex(Place p) {
    int32_t value = 0;
    for (int at = 0; at < 4; at++) {
        uint8_t byte = p[at], letter = byte | 0x20;
        if (byte >= '0' && byte <= '9') value = value << 4 | (byte - '0');
        else if (letter >= 'a' && letter <= 'f') value = value << 4 | (letter - 'a' + 10);
        else return -1;
    }
    return value;
}

static bool is_high_surrogate(int32_t unit) { return (unit & 0xFC00) == 0xD800; }
static bool is_low_surrogate(int32_t unit) { return unit >= 0 && (unit & 0xFC00) == 0xDC00; }

/* From the backslash. */
static Place skip_escape(Place p, Spelling *spelling) {
    spelling->escaped = true;
    switch (p[1]) {
    case '/': spelling->rewritten = true; return p + 2;
    case '"': case '\\': case 'b': case 'f': case 'n': case 'r': case 't': return p + 2;
    case 'u': break;
    default: return NULL;
    }
    spelling->rewritten = true;
    int32_t unit = read_hex(p + 2);
    if (unit < 0 || is_low_surrogate(unit)) return NULL;
    p += 6;
    if (!is_high_surrogate(unit)) return p;
    return p[0] == '\\' && p[1] == 'u' && is_low_surrogate(read_hex(p + 2)) ? p + 6 : NULL;
}

Place find_quote(Place p, Place end, Spelling *spelling) {
    while (p < end && *p != '"') {
        if (*p < 0x20) return NULL;
        int length = character_length(p, end);
        if (length < 0) return NULL;
        p = *p == '\\' ? skip_escape(p, spelling) : p + length;
        if (!p) return NULL;
        p = find_special(p, end);
    }
    return p == end ? NULL : p;
}

Place skip_fraction(Place p) {
    if (*p == '.') {
        if (!is_digit(*++p)) return NULL;
        p = skip_digits(p);
    }
    if ((*p | 0x20) == 'e') {
        p++;
        if (*p == '+' || *p == '-') p++;
        if (!is_digit(*p)) return NULL;
        p = skip_digits(p);
    }
    return p;
}

static uint8_t *write_character(uint8_t *out, uint32_t code) {
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

uint8_t *decode_string(Place p, Place end, uint8_t *out) {
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
            int32_t unit = read_hex(p);
            p += 4;
            uint32_t code = (uint32_t)unit;
            if (is_high_surrogate(unit)) {
                code = 0x10000 + ((code & 0x3FF) << 10 | ((uint32_t)read_hex(p + 2) & 0x3FF));
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
