/* Merge sort of what is mostly in order already, or some parts that are: it takes as many rounds as doubling the parts
 * needs to make one of them. */
#ifndef RANKSCOPE_MERGE_SORT_H
#define RANKSCOPE_MERGE_SORT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Whether an item must come before another one, given their numbers. */
typedef bool (*ComesFirst)(const void *items, int32_t a, int32_t b);

/* Where the items from `begin` on stop being in order, at most `count`. */
static inline size_t
ordered_until(const void *items, ComesFirst comes_first, const int32_t *order, size_t begin, size_t count) {
    size_t end = begin + 1;
    while (end < count && !comes_first(items, order[end], order[end - 1])) end++;
    return end;
}

/* Sort the numbers of items; equal ones keep their order. False if there is no memory for it. The function is inlined
 * with `comes_first`, so that a comparison is no call. */
__attribute__((always_inline)) static inline bool
merge_sort(const void *items, ComesFirst comes_first, int32_t *order, size_t count) {
    if (ordered_until(items, comes_first, order, 0, count) >= count) return true;
    int32_t *spare = malloc(count * sizeof *spare), *from = order, *to = spare;
    if (!spare) return false;
    while (ordered_until(items, comes_first, from, 0, count) < count) {
        for (size_t begin = 0; begin < count;) {
            size_t middle = ordered_until(items, comes_first, from, begin, count);
            size_t end = middle < count ? ordered_until(items, comes_first, from, middle, count) : count;
            size_t a = begin, b = middle, out = begin;
            while (a < middle && b < end) to[out++] = comes_first(items, from[b], from[a]) ? from[b++] : from[a++];
            memcpy(to + out, from + a, (middle - a) * sizeof *to);
            out += middle - a;
            memcpy(to + out, from + b, (end - b) * sizeof *to);
            begin = end;
        }
        int32_t *other = from;
        from = to;
        to = other;
    }
    if (from != order) memcpy(order, from, count * sizeof *order);
    free(spare);
    return true;
}

#endif
