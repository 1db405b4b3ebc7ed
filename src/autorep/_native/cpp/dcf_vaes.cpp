// DCF with AES instructions for two blocks each, sixteen keys in flight.
#include "dcf_avx2.inc"
