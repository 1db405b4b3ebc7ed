// AES-128 with the processor's AES instructions, eight blocks in flight.
#include "aes_avx2.inc"
