/* Throws damaged batches at the compiled loops, built together with them under sanitizers (test_kernels_fuzz.py).
 *
 * Usage: fuzz_kernels CORPUS SEED ROUNDS. The corpus is a sequence of (u32 size, batch), uncompressed and whole.
 * Each input lies in memory of exactly its size, so that a byte too many is found. Writes what was reached, as JSON:
 * a fuzzer whose inputs are all refused at the door has looked at nothing.
 */

#include <stdio.h>
#include <stdlib.h>

#include KERNELS

#define MOST_INPUTS 256
#define MOST_ROWS 4096
#define MOST_BYTES (1 << 16)

static uint64_t state;

static uint64_t chance(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? (state >> 11) % below : 0;
}

static struct { uint8_t *bytes; int64_t size; } corpus[MOST_INPUTS];
static int64_t inputs, right_batches, right_plain, right_bodies, right_records, right_headers, laid_out, refused_layouts;

static void *exactly(int64_t size)
{
    void *memory = malloc(size ? (size_t)size : 1);
    if (!memory)
        abort();
    return memory;
}

static void write_number(uint8_t *to, int bytes, uint64_t value)
{
    for (int byte = bytes - 1; byte >= 0; byte--, value >>= 8)
        to[byte] = (uint8_t)value;
}

static const uint8_t EXTREMES[][10] = {
    {0xFF, 0xFF, 0xFF, 0xFF, 0x0F}, {0xFE, 0xFF, 0xFF, 0xFF, 0x0F}, {0x80, 0x80, 0x80, 0x80, 0x08},
    {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01}, {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02},
};

/* One of the corpus, or the beginning of one and the end of another, with some bytes changed; the caller frees it. */
static uint8_t *damaged(int64_t *size)
{
    int64_t one = (int64_t)chance((uint64_t)inputs), other = chance(8) ? one : (int64_t)chance((uint64_t)inputs);
    int64_t head = corpus[one].size, tail = 0;
    if (one != other) {
        head = (int64_t)chance((uint64_t)head + 1);
        tail = (int64_t)chance((uint64_t)corpus[other].size + 1);
    } else if (!chance(4))
        head = (int64_t)chance((uint64_t)head + 1);
    uint8_t *bytes = exactly(*size = head + tail);
    memcpy(bytes, corpus[one].bytes, (size_t)head);
    memcpy(bytes + head, corpus[other].bytes + corpus[other].size - tail, (size_t)tail);
    for (int64_t left = (int64_t)chance(6); *size > 0 && left > 0; left--) {
        int64_t at = (int64_t)chance((uint64_t)*size);
        if (*size > HEADER_BYTES && chance(8))
            at = HEADER_BYTES + (int64_t)chance((uint64_t)(*size - HEADER_BYTES));
        const uint8_t *extreme = EXTREMES[chance(sizeof EXTREMES / sizeof *EXTREMES)];
        switch (chance(4)) {
        case 0:
            bytes[at] = (uint8_t)chance(256);
            break;
        case 1:
            bytes[at] ^= (uint8_t)(1 << chance(8));
            break;
        case 2:
            bytes[at] = (uint8_t)(bytes[at] + (chance(2) ? 2 : -2)); /* the next varint: one more, or less */
            break;
        default:
            for (int64_t byte = 0; byte < 10 && at + byte < *size; byte++)
                bytes[at + byte] = extreme[byte];
        }
    }
    return bytes;
}

static void try_batch(uint8_t *bytes, int64_t size, int64_t rows)
{
    int64_t *found = exactly(7 * 8);
    if (size >= HEADER_BYTES && chance(16)) { /* past the header's rules, mostly */
        write_number(bytes, 8, 0);
        write_number(bytes + 8, 4, (uint64_t)(size - LENGTH_END));
        write_number(bytes + 57, 4, (uint64_t)rows);
        write_number(bytes + 23, 4, (uint64_t)(rows - 1));
    }
    right_batches += sparklog_inspect_batch(bytes, size, NULL, 0, found) == 0;
    if (size >= HEADER_BYTES) { /* the same as if it were compressed, with its records somewhere else */
        int64_t plain_size = size - HEADER_BYTES;
        uint8_t *plain = exactly(plain_size);
        memcpy(plain, bytes + HEADER_BYTES, (size_t)plain_size);
        bytes[22] = (uint8_t)chance(6);
        right_plain += sparklog_inspect_batch(bytes, size, plain, plain_size, found) == 0;
        free(plain);
    }
    free(found);
}

static void try_records(const uint8_t *body, int64_t size, int64_t rows)
{
    int64_t *delta = exactly(8 * rows), *stopped = exactly(8);
    uint8_t *keyless = exactly(rows);
    int64_t right = sparklog_inspect_records(body, size, rows, delta, keyless, stopped);
    if (right < 0 || right > rows || *stopped < 0 || *stopped > size)
        abort();
    right_records += right;
    free(delta);
    free(stopped);
    free(keyless);
}

static void use_fields(const uint8_t *body, int64_t size, int64_t rows, const int64_t *fields, int column)
{
    const int64_t *position = fields + column * rows, *length = fields + (column + 1) * rows;
    int64_t total = 0;
    for (int64_t row = 0; row < rows; row++)
        total += length[row] > 0 ? length[row] : 0;
    int32_t *offsets = exactly(4 * (rows + 1)), *start = exactly(4 * rows), *sizes = exactly(4 * rows);
    uint8_t *validity = exactly((rows + 7) / 8), *out = exactly(total), *views = exactly(16 * rows);
    uint32_t *hashes = exactly(4 * rows);
    memset(validity, 0, (size_t)((rows + 7) / 8));
    if (sparklog_cut(body, size, rows, position, length, offsets, validity, out, total) != 0)
        abort();
    if (total && sparklog_cut(body, size, rows, position, length, offsets, validity, out, total - 1) != -1)
        abort();
    for (int64_t row = 0; row < rows; row++) {
        start[row] = (int32_t)position[row];
        sizes[row] = length[row] > 0 ? (int32_t)length[row] : 0;
    }
    sparklog_views(body, rows, start, sizes, views);
    sparklog_murmur2(body, rows, start, sizes, hashes);
    int64_t *numbers = exactly(8 * rows), *rest = exactly(8 * rows), room = 0;
    for (int64_t row = 0; row < rows; row++) {
        numbers[row] = row;
        rest[row] = varint_size(sizes[row]) + sizes[row] + 2;
        if (!chance(50))
            rest[row] += (int64_t)chance(5) - 2; /* a caller's mistake must not write elsewhere */
        room += rest[row] > 0 ? rest[row] + 21 : 21;
    }
    if (!chance(4))
        room = (int64_t)chance((uint64_t)room + 1);
    const uint8_t *buffers[] = {body};
    uint64_t buffer_sizes[] = {(uint64_t)size};
    struct views column_views = {views, buffers, buffer_sizes, NULL}, none = {NULL, NULL, NULL, NULL};
    uint8_t *laid = exactly(room);
    int32_t *starts = exactly(4 * (rows + 1));
    int64_t written = sparklog_lay_out(rows, numbers, numbers, rest, &column_views, &none, NULL, &none, laid, room, starts);
    if (written > room)
        abort();
    laid_out += written >= 0;
    refused_layouts += written < 0;
    int64_t header_room = total + 10 * rows;
    if (!chance(4))
        header_room = (int64_t)chance((uint64_t)header_room + 1);
    uint8_t *laid_headers = exactly(header_room);
    if (sparklog_lay_out_headers(rows, &column_views, &none, laid_headers, header_room, starts) > header_room)
        abort();
    free(laid_headers);
    free(offsets), free(start), free(sizes), free(validity), free(out), free(views), free(hashes);
    free(numbers), free(rest), free(laid), free(starts);
}

static void use_headers(const uint8_t *body, int64_t rows, int64_t *fields)
{
    const int64_t *count = fields + HEADER_COUNT * rows, *end = fields + END * rows;
    int64_t total = 0;
    for (int64_t row = 0; row < rows; row++)
        total += count[row];
    if (!chance(8))
        total = (int64_t)chance((uint64_t)total + 1); /* a caller's mistake must not write elsewhere */
    int64_t *spans = exactly(4 * 8 * total);
    int64_t right = sparklog_parse_headers(body, rows, count, fields + HEADER_POSITION * rows, end, total, spans);
    if (right < 0 || right > rows)
        abort();
    right_headers += right == rows ? total : 0;
    free(spans);
}

static void try_bodies(const uint8_t *body, int64_t size, int64_t rows)
{
    int64_t bodies = 1 + (int64_t)chance(3), start[3], end[3], count[3], last[3], left = rows;
    for (int64_t number = 0; number < bodies; number++) {
        int is_last = number == bodies - 1;
        start[number] = number ? end[number - 1] : 0;
        end[number] = is_last ? size : start[number] + (int64_t)chance((uint64_t)(size - start[number]) + 1);
        count[number] = is_last ? left : (int64_t)chance((uint64_t)left + 1);
        left -= count[number];
        count[number] += chance(8) ? 0 : (int64_t)chance(5) - 2; /* then there is no room for all, or too much */
        last[number] = chance(8) ? rows : (int64_t)chance((uint64_t)rows + 1);
    }
    int64_t *fields = exactly(9 * 8 * rows);
    if (sparklog_parse_records(body, bodies, start, end, count, last, rows, fields) == 0) {
        right_bodies++;
        use_fields(body, size, rows, fields, KEY_POSITION);
        use_fields(body, size, rows, fields, VALUE_POSITION);
        use_headers(body, rows, fields);
    }
    free(fields);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    FILE *file = fopen(argv[1], "rb");
    uint32_t size;
    while (file && inputs < MOST_INPUTS && fread(&size, 4, 1, file) == 1 && size <= MOST_BYTES) {
        corpus[inputs].bytes = exactly(corpus[inputs].size = size);
        if (fread(corpus[inputs].bytes, 1, size, file) != size)
            return 2;
        inputs++;
    }
    if (!file || fclose(file) || !inputs)
        return 2;
    state = strtoull(argv[2], NULL, 10) * 0x9E3779B97F4A7C15u + 1;
    for (uint64_t left = strtoull(argv[3], NULL, 10); left > 0; left--) {
        int64_t length;
        uint8_t *bytes = damaged(&length);
        int64_t rows = length >= HEADER_BYTES ? read_big(bytes + 57, 4) : 0;
        if (rows < 0 || rows > MOST_ROWS || !chance(16))
            rows = (int64_t)chance(MOST_ROWS);
        else if (rows > 4 && !chance(4))
            rows -= (int64_t)chance(3); /* fewer than there are */
        if (length >= HEADER_BYTES) {
            int64_t body_size = length - HEADER_BYTES;
            uint8_t *body = exactly(body_size);
            memcpy(body, bytes + HEADER_BYTES, (size_t)body_size);
            try_records(body, body_size, rows);
            try_bodies(body, body_size, rows);
            free(body);
        }
        try_batch(bytes, length, rows);
        free(bytes);
    }
    for (int64_t number = 0; number < inputs; number++)
        free(corpus[number].bytes);
    printf("{\"batches\": %lld, \"compressed\": %lld, \"bodies\": %lld, \"records\": %lld, \"headers\": %lld, \"laid_out\": %lld, \"refused\": %lld}\n",
           (long long)right_batches, (long long)right_plain, (long long)right_bodies, (long long)right_records, (long long)right_headers,
           (long long)laid_out, (long long)refused_layouts);
    return 0;
}
