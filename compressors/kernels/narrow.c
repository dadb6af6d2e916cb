/* Numbers of few bits with a scale for every chunk, on a CPU: the way there, which leaves the error, and back.
 *
 * Twin: bits/narrow.py, whose floating-point operations these loops repeat one by one, in its order; so results are the
 * same to the bit. A lot of elements goes through all loops while the L1 cache holds it. Compilers vectorise each loop:
 * it has no branch, no table and no call. native.py builds and loads this file.
 */
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "codes are packed for processors whose lowest byte comes first"
#endif

enum { LOT = 1024 };                            /* elements that are coded at once */
enum { FP32_SCALE, E8M0_SCALE, E4M3_SCALE };    /* as Format.scale */
/* In the order of FORMATS, then of WIDE. */
enum { FP8, FP8_E5M2, INT8, INT4, MXFP8, MXFP8_E5M2, MXFP6, MXFP6_E3M2, MXFP4, NVFP4, BF16, FP16 };

#define INLINE static inline __attribute__((always_inline))
#define EACH(i, count) _Pragma("omp simd") for (int64_t i = 0; i < (count); i++)

typedef struct {
    int bits, exponent;
    float largest;
} Number;  /* as narrow.Number */

static const Number E4M3 = {8, 4, 448}, E5M2 = {8, 5, 57344}, E2M3 = {6, 2, 7.5f}, E3M2 = {6, 3, 28}, E2M1 = {4, 2, 6};
static const Number WHOLE8 = {8, 0, 127}, WHOLE4 = {4, 0, 7};
static const Number UPPER = {16, 8, __builtin_inff()}, HALF = {16, 5, __builtin_inff()};
static const float NEAREST = 12582912;  /* 1.5 x 2^23: a sum with it has no bits for a fraction */
static const int32_t INFINITE = 0x7F800000, NOT_A_NUMBER = 0x7FC00000, SIGN = INT32_MIN;

INLINE int32_t bits_of(float value) { int32_t bits; memcpy(&bits, &value, 4); return bits; }
INLINE float float_of(int32_t bits) { float value; memcpy(&value, &bits, 4); return value; }
INLINE int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int32_t largest_of(int32_t a, int32_t b) { return a > b ? a : b; }
INLINE int mantissa(Number n) { return n.bits - 1 - n.exponent; }
INLINE int least(Number n) { return 2 - (1 << (n.exponent - 1)); }
INLINE int most(Number n) { return (bits_of(n.largest) >> 23) - 127; }

INLINE float sound(float scale)
{
    int32_t bits = bits_of(scale);
    return float_of(bits >= INFINITE ? NOT_A_NUMBER : bits < 0x00800000 ? 0 : bits);
}

INLINE float power(int32_t exponent)  /* 2^(exponent - 127); 255 and -1 stand for NaN */
{
    int32_t bits = exponent == 0 ? 1 << 22 : (int32_t)((uint32_t)exponent << 23);
    return float_of(exponent == 255 || exponent == -1 ? NOT_A_NUMBER : bits);
}

INLINE float limited(float value, float limit)
{
    value = value > limit ? limit : value;
    return value < -limit ? -limit : value;
}

/* The bits of the largest magnitude; a NaN is larger than all numbers. */
INLINE int32_t largest(const float *x, int64_t count)
{
    int32_t high = 0;
    _Pragma("omp simd reduction(max:high)") for (int64_t i = 0; i < count; i++)
        high = largest_of(high, bits_of(x[i]) & ~SIGN);
    return high;
}

INLINE int32_t binade(float value, Number n)  /* the exponent at its place in the bits, the smallest number's at least */
{
    return largest_of(bits_of(value) & INFINITE, (least(n) + 127) << 23);
}

/* The code of the number nearest to a value of at most the largest number, halves to even, and that number. What is
 * added leaves the mantissa's bits behind the point; the bits of the sum hold those of the number. */
INLINE int32_t nearest(float value, Number n, float *number)
{
    const int32_t sign = bits_of(value) & SIGN;
    if (!n.exponent) {
        const float moved = value + NEAREST;
        *number = float_of(bits_of(moved - NEAREST) | sign);
        return bits_of(moved) & ((1 << n.bits) - 1);
    }
    const int32_t exponent = binade(value, n);
    const float much = float_of((int32_t)((uint32_t)exponent + ((23 - mantissa(n)) << 23 | 1 << 22)));
    const float high = float_of(bits_of(value) & ~SIGN) + much;
    *number = float_of(bits_of(high - much) | sign);
    const int32_t binades = (exponent >> 23) - (least(n) + 127);
    return ((bits_of(high) & 0x3FFFFF) + (binades << mantissa(n))) | (int32_t)((uint32_t)sign >> (32 - n.bits));
}

/* What a code stands for; above the largest number NaN. */
INLINE float standing_for(int32_t code, Number n)
{
    if (!n.exponent)
        return (float)((int32_t)((uint32_t)code << (32 - n.bits)) >> (32 - n.bits));
    const int32_t size = code & ((1 << (n.bits - 1)) - 1);
    const int32_t sign = (int32_t)((uint32_t)code << (32 - n.bits)) & SIGN;
    const int32_t binades = largest_of(size >> mantissa(n), 1) - 1;
    const float unit = float_of((binades + least(n) - mantissa(n) + 127) << 23);
    const float value = (float)(size - (binades << mantissa(n))) * unit;
    return float_of((value > n.largest ? NOT_A_NUMBER : bits_of(value)) | sign);
}

/* The nearest number of 16 bits; above the largest one it is infinity. */
INLINE uint16_t nearest_wide(float value, Number n)
{
    const int32_t size = bits_of(value) & ~SIGN, infinite = ((1 << n.exponent) - 1) << mantissa(n);
    float number;
    int32_t code;
    if (n.exponent == UPPER.exponent)
        code = (int32_t)((uint32_t)size + 0x7FFF + (size >> 16 & 1)) >> 16;
    else
        code = size >= bits_of(65520) ? infinite : nearest(float_of(size), n, &number);
    code = size > INFINITE ? infinite | 1 << (mantissa(n) - 1) : code;
    return (uint16_t)(code | (int32_t)((uint32_t)bits_of(value) >> 31 << 15));
}

INLINE float wide(uint16_t code, Number n)
{
    if (n.exponent == UPPER.exponent)
        return float_of((int32_t)((uint32_t)code << 16));
    const int32_t sign = (int32_t)((uint32_t)code << 16) & SIGN, infinite = sign | INFINITE | (code & 0x3FF) << 13;
    return float_of((code & 0x7C00) == 0x7C00 ? infinite : bits_of(standing_for(code, n)));
}

/* One of the two numbers beside a value, at random; a draw just below 1 is rounded to 1 in the sum. */
INLINE float drawn(float value, float noise, Number n)
{
    if (!n.exponent)
        return limited(__builtin_floorf(value + noise), n.largest);
    const int32_t unit = largest_of(binade(value, n) - (mantissa(n) << 23), 1 << 23);
    return limited(__builtin_floorf(value * float_of((254 << 23) - unit) + noise) * float_of(unit), n.largest);
}

/* Codes of 8, 6 or 4 bits, a byte each, without a bit between them: the first is the lowest. */
INLINE void pack(const uint8_t *restrict codes, int64_t count, int bits, uint8_t *restrict packed)
{
    if (bits == 8)
        memcpy(packed, codes, count);
    else if (bits == 4)
        EACH(i, count / 2)
        {
            uint16_t two;
            memcpy(&two, codes + 2 * i, 2);
            packed[i] = (uint8_t)(two | two >> 4);
        }
    else {
        uint32_t joined[LOT / 4];
        EACH(i, count / 4)
        {
            uint32_t four;
            memcpy(&four, codes + 4 * i, 4);
            joined[i] = (four & 63) | (four >> 2 & 63 << 6) | (four >> 4 & 63 << 12) | (four >> 6 & 63 << 18);
        }
        int64_t i = 0;
        for (; i + 1 < count / 4; i++)
            memcpy(packed + 3 * i, joined + i, 4);  /* the next three bytes replace the fourth */
        if (i < count / 4)
            memcpy(packed + 3 * i, joined + i, 3);
    }
}

/* The other way; returns where the codes are. */
INLINE const uint8_t *unpacked(const uint8_t *restrict packed, int64_t count, int bits, uint8_t *restrict codes)
{
    if (bits == 8)
        return packed;
    if (bits == 4) {
        EACH(i, count / 2)
        {
            const uint16_t two = (uint16_t)((packed[i] & 15) | (packed[i] & 240) << 4);
            memcpy(codes + 2 * i, &two, 2);
        }
        return codes;
    }
    uint32_t joined[LOT / 4];
    int64_t last = count / 4 - 1;
    for (int64_t i = 0; i < last; i++)
        memcpy(joined + i, packed + 3 * i, 4);
    joined[last] = 0;
    memcpy(joined + last, packed + 3 * last, 3);
    EACH(i, count / 4)
    {
        const uint32_t four =
            (joined[i] & 63) | (joined[i] & 63 << 6) << 2 | (joined[i] & 63 << 12) << 4 | (joined[i] & 63 << 18) << 6;
        memcpy(codes + 4 * i, &four, 4);
    }
    return codes;
}

typedef struct {
    int64_t number, of;
} Share;  /* what one thread does */

INLINE int64_t begin_of(Share share, int64_t units) { return units * share.number / share.of; }
INLINE int64_t end_of(Share share, int64_t units) { return units * (share.number + 1) / share.of; }

typedef struct {
    float *values;
    int64_t numel, chunk, chunks, parts;
    uint8_t *message;
    int keep;
    const int32_t *row, *words;
    int64_t row_numel;
    Share share;
} Way;

typedef struct {
    float step[LOT], over[LOT];  /* what a chunk's scale stands for; what its values are divided by, or multiplied by */
    int bad;                     /* whether a chunk is not finite */
} Scales;

INLINE int64_t scale_bytes(int scale) { return scale == FP32_SCALE ? 4 : 1; }
INLINE int64_t whole_bytes(int scale) { return scale == E4M3_SCALE ? 4 : 0; }

/* The scales of chunks whose largest magnitudes have the bits `high`, written as bytes, too. */
INLINE void find_scales(
    Scales *restrict found, uint8_t *restrict bytes, const int32_t *restrict high, int64_t count, Number n, int scale,
    float top)
{
    int32_t bad = 0;
    if (scale == FP32_SCALE) {
        EACH(i, count)
            found->step[i] = sound(float_of(high[i]) / n.largest);
        memcpy(bytes, found->step, 4 * count);
    } else if (scale == E8M0_SCALE)
        EACH(i, count)
        {
            const int32_t code = high[i] >= INFINITE ? 255 : largest_of((high[i] >> 23) - most(n), 0);
            bytes[i] = (uint8_t)code;
            found->step[i] = power(code);
            found->over[i] = power(254 - code);
        }
    else
        EACH(i, count)
        {
            float relative = float_of(high[i]) / n.largest / (top == 0 ? 1 : top), number;
            relative = relative < 0.015625f ? 0.015625f : relative > E4M3.largest ? E4M3.largest : relative;
            const int32_t finite = relative == relative, code = nearest(relative, E4M3, &number);
            bytes[i] = (uint8_t)(finite ? code : 0x7F);
            found->step[i] = (finite ? number : float_of(NOT_A_NUMBER)) * top;
        }
    for (int64_t i = 0; i < count; i++) {
        if (scale != E8M0_SCALE)
            found->over[i] = found->step[i] == 0 ? 1 : found->step[i];
        bad |= found->step[i] != found->step[i];
    }
    found->bad = bad;
}

/* The codes of chunks that are not finite: as in the twin, a NaN over NaN is itself, and all else is the other NaN. */
static void bad_codes(
    const float *x, const Scales *scales, int64_t rows, int64_t width, int bits, int exponent, int divides,
    uint8_t *codes)
{
    for (int64_t i = 0; i < rows * width; i++) {
        const int32_t value = bits_of(x[i]), is_nan = divides && (value & ~SIGN) > INFINITE;
        const float step = scales->step[i / width];
        if (step == step)
            continue;
        int code = bits == 4 ? (4 + (is_nan ? value & 7 : 0)) & 7 : (1 << (bits - 1)) - 1;
        codes[i] = !exponent ? 0 : (uint8_t)(code | (is_nan && value < 0 ? 1 << (bits - 1) : 0));
    }
}

/* Draws in [0, 1) for the elements from `place` on: bits/noise.py. */
static void fill_noise(const Way *way, int64_t place, int64_t count, float *noise)
{
    for (int64_t i = 0; i < count;) {
        const int64_t begin = (place + i) % way->row_numel, length = least_of(count - i, way->row_numel - begin);
        const int32_t word = way->words[(place + i) / way->row_numel], *row = way->row + begin;
        EACH(j, length)
            noise[i + j] = float_of((row[j] ^ word) | 0x3F800000) - 1;
        i += length;
    }
}

/* What is cut off; nothing of what is not finite. */
INLINE float left_of(float value, float arriving)
{
    const float left = value - arriving;
    return (bits_of(left) & ~SIGN) < INFINITE ? left : 0;
}

/* Codes of a lot: `rows` rows of `width` elements that share a scale. */
INLINE void quantise_lot(
    const Way *way, float *restrict x, const Scales *restrict scales, int64_t rows, int64_t width, int64_t place,
    Number n, int scale, uint8_t *restrict packed)
{
    float scaled[LOT], numbers[LOT], noise[LOT];
    uint8_t codes[LOT];
    const int64_t count = rows * width;
    for (int64_t r = 0; r < rows; r++) {
        const float over = scales->over[r], *row = x + r * width;
        EACH(i, width)
        {
            const float value = scale == E8M0_SCALE ? row[i] * over : row[i] / over;
            scaled[r * width + i] = scale == FP32_SCALE ? value : limited(value, n.largest);
        }
    }
    if (way->row) {
        fill_noise(way, place, count, noise);
        EACH(i, count)
            scaled[i] = drawn(scaled[i], noise[i], n);
    }
    EACH(i, count)
        codes[i] = (uint8_t)nearest(scaled[i], n, &numbers[i]);
    if (scales->bad)
        bad_codes(x, scales, rows, width, n.bits, n.exponent, scale != E8M0_SCALE, codes);
    if (way->keep)
        for (int64_t r = 0; r < rows; r++) {
            const float step = scales->step[r];
            EACH(i, width)
                x[r * width + i] = left_of(x[r * width + i], numbers[r * width + i] * step);
        }
    pack(codes, count, n.bits, packed);
}

INLINE void quantise_as(const Way *way, Number n, int scale, int block)
{
    const int64_t chunk = block ? block : way->chunk, each = way->chunks * chunk, whole = whole_bytes(scale);
    const int64_t stretch = chunk <= LOT ? LOT / chunk * chunk : chunk;
    const int64_t part_bytes = whole + way->chunks * scale_bytes(scale) + each * n.bits / 8;
    Scales scales = {.bad = 0};
    int32_t high[LOT];
    float padded[LOT], top = 0;
    const int64_t stretches = (each + stretch - 1) / stretch;
    /* A part with a scale of its own is one thread's: others would change values that the scale is found from. */
    const int64_t units = stretches * way->parts, at_once = whole && stretches ? stretches : 1;
    const int64_t begin = begin_of(way->share, units / at_once) * at_once;
    for (int64_t unit = begin; unit < end_of(way->share, units / at_once) * at_once; unit++) {
        const int64_t part = unit / stretches, first = unit % stretches * stretch;
        uint8_t *bytes = way->message + part * part_bytes + whole, *codes = bytes + way->chunks * scale_bytes(scale);
        const int64_t there = least_of(way->numel - part * each, each);  /* elements; zeros follow them */
        float *values = there > 0 ? way->values + part * each : NULL;
        if (whole && first == 0) {
            top = sound(float_of(largest(values, there)) / (n.largest * E4M3.largest));
            memcpy(bytes - whole, &top, 4);
        }
        const int64_t length = least_of(stretch, each - first);
        for (int64_t at = first; at < first + length; at += LOT) {
            const int64_t count = least_of(LOT, first + length - at), rows = chunk <= LOT ? count / chunk : 1;
            const int64_t width = chunk <= LOT ? chunk : count, given = there - at < 0 ? 0 : there - at;
            float *x = given ? values + at : padded;
            if (given < count) {
                memset(padded, 0, sizeof padded);
                if (given)
                    memcpy(padded, x, 4 * given);
                x = padded;
            }
            if (at == first) {
                if (chunk > LOT)
                    high[0] = largest(x, least_of(given, length));
                else
                    for (int64_t r = 0; r < rows; r++)
                        high[r] = largest(x + r * chunk, chunk);
                find_scales(&scales, bytes + first / chunk * scale_bytes(scale), high, rows, n, scale, top);
            }
            quantise_lot(way, x, &scales, rows, width, part * each + at, n, scale, codes + at * n.bits / 8);
            if (x == padded && given && way->keep)
                memcpy(values + at, padded, 4 * given);
        }
    }
}

/* A message of numbers of 16 bits, without scales; no part of it stands apart. */
INLINE void cast_as(const Way *way, Number n)
{
    const int64_t lots = (way->numel + LOT - 1) / LOT;
    float noise[LOT];
    uint16_t codes[LOT];
    for (int64_t lot = begin_of(way->share, lots); lot < end_of(way->share, lots); lot++) {
        const int64_t at = lot * LOT, count = least_of(LOT, way->numel - at);
        float *restrict x = way->values + at;
        if (way->row) {
            fill_noise(way, at, count, noise);
            EACH(i, count)
                codes[i] = nearest_wide(drawn(x[i], noise[i], n), n);
        } else
            EACH(i, count)
                codes[i] = nearest_wide(x[i], n);
        if (way->keep)
            EACH(i, count)
                x[i] = left_of(x[i], wide(codes[i], n));
        memcpy(way->message + 2 * at, codes, 2 * count);
    }
    const int64_t zeros = way->chunk * way->chunks * way->parts - way->numel;
    if (way->share.number == 0 && zeros)
        memset(way->message + 2 * way->numel, 0, 2 * zeros);
}

typedef struct {
    const uint8_t *const *messages;
    int64_t count, chunk, chunks;
    float *out;
    int64_t numel;
    float size;
    Share share;
} Back;

/* What the scales of `count` chunks stand for. */
INLINE void read_steps(const uint8_t *whole, const uint8_t *bytes, int64_t count, int scale, float *restrict step)
{
    float top = 0;
    if (scale == FP32_SCALE)
        memcpy(step, bytes, 4 * count);
    if (scale == E4M3_SCALE)
        memcpy(&top, whole, 4);
    EACH(i, scale == FP32_SCALE ? 0 : count)
        step[i] = scale == E8M0_SCALE ? power(bytes[i]) : standing_for(bytes[i], E4M3) * top;
}

INLINE void restore_as(const Back *back, Number n, int scale, int block)
{
    const int64_t chunk = block ? block : back->chunk, whole = whole_bytes(scale);
    const int64_t stretch = chunk <= LOT ? LOT / chunk * chunk : LOT, unit = chunk <= LOT ? stretch : chunk;
    const int64_t units = (back->numel + unit - 1) / unit;
    const int64_t end = least_of(end_of(back->share, units) * unit, back->numel);
    float numbers[LOT], step[LOT], total[LOT];
    uint8_t unpacked_codes[LOT];
    int64_t count;
    for (int64_t at = begin_of(back->share, units) * unit; at < end; at += count) {
        /* Whole chunks, or a stretch of one. */
        count = least_of(stretch, chunk <= LOT ? back->chunks * chunk - at : chunk - at % chunk);
        const int64_t rows = chunk <= LOT ? count / chunk : 1, width = chunk <= LOT ? chunk : count;
        const int64_t given = least_of(count, back->numel - at);
        float *sum = given < count ? total : back->out + at;
        for (int64_t m = 0; m < back->count; m++) {
            const uint8_t *bytes = back->messages[m] + whole, *codes = bytes + back->chunks * scale_bytes(scale);
            read_steps(back->messages[m], bytes + at / chunk * scale_bytes(scale), rows, scale, step);
            codes = unpacked(codes + at * n.bits / 8, count, n.bits, unpacked_codes);
            EACH(i, count)
                numbers[i] = standing_for(codes[i], n);
            for (int64_t r = 0; r < rows; r++) {
                const float by = step[r], *row = numbers + r * width;
                float *to = sum + r * width;
                if (m == 0)
                    EACH(i, width)
                        to[i] = row[i] * by;
                else
                    EACH(i, width)
                        to[i] += row[i] * by;
            }
        }
        if (back->size > 1)
            EACH(i, count)
                sum[i] /= back->size;
        if (given < count)
            memcpy(back->out + at, total, 4 * given);
    }
}

INLINE void restore_wide_as(const Back *back, Number n)
{
    const int64_t lots = (back->numel + LOT - 1) / LOT;
    float total[LOT];
    uint16_t codes[LOT];
    for (int64_t lot = begin_of(back->share, lots); lot < end_of(back->share, lots); lot++) {
        const int64_t at = lot * LOT, count = least_of(LOT, back->numel - at);
        for (int64_t m = 0; m < back->count; m++) {
            memcpy(codes, back->messages[m] + 2 * at, 2 * count);
            if (m == 0)
                EACH(i, count)
                    total[i] = wide(codes[i], n);
            else
                EACH(i, count)
                    total[i] += wide(codes[i], n);
        }
        if (back->size > 1)
            EACH(i, count)
                total[i] /= back->size;
        memcpy(back->out + at, total, 4 * count);
    }
}

#define FOR_EACH_FORMAT(function, plain, what)                                                  \
    switch (form) {                                                                      \
    case FP8: function(what, E4M3, FP32_SCALE, 0); break;                                \
    case FP8_E5M2: function(what, E5M2, FP32_SCALE, 0); break;                           \
    case INT8: function(what, WHOLE8, FP32_SCALE, 0); break;                             \
    case INT4: function(what, WHOLE4, FP32_SCALE, 0); break;                             \
    case MXFP8: function(what, E4M3, E8M0_SCALE, 32); break;                             \
    case MXFP8_E5M2: function(what, E5M2, E8M0_SCALE, 32); break;                        \
    case MXFP6: function(what, E2M3, E8M0_SCALE, 32); break;                             \
    case MXFP6_E3M2: function(what, E3M2, E8M0_SCALE, 32); break;                        \
    case MXFP4: function(what, E2M1, E8M0_SCALE, 32); break;                             \
    case NVFP4: function(what, E2M1, E4M3_SCALE, 16); break;                             \
    case BF16: plain(what, UPPER); break;                                                \
    case FP16: plain(what, HALF); break;                                                 \
    }

/* Do one of `shares` shares of this: write the message of `values` in `parts` parts of `chunks` chunks, and leave in
 * them what it cuts off if `keep`.
 * row, words  random bits (bits/noise.py); NULL: round to the nearest */
void wirebench_quantise(
    int64_t share, int64_t shares, int form, float *values, int64_t numel, int64_t chunk, int64_t chunks, int64_t parts, uint8_t *message,
    int keep, const int32_t *row, const int32_t *words, int64_t row_numel)
{
    const Way way = {values, numel, chunk, chunks, parts, message, keep, row, words, row_numel, {share, shares}};
    FOR_EACH_FORMAT(quantise_as, cast_as, &way)
}

/* Do one of `shares` shares of this: write the sum of what arrives of `count` messages of `chunks` chunks, in their
 * order, over `size` to `out`. */
void wirebench_restore(
    int64_t share, int64_t shares, int form, const uint8_t *const *messages, int64_t count, int64_t chunk,
    int64_t chunks, float *out, int64_t numel, float size)
{
    const Back back = {messages, count, chunk, chunks, out, numel, size, {share, shares}};
    FOR_EACH_FORMAT(restore_as, restore_wide_as, &back)
}
