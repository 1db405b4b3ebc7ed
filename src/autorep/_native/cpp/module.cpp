// The compiled module autorep._native._core: one register function per file.
#include "bindings.h"

NB_MODULE(_core, m) {
    // A server that is stopped still has threads inside kernels when Python exits; that is no leak worth a warning.
    nanobind::set_leak_warnings(false);
    m.attr("fingerprint") = AUTOREP_FINGERPRINT;  // of the sources it was built from, by CMakeLists.txt
    autorep::register_runtime(m);
    autorep::register_conv(m);
    autorep::register_prg(m);
    autorep::register_dcf(m);
    autorep::register_sign(m);
    autorep::register_bits(m);
    autorep::register_activation(m);
    autorep::register_quadratic(m);
    autorep::register_streams(m);
    autorep::register_probe(m);
    autorep::register_masked_activation(m);
    autorep::register_ot(m);
    autorep::register_ntt(m);
    autorep::register_rlwe(m);
}
