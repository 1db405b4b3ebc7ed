// Short comparison keys with AES instructions for two blocks each.
#include "sign_avx2.inc"
