/* Packets of a Perfetto trace: an index of what slices and flows consist of, and the events as columns.
 *
 * Called by readers/perfetto/decoder.py, which describes the two passes. */
#include "event_columns.h"
#include "protobuf.h"

enum { DAMAGED, NO_STATE, NO_TIME, NO_CLOCK, FAR_TIME, NO_KIND, NO_TRACK, NO_ARGS, NO_NAME, SHORTENED, NOT_UTF8, COUNTED };
enum { BEGIN, END, END_AT_ONCE };

/* Field numbers of perfetto/trace/proto, by message. */
enum {
    PACKET_CLOCKS = 6, PACKET_TIME = 8, PACKET_SEQUENCE = 10, PACKET_TRACK_EVENT = 11, PACKET_INTERNED = 12,
    PACKET_FLAGS = 13, PACKET_CLEARED = 41, PACKET_DROPPED = 42, PACKET_COMPRESSED = 50, PACKET_STAGE = 53,
    PACKET_CLOCK = 58, PACKET_DEFAULTS = 59, PACKET_DESCRIPTOR = 60, PACKET_ATTRIBUTES = 126, PACKET_ZSTD = 133,
    /* Of no use here; all others are data of other kinds, which are counted. */
    PACKET_UID = 3, PACKET_SYNCHRONIZATION = 36, PACKET_PID = 79, PACKET_FIRST = 87, PACKET_DROPPED_SINCE = 88,
    PACKET_MACHINE = 98
};
enum { SNAPSHOT_CLOCK = 1, SNAPSHOT_PRIMARY = 2, CLOCK_ID = 1, CLOCK_TIME = 2, CLOCK_INCREMENTAL = 3, CLOCK_UNIT = 4 };
enum { CATEGORIES = 1, NAMES = 2, ARG_NAMES = 3, SPECS = 24, STRINGS = 29, KERNELS = 1000 }; /* of InternedData */
enum { INTERNED_IID = 1, INTERNED_TEXT = 2, KERNEL_DEMANGLED = 3, SPEC_CATEGORY = 4 };
enum {
    EVENT_CATEGORY_IID = 3, EVENT_ANNOTATION = 4, EVENT_LEGACY = 6, EVENT_TYPE = 9, EVENT_NAME_IID = 10,
    EVENT_TRACK = 11, EVENT_EXTRA_VALUE = 12, EVENT_CATEGORY = 22, EVENT_NAME = 23, EVENT_VALUE = 30,
    EVENT_EXTRA_TRACK = 31, EVENT_OLD_FLOW = 36, EVENT_OLD_FLOW_END = 42, EVENT_DOUBLE = 44,
    EVENT_EXTRA_DOUBLE_TRACK = 45, EVENT_EXTRA_DOUBLE = 46, EVENT_FLOW = 47, EVENT_FLOW_END = 48
};
enum {
    LEGACY_NAME_IID = 1, LEGACY_PHASE = 2, LEGACY_DURATION = 3, LEGACY_ID = 6, LEGACY_BIND_ID = 8, LEGACY_LOCAL_ID = 10,
    LEGACY_GLOBAL_ID = 11, LEGACY_DIRECTION = 13
};
enum {
    ANNOTATION_NAME_IID = 1, ANNOTATION_BOOL = 2, ANNOTATION_UNSIGNED = 3, ANNOTATION_SIGNED = 4, ANNOTATION_DOUBLE = 5,
    ANNOTATION_TEXT = 6, ANNOTATION_POINTER = 7, ANNOTATION_NESTED = 8, ANNOTATION_JSON = 9, ANNOTATION_NAME = 10,
    ANNOTATION_ENTRY = 11, ANNOTATION_ITEM = 12, ANNOTATION_TEXT_IID = 17
};
enum {
    NESTED_TYPE = 1, NESTED_KEY = 2, NESTED_ENTRY = 3, NESTED_ITEM = 4, NESTED_SIGNED = 5, NESTED_DOUBLE = 6,
    NESTED_BOOL = 7, NESTED_TEXT = 8
};
enum { NESTED_IS_OBJECT = 1, NESTED_IS_LIST = 2 }; /* types */
enum {
    STAGE_DURATION = 2, STAGE_EXTRA_DATA = 6, STAGE_GPU = 11, STAGE_QUEUE_IID = 13, STAGE_IID = 14, STAGE_NAME = 17,
    STAGE_KERNEL_IID = 19, STAGE_NAME_IID = 20, STAGE_LAUNCH = 21
};
enum { EXTRA_NAME = 1, EXTRA_VALUE = 2, LAUNCH_GRID = 1, LAUNCH_BLOCK = 2 };
#define MOST_NUMBERS 1024
#define LONGEST_INTERNED (1 << 16)
#define FARTHEST_NS (INT64_C(1) << 62)
#define MOST_NESTED 32
#define LONGEST_ARGS (128 << 20)
#define ENOUGH_TEXT (32 << 20)
#define MOST_SEQUENCES (1 << 18)
#define MOST_TRACKS (1 << 20)
#define BOOTTIME 6
#define REALTIME 1
#define STATE_CLEARED 1
#define NEEDS_STATE 2

/* A number for each of some keys: a hash table with open addressing. Keys are mixed with a number that differs in each
 * process, so that no file can be made to collide. */
typedef struct {
    uint64_t key, more;
    uint32_t value; /* + 1; 0: the slot is free */
} MapSlot;

typedef struct {
    MapSlot *slots;
    size_t mask;
    uint32_t count;
} Map;

static uint64_t secret;

static inline size_t map_place(uint64_t key, uint64_t more) {
    uint64_t hash = (key ^ secret) * UINT64_C(0x9E3779B97F4A7C15) + more * UINT64_C(0xC2B2AE3D27D4EB4F);
    hash ^= hash >> 32;
    hash *= UINT64_C(0xD6E8FEB86659FD93);
    return (size_t)(hash ^ hash >> 32);
}

static bool map_grow(Map *map) {
    size_t room = map->slots ? (map->mask + 1) * 2 : 64;
    MapSlot *slots = calloc(room, sizeof *slots);
    if (!slots) return false;
    for (size_t old = 0; map->slots && old <= map->mask; old++) {
        if (!map->slots[old].value) continue;
        size_t at = map_place(map->slots[old].key, map->slots[old].more) & (room - 1);
        while (slots[at].value) at = (at + 1) & (room - 1);
        slots[at] = map->slots[old];
    }
    free(map->slots);
    map->slots = slots;
    map->mask = room - 1;
    return true;
}

/* The number of a key; the next one, `count`, for a new key, or UINT32_MAX if there is no memory for it. */
static uint32_t map_number(Map *map, uint64_t key, uint64_t more) {
    if ((!map->slots || map->count * 2 > map->mask) && !map_grow(map)) return UINT32_MAX;
    size_t at = map_place(key, more) & map->mask;
    for (; map->slots[at].value; at = (at + 1) & map->mask)
        if (map->slots[at].key == key && map->slots[at].more == more) return map->slots[at].value - 1;
    map->slots[at] = (MapSlot){key, more, ++map->count};
    return map->count - 1;
}

/* The number of a key, or UINT32_MAX if it is not there. */
static inline uint32_t map_find(const Map *map, uint64_t key, uint64_t more) {
    if (!map->slots) return UINT32_MAX;
    size_t at = map_place(key, more) & map->mask;
    for (; map->slots[at].value; at = (at + 1) & map->mask)
        if (map->slots[at].key == key && map->slots[at].more == more) return map->slots[at].value - 1;
    return UINT32_MAX;
}

static void map_free(Map *map) {
    free(map->slots);
    memset(map, 0, sizeof *map);
}

/* A text in the array `texts` of a sequence. */
typedef struct {
    size_t begin, length;
} Text;

/* Its code among the texts of the columns, if it was looked up in this round. */
typedef struct {
    Text text;
    int32_t code;
    uint32_t round;
} Interned;

typedef struct {
    Text tid, category;
} Lane;

typedef struct {
    uint32_t place;
    bool valid, has_clock;
    uint32_t clock;
    uint64_t track;
    Array counters, doubles; /* uint64: tracks of values that events do not name */
    Map interned, lanes;
    Array interned_texts; /* Interned, by number; names of arguments and strings in quotes */
    Array lane_texts;     /* Lane, by number */
    Array texts;
} Sequence;

typedef struct {
    int64_t offset;
    uint64_t unit, last;
    bool incremental;
} Clock;

typedef struct {
    uint64_t id;
    uint8_t ends;
} Flow;

typedef struct {
    uint64_t uuid;
    bool is_double;
    int64_t number;
    double real;
} Counted;

typedef struct {
    uint8_t kind;
    bool has_name;
    uint64_t track, name_iid, id;
    Bytes name;
    bool real_value;
    int64_t value;
    double real;
    uint64_t duration;
} Event;

/* The texts are in Decoder.plan_texts. */
typedef struct {
    Text pid, tid;
    Text name, series; /* of a counter; the series is in quotes */
    int64_t multiplier;
    bool differences;
    double sum;
    int32_t pid_code, tid_code;
    uint32_t round; /* of the codes */
} Track;

typedef struct {
    uint64_t low, high;
    Text kind;
} FlowKind;

typedef struct {
    bool rewriting;
    int64_t only; /* a sequence, or -1 for all */
    bool failed;  /* no memory */
    uint64_t counts[COUNTED];
    uint64_t unread[MOST_NUMBERS + 1];
    bool has_real, has_times;
    int64_t real_offset, first_ns, last_ns;
    Map sequence_numbers;
    Array sequences; /* Sequence * */
    Map clock_numbers;
    Array clocks; /* Clock */
    uint32_t trace_clock;
    Map track_numbers;
    /* Of the index. */
    Array uuids, tracks, times, halves, flow_ids, flow_times, flow_ends;
    Array latest;    /* Latest, by track */
    Array durations_found; /* int64: of each begin, -1 as long as it is open */
    uint64_t never_begun;
    bool unordered;  /* on some track time goes back: the durations are not right */
    Array described;                                                            /* Described */
    Array described_bytes;
    /* Of the event that is read. */
    Array categories; /* Field: interned or inline */
    Array flows;      /* Flow */
    Array counted;    /* Counted */
    Array annotations; /* Bytes */
    Array json;        /* a value that is JSON in the file, with a brace after it */
    /* Of the rewriter. */
    int64_t base_ns;
    Array plan_texts, planned /* Track */, flow_kinds /* FlowKind */;
    Py_buffer durations, phases;
    size_t begins, flows_done;
    EventColumns columns;
    Array out;  /* arguments as JSON */
    Array text; /* a name or a category */
    uint32_t round; /* of columns: codes are looked up once in each */
    int32_t phase_codes[128]; /* NO_TEXT: not looked up */
} Decoder;

typedef struct {
    int64_t time;
    bool seen, at_once;
    Array open; /* Open: slices that have begun */
} Latest;

typedef struct {
    int64_t time;
    uint64_t number; /* among all begins */
} Open;

typedef struct {
    uint64_t number, begin, length;
} Described;

#define AT(array, kind, index) (((kind *)(array).data)[index])
#define COUNT_OF(array, kind) ((array).size / sizeof(kind))

static inline uint64_t number_in(const Field *field) { return field->wire == WIRE_BYTES ? 0 : field->value; }

/* --- texts --- */

static inline void put(Array *out, const void *bytes, size_t count) { array_append(out, bytes, count); }
#define PUT(out, literal) put(out, literal, sizeof literal - 1)

static inline Bytes view_of(const Array *texts, Text text) { return bytes_of(texts->data + text.begin, text.length); }

static void put_text(Decoder *decoder, Array *out, Bytes text) {
    decoder->counts[NOT_UTF8] += append_text(out, text.at, text.end, false);
}

static void put_quoted(Decoder *decoder, Array *out, Bytes text) {
    decoder->counts[NOT_UTF8] += append_quoted(out, text.at, text.end);
}

/* --- sequences --- */

static void sequence_clear(Sequence *sequence) {
    map_free(&sequence->interned);
    map_free(&sequence->lanes);
    array_free(&sequence->counters);
    array_free(&sequence->doubles);
    array_free(&sequence->interned_texts);
    array_free(&sequence->lane_texts);
    array_free(&sequence->texts);
    *sequence = (Sequence){.place = sequence->place};
}

/* NULL if there are too many, or no memory, which sets `failed`. */
static Sequence *sequence_at(Decoder *decoder, uint32_t place) {
    if (decoder->sequence_numbers.count == MOST_SEQUENCES &&
        map_find(&decoder->sequence_numbers, place, 0) == UINT32_MAX)
        return NULL;
    decoder->failed = true; /* until it is there */
    uint32_t number = map_number(&decoder->sequence_numbers, place, 0);
    if (number == COUNT_OF(decoder->sequences, Sequence *)) {
        Sequence *made = calloc(1, sizeof *made);
        if (!made) return NULL;
        made->place = place;
        array_append(&decoder->sequences, &made, sizeof made);
        if (decoder->sequences.failed) {
            free(made);
            return NULL;
        }
    }
    if (number == UINT32_MAX) return NULL;
    decoder->failed = false;
    return AT(decoder->sequences, Sequence *, number);
}

static Text add_text(Decoder *decoder, Array *texts, Bytes text, bool is_quoted) {
    size_t begin = texts->size;
    (is_quoted ? put_quoted : put_text)(decoder, texts, text);
    return (Text){begin, texts->size - begin};
}

static Bytes shortened(Decoder *decoder, Bytes text) {
    if (bytes_left(&text) <= LONGEST_INTERNED) return text;
    decoder->counts[SHORTENED]++;
    const uint8_t *end = text.at + LONGEST_INTERNED;
    while (end > text.at && (*end & 0xC0) == 0x80) end--;
    return (Bytes){text.at, end, false};
}

static bool equals(Bytes text, const char *word) {
    size_t length = strlen(word);
    return bytes_left(&text) == length && memcmp(text.at, word, length) == 0;
}

/* The tid of a queue: the number of a stream, or its name without the number that torch sorts by. */
static Text add_lane(Decoder *decoder, Array *texts, Bytes name) {
    const uint8_t *at = name.at;
    if (at < name.end && *at == '[') {
        const uint8_t *digits = at + 1, *p = digits;
        while (p < name.end && *p >= '0' && *p <= '9') p++;
        if (p > digits && name.end - p >= 2 && p[0] == ']' && p[1] == ' ') at = p + 2;
    }
    Bytes rest = {at, name.end, false};
    if (name.end - at > 7 && memcmp(at, "stream ", 7) == 0) {
        const uint8_t *p = at + 7;
        while (p < name.end && *p >= '0' && *p <= '9') p++;
        if (p == name.end && p - (at + 7) <= 18) rest.at = at + 7;
    }
    return add_text(decoder, texts, rest, false);
}

static Text add_stage_category(Decoder *decoder, Array *texts, Bytes name, uint64_t category) {
    static const char *const stages[][2] = {
        {"Kernel", "kernel"}, {"Memcpy", "gpu_memcpy"}, {"Memset", "gpu_memset"}, {"Annotation", "gpu_user_annotation"}};
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
        if (equals(name, stages[i][0])) name = bytes_of(stages[i][1], strlen(stages[i][1])), category = 0;
    return add_text(decoder, texts, category == 2 ? bytes_of("kernel", 6) : name, false);
}

static void set_interned(Decoder *decoder, Sequence *sequence, uint32_t table, uint64_t iid, Text text) {
    uint32_t number = map_number(&sequence->interned, iid, table);
    Interned interned = {.text = text};
    if (number == UINT32_MAX) decoder->failed = true;
    else if (number == COUNT_OF(sequence->interned_texts, Interned)) array_append(&sequence->interned_texts, &interned, sizeof interned);
    else AT(sequence->interned_texts, Interned, number) = interned;
}

static bool intern(Decoder *decoder, Sequence *sequence, Bytes data) {
    Field field;
    while (next_field(&data, &field)) {
        uint32_t table = field.number;
        bool wanted = table == CATEGORIES || table == NAMES || table == ARG_NAMES || table == STRINGS ||
                      table == KERNELS || table == SPECS;
        if (!wanted) continue;
        uint64_t iid = 0, category = 0;
        Bytes text = bytes_of("", 0), demangled = text, entry = field.bytes;
        Field inner;
        while (next_field(&entry, &inner)) {
            if (inner.number == INTERNED_IID) iid = number_in(&inner);
            else if (inner.number == INTERNED_TEXT) text = inner.bytes;
            else if (inner.number == KERNEL_DEMANGLED && table == KERNELS) demangled = inner.bytes;
            else if (inner.number == SPEC_CATEGORY && table == SPECS) category = number_in(&inner);
        }
        if (entry.damaged) return false;
        text = shortened(decoder, bytes_left(&demangled) ? demangled : text);
        bool is_quoted = table == ARG_NAMES || table == STRINGS;
        set_interned(decoder, sequence, table, iid, add_text(decoder, &sequence->texts, text, is_quoted));
        if (table == SPECS) {
            Lane lane = {add_lane(decoder, &sequence->texts, text),
                         add_stage_category(decoder, &sequence->texts, text, category)};
            uint32_t number = map_number(&sequence->lanes, iid, 0);
            if (number == UINT32_MAX) decoder->failed = true;
            else if (number == COUNT_OF(sequence->lane_texts, Lane)) array_append(&sequence->lane_texts, &lane, sizeof lane);
            else AT(sequence->lane_texts, Lane, number) = lane;
        }
    }
    if (sequence->texts.failed || sequence->interned_texts.failed || sequence->lane_texts.failed) decoder->failed = true;
    return !data.damaged;
}

static bool set_defaults(Decoder *decoder, Sequence *sequence, Bytes data) {
    sequence->has_clock = false;
    sequence->track = 0;
    sequence->counters.size = sequence->doubles.size = 0;
    Field field;
    while (next_field(&data, &field)) {
        if (field.number == PACKET_CLOCK) {
            sequence->has_clock = true;
            sequence->clock = (uint32_t)number_in(&field);
        } else if (field.number == PACKET_TRACK_EVENT) {
            Bytes inside = field.bytes;
            Field inner;
            while (next_field(&inside, &inner)) {
                uint64_t value = number_in(&inner);
                if (inner.number == EVENT_TRACK) sequence->track = value;
                else if (inner.number == EVENT_EXTRA_TRACK) array_append(&sequence->counters, &value, sizeof value);
                else if (inner.number == EVENT_EXTRA_DOUBLE_TRACK) array_append(&sequence->doubles, &value, sizeof value);
            }
            if (inside.damaged) return false;
        }
    }
    if (sequence->counters.failed || sequence->doubles.failed) decoder->failed = true;
    return !data.damaged;
}

/* --- clocks --- */

typedef struct {
    uint32_t place, clock;
    uint64_t time, unit;
    bool incremental;
} Reading;

static inline uint32_t clock_place(uint32_t place, uint32_t clock) { return clock >= 64 && clock < 128 ? place : 0; }

static Clock *clock_at(Decoder *decoder, uint32_t place, uint32_t clock) {
    uint32_t number = map_find(&decoder->clock_numbers, clock, place);
    return number == UINT32_MAX ? NULL : &AT(decoder->clocks, Clock, number);
}

static void set_clock(Decoder *decoder, uint32_t place, uint32_t clock, Clock value) {
    uint32_t number = map_number(&decoder->clock_numbers, clock, place);
    if (number == UINT32_MAX) decoder->failed = true;
    else if (number == COUNT_OF(decoder->clocks, Clock)) array_append(&decoder->clocks, &value, sizeof value);
    else AT(decoder->clocks, Clock, number) = value;
    if (decoder->clocks.failed) decoder->failed = true;
}

static bool set_clocks(Decoder *decoder, uint32_t place, Bytes data) {
    Array readings = {0};
    uint32_t primary = 0;
    Field field;
    bool good = true;
    while (good && next_field(&data, &field)) {
        if (field.number == SNAPSHOT_PRIMARY) primary = (uint32_t)number_in(&field);
        if (field.number != SNAPSHOT_CLOCK) continue;
        Reading reading = {.unit = 1};
        Bytes inside = field.bytes;
        Field inner;
        while (next_field(&inside, &inner)) {
            uint64_t value = number_in(&inner);
            if (inner.number == CLOCK_ID) reading.clock = (uint32_t)value;
            else if (inner.number == CLOCK_TIME) reading.time = value;
            else if (inner.number == CLOCK_INCREMENTAL) reading.incremental = value != 0;
            else if (inner.number == CLOCK_UNIT) reading.unit = value ? value : 1;
        }
        good = !inside.damaged;
        reading.place = clock_place(place, reading.clock);
        if ((unsigned __int128)reading.time * reading.unit < (unsigned __int128)FARTHEST_NS)
            array_append(&readings, &reading, sizeof reading);
    }
    good = good && !data.damaged;
    if (readings.failed) decoder->failed = true;
    size_t count = COUNT_OF(readings, Reading);
    if (good && !decoder->failed) {
        if (!decoder->trace_clock) {
            decoder->trace_clock = primary ? primary : BOOTTIME;
            set_clock(decoder, 0, decoder->trace_clock, (Clock){0, 1, 0, false});
        }
        const Reading *base = NULL;
        for (size_t i = 0; !base && i < count; i++) {
            const Reading *one = &AT(readings, Reading, i);
            if (one->clock == decoder->trace_clock && one->place == 0) base = one;
        }
        for (size_t i = 0; !base && i < count; i++) {
            const Reading *one = &AT(readings, Reading, i);
            if (clock_at(decoder, one->place, one->clock)) base = one;
        }
        if (!base && count) {
            base = &AT(readings, Reading, 0);
            set_clock(decoder, base->place, base->clock, (Clock){0, base->unit, base->time, base->incremental});
        }
        if (base && !decoder->failed) {
            __int128 at = (__int128)(base->time * base->unit) + clock_at(decoder, base->place, base->clock)->offset;
            bool near = at > -(__int128)FARTHEST_NS && at < (__int128)FARTHEST_NS;
            for (size_t i = 0; near && i < count; i++) {
                const Reading *one = &AT(readings, Reading, i);
                int64_t own = (int64_t)(one->time * one->unit);
                if (one->clock != decoder->trace_clock || one->place != 0)
                    set_clock(decoder, one->place, one->clock,
                              (Clock){(int64_t)(at - own), one->unit, one->time, one->incremental});
                if (one->clock == REALTIME && one->place == 0 && !decoder->has_real) {
                    decoder->has_real = true;
                    decoder->real_offset = (int64_t)(own - at);
                }
            }
        }
    }
    array_free(&readings);
    return good;
}

enum { TIME_KNOWN, TIME_OF_NO_CLOCK, TIME_FAR };

static int resolve_time(Decoder *decoder, const Sequence *sequence, uint32_t clock, uint64_t raw, int64_t *time) {
    if (!clock && sequence->has_clock) clock = sequence->clock;
    __int128 found = raw;
    if (clock && clock != (decoder->trace_clock ? decoder->trace_clock : BOOTTIME)) {
        Clock *known = clock_at(decoder, clock_place(sequence->place, clock), clock);
        if (!known) return TIME_OF_NO_CLOCK;
        if (known->incremental) raw = known->last += raw;
        unsigned __int128 scaled = (unsigned __int128)raw * known->unit;
        if (scaled > (unsigned __int128)1 << 100) return TIME_FAR;
        found = (__int128)scaled + known->offset;
    }
    if (found <= -(__int128)FARTHEST_NS || found >= (__int128)FARTHEST_NS) return TIME_FAR;
    *time = (int64_t)found;
    return TIME_KNOWN;
}

/* --- track events --- */

static uint8_t legacy_kind(uint64_t phase) {
    switch (phase) {
    case 'B': case 'E': case 'X': case 's': case 't': case 'f': return (uint8_t)phase;
    case 'I': case 'i': case 'R': return 'i';
    case 'S': case 'b': return 'b';
    case 'F': case 'e': return 'e';
    case 'T': case 'p': case 'n': return 'n';
    default: return 0;
    }
}

static bool parse_legacy(Decoder *decoder, Event *event, Bytes data) {
    uint64_t phase = 0, duration = 0, direction = 0, bind = 0;
    Field field;
    while (next_field(&data, &field)) {
        uint64_t value = number_in(&field);
        switch (field.number) {
        case LEGACY_NAME_IID: if (!event->name_iid) event->name_iid = value; break;
        case LEGACY_PHASE: phase = value; break;
        case LEGACY_DURATION: duration = value < (uint64_t)(FARTHEST_NS / 1000) ? value : (uint64_t)(FARTHEST_NS / 1000); break;
        case LEGACY_ID: case LEGACY_LOCAL_ID: case LEGACY_GLOBAL_ID: event->id = value; break;
        case LEGACY_BIND_ID: bind = value; break;
        case LEGACY_DIRECTION: direction = value; break;
        default: break;
        }
    }
    if (data.damaged) return false;
    if (!event->kind) {
        event->duration = duration * 1000;
        event->kind = legacy_kind(phase);
        if ((event->kind == 's' || event->kind == 't' || event->kind == 'f') && bind) event->id = bind;
    }
    if (direction && bind) {
        Flow flow = {bind, direction == 1};
        array_append(&decoder->flows, &flow, sizeof flow);
    }
    return true;
}

static void add_counted(Decoder *decoder, const Array *uuids, const Array *defaults, const Array *values, bool is_double) {
    const Array *tracks = uuids->size ? uuids : defaults;
    size_t count = COUNT_OF(*values, int64_t), most = COUNT_OF(*tracks, uint64_t);
    for (size_t i = 0; i < count && i < most; i++) {
        Counted one = {.uuid = AT(*tracks, uint64_t, i), .is_double = is_double};
        if (is_double) one.real = AT(*values, double, i);
        else one.number = AT(*values, int64_t, i);
        array_append(&decoder->counted, &one, sizeof one);
    }
}

static bool parse_event(Decoder *decoder, const Sequence *sequence, Bytes data, Event *event) {
    *event = (Event){.track = sequence->track};
    decoder->categories.size = decoder->flows.size = decoder->counted.size = decoder->annotations.size = 0;
    uint64_t type = 0;
    Bytes legacy = bytes_of("", 0);
    Array counters = {0}, doubles = {0}, values = {0}, double_values = {0};
    Field field;
    while (next_field(&data, &field)) {
        switch (field.number) {
        case EVENT_TYPE: type = number_in(&field); break;
        case EVENT_TRACK: event->track = number_in(&field); break;
        case EVENT_NAME_IID: event->name_iid = number_in(&field); break;
        case EVENT_NAME:
            event->has_name = true;
            event->name = field.bytes;
            break;
        case EVENT_CATEGORY_IID: case EVENT_CATEGORY: array_append(&decoder->categories, &field, sizeof field); break;
        case EVENT_ANNOTATION: array_append(&decoder->annotations, &field.bytes, sizeof field.bytes); break;
        case EVENT_OLD_FLOW: case EVENT_OLD_FLOW_END: case EVENT_FLOW: case EVENT_FLOW_END: {
            Flow flow = {number_in(&field), field.number == EVENT_OLD_FLOW_END || field.number == EVENT_FLOW_END};
            array_append(&decoder->flows, &flow, sizeof flow);
            break;
        }
        case EVENT_VALUE:
            event->real_value = false;
            event->value = (int64_t)number_in(&field);
            break;
        case EVENT_DOUBLE:
            event->real_value = true;
            event->real = double_of(&field);
            break;
        case EVENT_EXTRA_TRACK: {
            uint64_t value = number_in(&field);
            array_append(&counters, &value, sizeof value);
            break;
        }
        case EVENT_EXTRA_DOUBLE_TRACK: {
            uint64_t value = number_in(&field);
            array_append(&doubles, &value, sizeof value);
            break;
        }
        case EVENT_EXTRA_VALUE: array_append_i64(&values, (int64_t)number_in(&field)); break;
        case EVENT_EXTRA_DOUBLE: {
            double value = double_of(&field);
            array_append(&double_values, &value, sizeof value);
            break;
        }
        case EVENT_LEGACY: legacy = field.bytes; break;
        default: break;
        }
    }
    bool good = !data.damaged;
    event->kind = type == 1 ? 'B' : type == 2 ? 'E' : type == 3 ? 'i' : type == 4 ? 'C' : 0;
    if (good && bytes_left(&legacy)) good = parse_legacy(decoder, event, legacy);
    add_counted(decoder, &counters, &sequence->counters, &values, false);
    add_counted(decoder, &doubles, &sequence->doubles, &double_values, true);
    if (counters.failed || doubles.failed || values.failed || double_values.failed || decoder->categories.failed ||
        decoder->flows.failed || decoder->counted.failed || decoder->annotations.failed)
        decoder->failed = true;
    array_free(&counters);
    array_free(&doubles);
    array_free(&values);
    array_free(&double_values);
    return good;
}

/* --- the index --- */

static void extend(Decoder *decoder, int64_t begin, int64_t end) {
    if (!decoder->has_times || begin < decoder->first_ns) decoder->first_ns = begin;
    if (!decoder->has_times || end > decoder->last_ns) decoder->last_ns = end;
    decoder->has_times = true;
}

/* UINT32_MAX if there are too many. */
static uint32_t track_number(Decoder *decoder, uint64_t uuid) {
    if (decoder->track_numbers.count == MOST_TRACKS) return map_find(&decoder->track_numbers, uuid, 0);
    uint32_t number = map_number(&decoder->track_numbers, uuid, 0);
    if (number == COUNT_OF(decoder->uuids, uint64_t)) {
        Latest latest = {0};
        array_append(&decoder->uuids, &uuid, sizeof uuid);
        array_append(&decoder->latest, &latest, sizeof latest);
        if (decoder->uuids.failed || decoder->latest.failed) decoder->failed = true;
    }
    if (number == UINT32_MAX) decoder->failed = true;
    return decoder->failed ? UINT32_MAX : number;
}

static void index_event(Decoder *decoder, int64_t time, const Event *event) {
    uint32_t track = track_number(decoder, event->track);
    if (track == UINT32_MAX) {
        decoder->counts[NO_TRACK]++;
        return;
    }
    extend(decoder, time, time + (int64_t)event->duration);
    for (size_t i = 0; i < COUNT_OF(decoder->counted, Counted); i++) track_number(decoder, AT(decoder->counted, Counted, i).uuid);
    if (decoder->failed) return;
    if (event->kind == 'B' || event->kind == 'E') {
        Latest *latest = &AT(decoder->latest, Latest, track);
        uint8_t half = event->kind == 'B' ? BEGIN : latest->at_once && latest->time == time ? END_AT_ONCE : END;
        if (latest->seen && time < latest->time) decoder->unordered = true;
        latest->seen = true;
        latest->time = time;
        latest->at_once = half != END;
        if (half == BEGIN) {
            Open open = {time, COUNT_OF(decoder->durations_found, int64_t)};
            array_append(&latest->open, &open, sizeof open);
            array_append_i64(&decoder->durations_found, -1);
            if (latest->open.failed || decoder->durations_found.failed) decoder->failed = true;
        } else if (latest->open.size) {
            latest->open.size -= sizeof(Open);
            const Open *open = (const Open *)(latest->open.data + latest->open.size);
            AT(decoder->durations_found, int64_t, open->number) = time - open->time;
        } else {
            decoder->never_begun++;
        }
        array_append_i32(&decoder->tracks, (int32_t)track);
        array_append_i64(&decoder->times, time);
        array_append(&decoder->halves, &half, 1);
    }
    if (event->kind == 'E' || event->kind == 'C') return;
    for (size_t i = 0; i < COUNT_OF(decoder->flows, Flow); i++) {
        Flow *flow = &AT(decoder->flows, Flow, i);
        array_append(&decoder->flow_ids, &flow->id, sizeof flow->id);
        array_append_i64(&decoder->flow_times, time);
        array_append(&decoder->flow_ends, &flow->ends, 1);
    }
}

static void index_stage(Decoder *decoder, int64_t time, Bytes data) {
    uint64_t duration = 0;
    bool found = false;
    Field field;
    while (next_field(&data, &field))
        if (field.number == STAGE_DURATION && !found) {
            duration = number_in(&field);
            found = true;
        }
    if (data.damaged) decoder->counts[DAMAGED]++;
    else extend(decoder, time, time + (int64_t)(duration < (uint64_t)FARTHEST_NS ? duration : (uint64_t)FARTHEST_NS));
}

/* --- the rewriter --- */

/* An interned text; nothing if it is missing, which is counted. */
static Bytes interned_text(Decoder *decoder, const Sequence *sequence, uint32_t table, uint64_t iid) {
    uint32_t number = map_find(&sequence->interned, iid, table);
    if (number != UINT32_MAX) return view_of(&sequence->texts, AT(sequence->interned_texts, Interned, number).text);
    decoder->counts[NO_NAME]++;
    return bytes_of("", 0);
}

static void put_interned(Decoder *decoder, Array *out, const Sequence *sequence, uint32_t table, uint64_t iid) {
    Bytes text = interned_text(decoder, sequence, table, iid);
    if (!bytes_left(&text) && (table == ARG_NAMES || table == STRINGS)) text = bytes_of("\"\"", 2);
    put(out, text.at, bytes_left(&text));
}

/* The empty text stands for one that has the hash of too many others. */
static int32_t code_of_view(Decoder *decoder, Bytes text) {
    int32_t code = code_of(&decoder->columns, text.at, bytes_left(&text));
    if (code != NOT_CODED) return code;
    if (decoder->columns.marks.failed) decoder->failed = true;
    decoder->counts[NO_NAME]++;
    return EMPTY_TEXT;
}

/* The code of what was put into `text`, which is empty afterwards. */
static int32_t code_of_text(Decoder *decoder) {
    Bytes text = bytes_of(decoder->text.data, decoder->text.size);
    decoder->text.size = 0;
    return code_of_view(decoder, text);
}

static int32_t code_of_interned(Decoder *decoder, const Sequence *sequence, uint32_t table, uint64_t iid) {
    uint32_t number = map_find(&sequence->interned, iid, table);
    if (number == UINT32_MAX) {
        decoder->counts[NO_NAME]++;
        return EMPTY_TEXT;
    }
    Interned *interned = &AT(sequence->interned_texts, Interned, number);
    if (interned->round != decoder->round) {
        interned->code = code_of_view(decoder, view_of(&sequence->texts, interned->text));
        interned->round = decoder->round;
    }
    return interned->code;
}

static int32_t code_of_name(Decoder *decoder, const Sequence *sequence, const Event *event) {
    if (event->has_name) put_text(decoder, &decoder->text, event->name);
    else if (event->name_iid) return code_of_interned(decoder, sequence, NAMES, event->name_iid);
    return code_of_text(decoder);
}

/* See EventColumns.flow in readers/columns.py. */
static int64_t flow_of(Decoder *decoder, uint64_t id) {
    if (id <= INT64_MAX) return (int64_t)id;
    array_append_unsigned(&decoder->text, id);
    return -1 - (int64_t)code_of_text(decoder);
}

static EventRow row_of(Decoder *decoder, uint8_t phase, int32_t pid, int32_t tid, int64_t time) {
    int32_t *code = &decoder->phase_codes[phase & 127]; /* phases are letters */
    if (*code == NO_TEXT) *code = code_of_view(decoder, bytes_of(&phase, 1));
    return (EventRow){.codes = {[PHASE] = *code, [PID] = pid, [TID] = tid},
                      .flow = NO_NUMBER,
                      .time = time - decoder->base_ns,
                      .duration = NO_NUMBER,
                      .args = NO_OFFSET};
}

static EventRow row_on(Decoder *decoder, Track *track, uint8_t phase, int64_t time) {
    if (track->round != decoder->round) {
        track->pid_code = code_of_view(decoder, view_of(&decoder->plan_texts, track->pid));
        track->tid_code = code_of_view(decoder, view_of(&decoder->plan_texts, track->tid));
        track->round = decoder->round;
    }
    return row_of(decoder, phase, track->pid_code, track->tid_code, time);
}

static void add_row(Decoder *decoder, const EventRow *row) {
    if (!decoder->failed) add_event(&decoder->columns, row);
}

/* Take the JSON in `out` as the arguments of the next row; false if it is not an object, or too long. */
static bool take_args(Decoder *decoder, uint32_t *offset) {
    Array *out = &decoder->out, *args = &decoder->columns.column[ARGS];
    size_t size = args->size;
    PUT(out, "}"); /* what json.h needs */
    if (out->failed) return false;
    Place end = out->data + out->size;
    Place after = out->size > LONGEST_ARGS ? NULL : read_args(&decoder->columns, out->data, end, offset);
    out->size = 0;
    if (after && skip_space(after, end) == end - 1) return true;
    args->size = size;
    *offset = NO_OFFSET;
    return false;
}

static void add_count(Decoder *decoder, const Sequence *sequence, const Event *named, uint32_t number, int64_t time,
                      bool is_double, int64_t value, double real) {
    Array *out = &decoder->out;
    Track *track = &AT(decoder->planned, Track, number);
    if (track->multiplier != 1) {
        real = (is_double ? real : (double)value) * (double)track->multiplier;
        is_double = true;
    }
    if (track->differences) {
        track->sum += is_double ? real : (double)value;
        real = track->sum;
        is_double = true;
    }
    EventRow row = row_on(decoder, track, 'C', time);
    /* The name of the event is looked up even if it is not used, so that missing names are counted alike. */
    if (named) row.codes[NAME] = code_of_name(decoder, sequence, named);
    if (track->name.length) row.codes[NAME] = code_of_view(decoder, view_of(&decoder->plan_texts, track->name));
    PUT(out, "{");
    put(out, decoder->plan_texts.data + track->series.begin, track->series.length);
    PUT(out, ":");
    if (is_double) array_append_double(out, real);
    else array_append_signed(out, value);
    PUT(out, "}");
    if (!take_args(decoder, &row.args)) decoder->counts[NO_ARGS]++;
    add_row(decoder, &row);
}

static bool put_nested(Decoder *decoder, Bytes data, int depth) {
    Array *out = &decoder->out;
    if (depth > MOST_NESTED) {
        PUT(out, "null");
        return true;
    }
    uint64_t kind = 0;
    Bytes all = data;
    Field field;
    Field scalar = {0};
    while (next_field(&data, &field)) {
        if (field.number == NESTED_TYPE) kind = number_in(&field);
        else if (field.number >= NESTED_SIGNED && field.number <= NESTED_TEXT) scalar = field;
    }
    if (data.damaged) return false;
    if (kind != NESTED_IS_OBJECT && kind != NESTED_IS_LIST) {
        switch (scalar.number) {
        case NESTED_SIGNED: array_append_signed(out, (int64_t)number_in(&scalar)); break;
        case NESTED_DOUBLE: array_append_double(out, double_of(&scalar)); break;
        case NESTED_BOOL: put(out, number_in(&scalar) ? "true" : "false", number_in(&scalar) ? 4 : 5); break;
        case NESTED_TEXT:
            put_quoted(decoder, out, scalar.bytes);
            break;
        default: PUT(out, "null");
        }
        /* Damage inside a list that is not shown counts as well. */
        size_t size = out->size;
        bool good = true;
        while (good && next_field(&all, &field))
            if (field.number == NESTED_ENTRY || field.number == NESTED_ITEM) good = put_nested(decoder, field.bytes, depth + 1);
        out->size = size;
        return good;
    }
    Bytes keys = all, values = all;
    put(out, kind == NESTED_IS_OBJECT ? "{" : "[", 1);
    bool first = true, good = true, has_key = kind == NESTED_IS_LIST;
    Field key = {0}, value;
    size_t shown_end = out->size;
    while (good && next_field(&values, &value)) {
        if (value.number != NESTED_ENTRY && value.number != NESTED_ITEM) continue;
        if (kind == NESTED_IS_OBJECT) {
            has_key = false;
            while (!has_key && next_field(&keys, &key)) has_key = key.number == NESTED_KEY;
        }
        if (!first && has_key) PUT(out, ",");
        if (kind == NESTED_IS_OBJECT && has_key) {
            put_quoted(decoder, out, key.bytes);
            PUT(out, ":");
        }
        good = put_nested(decoder, value.bytes, depth + 1);
        if (has_key) shown_end = out->size;
        else out->size = shown_end;
        first = first && !has_key;
    }
    put(out, kind == NESTED_IS_OBJECT ? "}" : "]", 1);
    return good;
}

/* A value that is JSON in the file. What is not JSON is written as text. */
static void put_json(Decoder *decoder, Bytes value) {
    Array *json = &decoder->json;
    json->size = 0;
    put(json, value.at, bytes_left(&value));
    PUT(json, "}");
    if (json->failed) decoder->failed = true;
    else if (!append_json(&decoder->out, json->data, json->data + json->size)) put_quoted(decoder, &decoder->out, value);
}

/* The value of an annotation; its name is not written. */
static bool put_annotation_value(Decoder *decoder, const Sequence *sequence, Bytes data, int depth);

static bool is_value(uint32_t number) {
    return (number >= ANNOTATION_BOOL && number <= ANNOTATION_JSON) || number == ANNOTATION_TEXT_IID;
}

static bool put_annotation(Decoder *decoder, const Sequence *sequence, Bytes data, int depth) {
    Array *out = &decoder->out;
    Field field, name = {.bytes = bytes_of("", 0)};
    for (Bytes rest = data; next_field(&rest, &field);)
        if (field.number == ANNOTATION_NAME_IID || field.number == ANNOTATION_NAME) name = field;
    if (name.number == ANNOTATION_NAME_IID) put_interned(decoder, out, sequence, ARG_NAMES, number_in(&name));
    else put_quoted(decoder, out, name.bytes);
    PUT(out, ":");
    return put_annotation_value(decoder, sequence, data, depth);
}

static bool put_annotation_value(Decoder *decoder, const Sequence *sequence, Bytes data, int depth) {
    Array *out = &decoder->out;
    Bytes all = data;
    Field field, value = {0};
    bool has_entries = false, has_items = false;
    while (next_field(&data, &field)) {
        if (is_value(field.number)) value = field;
        else if (field.number == ANNOTATION_ENTRY) has_entries = has_entries || depth < MOST_NESTED;
        else if (field.number == ANNOTATION_ITEM) has_items = has_items || depth < MOST_NESTED;
    }
    size_t begin = out->size;
    if (data.damaged || begin > LONGEST_ARGS) return false;
    switch (value.number) {
    case ANNOTATION_BOOL: put(out, number_in(&value) ? "true" : "false", number_in(&value) ? 4 : 5); break;
    case ANNOTATION_UNSIGNED: case ANNOTATION_POINTER: array_append_unsigned(out, number_in(&value)); break;
    case ANNOTATION_SIGNED: array_append_signed(out, (int64_t)number_in(&value)); break;
    case ANNOTATION_DOUBLE: array_append_double(out, double_of(&value)); break;
    case ANNOTATION_TEXT: put_quoted(decoder, out, value.bytes); break;
    case ANNOTATION_TEXT_IID: put_interned(decoder, out, sequence, STRINGS, number_in(&value)); break;
    case ANNOTATION_JSON:
        if (bytes_left(&value.bytes)) put_json(decoder, value.bytes);
        else PUT(out, "null");
        break;
    case ANNOTATION_NESTED:
        if (!put_nested(decoder, value.bytes, depth + 1)) return false;
        break;
    default: PUT(out, "null");
    }
    if (!has_entries && !has_items) return true;
    out->size = begin;
    uint32_t shown = has_entries ? ANNOTATION_ENTRY : ANNOTATION_ITEM;
    put(out, has_entries ? "{" : "[", 1);
    bool first = true;
    while (next_field(&all, &field)) {
        if (field.number != ANNOTATION_ENTRY && field.number != ANNOTATION_ITEM) continue;
        size_t before = out->size;
        if (field.number == shown && !first) PUT(out, ",");
        bool good = field.number == ANNOTATION_ENTRY ? put_annotation(decoder, sequence, field.bytes, depth + 1)
                                       : put_annotation_value(decoder, sequence, field.bytes, depth + 1);
        if (!good) return false;
        if (field.number == shown) first = false;
        else out->size = before;
    }
    put(out, has_entries ? "}" : "]", 1);
    return true;
}

/* A single annotation `args` that is an object in JSON holds all arguments, as rankscope exports them. */
static bool is_exported(const Sequence *sequence, Bytes data, Bytes *args) {
    Field field, name = {0}, value = {0};
    bool nested = false;
    while (next_field(&data, &field)) {
        if (field.number == ANNOTATION_NAME_IID || field.number == ANNOTATION_NAME) name = field;
        else if (is_value(field.number)) value = field;
        else if (field.number == ANNOTATION_ENTRY || field.number == ANNOTATION_ITEM) nested = true;
    }
    if (data.damaged || nested || value.number != ANNOTATION_JSON || !bytes_left(&value.bytes) || *value.bytes.at != '{')
        return false;
    *args = value.bytes;
    if (name.number == ANNOTATION_NAME) return equals(name.bytes, "args");
    uint32_t number = name.number == ANNOTATION_NAME_IID ? map_find(&sequence->interned, number_in(&name), ARG_NAMES) : UINT32_MAX;
    if (number == UINT32_MAX) return false;
    return equals(view_of(&sequence->texts, AT(sequence->interned_texts, Interned, number).text), "\"args\"");
}

static uint32_t args_of(Decoder *decoder, const Sequence *sequence) {
    Array *out = &decoder->out;
    size_t count = COUNT_OF(decoder->annotations, Bytes);
    uint32_t offset = NO_OFFSET;
    if (!count) return offset;
    Bytes args;
    if (count == 1 && is_exported(sequence, AT(decoder->annotations, Bytes, 0), &args)) {
        put(out, args.at, bytes_left(&args));
        if (take_args(decoder, &offset)) return offset;
    }
    bool good = true;
    PUT(out, "{");
    for (size_t i = 0; good && i < count; i++) {
        if (i) PUT(out, ",");
        good = put_annotation(decoder, sequence, AT(decoder->annotations, Bytes, i), 0);
    }
    PUT(out, "}");
    if (!good || !take_args(decoder, &offset)) decoder->counts[NO_ARGS]++;
    out->size = 0;
    return offset;
}

static void add_flow(Decoder *decoder, uint64_t flow, Track *track, int64_t time) {
    size_t number = decoder->flows_done++;
    uint8_t phase = number < (size_t)decoder->phases.len ? ((const uint8_t *)decoder->phases.buf)[number] : 0;
    if (!phase) return;
    Bytes kind = bytes_of("flow", 4);
    for (size_t i = 0; i < COUNT_OF(decoder->flow_kinds, FlowKind); i++) {
        const FlowKind *range = &AT(decoder->flow_kinds, FlowKind, i);
        if (range->low <= flow && flow <= range->high) {
            kind = view_of(&decoder->plan_texts, range->kind);
            break;
        }
    }
    EventRow row = row_on(decoder, track, phase, time);
    row.codes[CATEGORY] = row.codes[NAME] = code_of_view(decoder, kind);
    row.flow = flow_of(decoder, flow);
    add_row(decoder, &row);
}

static int32_t code_of_categories(Decoder *decoder, const Sequence *sequence) {
    Array *text = &decoder->text;
    const Field *first = (const Field *)decoder->categories.data;
    if (decoder->categories.size == sizeof *first && first->number == EVENT_CATEGORY_IID)
        return code_of_interned(decoder, sequence, CATEGORIES, number_in(first));
    for (size_t i = 0; i < COUNT_OF(decoder->categories, Field) && text->size < LONGEST_ARGS; i++) {
        const Field *category = &AT(decoder->categories, Field, i);
        if (i) PUT(text, ",");
        if (category->number == EVENT_CATEGORY_IID)
            put_interned(decoder, text, sequence, CATEGORIES, number_in(category));
        else put_text(decoder, text, category->bytes);
    }
    return code_of_text(decoder);
}

static void add_track_event(Decoder *decoder, const Sequence *sequence, int64_t time, const Event *event) {
    uint32_t number = map_find(&decoder->track_numbers, event->track, 0);
    if (number == UINT32_MAX) return;
    Track *track = &AT(decoder->planned, Track, number);
    if (event->kind == 'C') {
        add_count(decoder, sequence, event, number, time, event->real_value, event->value, event->real);
    } else if (event->kind != 'E') {
        EventRow row = row_on(decoder, track, event->kind == 'B' ? 'X' : event->kind, time);
        row.codes[CATEGORY] = code_of_categories(decoder, sequence);
        row.codes[NAME] = code_of_name(decoder, sequence, event);
        if (event->kind == 'B') {
            size_t begin = decoder->begins++;
            bool has_duration = begin < (size_t)decoder->durations.len / sizeof(int64_t);
            row.duration = has_duration ? ((const int64_t *)decoder->durations.buf)[begin] : 0;
        } else if (event->kind == 'X') {
            row.duration = (int64_t)event->duration;
        } else if (event->kind != 'i') {
            row.flow = flow_of(decoder, event->id);
        }
        row.args = args_of(decoder, sequence);
        add_row(decoder, &row);
        for (size_t i = 0; i < COUNT_OF(decoder->flows, Flow); i++)
            add_flow(decoder, AT(decoder->flows, Flow, i).id, track, time);
    }
    for (size_t i = 0; i < COUNT_OF(decoder->counted, Counted); i++) {
        const Counted *count = &AT(decoder->counted, Counted, i);
        number = map_find(&decoder->track_numbers, count->uuid, 0);
        if (number != UINT32_MAX)
            add_count(decoder, sequence, NULL, number, time, count->is_double, count->number, count->real);
    }
}

static bool is_whole(Bytes text) {
    bool is_digits = bytes_left(&text) && (*text.at != '0' || bytes_left(&text) == 1);
    for (; is_digits && text.at < text.end; text.at++) is_digits = is_digit(*text.at);
    return is_digits;
}

static bool put_extra_data(Decoder *decoder, Bytes data) {
    Array *out = &decoder->out;
    Bytes name = bytes_of("", 0), value = name;
    Field field;
    while (next_field(&data, &field)) {
        if (field.number == EXTRA_NAME) name = field.bytes;
        else if (field.number == EXTRA_VALUE) value = field.bytes;
    }
    PUT(out, ",");
    put_quoted(decoder, out, name);
    PUT(out, ":");
    Bytes digits = value;
    if (bytes_left(&digits) && *digits.at == '-') digits.at++;
    if (bytes_left(&digits) <= 18 && is_whole(digits)) put(out, value.at, bytes_left(&value));
    else put_quoted(decoder, out, value);
    return !data.damaged;
}

static bool put_launch(Array *out, Bytes data) {
    Field field;
    while (next_field(&data, &field)) {
        if (field.number != LAUNCH_GRID && field.number != LAUNCH_BLOCK) continue;
        uint32_t size[3] = {0};
        Bytes inside = field.bytes;
        Field axis;
        while (next_field(&inside, &axis))
            if (axis.number <= 3) size[axis.number - 1] = (uint32_t)number_in(&axis);
        if (inside.damaged) return false;
        if (field.number == LAUNCH_GRID) PUT(out, ",\"grid\":[");
        else PUT(out, ",\"block\":[");
        for (int i = 0; i < 3; i++) {
            if (i) PUT(out, ",");
            array_append_unsigned(out, size[i]);
        }
        PUT(out, "]");
    }
    return !data.damaged;
}

static void add_stage(Decoder *decoder, const Sequence *sequence, int64_t time, Bytes data) {
    uint64_t duration = 0, queue = 0, stage = 0;
    int64_t gpu = 0;
    Bytes all = data, name = bytes_of("", 0);
    Field field;
    while (next_field(&data, &field)) {
        switch (field.number) {
        case STAGE_DURATION:
            duration = number_in(&field);
            if (duration > (uint64_t)FARTHEST_NS) duration = (uint64_t)FARTHEST_NS;
            break;
        case STAGE_QUEUE_IID: queue = number_in(&field); break;
        case STAGE_IID: stage = number_in(&field); break;
        case STAGE_GPU: gpu = (int64_t)number_in(&field); break;
        case STAGE_NAME: name = field.bytes; break;
        case STAGE_NAME_IID: name = interned_text(decoder, sequence, NAMES, number_in(&field)); break;
        case STAGE_KERNEL_IID:
            if (!bytes_left(&name)) name = interned_text(decoder, sequence, KERNELS, number_in(&field));
            break;
        default: break;
        }
    }
    uint32_t lane = map_find(&sequence->lanes, queue, 0), kind = map_find(&sequence->lanes, stage, 0);
    array_append_signed(&decoder->text, gpu);
    int32_t pid = code_of_text(decoder);
    if (lane != UINT32_MAX)
        put_text(decoder, &decoder->text, view_of(&sequence->texts, AT(sequence->lane_texts, Lane, lane).tid));
    if (!decoder->text.size) array_append_unsigned(&decoder->text, queue); /* a queue without a name */
    Array *out = &decoder->out;
    PUT(out, "{\"device\":");
    array_append_signed(out, gpu);
    Bytes tid = bytes_of(decoder->text.data, decoder->text.size);
    if (is_whole(tid)) {
        PUT(out, ",\"stream\":");
        put(out, tid.at, bytes_left(&tid));
    }
    EventRow row = row_of(decoder, 'X', pid, code_of_text(decoder), time);
    bool good = !data.damaged;
    while (good && next_field(&all, &field)) {
        if (field.number == STAGE_EXTRA_DATA) good = put_extra_data(decoder, field.bytes);
        else if (field.number == STAGE_LAUNCH) good = put_launch(out, field.bytes);
    }
    PUT(out, "}");
    if (!good) {
        out->size = 0;
        decoder->counts[DAMAGED]++;
        return;
    }
    if (!take_args(decoder, &row.args)) decoder->counts[NO_ARGS]++;
    if (kind == UINT32_MAX) PUT(&decoder->text, "kernel");
    else put_text(decoder, &decoder->text, view_of(&sequence->texts, AT(sequence->lane_texts, Lane, kind).category));
    row.codes[CATEGORY] = code_of_text(decoder);
    uint32_t number = map_find(&sequence->interned, stage, SPECS);
    if (!bytes_left(&name) && number != UINT32_MAX)
        name = view_of(&sequence->texts, AT(sequence->interned_texts, Interned, number).text);
    put_text(decoder, &decoder->text, name);
    row.codes[NAME] = code_of_text(decoder);
    row.duration = (int64_t)duration;
    add_row(decoder, &row);
}

/* --- packets --- */

static void describe(Decoder *decoder, uint32_t number, Bytes data) {
    Described one = {number, decoder->described_bytes.size, bytes_left(&data)};
    array_append(&decoder->described, &one, sizeof one);
    array_append(&decoder->described_bytes, data.at, bytes_left(&data));
}

static bool is_other_data(uint32_t number) {
    switch (number) {
    case PACKET_CLOCKS: case PACKET_TIME: case PACKET_SEQUENCE: case PACKET_TRACK_EVENT: case PACKET_INTERNED:
    case PACKET_FLAGS: case PACKET_CLEARED: case PACKET_DROPPED: case PACKET_STAGE: case PACKET_CLOCK:
    case PACKET_DEFAULTS: case PACKET_DESCRIPTOR: case PACKET_ATTRIBUTES: case PACKET_UID: case PACKET_SYNCHRONIZATION:
    case PACKET_PID: case PACKET_FIRST: case PACKET_DROPPED_SINCE: case PACKET_MACHINE: return false;
    default: return true;
    }
}

static void read_packet(Decoder *decoder, Bytes packet) {
    Bytes all = packet;
    Field field, track_event = {0}, stage = {0}, defaults = {0}, clocks = {0};
    bool has_time = false, rare = false, interned = false;
    uint64_t raw_time = 0, flags = 0, cleared = 0, dropped = 0;
    uint32_t place = 0, clock = 0;
    while (next_field(&packet, &field)) {
        switch (field.number) {
        case PACKET_TIME:
            has_time = true;
            raw_time = number_in(&field);
            break;
        case PACKET_SEQUENCE:
            place = (uint32_t)number_in(&field);
            if (decoder->only >= 0 && place != (uint64_t)decoder->only && place != 0) return;
            break;
        case PACKET_TRACK_EVENT: track_event = field; break;
        case PACKET_INTERNED: interned = true; break;
        case PACKET_FLAGS: flags = number_in(&field); break;
        case PACKET_CLEARED: cleared = number_in(&field); break;
        case PACKET_DROPPED: dropped = number_in(&field); break;
        case PACKET_STAGE: stage = field; break;
        case PACKET_CLOCK: clock = (uint32_t)number_in(&field); break;
        case PACKET_DEFAULTS: defaults = field; break;
        case PACKET_CLOCKS: clocks = field; break;
        default: rare = true;
        }
    }
    if (packet.damaged) {
        decoder->counts[DAMAGED]++;
        return;
    }
    Sequence *sequence = sequence_at(decoder, place);
    if (!sequence) {
        decoder->counts[DAMAGED]++;
        return;
    }
    if (flags & STATE_CLEARED || cleared) {
        sequence_clear(sequence);
        sequence->valid = true;
    } else if (dropped) {
        sequence->valid = false;
    }
    bool good = !defaults.number || set_defaults(decoder, sequence, defaults.bytes);
    good = good && (!clocks.number || set_clocks(decoder, place, clocks.bytes));
    if (!good) {
        decoder->counts[DAMAGED]++;
        return;
    }
    if (interned && decoder->rewriting) {
        Bytes again = all;
        while (next_field(&again, &field))
            if (field.number == PACKET_INTERNED && !intern(decoder, sequence, field.bytes)) decoder->counts[NO_NAME]++;
    }
    if (rare && !decoder->rewriting) {
        while (next_field(&all, &field)) {
            if (field.number == PACKET_DESCRIPTOR || field.number == PACKET_ATTRIBUTES) describe(decoder, field.number, field.bytes);
            else if (is_other_data(field.number))
                decoder->unread[field.number < MOST_NUMBERS ? field.number : MOST_NUMBERS]++;
        }
    }
    bool is_event = track_event.number || stage.number;
    if (flags & NEEDS_STATE && !sequence->valid) {
        decoder->counts[NO_STATE] += is_event;
        return;
    }
    int64_t time = 0;
    int resolved = has_time ? resolve_time(decoder, sequence, clock, raw_time, &time) : TIME_KNOWN;
    if (!is_event) return;
    if (!has_time) {
        decoder->counts[NO_TIME]++;
    } else if (resolved != TIME_KNOWN) {
        decoder->counts[resolved == TIME_FAR ? FAR_TIME : NO_CLOCK]++;
    } else if (track_event.number) {
        Event event;
        if (!parse_event(decoder, sequence, track_event.bytes, &event)) decoder->counts[DAMAGED]++;
        else if (!event.kind) decoder->counts[NO_KIND]++;
        else if (decoder->rewriting) add_track_event(decoder, sequence, time, &event);
        else index_event(decoder, time, &event);
    } else if (decoder->rewriting) {
        add_stage(decoder, sequence, time, stage.bytes);
    } else {
        index_stage(decoder, time, stage.bytes);
    }
}

/* Whole packets, as cut_packets finds them, until there is enough text; returns the place of the next one. */
static const uint8_t *read_packets(Decoder *decoder, Bytes block) {
    const EventColumns *columns = &decoder->columns;
    Field field;
    while (!decoder->failed && columns->column[ARGS].size + columns->texts.data.size < ENOUGH_TEXT &&
           next_field(&block, &field))
        read_packet(decoder, field.bytes);
    return block.at;
}

/* --- Python --- */

static const char capsule_name[] = "rankscope.native.perfetto";

static void decoder_free(Decoder *decoder) {
    for (size_t i = 0; i < COUNT_OF(decoder->sequences, Sequence *); i++) {
        Sequence *sequence = AT(decoder->sequences, Sequence *, i);
        sequence_clear(sequence);
        free(sequence);
    }
    for (size_t i = 0; i < COUNT_OF(decoder->latest, Latest); i++) array_free(&AT(decoder->latest, Latest, i).open);
    map_free(&decoder->sequence_numbers);
    map_free(&decoder->clock_numbers);
    map_free(&decoder->track_numbers);
    Array *arrays[] = {
        &decoder->sequences, &decoder->clocks, &decoder->uuids, &decoder->tracks, &decoder->times, &decoder->halves,
        &decoder->flow_ids, &decoder->flow_times, &decoder->flow_ends, &decoder->latest, &decoder->durations_found, &decoder->described,
        &decoder->described_bytes, &decoder->categories, &decoder->flows, &decoder->counted, &decoder->annotations,
        &decoder->json, &decoder->plan_texts, &decoder->planned, &decoder->flow_kinds, &decoder->out, &decoder->text};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) array_free(arrays[i]);
    columns_free(&decoder->columns);
    if (decoder->durations.obj) PyBuffer_Release(&decoder->durations);
    if (decoder->phases.obj) PyBuffer_Release(&decoder->phases);
    free(decoder);
}

static void capsule_free(PyObject *capsule) { decoder_free(PyCapsule_GetPointer(capsule, capsule_name)); }

static Text add_plan_text(Decoder *decoder, PyObject *bytes, bool is_quoted) {
    char *text;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(bytes, &text, &length) < 0) return (Text){0};
    return add_text(decoder, &decoder->plan_texts, bytes_of(text, (size_t)length), is_quoted);
}

static bool read_plan(Decoder *decoder, PyObject *plan) {
    PyObject *tracks, *durations, *phases, *kinds, *words, *names;
    long long base;
    if (!PyArg_ParseTuple(plan, "LO!OOO!O!O!", &base, &PyList_Type, &tracks, &durations, &phases, &PyList_Type, &kinds,
                          &PyTuple_Type, &words, &PyTuple_Type, &names))
        return false;
    decoder->rewriting = true;
    decoder->base_ns = base;
    decoder->columns.is_lenient = true;
    for (Py_ssize_t i = 0; i < PyList_Size(tracks); i++) {
        PyObject *pid, *tid, *name, *series;
        unsigned long long uuid;
        long long multiplier;
        int differences;
        if (!PyArg_ParseTuple(PyList_GetItem(tracks, i), "KOO(OOLp)", &uuid, &pid, &tid, &name, &series, &multiplier,
                              &differences))
            return false;
        Track track = {add_plan_text(decoder, pid, false), add_plan_text(decoder, tid, false),
                       add_plan_text(decoder, name, false), add_plan_text(decoder, series, true),
                       multiplier, differences, 0, 0, 0, 0};
        array_append(&decoder->planned, &track, sizeof track);
        if (map_number(&decoder->track_numbers, uuid, 0) == UINT32_MAX) decoder->planned.failed = true;
    }
    for (Py_ssize_t i = 0; i < PyList_Size(kinds); i++) {
        PyObject *name;
        unsigned long long low, high;
        if (!PyArg_ParseTuple(PyList_GetItem(kinds, i), "KKO", &low, &high, &name)) return false;
        FlowKind kind = {low, high, add_plan_text(decoder, name, false)};
        array_append(&decoder->flow_kinds, &kind, sizeof kind);
    }
    if (PyErr_Occurred()) return false;
    if (decoder->plan_texts.failed || decoder->planned.failed || decoder->flow_kinds.failed) {
        PyErr_NoMemory();
        return false;
    }
    return PyObject_GetBuffer(durations, &decoder->durations, PyBUF_SIMPLE) == 0 &&
           PyObject_GetBuffer(phases, &decoder->phases, PyBUF_SIMPLE) == 0 &&
           columns_init(&decoder->columns, words, names);
}

static PyObject *perfetto_decoder(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *plan;
    long long only;
    if (!PyArg_ParseTuple(arguments, "LO", &only, &plan)) return NULL;
    if (!secret) secret = (uint64_t)(uintptr_t)&plan * UINT64_C(0x9E3779B97F4A7C15) | 1;
    Decoder *decoder = calloc(1, sizeof *decoder);
    if (!decoder) return PyErr_NoMemory();
    decoder->only = only;
    PyObject *capsule = NULL;
    if (plan == Py_None || read_plan(decoder, plan)) capsule = PyCapsule_New(decoder, capsule_name, capsule_free);
    if (!capsule) decoder_free(decoder);
    return capsule;
}

static Decoder *decoder_of(PyObject *capsule) { return PyCapsule_GetPointer(capsule, capsule_name); }

static PyObject *perfetto_add(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *capsule;
    Py_buffer block;
    Py_ssize_t begin;
    if (!PyArg_ParseTuple(arguments, "Oy*n", &capsule, &block, &begin)) return NULL;
    Decoder *decoder = decoder_of(capsule);
    if (!decoder || begin < 0 || begin > block.len) {
        PyBuffer_Release(&block);
        return decoder ? PyErr_Format(PyExc_ValueError, "no place in the block") : NULL;
    }
    const uint8_t *data = block.buf, *next = data;
    Py_BEGIN_ALLOW_THREADS
    decoder->round++;
    memset(decoder->phase_codes, 0xFF, sizeof decoder->phase_codes); /* NO_TEXT */
    if (decoder->rewriting && !columns_start(&decoder->columns)) decoder->failed = true;
    else next = read_packets(decoder, bytes_of(data + begin, (size_t)(block.len - begin)));
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&block);
    if (decoder->failed || decoder->out.failed || decoder->text.failed) return PyErr_NoMemory();
    PyObject *columns = decoder->rewriting ? columns_to_python(&decoder->columns) : Py_NewRef(Py_None);
    return columns ? Py_BuildValue("(Nn)", columns, (Py_ssize_t)(next - data)) : NULL;
}

static PyObject *counts_of(const uint64_t *counts, size_t size) {
    PyObject *list = PyList_New((Py_ssize_t)size);
    for (size_t i = 0; list && i < size; i++) PyList_SetItem(list, (Py_ssize_t)i, PyLong_FromUnsignedLongLong(counts[i]));
    return list;
}

static PyObject *perfetto_counts(PyObject *module, PyObject *capsule) {
    (void)module;
    Decoder *decoder = decoder_of(capsule);
    return decoder ? counts_of(decoder->counts, COUNTED) : NULL;
}

static PyObject *optional(bool known, int64_t value) { return known ? PyLong_FromLongLong(value) : Py_NewRef(Py_None); }

static PyObject *described_list(const Decoder *decoder) {
    size_t count = COUNT_OF(decoder->described, Described);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        const Described *one = &AT(decoder->described, Described, i);
        const char *data = one->length ? (const char *)decoder->described_bytes.data + one->begin : "";
        PyObject *pair = Py_BuildValue("(ky#)", (unsigned long)one->number, data, (Py_ssize_t)one->length);
        if (!pair || PyList_SetItem(list, (Py_ssize_t)i, pair) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyObject *perfetto_index(PyObject *module, PyObject *capsule) {
    (void)module;
    Decoder *decoder = decoder_of(capsule);
    if (!decoder) return NULL;
    if (decoder->described.failed || decoder->described_bytes.failed) return PyErr_NoMemory();
    PyObject *described = described_list(decoder);
    if (!described) return NULL;
    Array arrays[] = {decoder->uuids, decoder->tracks, decoder->times, decoder->halves,
                      decoder->flow_ids, decoder->flow_times, decoder->flow_ends, decoder->durations_found};
    memset(&decoder->uuids, 0, sizeof decoder->uuids);
    memset(&decoder->tracks, 0, sizeof decoder->tracks);
    memset(&decoder->times, 0, sizeof decoder->times);
    memset(&decoder->halves, 0, sizeof decoder->halves);
    memset(&decoder->flow_ids, 0, sizeof decoder->flow_ids);
    memset(&decoder->flow_times, 0, sizeof decoder->flow_times);
    memset(&decoder->flow_ends, 0, sizeof decoder->flow_ends);
    memset(&decoder->durations_found, 0, sizeof decoder->durations_found);
    PyObject *columns = arrays_to_python(arrays, sizeof arrays / sizeof *arrays);
    if (!columns) {
        Py_DECREF(described);
        return NULL;
    }
    return Py_BuildValue("(NNNNNNNN)", columns, described, counts_of(decoder->unread, MOST_NUMBERS + 1),
                         optional(decoder->has_times, decoder->first_ns), optional(decoder->has_times, decoder->last_ns),
                         optional(decoder->has_real, decoder->real_offset), PyBool_FromLong(decoder->unordered),
                         PyLong_FromUnsignedLongLong(decoder->never_begun));
}

/* Where the whole packets at the beginning of some bytes end, and those among them that hold compressed packets. */
static PyObject *cut_packets(PyObject *module, PyObject *argument) {
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(argument, &view, PyBUF_SIMPLE) < 0) return NULL;
    const uint8_t *begin = view.buf, *end = begin + view.len, *at = begin;
    Array compressed = {0};
    uint64_t missing = 0;
    bool damaged = false;
    while (at < end) {
        uint64_t length;
        if (*at != 0x0A) {
            damaged = true;
            break;
        }
        const uint8_t *content = read_varint(at + 1, end, &length);
        if (!content) {
            damaged = end - at > LONGEST_VARINT;
            break;
        }
        if (length > (uint64_t)(end - content)) {
            missing = length - (uint64_t)(end - content);
            break;
        }
        const uint8_t *next = content + length;
        if (length && (*content == 0x92 || *content == 0xAA)) {
            uint64_t tag, size;
            const uint8_t *inside = read_varint(content, next, &tag);
            if (inside) inside = read_varint(inside, next, &size);
            if (inside && (tag == (PACKET_COMPRESSED << 3 | WIRE_BYTES) || tag == (PACKET_ZSTD << 3 | WIRE_BYTES)) && size == (uint64_t)(next - inside)) {
                uint64_t entry[4] = {tag >> 3, (uint64_t)(at - begin), (uint64_t)(next - begin), (uint64_t)(inside - begin)};
                array_append(&compressed, entry, sizeof entry);
            }
        }
        at = next;
    }
    size_t whole = (size_t)(at - begin);
    PyBuffer_Release(&view);
    PyObject *list = compressed.failed ? PyErr_NoMemory() : PyList_New(0);
    for (size_t i = 0; list && i < compressed.size / (4 * sizeof(uint64_t)); i++) {
        const uint64_t *entry = &AT(compressed, uint64_t, 4 * i);
        PyObject *tuple = Py_BuildValue("(KKKK)", (unsigned long long)entry[0], (unsigned long long)entry[1],
                                        (unsigned long long)entry[2], (unsigned long long)entry[3]);
        if (!tuple || PyList_Append(list, tuple) < 0) {
            Py_DECREF(list);
            list = NULL;
        }
        Py_XDECREF(tuple);
    }
    array_free(&compressed);
    return list ? Py_BuildValue("(nKNN)", (Py_ssize_t)whole, (unsigned long long)missing, PyBool_FromLong(damaged), list)
                : NULL;
}

PyMethodDef perfetto_methods[] = {
    {"perfetto_decoder", perfetto_decoder, METH_VARARGS,
     "perfetto_decoder(sequence, plan): a decoder that makes the index (plan is None) or rewrites events. All functions "
     "are called by rankscope.readers.perfetto.decoder."},
    {"perfetto_add", perfetto_add, METH_VARARGS,
     "perfetto_add(decoder, block, begin): events as columns, or None for the index, and where in the block the next call begins."},
    {"perfetto_counts", perfetto_counts, METH_O, "perfetto_counts(decoder): what was lost or repaired."},
    {"perfetto_index", perfetto_index, METH_O, "perfetto_index(decoder): the index; the decoder is empty afterwards."},
    {"cut_packets", cut_packets, METH_O, "cut_packets(bytes): end, missing bytes, damaged, compressed packets."},
    {NULL, NULL, 0, NULL},
};
