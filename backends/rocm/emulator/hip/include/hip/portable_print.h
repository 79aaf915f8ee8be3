// printf and assert of device code. A call is a record in a buffer of the host's, which prints it when the launch has
// ended: {bytes of the record, number of arguments, the format's address, each argument in 8 bytes}.
#pragma once

#if defined(__HIP__)
struct portable_hip_print_buffer {
    unsigned long long used, size;  // bytes of `records`
    char records[1];
};
// Set by the runtime where it loads the code.
__attribute__((device, weak, visibility("default"))) portable_hip_print_buffer *portable_hip_print_to;

template <class T> PORTABLE_HIP_DEVICE unsigned long long portable_hip_print_word(T value) {
    unsigned long long word = 0;
    if constexpr (__is_same(T, float))
        word = __builtin_bit_cast(unsigned long long, (double)value);
    else if constexpr (__is_integral(T) && sizeof(T) < 8)
        word = (unsigned long long)(long long)value;
    else {
        static_assert(sizeof(T) <= 8, "printf: an argument of more than 8 bytes");
        __builtin_memcpy(&word, &value, sizeof(T));
    }
    return word;
}

template <class... A> __attribute__((device, noinline)) int portable_hip_print(const char *format, A... words) {
    portable_hip_print_buffer *to = portable_hip_print_to;
    const unsigned long long bytes = 8 * (3 + sizeof...(A));
    const unsigned long long at = __hip_atomic_fetch_add(&to->used, bytes, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    if (at + bytes > to->size) return -1;
    auto *record = (unsigned long long *)(to->records + at);
    *record++ = bytes;
    *record++ = sizeof...(A);
    *record++ = (unsigned long long)format;
    ((*record++ = words), ...);
    return 0;
}
template <class... A> PORTABLE_HIP_DEVICE int printf(const char *format, A... arguments) {
    return portable_hip_print(format, portable_hip_print_word(arguments)...);
}

PORTABLE_HIP_DEVICE void __assert_fail(const char *assertion, const char *file, unsigned line, const char *function) {
    printf("%s:%u: %s: Device-side assertion `%s' failed.\n", file, line, function, assertion);
    __builtin_trap();
}
#endif
