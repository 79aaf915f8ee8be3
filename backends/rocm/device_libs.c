// The control constants that AMD's device libraries (ocml, ockl) read. ROCm ships them as one bitcode
// file per setting; compile.py builds this file per architecture and links it after the libraries,
// so that they fold away.

#define CONTROL(type, name, value) const __attribute__((address_space(4))) type name = value

CONTROL(unsigned char, __oclc_finite_only_opt, 0);
CONTROL(unsigned char, __oclc_unsafe_math_opt, 0);
CONTROL(unsigned char, __oclc_correctly_rounded_sqrt32, 1);
CONTROL(unsigned char, __oclc_daz_opt, 0);
CONTROL(int, __oclc_ISA_version, ISA_VERSION);
CONTROL(int, __oclc_ABI_version, 500);
#ifdef __GFX9__
CONTROL(unsigned char, __oclc_wavefrontsize64, 1);
#else
CONTROL(unsigned char, __oclc_wavefrontsize64, 0);
#endif
