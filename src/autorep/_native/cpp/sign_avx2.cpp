// Short comparison keys with AES instructions.
#include "sign_avx2.inc"
