// DCF with AES instructions, eight keys in flight.
#include "dcf_avx2.inc"
