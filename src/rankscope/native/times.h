/* Numbers of microseconds as whole nanoseconds, the same that the SELECT of readers/kineto/reader.py gives. */
#ifndef RANKSCOPE_TIMES_H
#define RANKSCOPE_TIMES_H

#include "json.h"

#include <math.h>

#define EXACT_DOUBLE (UINT64_C(1) << 53)  /* every whole number up to it is a double */

/* sign * digits / 10**fraction */
typedef struct {
    bool negative;
    uint64_t digits;
    int fraction;
    int whole; /* number of digits before the point */
} Decimal;

static const uint64_t powers_of_ten[MOST_DIGITS + 1] = {
    1u, 10u, 100u, 1000u, 10000u, 100000u, 1000000u, 10000000u, 100000000u, 1000000000u, 10000000000u, 100000000000u,
    1000000000000u, 10000000000000u, 100000000000000u, 1000000000000000u, 10000000000000000u, 100000000000000000u,
    1000000000000000000u, 10000000000000000000u,
};

/* The value of eight digits at once; false if they are not all digits. The first digit is the lowest byte. */
static inline bool read_eight(Place p, uint64_t *value) {
    uint64_t word = load8(p) - UINT64_C(0x3030303030303030);
    if ((word | (word + UINT64_C(0x7676767676767676))) & UINT64_C(0x8080808080808080)) return false;
    word = word * 10 + (word >> 8); /* pairs, then fours, then all eight */
    word = (word & UINT64_C(0x00FF00FF00FF00FF)) * (1 + (UINT64_C(100) << 16)) >> 16 & UINT64_C(0x0000FFFF0000FFFF);
    *value = *value * 100000000 + (word * (1 + (UINT64_C(10000) << 32)) >> 32);
    return true;
}

static inline Place read_digits(Place p, Place end, uint64_t *value) {
    while (end - p >= 8 && read_eight(p, value)) p += 8;
    while (is_digit(*p)) *value = *value * 10 + (uint64_t)(*p++ - '0');
    return p;
}

/* No exponents, at most MOST_DIGITS digits. */
static inline Place read_decimal(Place p, Place end, Decimal *number) {
    number->negative = *p == '-';
    if (number->negative) p++;
    Place begin = p;
    uint64_t digits = 0;
    p = read_digits(p, end, &digits);
    ptrdiff_t whole = p - begin, fraction = 0;
    if (whole == 0 || (whole > 1 && *begin == '0')) return NULL;
    if (*p == '.') {
        begin = ++p;
        p = read_digits(p, end, &digits);
        fraction = p - begin;
        if (fraction == 0) return NULL;
    }
    if (whole + fraction > MOST_DIGITS || (*p | 0x20) == 'e') return NULL;
    *number = (Decimal){number->negative, digits, (int)fraction, (int)whole};
    return p;
}

/* The double nearest to digits / 10**fraction (ties to even), which is what a correct reader of decimals gives. */
static inline double nearest_double(uint64_t digits, int fraction) {
    uint64_t divisor = powers_of_ten[fraction];
    if (digits <= EXACT_DOUBLE) return (double)digits / (double)divisor; /* both exact */
    /* The quotient, scaled by a power of two to have at least 63 bits. Its last bit is set if something remains,
     * so that rounding it once to 53 bits rounds the exact quotient. */
    int shift = 64 + __builtin_clzll(digits);
    unsigned __int128 scaled = (unsigned __int128)digits << shift;
    unsigned __int128 quotient = scaled / divisor;
    if (scaled % divisor) quotient |= 1;
    while (quotient >> 64) {
        quotient = quotient >> 1 | (quotient & 1);
        shift--;
    }
    return ldexp((double)(uint64_t)quotient, -shift);
}

/* round(number * 1000) in doubles. */
static inline bool duration_ns(const Decimal *number, int64_t *result) {
    if (number->fraction <= 3) {
        unsigned __int128 exact = (unsigned __int128)number->digits * powers_of_ten[3 - number->fraction];
        if (exact < UINT64_C(1) << 50) { /* the errors of two roundings stay far below one half */
            *result = number->negative ? -(int64_t)exact : (int64_t)exact;
            return true;
        }
    }
    double ns = round(nearest_double(number->digits, number->fraction) * 1000);
    if (!(ns < 0x1p63)) return false;
    *result = number->negative ? -(int64_t)ns : (int64_t)ns;
    return true;
}

/* How the DuckDB reader reads the times of a block depends on what the block has: times since 1970 in one make it
 * read all of them as DECIMAL. */
typedef struct {
    bool since_1970; /* 14 or more digits before the point, and a fraction: read as DECIMAL, exactly */
    bool finer_than_ns; /* fewer digits, and more than three after the point: read as DOUBLE */
} TimeKinds;

#define LEAST_SINCE_1970 14
#define LARGEST_EXACT (UINT64_C(1) << 43) /* µs: from here on a double does not hold three decimals */

static inline bool time_ns(const Decimal *number, TimeKinds *kinds, int64_t *result) {
    uint64_t ns;
    if (number->fraction > 0 && number->whole >= LEAST_SINCE_1970) {
        if (number->negative) return false;
        kinds->since_1970 = true;
        uint64_t divisor = powers_of_ten[number->fraction];
        unsigned __int128 exact = (unsigned __int128)number->digits * 1000 / divisor;
        if (number->fraction > 3) exact += number->digits / (divisor / 10000) % 10 >= 5;
        if (exact > INT64_MAX) return false;
        ns = (uint64_t)exact;
    } else if (number->fraction > 3) {
        if (number->whole == LEAST_SINCE_1970 - 1) return false;
        kinds->finer_than_ns = true;
        double value = nearest_double(number->digits, number->fraction), whole = trunc(value);
        ns = (uint64_t)whole * 1000 + (uint64_t)round((value - whole) * 1000);
    } else {
        if (number->whole >= LEAST_SINCE_1970 - 1) {
            uint64_t whole = number->digits / powers_of_ten[number->fraction];
            if (whole >= (number->fraction ? LARGEST_EXACT : EXACT_DOUBLE)) return false;
            if (number->negative && number->fraction) return false;
        }
        ns = number->digits * powers_of_ten[3 - number->fraction];
    }
    *result = number->negative ? -(int64_t)ns : (int64_t)ns;
    return true;
}

#endif
