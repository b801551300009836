/* Loops over records, compiled. kernels.py calls them and says what each is for.
 *
 * Invariants: nothing outside the given arrays is read or written, whatever the bytes; nothing is allocated and
 *     nothing kept. Parsing only says that, or where, something is wrong: walk_records in records.py words the
 *     error, so that there is one set of messages.
 * Arithmetic on what was read is unsigned: it wraps, as NumPy's does.
 * No Python headers: ctypes loads this, so that one library serves all versions of Python.
 * Sources: FORMAT.md#records; Kafka DefaultRecord, Utils.murmur2; the Arrow columnar format.
 */

#include <stdint.h>
#include <string.h>

#define VARINT_BYTES 5
#define VARLONG_BYTES 10
#define INLINE_BYTES 12
#define COPY_BYTES 16
#define PREFETCH_ROWS 8
#define PREFETCH_LINES 4

/* Of the functions' arguments and meaning; kernels.py refuses a library of another one. */
int sparklog_version(void)
{
    return 6;
}

enum { TIMESTAMP_DELTA, OFFSET_DELTA, KEY_POSITION, KEY_LENGTH, VALUE_POSITION, VALUE_LENGTH, HEADER_COUNT, HEADER_POSITION, END };

static inline int64_t unzigzag(uint64_t coded)
{
    return (int64_t)((coded >> 1) ^ (0 - (coded & 1)));
}

static const uint8_t *read_long_varint(const uint8_t *at, const uint8_t *end, int most, int64_t *value)
{
    uint64_t coded = 0;
    for (int size = 0; size < most && at < end; size++) {
        uint64_t byte = *at++;
        if (size == VARLONG_BYTES - 1 && byte > 1)
            return NULL; /* more than 64 bits */
        coded |= (byte & 0x7F) << (7 * size);
        if (byte < 0x80) {
            *value = unzigzag(coded);
            return at;
        }
    }
    return NULL;
}

/* The position behind the varint, or NULL if it does not end within `most` bytes and before `end`. Nearly all take
 * one byte or two. */
static inline const uint8_t *read_varint(const uint8_t *at, const uint8_t *end, int most, int64_t *value)
{
    if (end - at >= 2) {
        uint64_t low = at[0], high = at[1];
        if (low < 0x80) {
            *value = unzigzag(low);
            return at + 1;
        }
        if (high < 0x80) {
            *value = unzigzag((low & 0x7F) | high << 7);
            return at + 2;
        }
    }
    return read_long_varint(at, end, most, value);
}

/* The same for bytes that are led by their length, -1 for none, and lie before `end`. */
static inline const uint8_t *read_sized(const uint8_t *at, const uint8_t *end, const uint8_t **bytes, int64_t *length)
{
    if (!(at = read_varint(at, end, VARINT_BYTES, length)) || *length < -1 || *length > end - at)
        return NULL;
    *bytes = at;
    return *length > 0 ? at + *length : at;
}

/* A record as it stands in a body. */
struct record {
    int64_t timestamp, offset, key_length, value_length, headers;
    const uint8_t *key, *value, *header, *close;
};

/* One record, which lies before `stop`; the position behind it, or NULL if anything is wrong. What is within its
 * headers is not looked at. */
static inline const uint8_t *read_record(const uint8_t *at, const uint8_t *stop, struct record *found)
{
    int64_t length;
    if (!(at = read_varint(at, stop, VARINT_BYTES, &length)) || length < 1 || length > stop - at)
        return NULL;
    const uint8_t *close = found->close = at + length;
    if (*at++ != 0) /* attributes */
        return NULL;
    if (!(at = read_varint(at, close, VARLONG_BYTES, &found->timestamp)))
        return NULL;
    if (!(at = read_varint(at, close, VARINT_BYTES, &found->offset)))
        return NULL;
    if (!(at = read_sized(at, close, &found->key, &found->key_length)))
        return NULL;
    if (!(at = read_sized(at, close, &found->value, &found->value_length)))
        return NULL;
    if (!(at = read_varint(at, close, VARINT_BYTES, &found->headers)))
        return NULL;
    found->header = at;
    if (found->headers < 0 || found->headers > (close - at) / 2 || (found->headers == 0 && at != close))
        return NULL;
    return close;
}

/* The records of some bodies within `data`: body b from start[b] to end[b], of count[b] records whose offset
 * deltas ascend from 0 or more to at most last_delta[b]. `fields` are the columns of RecordFields in records.py, one
 * after the other. Returns -1 if anything is wrong. */
int64_t sparklog_parse_records(const uint8_t *data, int64_t bodies, const int64_t *start, const int64_t *end,
                               const int64_t *count, const int64_t *last_delta, int64_t rows, int64_t *fields)
{
    int64_t row = 0;
    for (int64_t body = 0; body < bodies; body++) {
        const uint8_t *at = data + start[body], *stop = data + end[body];
        int64_t previous = -1;
        if (count[body] < 0 || count[body] > rows - row)
            return -1;
        for (int64_t left = count[body]; left > 0; left--, row++) {
            struct record found;
            if (!(at = read_record(at, stop, &found)) || found.offset <= previous || found.offset > last_delta[body])
                return -1;
            previous = found.offset;
            fields[TIMESTAMP_DELTA * rows + row] = found.timestamp;
            fields[OFFSET_DELTA * rows + row] = found.offset;
            fields[KEY_POSITION * rows + row] = found.key - data;
            fields[KEY_LENGTH * rows + row] = found.key_length;
            fields[VALUE_POSITION * rows + row] = found.value - data;
            fields[VALUE_LENGTH * rows + row] = found.value_length;
            fields[HEADER_COUNT * rows + row] = found.headers;
            fields[HEADER_POSITION * rows + row] = found.header - data;
            fields[END * rows + row] = found.close - data;
        }
        if (at != stop)
            return -1;
    }
    return row == rows ? 0 : -1;
}

/* The headers of some records: of record r count[r], which fill position[r] to end[r]. `spans` has four columns of
 * `total` places: position and length of each key, then of each value. Returns how many records are right from the
 * first one on. */
int64_t sparklog_parse_headers(const uint8_t *data, int64_t rows, const int64_t *count, const int64_t *position,
                               const int64_t *end, int64_t total, int64_t *spans)
{
    int64_t header = 0;
    for (int64_t row = 0; row < rows; row++) {
        const uint8_t *at = data + position[row], *close = data + end[row], *bytes;
        if (count[row] < 0 || count[row] > total - header)
            return row;
        for (int64_t left = count[row]; left > 0; left--, header++) {
            int64_t length;
            if (!(at = read_sized(at, close, &bytes, &length)) || length < 0)
                return row;
            spans[header] = bytes - data;
            spans[total + header] = length;
            if (!(at = read_sized(at, close, &bytes, &length)))
                return row;
            spans[2 * total + header] = bytes - data;
            spans[3 * total + header] = length;
        }
        if (at != close)
            return row;
    }
    return rows;
}

/* True if a record ends where its last header does. */
static inline int has_whole_headers(const struct record *found)
{
    const uint8_t *at = found->header, *bytes;
    for (int64_t left = found->headers; left > 0; left--) {
        int64_t length;
        if (!(at = read_sized(at, found->close, &bytes, &length)) || length < 0)
            return 0;
        if (!(at = read_sized(at, found->close, &bytes, &length)))
            return 0;
    }
    return at == found->close;
}

/* The records of one body, as a producer must make them: offset deltas 0, 1, 2, ... Of each only its timestamp delta
 * is kept, and whether it has no key (`keyless`, zeroed). Returns how many are right from the first one on, and in
 * `stopped` where the one behind them starts. */
int64_t sparklog_inspect_records(const uint8_t *data, int64_t size, int64_t rows, int64_t *timestamp_delta,
                                 uint8_t *keyless, int64_t *stopped)
{
    const uint8_t *at = data, *stop = data + size;
    int64_t row = 0;
    for (; row < rows; row++) {
        struct record found;
        const uint8_t *close = read_record(at, stop, &found);
        if (!close || found.offset != row || (found.headers && !has_whole_headers(&found)))
            break;
        timestamp_delta[row] = found.timestamp;
        keyless[row] = found.key_length < 0;
        at = close;
    }
    *stopped = at - data;
    return row;
}

static inline int64_t read_big(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int byte = 0; byte < bytes; byte++)
        value = value << 8 | at[byte];
    return (int64_t)(value << (64 - 8 * bytes)) >> (64 - 8 * bytes);
}

enum { RECORD_COUNT, MIN_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID, PRODUCER_EPOCH, BASE_SEQUENCE, KEYLESS };

#define HEADER_BYTES 61
#define LENGTH_END 12
#define MOST_RECORDS 1000000
#define LATEST ((int64_t)1 << 62)

#define LAST_CODEC 4

/* A batch as producers make nearly all: one, whole, with times that are there and whose largest its header knows, of
 * records as in sparklog_inspect_records. They are what `plain` has, where the batch is compressed, else its own
 * (NULL). Its CRC is not looked at. Returns -1 for everything else, which need not be wrong. */
int64_t sparklog_inspect_batch(const uint8_t *data, int64_t size, const uint8_t *plain, int64_t plain_size, int64_t *found)
{
    if (size < HEADER_BYTES || read_big(data, 8) != 0 || read_big(data + 8, 4) != size - LENGTH_END)
        return -1;
    if (data[16] != 2 || data[21] || data[22] > LAST_CODEC || !data[22] != !plain) /* magic; attributes */
        return -1;
    int64_t rows = read_big(data + 57, 4);
    if (rows < 1 || rows > MOST_RECORDS || read_big(data + 23, 4) != rows - 1)
        return -1;
    int64_t first = read_big(data + 27, 8);
    found[PRODUCER_ID] = read_big(data + 43, 8);
    found[PRODUCER_EPOCH] = read_big(data + 51, 2);
    found[BASE_SEQUENCE] = read_big(data + 53, 4);
    if (first < 0 || first > LATEST || found[PRODUCER_ID] < -1)
        return -1;
    if (found[PRODUCER_ID] >= 0 ? found[PRODUCER_EPOCH] < 0 || found[BASE_SEQUENCE] < 0
                                : found[PRODUCER_EPOCH] != -1 || found[BASE_SEQUENCE] != -1)
        return -1;
    const uint8_t *at = plain ? plain : data + HEADER_BYTES, *stop = plain ? plain + plain_size : data + size;
    int64_t lowest = LATEST, highest = -LATEST, keyless = 0;
    for (int64_t row = 0; row < rows; row++) {
        struct record record;
        if (!(at = read_record(at, stop, &record)) || record.offset != row)
            return -1;
        if (record.headers && !has_whole_headers(&record))
            return -1;
        if (record.timestamp <= -LATEST || record.timestamp >= LATEST)
            return -1;
        lowest = record.timestamp < lowest ? record.timestamp : lowest;
        highest = record.timestamp > highest ? record.timestamp : highest;
        keyless += record.key_length < 0;
    }
    if (at != stop || first + lowest < 0 || first + highest != read_big(data + 35, 8))
        return -1;
    found[RECORD_COUNT] = rows;
    found[MIN_TIMESTAMP] = first + lowest;
    found[MAX_TIMESTAMP] = first + highest;
    found[KEYLESS] = keyless;
    return 0;
}

/* Short strings dominate: whole words of 16 bytes, the last one reaching over, where there is room for it. */
static inline void copy_bytes(uint8_t *to, const uint8_t *to_end, const uint8_t *from, const uint8_t *from_end, int64_t size)
{
    if (size <= 8 * COPY_BYTES && to_end - to >= size + COPY_BYTES && from_end - from >= size + COPY_BYTES) {
        for (int64_t done = 0; done < size; done += COPY_BYTES)
            memcpy(to + done, from + done, COPY_BYTES);
    } else
        memcpy(to, from, (size_t)size);
}

/* The pieces data[position[row]:][:length[row]] as an Arrow binary column; a negative length is a null. `offsets`
 * has rows + 1 places; `validity`, zeroed, may be NULL when nothing is null. Returns -1 if `out_size` is not their
 * sum. */
int64_t sparklog_cut(const uint8_t *data, int64_t size, int64_t rows, const int64_t *position, const int64_t *length,
                     int32_t *offsets, uint8_t *validity, uint8_t *out, int64_t out_size)
{
    uint8_t *to = out, *to_end = out + out_size;
    for (int64_t row = 0; row < rows; row++) {
        offsets[row] = (int32_t)(to - out);
        if (length[row] < 0)
            continue;
        if (validity)
            validity[row >> 3] |= (uint8_t)(1 << (row & 7));
        if (length[row] > to_end - to)
            return -1;
        copy_bytes(to, to_end, data + position[row], data + size, length[row]);
        to += length[row];
    }
    offsets[rows] = (int32_t)(to - out);
    return to == to_end ? 0 : -1;
}

static inline uint8_t *write_varint(uint8_t *to, int64_t value)
{
    uint64_t coded = ((uint64_t)value << 1) ^ (0 - ((uint64_t)value >> 63));
    while (coded >= 0x80) {
        *to++ = (uint8_t)(coded | 0x80);
        coded >>= 7;
    }
    *to++ = (uint8_t)coded;
    return to;
}

static inline int64_t varint_size(int64_t value)
{
    uint64_t coded = ((uint64_t)value << 1) ^ (0 - ((uint64_t)value >> 63));
    return (70 - (coded ? __builtin_clzll(coded) : 63)) / 7;
}

/* A column of binary views (byte_views.py); no views at all = nothing but nulls. */
struct views {
    const uint8_t *views; /* 16 bytes a row */
    const uint8_t *const *buffers;
    const uint64_t *buffer_sizes;
    const uint8_t *is_null; /* a byte a row, or NULL when nothing is */
};

static inline uint8_t *write_bytes(uint8_t *to, const uint8_t *to_end, const struct views *column, int64_t row)
{
    const uint8_t *view = column->views + 16 * row;
    uint32_t size, buffer, position;
    memcpy(&size, view, 4);
    if (size > to_end - to)
        return to; /* seen by the caller: the record does not end where it should */
    if (size <= INLINE_BYTES) {
        if (to_end - to >= 12)
            memcpy(to, view + 4, 12);
        else
            memcpy(to, view + 4, size);
        return to + size;
    }
    memcpy(&buffer, view + 8, 4);
    memcpy(&position, view + 12, 4);
    const uint8_t *data = column->buffers[buffer];
    copy_bytes(to, to_end, data + position, data + column->buffer_sizes[buffer], size);
    return to + size;
}

static inline uint8_t *write_sized(uint8_t *to, const uint8_t *to_end, const struct views *column, int64_t row)
{
    if (!column->views || (column->is_null && column->is_null[row]))
        return write_varint(to, -1);
    uint32_t size;
    memcpy(&size, column->views + 16 * row, 4);
    return write_bytes(write_varint(to, size), to_end, column, row);
}

/* A partition's rows lie scattered over megabytes of what Spark sent: without this each is waited for. */
static inline void prefetch(const struct views *column, int64_t row)
{
    uint32_t size, buffer, position;
    const uint8_t *view = column->views + 16 * row;
    memcpy(&size, view, 4);
    if (size <= INLINE_BYTES)
        return;
    memcpy(&buffer, view + 8, 4);
    memcpy(&position, view + 12, 4);
    const uint8_t *data = column->buffers[buffer] + position;
    for (uint32_t done = 0; done < size && done < PREFETCH_LINES * 64; done += 64)
        __builtin_prefetch(data + done);
}

/* Records, one after the other. rest[row]: the bytes from the key length on. `starts` has rows + 1 places. Returns
 * the bytes written, or -1 if `out_size` is too small or `rest` wrong. */
int64_t sparklog_lay_out(int64_t rows, const int64_t *timestamp_delta, const int64_t *offset_delta, const int64_t *rest,
                         const struct views *key, const struct views *value, const int64_t *header_counts,
                         const struct views *headers, uint8_t *out, int64_t out_size, int32_t *starts)
{
    uint8_t *to = out, *to_end = out + out_size;
    for (int64_t row = 0; row < rows; row++) {
        if (row + PREFETCH_ROWS < rows) {
            if (key->views)
                prefetch(key, row + PREFETCH_ROWS);
            if (value->views)
                prefetch(value, row + PREFETCH_ROWS);
        }
        int64_t length = 1 + varint_size(timestamp_delta[row]) + varint_size(offset_delta[row]) + rest[row];
        if (length + VARINT_BYTES > to_end - to)
            return -1;
        starts[row] = (int32_t)(to - out);
        to = write_varint(to, length);
        uint8_t *close = to + length;
        *to++ = 0; /* attributes */
        to = write_varint(to, timestamp_delta[row]);
        to = write_varint(to, offset_delta[row]);
        to = write_sized(to, to_end, key, row);
        to = write_sized(to, to_end, value, row);
        if (header_counts) {
            to = write_varint(to, header_counts[row]);
            to = write_bytes(to, to_end, headers, row);
        } else
            *to++ = 0;
        if (to != close)
            return -1;
    }
    starts[rows] = (int32_t)(to - out);
    return to - out;
}

/* Headers, one after the other: each key with its length, each value with its. `starts` has rows + 1 places. Returns
 * the bytes written, or -1 if `out_size` is too small. */
int64_t sparklog_lay_out_headers(int64_t rows, const struct views *key, const struct views *value, uint8_t *out,
                                 int64_t out_size, int32_t *starts)
{
    uint8_t *to = out, *to_end = out + out_size;
    for (int64_t row = 0; row < rows; row++) {
        uint32_t key_size = 0, value_size = 0;
        if (key->views)
            memcpy(&key_size, key->views + 16 * row, 4);
        if (value->views)
            memcpy(&value_size, value->views + 16 * row, 4);
        if ((int64_t)key_size + value_size + 2 * VARINT_BYTES > to_end - to)
            return -1;
        starts[row] = (int32_t)(to - out);
        to = write_sized(to, to_end, key, row);
        to = write_sized(to, to_end, value, row);
    }
    starts[rows] = (int32_t)(to - out);
    return to - out;
}

/* The binary views of data[start[row]:][:length[row]]. */
void sparklog_views(const uint8_t *data, int64_t rows, const int32_t *start, const int32_t *length, uint8_t *views)
{
    for (int64_t row = 0; row < rows; row++, views += 16) {
        memset(views, 0, 16);
        memcpy(views, &length[row], 4);
        if (length[row] <= INLINE_BYTES)
            memcpy(views + 4, data + start[row], (size_t)length[row]);
        else
            memcpy(views + 12, &start[row], 4);
    }
}

#define MURMUR_M 0x5BD1E995u

/* Java's murmur2 of every row. */
void sparklog_murmur2(const uint8_t *data, int64_t rows, const int32_t *start, const int32_t *length, uint32_t *hashes)
{
    for (int64_t row = 0; row < rows; row++) {
        const uint8_t *at = data + start[row];
        uint32_t left = (uint32_t)length[row], hash = 0x9747B28Cu ^ left;
        for (; left >= 4; left -= 4, at += 4) {
            uint32_t word;
            memcpy(&word, at, 4);
            word *= MURMUR_M;
            word ^= word >> 24;
            hash = (hash * MURMUR_M) ^ (word * MURMUR_M);
        }
        if (left) {
            for (uint32_t byte = left; byte > 0; byte--)
                hash ^= (uint32_t)at[byte - 1] << (8 * (byte - 1));
            hash *= MURMUR_M;
        }
        hash ^= hash >> 13;
        hash *= MURMUR_M;
        hashes[row] = hash ^ (hash >> 15);
    }
}
