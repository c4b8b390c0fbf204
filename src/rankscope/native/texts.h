/* Distinct texts and their codes, in order of first appearance: a hash table with open addressing. */
#ifndef RANKSCOPE_TEXTS_H
#define RANKSCOPE_TEXTS_H

#include "bytes.h"
#include "native.h"

#define NO_TEXT (-1)
#define NOT_CODED (-2) /* no memory, or too many texts with the same hash */
#define MOST_PROBES 256 /* a file made to collide must not take quadratic time */

typedef struct {
    uint32_t hash;
    int32_t code; /* NO_TEXT: the slot is free */
} Slot;

typedef struct {
    Array data;
    Array offsets; /* int64: where each text begins, and where the last ends */
    Slot *slots;
    size_t mask;
    int32_t count;
} Texts;

static inline uint64_t mix(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint32_t hash_bytes(const uint8_t *bytes, size_t count) {
    /* Odd constants without structure: the first digits of the fractions of pi and e. */
    const uint64_t first = UINT64_C(0x243F6A8885A308D3), second = UINT64_C(0xB7E151628AED2A6B);
    uint64_t hash = first ^ count;
    if (count < 8) return (uint32_t)(mix(load_few(bytes, count) ^ second, hash));
    for (size_t at = 0; at + 8 < count; at += 8) hash = mix(load8(bytes + at) ^ hash, second);
    return (uint32_t)mix(load8(bytes + count - 8) ^ hash, second);
}

bool texts_init(Texts *texts);
void texts_free(Texts *texts);
int32_t texts_add(Texts *texts, const uint8_t *bytes, size_t count, size_t slot, uint32_t hash);

/* The code of a text, or NO_TEXT with the free slot for it, or NOT_CODED. */
static inline int32_t texts_find(const Texts *texts, const uint8_t *bytes, size_t count, uint32_t hash, size_t *free) {
    const int64_t *offsets = (const int64_t *)texts->offsets.data;
    size_t at = hash & texts->mask;
    for (int probe = 0; probe < MOST_PROBES; probe++, at = (at + 1) & texts->mask) {
        Slot slot = texts->slots[at];
        if (slot.code == NO_TEXT) {
            *free = at;
            return NO_TEXT;
        }
        if (slot.hash != hash) continue;
        int64_t begin = offsets[slot.code], length = offsets[slot.code + 1] - begin;
        if ((size_t)length == count && same_bytes(texts->data.data + begin, bytes, count)) return slot.code;
    }
    return NOT_CODED;
}

static inline int32_t texts_code(Texts *texts, const uint8_t *bytes, size_t count) {
    uint32_t hash = hash_bytes(bytes, count);
    size_t slot;
    int32_t code = texts_find(texts, bytes, count, hash, &slot);
    return code == NO_TEXT ? texts_add(texts, bytes, count, slot, hash) : code;
}

#endif
