// Prints what kernels gave to printf: the records of hip/portable_print.h.
#include "call.h"

#include <stdio.h>
#include <string.h>

struct Buffer {
    uint64_t used, size;
    char records[1];
};

// One conversion, "%...d": its flags as they are, its length as ours, every argument having 8 bytes.
static void convert(const char *start, const char *end, uint64_t word) {
    char spec[64];
    size_t n = 0;
    const char *lengths = "hlLqjzt";
    for (const char *c = start; c < end - 1 && n < sizeof spec - 4; c++)
        if (!strchr(lengths, *c)) spec[n++] = *c;
    const char kind = end[-1];
    double number;
    memcpy(&number, &word, sizeof number);
    if (strchr("diouxX", kind)) {
        // An int's word is its value with its sign; as unsigned only its lower half is meant.
        const bool wide = memchr(start, 'l', (size_t)(end - start)) || memchr(start, 'z', (size_t)(end - start)) ||
                          memchr(start, 'j', (size_t)(end - start)) || memchr(start, 't', (size_t)(end - start));
        if (!wide) word = kind == 'd' || kind == 'i' ? (uint64_t)(int64_t)(int32_t)word : (uint32_t)word;
        memcpy(spec + n, "ll", 2);
        n += 2;
    }
    spec[n++] = kind;
    spec[n] = 0;
    if (kind == 's')
        printf(spec, word ? (const char *)word : "(null)");
    else if (kind == 'c')
        printf(spec, (int)word);
    else if (kind == 'p')
        printf(spec, (void *)word);
    else if (strchr("aAeEfFgG", kind))
        printf(spec, number);
    else
        printf(spec, (unsigned long long)word);
}

static void print(const char *format, const uint64_t *arguments, uint64_t count) {
    uint64_t next = 0;
    while (*format) {
        const size_t plain = strcspn(format, "%");
        fwrite(format, 1, plain, stdout);
        format += plain;
        if (!*format) return;
        const char *end = format + 1;
        while (*end && strchr("-+ #0123456789.*hlLqjzt", *end)) end++;
        if (!*end) return;
        end++;
        if (end[-1] == '%')
            fputc('%', stdout);
        else if (memchr(format, '*', (size_t)(end - format)))
            fputs("(printf: * is not emulated)", stdout), next += 2;
        else if (next < count)
            convert(format, end, arguments[next++]);
        format = end;
    }
}

// Prints and empties a buffer; returns whether text was lost.
extern "C" EXPORT int portable_hip_print_records(Buffer *buffer) {
    const uint64_t used = buffer->used;
    uint64_t at = 0;
    while (at < used && at + 24 <= buffer->size) {
        const uint64_t *record = (const uint64_t *)(buffer->records + at);
        if (record[0] < 24 || at + record[0] > buffer->size) break;
        print((const char *)record[2], record + 3, record[1]);
        at += record[0];
    }
    memset(buffer->records, 0, used < buffer->size ? used : buffer->size);  // no record is read twice
    buffer->used = 0;
    fflush(stdout);
    return used > buffer->size;
}
