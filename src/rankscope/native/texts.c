#include "texts.h"

#define FIRST_SLOTS 1024

static bool make_slots(Texts *texts, size_t count) {
    Slot *slots = malloc(count * sizeof *slots);
    if (!slots) return false;
    memset(slots, 0xFF, count * sizeof *slots); /* every code is NO_TEXT */
    for (size_t old = 0; texts->slots && old <= texts->mask; old++) {
        if (texts->slots[old].code == NO_TEXT) continue;
        size_t at = texts->slots[old].hash & (count - 1);
        while (slots[at].code != NO_TEXT) at = (at + 1) & (count - 1);
        slots[at] = texts->slots[old];
    }
    free(texts->slots);
    texts->slots = slots;
    texts->mask = count - 1;
    return true;
}

bool texts_init(Texts *texts) {
    memset(texts, 0, sizeof *texts);
    array_append_i64(&texts->offsets, 0);
    return array_reserve(&texts->data, 1) && !texts->offsets.failed && make_slots(texts, FIRST_SLOTS);
}

void texts_free(Texts *texts) {
    array_free(&texts->data);
    array_free(&texts->offsets);
    free(texts->slots);
    texts->slots = NULL;
}

int32_t texts_add(Texts *texts, const uint8_t *bytes, size_t count, size_t slot, uint32_t hash) {
    array_append(&texts->data, bytes, count);
    array_append_i64(&texts->offsets, (int64_t)texts->data.size);
    if (texts->data.failed || texts->offsets.failed || texts->count == INT32_MAX) return NOT_CODED;
    int32_t code = texts->count++;
    texts->slots[slot] = (Slot){hash, code};
    if ((size_t)texts->count * 2 > texts->mask && !make_slots(texts, (texts->mask + 1) * 2)) return NOT_CODED;
    return code;
}
