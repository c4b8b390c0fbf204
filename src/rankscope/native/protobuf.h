/* Protobuf's wire format: fields of a message, one after another, each checked against the message's end.
 *
 *     Bytes message = ...;
 *     Field field;
 *     while (next_field(&message, &field)) switch (field.number) { ... }
 *     if (message.damaged) ...   what follows the last good field is not a field
 *
 * A field of another wire type than expected has the value 0 and no bytes. */
#ifndef RANKSCOPE_PROTOBUF_H
#define RANKSCOPE_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What is left of a message. */
typedef struct {
    const uint8_t *at, *end;
    bool damaged;
} Bytes;

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_GROUP = 3, WIRE_GROUP_END = 4, WIRE_FIXED32 = 5 };

typedef struct {
    uint32_t number;
    uint8_t wire;
    uint64_t value; /* of a varint or a fixed number, as its bits */
    Bytes bytes;    /* of text, bytes or a message: a view into the message it is in */
} Field;

#define LONGEST_VARINT 10
#define MOST_GROUPS 64 /* groups inside one another; no format that is read here has any */

static inline Bytes bytes_of(const void *begin, size_t size) {
    return (Bytes){(const uint8_t *)begin, (const uint8_t *)begin + size, false};
}

static inline size_t bytes_left(const Bytes *bytes) { return (size_t)(bytes->end - bytes->at); }

/* The place after the varint, or NULL if it has no end or more than ten bytes. Bits beyond 64 are dropped. */
static inline const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, uint64_t *value) {
    if (at < end && *at < 0x80) {
        *value = *at;
        return at + 1;
    }
    uint64_t sum = 0;
    for (int count = 0; count < LONGEST_VARINT && at < end; count++) {
        uint64_t byte = *at++;
        sum |= (byte & 0x7f) << 7 * count;
        if (byte < 0x80) {
            *value = sum;
            return at;
        }
    }
    return NULL;
}

static inline uint64_t fixed64_at(const uint8_t *at) {
    uint64_t value = 0;
    for (int byte = 7; byte >= 0; byte--) value = value << 8 | at[byte];
    return value;
}

static inline uint32_t fixed32_at(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static inline bool no_field(Bytes *message) {
    message->damaged = true;
    return false;
}

/* The next field; false at the end, or before bytes that are no field, which sets `damaged`. */
static inline bool next_field(Bytes *message, Field *field) {
    int groups = 0;
    do {
        if (message->at == message->end) return groups ? no_field(message) : false;
        uint64_t tag, value = 0;
        const uint8_t *at = read_varint(message->at, message->end, &tag);
        if (!at || tag >> 32 || tag >> 3 == 0) return no_field(message);
        Bytes bytes = {at, at, false};
        switch (tag & 7) {
        case WIRE_VARINT:
            at = read_varint(at, message->end, &value);
            if (!at) return no_field(message);
            break;
        case WIRE_FIXED64:
            if (message->end - at < 8) return no_field(message);
            value = fixed64_at(at);
            at += 8;
            break;
        case WIRE_FIXED32:
            if (message->end - at < 4) return no_field(message);
            value = fixed32_at(at);
            at += 4;
            break;
        case WIRE_BYTES: {
            uint64_t length;
            at = read_varint(at, message->end, &length);
            if (!at || length > (uint64_t)(message->end - at)) return no_field(message);
            bytes = bytes_of(at, (size_t)length);
            at += length;
            break;
        }
        case WIRE_GROUP:
            if (++groups > MOST_GROUPS) return no_field(message);
            break;
        case WIRE_GROUP_END:
            if (--groups < 0) return no_field(message);
            break;
        default: return no_field(message);
        }
        message->at = at;
        *field = (Field){(uint32_t)(tag >> 3), (uint8_t)(tag & 7), value, bytes};
    } while (groups); /* what is inside a group is skipped; its end is a field without a value */
    return true;
}

/* The value of a field of type double. */
static inline double double_of(const Field *field) {
    double value;
    memcpy(&value, &field->value, sizeof value);
    return field->wire == WIRE_FIXED64 ? value : 0;
}

#endif
