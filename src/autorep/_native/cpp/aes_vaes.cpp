// AES-128 with AES instructions for two blocks each, sixteen blocks in flight.
#include "aes_avx2.inc"
